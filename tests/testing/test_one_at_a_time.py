"""A WSGI application gets one request at a time, with its whole body."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.s3.s3_clients import new_settings
from tieredstore.driver.certify import certify
from tieredstore.providers.object_provider import open_client
from tieredstore.testing.memory_objects import one_at_a_time

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ASKERS = 8


def start(*_: object, **__: object) -> object:
    raise AssertionError("nobody calls it here")


def test_no_two_requests_are_in_it_at_once() -> None:
    inside: list[str] = []
    most: list[int] = []
    together = threading.Barrier(ASKERS)

    def application(environ: WSGIEnvironment, _start: StartResponse) -> Iterable[bytes]:
        inside.append(environ["PATH_INFO"])
        most.extend(len(inside) for _ in range(50_000))
        inside.remove(environ["PATH_INFO"])
        return [environ["wsgi.input"].read()]

    call = one_at_a_time(application)

    def ask(number: int) -> bytes:
        body = b"%d" % number
        together.wait(240)
        asked = {"PATH_INFO": f"/{number}", "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": "1"}
        return b"".join(call(asked, start))  # type: ignore[arg-type]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # else each request would end before another one has its turn
    try:
        with ThreadPoolExecutor(ASKERS) as pool:
            answers = list(pool.map(ask, range(ASKERS)))
    finally:
        sys.setswitchinterval(before)
    assert answers == [b"%d" % number for number in range(ASKERS)]
    assert max(most) == 1


@pytest.mark.parametrize(
    ("told", "body"),
    [({"CONTENT_LENGTH": "3"}, b"abc"), ({"wsgi.input_terminated": True}, b"abcdef"), ({}, b"")],
    ids=["so long", "in chunks", "none"],
)
def test_a_body_ends_where_the_request_says(told: dict[str, object], body: bytes) -> None:
    call = one_at_a_time(lambda environ, _start: [environ["wsgi.input"].read()])
    asked = {"wsgi.input": io.BytesIO(b"abcdef"), **told}
    assert b"".join(call(asked, start)) == body  # type: ignore[arg-type]


def test_a_server_to_try_a_tier_on_loses_no_race() -> None:
    """It starts as the documents say."""
    words = [sys.executable, "-m", "tieredstore.testing.memory_objects", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            endpoint = server.stderr.readline().strip()
            settings = new_settings(endpoint, "auto")
            with open_client(settings) as client:
                for _ in range(3):
                    assert certify(client, page_keys=5).failures == ()
        finally:
            server.terminate()
            server.communicate()
