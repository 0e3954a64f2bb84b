"""Options that go with every request of a tier, and the limits of connections."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.loopback import running
from tests.s3.moto_server import Door, served
from tests.s3.s3_clients import CLIENTS, new_client, new_settings, settings_at
from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import Range
from tieredstore.driver.runtime import Runtime, SystemClock
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.providers import s3_settings
from tieredstore.providers.certified import Certification
from tieredstore.providers.object_provider import ObjectProvider, open_client

LOG, INDEX = SegmentType.COMMIT_LOG, SegmentType.INDEX
MIB = 1 << 20
WAIT = 60.0
GIVEN_UP = {"s3fs": "no whole reply in|[Tt]ime", "obstore": "does not answer"}
KMS = "x-amz-server-side-encryption-aws-kms-key-id"
OPTIONS: dict[str, Any] = {
    "storage_class": "STANDARD_IA",
    "encryption": "aws:kms",
    "encryption_key": "arn:aws:kms:us-east-1:123456789012:key/k",
}


@pytest.mark.parametrize("name", CLIENTS)
def test_all_that_a_tier_writes_is_stored_and_encrypted_as_the_settings_say(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    client = open_client(new_settings(endpoint, name, **OPTIONS))
    door.made.clear()
    runtime = Runtime.inline()
    certification = Certification("require", page_keys=5)
    provider = ObjectProvider(client, "c", runtime, certification=certification)
    segment = provider.open("broker-a/T/0", LOG, 0)
    segment.write(0, bytes(9 * MIB))
    segment.write(9 * MIB, bytes(9 * MIB))
    segment.seal()  # so long that it goes up in parts
    provider.create(provider.open("broker-a/rmq_sys_INDEX/0", INDEX, 0), [bytes(MIB)] * 17)
    provider.create(provider.open("broker-a/rmq_sys_INDEX/0", INDEX, 1), [b"short"])
    provider.scratch("broker-a").put("a/small", [b"x"])
    provider.scratch("broker-a").put("a/large", [bytes(MIB)] * 17)
    segment.delete()
    certify(client, page_keys=5)
    provider.close()

    kinds = {each.kind for each in door.made}
    assert kinds == {"PUT", "POST uploads"}
    prefixes = {each.key.partition("/")[0] for each in door.made}
    assert {".rounds", ".staged", ".certify"} < prefixes
    assert sum(each.kind == "POST uploads" for each in door.made) >= 3
    for each in door.made:
        told = each.headers
        assert told.get("x-amz-storage-class") == "STANDARD_IA", each
        assert told.get("x-amz-server-side-encryption") == "aws:kms", each
        assert told.get(KMS, "").endswith("key/k"), each


class Crowd:
    """An application in front of moto's that counts how many requests are in it at once."""

    def __init__(self, inner: Any, bound: int) -> None:
        self._inner = inner
        self._bound = bound
        self.is_counting = False
        self._guard = threading.Condition()
        self._inside = 0
        self.most = 0

    def __call__(self, environ: Any, start: Any) -> Iterator[bytes]:
        if not self.is_counting or environ["REQUEST_METHOD"] != "GET":
            yield from self._inner(environ, start)
            return
        with self._guard:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._guard.notify_all()
            # Wait until the bound is reached, and then a moment for one more.
            self._guard.wait_for(lambda: self.most >= self._bound, WAIT)
            self._guard.wait_for(lambda: self.most > self._bound, 0.2)
        body = [*self._inner(environ, start)]
        with self._guard:  # before the client has its answer, and may ask for more
            self._inside -= 1
        yield from body


@pytest.mark.parametrize("name", CLIENTS)
def test_no_more_requests_are_under_way_than_connections_are_allowed(
    s3_environment: None, name: str
) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    crowd = Crowd(DomainDispatcherApplication(create_backend_app), 4)
    with (
        served(crowd) as endpoint,
        new_client(endpoint, name, connections_max=4) as client,
    ):
        client.put("k", bytes(range(100)))
        crowd.is_counting = True
        wanted = [Range("k", number, 1) for number in range(20)]
        with ThreadPoolExecutor(3) as threads:
            for got in threads.map(client.get_ranges, [wanted] * 3):
                assert got == [bytes([number]) for number in range(20)]
    assert crowd.most == 4


@pytest.mark.parametrize("name", CLIENTS)
def test_a_server_that_takes_no_connection_is_given_up_on_in_time(
    s3_environment: None, name: str
) -> None:
    clock = SystemClock()
    with ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):  # nobody accepts, so the queue fills up
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        endpoint = f"http://127.0.0.1:{full.getsockname()[1]}"
        settings = settings_at(endpoint, name, connect_timeout_ms=300, request_timeout_ms=600_000)
        client = opened.enter_context(open_client(settings))
        began = clock.monotonic()
        with pytest.raises(BackendUnavailableError):
            client.get_range("k", 0, 1)
        assert clock.monotonic() - began < WAIT


@pytest.mark.parametrize("name", CLIENTS)
def test_a_reply_that_drips_for_ever_is_given_up_on(
    s3_environment: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The reply is never silent for long, and would hold a thread and a connection for days."""
    monkeypatch.setattr(s3_settings, "WHOLE_REQUEST_MS", 700)
    wanted = [Range("k", 0, 1_000_000 + number) for number in range(3)]
    with dripping() as endpoint:
        settings = settings_at(endpoint, name, request_timeout_ms=600)
        with open_client(settings) as client:
            with pytest.raises(BackendUnavailableError, match=GIVEN_UP[name]):
                client.head("k")  # the reply's header drips too
            with pytest.raises(BackendUnavailableError, match=GIVEN_UP[name]):
                client.get_range("k", 0, 1_000_000)
            for each in client.get_ranges(wanted):
                assert isinstance(each, BackendUnavailableError)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_put_that_nobody_answers_is_given_up_on_as_early_as_a_read(
    s3_environment: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(s3_settings, "WHOLE_REQUEST_MS", 20_000)
    with dripping() as endpoint:
        settings = settings_at(endpoint, name, request_timeout_ms=300)
        with open_client(settings) as client:
            for size in (1, MIB):
                with pytest.raises(BackendUnavailableError, match="does not answer") as given:
                    client.put("k", bytes(size))
                assert "no whole reply" not in str(given.value)


@contextmanager
def dripping() -> Iterator[str]:
    """A server whose replies start at once and come byte by byte; it does not answer puts."""
    ended = threading.Event()

    class Drip(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = re.fullmatch(r"bytes=0-(\d+)", self.headers["Range"])
            assert asked is not None
            end = int(asked[1])
            self.send_response(206)
            self.send_header("Content-Length", str(end + 1))
            self.send_header("Content-Range", f"bytes 0-{end}/{end + 1}")
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.drip()

        def do_HEAD(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            self.drip()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ended.wait(WAIT)

        def drip(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                for _ in range(1000):  # a client without a limit gets another error in the end
                    if ended.wait(0.02):
                        return
                    self.wfile.write(b".")

        def log_message(self, *_: object) -> None:
            """Keep the log out of the tests' output."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Drip)) as endpoint:
        try:
            yield endpoint
        finally:
            ended.set()
