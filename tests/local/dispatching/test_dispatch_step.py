"""The store's own service dispatches what nobody else does, and leaves a busy put alone."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest

from tieredstore.local.commit_log import AppendedRun
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.dispatch import Dispatch
from tieredstore.local.encoder import RecordEncoder
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import BackendRefusedError
from tieredstore.testing.samples import a_message


class Puts:
    """One message after the other, as a log would have put them."""

    def __init__(self, root: Path) -> None:
        queues = ConsumeQueues(root, file_bytes=400, files=MappedFiles())
        self.dispatch = Dispatch(queues, None, limit=lambda: 1_000_000, count_max=256)
        self._record = RecordEncoder(LocalConfig(store_path=str(root))).encode(a_message(0))
        self._count = 0

    def put(self) -> None:
        [size] = self._record.sizes
        appended = AppendedRun([size * self._count], [size], 1)
        self.dispatch.submit(self._record, [self._count], appended)
        self._count += 1


def test_what_nobody_dispatches_is_dispatched_by_the_second_look(tmp_path: Path) -> None:
    puts = Puts(tmp_path)
    puts.put()
    puts.dispatch.drain()
    puts.put()
    puts.dispatch.step()
    assert puts.dispatch.behind_count == 1
    puts.dispatch.step()
    assert puts.dispatch.behind_count == 0


def test_puts_that_dispatch_themselves_are_left_alone(tmp_path: Path) -> None:
    puts = Puts(tmp_path)
    for _ in range(5):
        puts.put()
        puts.dispatch.drain()
        puts.put()
        puts.dispatch.step()
        assert puts.dispatch.behind_count == 1


def test_a_look_that_fails_is_repeated_ever_later_and_not_for_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = Puts(tmp_path)
    puts.put()
    tries: list[int] = []

    taken = 0  # steps so far

    def full(*_: object) -> int:
        tries.append(taken)
        raise BackendRefusedError("consumequeue", "create", "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", full)
        for taken in range(3_000):  # noqa: B007 - `full` notes it
            with contextlib.suppress(BackendRefusedError):
                puts.dispatch.step()
    waits = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert max(waits) == 512
    for _ in range(520):
        puts.dispatch.step()
    assert puts.dispatch.behind_count == 0
