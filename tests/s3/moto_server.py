"""moto's server behind a door that counts requests and breaks them on demand.

The faults are those of HTTP. The tests choose the client that meets them.
"""

from __future__ import annotations

import io
import random
import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from tests.loopback import running
from tieredstore.testing.memory_objects import moto_application

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
SLOW_SECONDS = 0.02  # before the first byte
STALLED_SECONDS = 60.0  # at most: the first byte comes once the fault is over


@dataclass(frozen=True, slots=True)
class Made:
    """A request that makes an object or begins an upload in parts."""

    kind: str
    key: str  # relative to the bucket and `some/tier/`
    headers: Mapping[str, str] = field(repr=False)


class Door:
    """A WSGI application in front of moto's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._guard = threading.Lock()
        self._seen: list[str] = []
        self._fault: Callable[[], str | None] = lambda: None
        self.answers: dict[str, WSGIApplication] = {}
        self.headers: dict[str, str] = {}  # of the last request that changed something
        self.begun: dict[str, str] = {}  # of the last one that began an upload in parts
        self.made: deque[Made] = deque(maxlen=10_000)
        self.asked = b""  # the body of the last scripted request
        self.last = "", ""  # host and path of the last request
        self._newest = ""
        self._released = threading.Event()  # for replies that wait until the fault is over

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        with self._guard:
            self._seen.append(_kind(request))
            self.last = request.host, request.path
            fault = self._fault()
            if request.method in ("PUT", "POST"):
                self.headers = {name.lower(): value for name, value in request.headers.items()}
            if _kind(request) == "POST uploads":
                self.begun = self.headers
            if _kind(request) in ("PUT", "POST uploads"):
                key = request.path.partition("/some/tier/")[2]
                self.made.append(Made(_kind(request), key, self.headers))
            if request.method == "PUT":
                self._newest = request.path.rpartition("/")[2]
        scripted = self.answers.get(_kind(request))
        if scripted is not None:
            self.asked = request.get_data()
            return scripted(environ, start)
        if fault is None:
            return self._inner(environ, start)  # type: ignore[no-any-return]
        return self._broken(fault, request, environ, start)

    def requests(self) -> Counter[str]:
        """Counts of the requests since the last call, by kind."""
        with self._guard:
            seen, self._seen = self._seen, []
        return Counter(seen)

    @contextmanager
    def breaking(self, *faults: str, rate: float, seed: int = 1) -> Iterator[None]:
        """Let this share of all requests meet one of these faults."""
        dice = random.Random(seed)
        self._fault = lambda: dice.choice(faults) if dice.random() < rate else None
        self._released.clear()
        try:
            yield
        finally:
            self._fault = lambda: None
            self._released.set()

    def _broken(
        self, fault: str, request: Request, environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        if fault in ("503", "429"):
            request.get_data()
            return Response(BUSY, int(fault), content_type="application/xml")(environ, start)
        body, refused = request.get_data(), b""
        if fault == "partial-delete" and _kind(request) == "DELETE-MANY":
            body, refused = _half_refused(body)
            environ["CONTENT_LENGTH"] = str(len(body))
        environ["wsgi.input"] = io.BytesIO(body)  # for moto to read again
        reply = Response.from_app(self._inner, environ)
        if fault == "lost-reply":
            _hang_up(environ)
        if fault == "slow":
            threading.Event().wait(SLOW_SECONDS)
        if fault == "stalled":
            self._released.wait(STALLED_SECONDS)
        if fault == "stale-listing" and _kind(request) == "LIST":
            reply.set_data(_without_newest(reply.get_data(), self._newest))
        if refused:
            reply.set_data(reply.get_data().replace(b"</DeleteResult>", refused))
        if fault != "truncated":
            return reply(environ, start)
        whole = reply.get_data()
        cut = reply.status_code in (200, 206) and request.method == "GET" and len(whole) > 1
        if not cut:
            return reply(environ, start)
        start(reply.status, reply.headers.to_wsgi_list())
        return _cut(whole, environ)


def _cut(whole: bytes, environ: WSGIEnvironment) -> Iterator[bytes]:
    yield whole[: len(whole) // 2]
    _hang_up(environ)


def _half_refused(body: bytes) -> tuple[bytes, bytes]:
    """A batch delete of only every other key, and what its reply says of the rest."""
    objects = re.findall(rb"<Object>.*?</Object>", body, re.DOTALL)
    for left in objects[::2]:
        body = body.replace(left, b"", 1)
    keys = [re.findall(rb"<Key>.*?</Key>", left, re.DOTALL)[0] for left in objects[::2]]
    errors = b"".join(
        b"<Error>" + key + b"<Code>InternalError</Code><Message>no</Message></Error>"
        for key in keys
    )
    if len(objects) < 2:  # the request must name a key
        body = body.replace(b"</Delete>", b"<Object><Key>no/such/key</Key></Object></Delete>")
    return body, errors + b"</DeleteResult>"


def _without_newest(listing: bytes, name: str) -> bytes:
    """A listing that does not have the newest object yet."""

    def kept(found: re.Match[bytes]) -> bytes:
        return b"" if f"{name}</Key>".encode() in found[0] else found[0]

    return re.sub(rb"<Contents>.*?</Contents>", kept, listing, flags=re.DOTALL)


def _hang_up(environ: WSGIEnvironment) -> NoReturn:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("the connection breaks")


def _kind(request: Request) -> str:
    names = request.args
    if request.method == "GET" and "list-type" in names:
        return "LIST"
    if request.method == "POST" and "delete" in names:
        return "DELETE-MANY"
    for name in ("uploads", "uploadId", "lifecycle"):
        if name in names:
            return f"{request.method} {name}"
    return request.method


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        pass


def list_result(keys: Iterable[str], token: str = "") -> Response:
    """The reply to a request for a listing; it goes on where there is a token."""
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag>"
        "<LastModified>2026-10-12T17:50:00.000Z</LastModified></Contents>"
        for key in keys
    )
    more = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>"
    if token:
        more += f"<NextContinuationToken>{token}</NextContinuationToken>"
    return Response(
        f"<ListBucketResult><Name>b</Name>{more}{contents}</ListBucketResult>",
        content_type="application/xml",
    )


def delete_result(inside: str) -> Response:
    """The reply to a batch delete."""
    return Response(f"<DeleteResult>{inside}</DeleteResult>", content_type="application/xml")


def not_deleted(name: str, code: str) -> str:
    """What such a reply says of an object that stays; `name` is its whole key."""
    return f"<Error><Key>{name}</Key><Code>{code}</Code><Message>-</Message></Error>"


@contextmanager
def moto_server(*, tls: bool = False) -> Iterator[tuple[str, Door]]:
    """Run a server on loopback until the block ends; give its address and the door.

    With `tls`, its certificate is self-signed.
    """
    door = Door(moto_application())
    with served(door, tls=tls) as endpoint:
        yield endpoint, door


@contextmanager
def served(application: Any, *, tls: bool = False) -> Iterator[str]:
    """Serve this application on loopback until the block ends, and give the address."""
    server = make_server(
        "127.0.0.1",
        0,
        application,
        threaded=True,
        request_handler=_Quiet,
        ssl_context="adhoc" if tls else None,
    )
    with running(server, scheme="https" if tls else "http") as endpoint:
        yield endpoint
