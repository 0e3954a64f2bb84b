"""One line says why a request failed and what helps, alike from every client and the command."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest
from werkzeug.serving import generate_adhoc_ssl_context
from werkzeug.wrappers import Response

from tests.cli.cli_kit import Command
from tests.loopback import running
from tests.s3.conftest import s3_environment
from tests.s3.moto_server import moto_server
from tieredstore.driver.object_client import KeysExpiredError
from tieredstore.driver.retry import RetryPolicy
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    TieredStoreError,
)
from tieredstore.providers import object_provider
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.obstore import error_of
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

__all__ = ["s3_environment"]  # a fixture
pytestmark = pytest.mark.usefixtures("s3_environment")

CLIENTS = ("s3fs", "obstore")
REFUSALS = {
    "RequestTimeTooSkewed": "clock and the store's are too far apart; set the clock, by NTP",
    "InvalidAccessKeyId": "the store knows no such key id; keys come from the settings",
    "SignatureDoesNotMatch": "the secret key is not that of the key id; keys come from the",
    "ExpiredToken": "the keys have expired, so get new ones; keys come from the settings",
    "AccessDenied": "these keys do not allow it; keys come from the settings",
    "NoSuchBucket": "see its name (--bucket) and the address (--endpoint); `tieredstore create-b",
}


class Refusing(BaseHTTPRequestHandler):
    """Answers each request with the error set on the server."""

    protocol_version = "HTTP/1.1"

    def refuse(self) -> None:
        code = getattr(self.server, "code", "AccessDenied")
        body = f"<Error><Code>{code}</Code><Message>No, it says.</Message></Error>".encode()
        self.send_response(getattr(self.server, "status", 404 if code == "NoSuchBucket" else 403))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = refuse  # noqa: N815

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.refuse()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Quiet(ThreadingHTTPServer):
    """A server that prints nothing about requests that it cannot parse."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing."""


@contextmanager
def refusing(code: str, *, status: int = 0) -> Iterator[str]:
    server = Quiet(("127.0.0.1", 0), Refusing)
    server.code = code  # type: ignore[attr-defined]
    if status:
        server.status = status  # type: ignore[attr-defined]
    with running(server) as address:
        yield address


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def unknown_host() -> Iterator[str]:
    yield "http://nosuch.invalid:9000"


@contextmanager
def plain_asked_by_tls() -> Iterator[str]:
    with running(Quiet(("127.0.0.1", 0), Refusing), scheme="https") as address:
        yield address


@contextmanager
def self_signed() -> Iterator[str]:
    server: HTTPServer = Quiet(("127.0.0.1", 0), Refusing)
    server.socket = generate_adhoc_ssl_context().wrap_socket(server.socket, server_side=True)
    with running(server, scheme="https") as address:
        yield address


@contextmanager
def hanging_up() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with ExitStack() as ended:
                ended.callback(listening.close)
                while True:
                    try:
                        listening.accept()[0].close()
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


Served = Callable[[], AbstractContextManager[str]]

UNREACHED: dict[Served, str] = {
    closed_port: "{at} refuses the connection; see that the store runs and listens at this port",
    unknown_host: "no host nosuch.invalid is known to DNS; see the name in the endpoint, and",
    plain_asked_by_tls: "{at} does not speak TLS; give the endpoint as http://, or",
    self_signed: "the store's certificate is not trusted: its authority is unknown to this",
    hanging_up: "{at} closed the connection; see the store's own log, and whether it wants https",
    silent: "{at} does not answer; see that the store runs, and that no firewall is in between",
}


def name_of(served: Served) -> str:
    return getattr(served, "__name__", "")


def patience_ms(served: Served) -> int:
    """A long timeout, as a busy machine may answer late, but a short one for a silent server."""
    return 50 if served is silent else 20_000


def settings_at(
    address: str, client: str = "auto", *, request_timeout_ms: int = 20_000
) -> ObjectStoreSettings:
    return ObjectStoreSettings(
        bucket="tiers", endpoint=address, region="us-east-1",
        access_key="some-key", secret_key="some-secret", client=client,
        connect_timeout_ms=20_000, request_timeout_ms=request_timeout_ms,
    )  # fmt: skip


def failure(settings: ObjectStoreSettings) -> TieredStoreError:
    with (
        open_client(settings) as opened,
        pytest.raises(TieredStoreError) as failed,
    ):
        opened.get_range("key", 0, 4)
    return failed.value


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("served", UNREACHED, ids=name_of)
def test_what_could_not_be_reached_ends_with_why_and_what_helps(
    served: Served, client: str
) -> None:
    with served() as address:
        patience = patience_ms(served)
        error = failure(settings_at(address, client, request_timeout_ms=patience))
    assert isinstance(error, BackendError)
    assert isinstance(error, BackendUnavailableError) == (served is not self_signed)
    assert str(error).count("\n") == 0
    assert error.reason.startswith(UNREACHED[served].format(at=address)), error


@pytest.mark.parametrize(
    "said",
    [
        'hyper_util::client::legacy::Error(Canceled, hyper::Error(Canceled, "connection was not re',
        'Os { code: 32, kind: BrokenPipe, message: "Broken pipe" }',
    ],
    ids=["before the request", "within the request"],
)
def test_a_connection_closed_at_a_rarer_moment_ends_with_the_same_words(said: str) -> None:
    at = "http://127.0.0.1:9000"
    failed = OSError(f"Generic S3 error: Error performing GET {at}/tiers/key: {said}")
    error = error_of("key", "get", failed, settings_at(at))
    assert isinstance(error, BackendUnavailableError)
    assert error.reason.startswith(UNREACHED[hanging_up].format(at=at))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", REFUSALS)
def test_what_the_store_refuses_ends_with_what_its_code_means(code: str, client: str) -> None:
    with refusing(code) as address:
        error = failure(settings_at(address, client))
    assert isinstance(error, BackendRefusedError)
    assert re.search(rf": 40[34] {code} No, it says\.: .*{re.escape(REFUSALS[code])}", str(error))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", ["", "NoSuchKey"])
def test_a_server_that_knows_no_bucket_is_no_missing_object(client: str, code: str) -> None:
    """A web server, or a wrong path in the address, answers every request with 404."""
    with (
        refusing(code, status=404) as address,
        open_client(settings_at(address, client)) as opened,
    ):
        for ask in (lambda: list(opened.list()), lambda: opened.put("key", b"x")):
            with pytest.raises(BackendRefusedError, match="no bucket is there; see its name"):
                ask()
        errors = opened.delete_many(["a", "b"])  # nobody has deleted them
        assert {key: type(error) for key, error in errors.items()} == dict.fromkeys(
            "ab", BackendRefusedError
        )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_without_a_code_says_what_may_be_wrong(client: str) -> None:
    with (
        refusing("", status=403) as address,
        open_client(settings_at(address, client)) as opened,
        pytest.raises(BackendRefusedError, match=r"403.*: the keys are missing or wrong, or do no"),
    ):
        opened.head("key")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("code", "status"), [("RequestTimeTooSkewed", 403), ("ExpiredToken", 400)])
def test_a_reply_without_a_body_means_what_another_one_says(
    client: str, code: str, status: int
) -> None:
    """The reply to a HEAD: a certification must not take it for a failed check."""
    with (
        refusing(code, status=status) as address,
        open_client(settings_at(address, client)) as opened,
        pytest.raises(KeysExpiredError, match=REFUSALS[code]),
    ):
        opened.head("key")


@pytest.mark.parametrize("client", CLIENTS)
def test_what_may_be_read_but_not_asked_about_is_refused(client: str) -> None:
    with moto_server() as (address, door):
        create_bucket(settings_at(address))
        door.answers["HEAD"] = Response("", 403)
        with open_client(settings_at(address, client)) as opened:
            opened.put("key", b"x", if_absent=False)  # another test may have put it
            for key in ("key", "absent"):
                with pytest.raises(BackendRefusedError, match="403: the keys are missing"):
                    opened.head(key)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", ["PermanentRedirect", ""])
def test_a_store_that_is_elsewhere_is_refused_at_every_request(client: str, code: str) -> None:
    """S3 so answers for another region, and a proxy that wants https."""
    with (
        refusing(code, status=301) as address,
        open_client(settings_at(address, client)) as opened,
    ):
        for ask in (
            lambda: opened.head("key"),
            lambda: opened.get_range("key", 0, 4),
            lambda: list(opened.list()),
            lambda: opened.put("key", b"x"),
            lambda: create_bucket(settings_at(address)),
        ):
            with pytest.raises(BackendRefusedError, match=r"301.*: the store is elsewhere: .*regi"):
                ask()


def test_no_two_causes_have_the_same_words() -> None:
    assert len({*UNREACHED.values(), *REFUSALS.values()}) == len(UNREACHED) + len(REFUSALS)


@pytest.mark.parametrize("served", [closed_port, self_signed], ids=name_of)
def test_setting_up_a_bucket_says_the_same(served: Served) -> None:
    with served() as address, pytest.raises(BackendError) as failed:
        create_bucket(settings_at(address))
    assert failed.value.reason.startswith(UNREACHED[served].format(at=address))


@pytest.mark.parametrize(
    ("served", "said"),
    [
        *UNREACHED.items(),
        *((partial(refusing, code), said) for code, said in REFUSALS.items()),
    ],
    ids=[*map(name_of, UNREACHED), *REFUSALS],
)
def test_the_command_says_it_in_its_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    served: Served,
    said: str,
) -> None:
    monkeypatch.setattr(object_provider, "RetryPolicy", partial(RetryPolicy, retries_max=0))
    config = tmp_path / "bucket.toml"
    patience = f"request_timeout_ms = {patience_ms(served)}\n"
    config.write_text(f"provider = 's3'\nbucket = 'tiers'\n{patience}")
    with served() as address:
        ran = Command(capsys).run("topics", "--config", config, "--endpoint", address)
    ran.refused(5, said.format(at=address))
    assert not ran.err.endswith(";\n")
