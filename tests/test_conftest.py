"""The guards of tests/conftest.py do guard."""

from __future__ import annotations

import socket

import pytest
from hypothesis import settings


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "0.0.0.0"])
def test_a_socket_to_another_machine_is_refused(host: str) -> None:
    with socket.socket() as sock, pytest.raises(PermissionError, match="stay on this machine"):
        sock.connect((host, 9))


def test_a_socket_to_this_machine_is_let_through() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()


def test_hypothesis_decides_by_itself_only_what_can_be_repeated(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--hypothesis-profile"):
        pytest.skip("another profile was asked for")
    assert settings.default is not None
    assert settings.default.derandomize
    assert settings.default.deadline is None
