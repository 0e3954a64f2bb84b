"""The guards of tests/conftest.py work."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from tests import conftest
from tests.disk_with_room import sitecustomize


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


def test_what_was_set_for_other_programs_reaches_no_test() -> None:
    others = {
        **dict.fromkeys(("https_proxy", "NO_PROXY", "AWS_PROFILE", "TIEREDSTORE_BUCKET"), "x"),
        **dict.fromkeys(("FORCE_COLOR", "COLUMNS", "GITHUB_ACTIONS", "SPARK_HOME"), "1"),
    }
    kept = {"TIEREDSTORE_S3_ENDPOINT": "http://127.0.0.1:1", "TIEREDSTORE_TIER_ON": "memory"}
    code = "import os; before = {*os.environ}; import tests.conftest; print(before - {*os.environ})"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        env={"PATH": os.environ["PATH"], **others, **kept},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(ran.stdout) == set(others)


def test_hypothesis_decides_by_itself_only_what_can_be_repeated(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--hypothesis-profile"):
        pytest.skip("another profile was asked for")
    assert settings.default is not None
    assert settings.default.derandomize
    assert settings.default.deadline is None


def test_the_disk_has_room_for_tests_and_for_the_processes_they_start(tmp_path: Path) -> None:
    code = "import shutil, sys; print(*shutil.disk_usage(sys.argv[1]))"
    total = sitecustomize.real_disk_usage(tmp_path).total
    half = (total, total // 2, total - total // 2)
    started = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(sitecustomize.FOLDER)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shutil.disk_usage(tmp_path) == half == tuple(map(int, started.stdout.split()))


@pytest.mark.parametrize(
    ("free_bytes", "flags", "roomy"),
    [(conftest.ROOM_BYTES, 0, True), (64 << 20, 0, False), (1 << 40, os.ST_NOEXEC, False)],
    ids=["room", "a container's", "no scripts"],
)
def test_temporary_folders_are_in_memory_where_stores_and_scripts_have_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, flags: int, *, roomy: bool
) -> None:
    found = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    assert conftest.has_room(tmp_path) == roomy
    assert not conftest.has_room(tmp_path / "missing")


def test_a_folder_that_was_asked_for_is_taken(tmp_path: Path) -> None:
    code = "import os, tests.conftest; print(os.environ.get('PYTEST_DEBUG_TEMPROOT'))"
    others = {name: text for name, text in os.environ.items() if name != "PYTEST_DEBUG_TEMPROOT"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        env={**others, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "None"
