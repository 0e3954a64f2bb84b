"""Settings for all tests: profiles of hypothesis, limits on sockets, temporary folders, free disk
space, the environment, and the marks of folders.

The fixtures of one backend or engine are in the conftest of its folder.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.disk_with_room.sitecustomize import half_full

TESTS = Path(__file__).parent

# Variables that the user may have set for other programs: proxies and keys, the look of a terminal,
# options of Python and pytest, the Spark to run.
OF_OTHERS = re.compile(
    r"(https?|ftp|all|no)_proxy|aws_.*|tieredstore_(?!s3_|tier_on).*"
    r"|columns|lines|(no|force)_color|py_colors|clicolor.*|terminal_width|tty_.*|github_actions"
    r"|python(warnings|devmode|safepath|optimize|ioencoding|utf8)|pytest_addopts|(py)?spark_.*",
    re.IGNORECASE,
)
# Not in a fixture, as libraries read the environment when they are imported.
for _name in [each for each in os.environ if OF_OTHERS.fullmatch(each)]:
    del os.environ[_name]

# Temporary folders are in memory if it has room: every acknowledged put waits for a sync, and on a
# disk the suite would mostly wait. The tests lose nothing: power cuts are simulated by a disk that
# forgets unsynced bytes, and a killed process leaves the same pages in memory as on a disk.
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30


def has_room(folder: Path) -> bool:
    """Whether the stores of all workers fit into the folder, and scripts in it can be run."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC


# Only the folders of pytest, which it removes: other leftovers of examples would fill the memory.
if "TMPDIR" not in os.environ and has_room(IN_MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

# Fast, and the same examples in every run, so that a failure is the same for everybody. Times say
# little on two shared cores, so neither a deadline nor a slow start fails a test.
settings.register_profile(
    "fast",
    derandomize=True,
    deadline=None,
    max_examples=50,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
# New histories in each run; failures are printed in a form that can be pasted into a test.
settings.register_profile(
    "torture",
    deadline=None,
    max_examples=2_000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fast")  # --hypothesis-profile is applied later and wins


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that no mark can be forgotten."""
    for item in items:
        folders = item.path.relative_to(TESTS).parts if TESTS in item.path.parents else ()
        if folders[:1] == ("spark",):
            item.add_marker(pytest.mark.spark)
            # With xdist, all of these run in one worker process, as one JVM is enough.
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif folders[:1] == ("s3",):
            item.add_marker(pytest.mark.s3)


@pytest.fixture(scope="session", autouse=True)
def only_loopback() -> Iterator[None]:
    """Keep tests on this machine: a socket that would connect elsewhere fails at once."""
    connect = socket.socket.connect
    connect_ex = socket.socket.connect_ex

    def checked_connect(self: socket.socket, address: Any) -> None:
        refuse_elsewhere(self, address)
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        refuse_elsewhere(self, address)
        return connect_ex(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", checked_connect)
        patch.setattr(socket.socket, "connect_ex", checked_connect_ex)
        yield


@pytest.fixture(scope="session", autouse=True)
def disk_with_room() -> Iterator[None]:
    """Show a half full disk to local stores, which look at it when they open: tests must not depend
    on the real one.

    Kits put the folder tests/disk_with_room into the PYTHONPATH of other processes for the same
    effect.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", half_full)
        yield


def refuse_elsewhere(sock: socket.socket, address: Any) -> None:
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    host = address[0]
    if host in {"localhost", ""}:
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:  # a name: even its look-up would leave the machine
        pass
    raise PermissionError(f"a test wanted to connect to {host}: tests stay on this machine")
