"""Durable files, atomic replacement, and the lock that Java also honours."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tieredstore.driver.durable import FileLock, make_directories, write_atomically

TRY_LOCK = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    sys.exit(3)
"""


FORK = """
import os, sys
from tieredstore.driver.durable import FileLock

lock = FileLock.acquire(sys.argv[1])

def child_sees():
    child = os.fork()
    if child == 0:
        taken = FileLock.acquire(sys.argv[1])
        held = lock.held
        lock.release()
        os._exit((taken is not None) + 2 * held)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert child_sees() == 0 and lock.held
assert child_sees() == 0  # the first child's release left the parent's lock alone
lock.release()
assert not lock.held
assert child_sees() == 1
"""


def free_for_others(path: Path) -> bool:
    code = subprocess.run([sys.executable, "-c", TRY_LOCK, str(path)], check=False).returncode
    assert code in (0, 3)
    return code == 0


class TestReplacement:
    def test_the_file_is_replaced_whole(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        write_atomically(file, [b"old"])
        write_atomically(file, [b"new ", memoryview(b"content")])
        assert file.read_bytes() == b"new content"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_source_that_breaks_leaves_the_old_content(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"old")

        def broken() -> Iterator[bytes]:
            yield b"half"
            raise RuntimeError("broke")

        with pytest.raises(RuntimeError, match="broke"):
            write_atomically(file, broken())
        assert file.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_names_that_somebody_else_made_are_synced_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        real = os.fsync

        def note(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        (tmp_path / "a").mkdir()  # as a process that died before it synced the name
        make_directories(tmp_path / "a" / "b")
        assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)
        synced.clear()
        make_directories(tmp_path / "a" / "b")
        assert synced == []
        (tmp_path / "a" / "b").rmdir()
        make_directories(tmp_path / "a" / "b")
        assert synced == [str(tmp_path / "a")]

    def test_directories_are_made_once(self, tmp_path: Path) -> None:
        deep = tmp_path / "a" / "b" / "c"
        make_directories(deep)
        make_directories(deep)
        assert deep.is_dir()


class TestLock:
    def test_a_second_holder_is_refused_in_this_process_and_in_another(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "lock"
        lock = FileLock.acquire(path)
        assert lock is not None
        assert FileLock.acquire(path) is None
        assert FileLock.acquire(tmp_path / "." / "lock") is None
        # The refused attempts must not have released the lock that the process holds.
        assert not free_for_others(path)
        lock.release()
        lock.release()
        assert free_for_others(path)
        again = FileLock.acquire(path)
        assert again is not None
        again.release()

    def test_a_forked_child_does_not_hold_what_its_parent_holds(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        # In its own process, as a process with threads must not fork.
        subprocess.run([sys.executable, "-c", FORK, str(path)], check=True)

    def test_a_lock_of_another_process_is_seen_and_ends_with_it(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        path.touch()
        code = TRY_LOCK + "print('held', flush=True); sys.stdin.read()"
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert FileLock.acquire(path) is None
        holder.kill()
        holder.communicate()
        lock = FileLock.acquire(path)
        assert lock is not None
        with lock:
            assert not free_for_others(path)
        assert free_for_others(path)


def test_a_lock_that_is_removed_is_never_held_by_two(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock.acquire(path)
    assert lock is not None
    late = os.open(path, os.O_RDWR)  # held by one who waits for the lock
    lock.release(remove=True)
    assert not path.exists()
    again = FileLock.acquire(path)
    assert again is not None
    assert not os.path.samestat(os.fstat(late), os.stat(path))
    os.close(late)
    again.release()
    assert path.exists()


def test_a_file_that_is_removed_while_it_is_being_locked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    really = fcntl.lockf

    def lock_too_late(*words: object) -> None:
        really(*words)  # type: ignore[arg-type]
        path.unlink()

    monkeypatch.setattr(fcntl, "lockf", lock_too_late)
    assert FileLock.acquire(path) is None
    monkeypatch.undo()
    lock = FileLock.acquire(path)
    assert lock is not None
    lock.release()
