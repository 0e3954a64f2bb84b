"""A queue through any history of puts, repeats, cuts, expiry and reopenings, beside a list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import PositionMismatchError
from tieredstore.model.values import Boundary

FILE_BYTES = 100  # five units
SIZE = 10


class QueueMachine(RuleBasedStateMachine):
    """`kept` are the messages in the queue, by queue offset; the log goes on at `log_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.kept: dict[int, QueueUnit] = {}
        self.next = 0
        self.minimum = 0
        self.log_end = 0
        self.queue = self.opened()

    def opened(self) -> ConsumeQueue:
        files = MappedFiles(open_max=2)
        return ConsumeQueue.open(Path(self.root) / "T" / "0", file_bytes=FILE_BYTES, files=files)

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.root)

    def put(self, first: int, units: list[QueueUnit]) -> int:
        columns = [list(column) for column in zip(*units, strict=True)]
        return self.queue.put(first, *columns)

    @rule(count=st.integers(1, 60), apart=st.integers(0, 3))
    def put_new(self, count: int, apart: int) -> None:
        units = [
            QueueUnit(self.log_end + number * (SIZE + apart), SIZE, number)
            for number in range(count)
        ]
        assert self.put(self.next, units) == count
        self.kept |= {self.next + number: unit for number, unit in enumerate(units)}
        self.next += count
        self.log_end = units[-1].log_offset + SIZE

    @precondition(lambda self: not self.kept)
    @rule(first=st.integers(0, 40))
    def begin_anew(self, first: int) -> None:
        self.next = self.minimum = first
        self.put_new(1, 0)

    @precondition(lambda self: self.kept)
    @rule(hole=st.integers(1, 12))
    def leave_a_hole(self, hole: int) -> None:
        with pytest.raises(PositionMismatchError) as caught:
            self.put(self.next + hole, [QueueUnit(self.log_end, SIZE, 0)])
        assert caught.value.actual == self.next

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.kept)))
        count = data.draw(st.integers(1, 60))
        units = [self.kept[offset] for offset in range(first, min(self.next, first + count))]
        assert self.put(first, units) == 0

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.kept)))
        log_offset = self.kept[at].log_offset
        dropped = [offset for offset in self.kept if offset >= at]
        # What the minimum has passed has left the log as well and cannot be cut.
        readable = [offset for offset in dropped if offset >= self.minimum]
        if at < self.minimum:
            return
        assert self.queue.truncate(log_offset) == len(readable)
        for offset in dropped:
            del self.kept[offset]
        self.next = at
        self.log_end = log_offset

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), delete=st.booleans())
    def expire(self, data: st.DataObject, delete: bool) -> None:
        at = data.draw(st.sampled_from([*sorted(self.kept), self.next]))
        log_offset = self.kept[at].log_offset if at in self.kept else self.log_end
        if delete:
            self.queue.delete_before(log_offset)
            files = min(int(path.name) for path in Path(self.queue.directory).iterdir())
            first = files // UNIT_BYTES
            self.kept = {offset: unit for offset, unit in self.kept.items() if offset >= first}
        else:
            self.queue.correct_min_offset(log_offset)
        self.minimum = max(self.minimum, at)

    @rule(flush=st.booleans())
    def reopen(self, flush: bool) -> None:
        if flush:
            self.queue.flush()
        self.queue.close()
        self.queue = self.opened()
        # The log says where its messages begin now.
        unit = self.kept.get(self.minimum)
        self.queue.correct_min_offset(self.log_end if unit is None else unit.log_offset)

    @invariant()
    def the_queue_is_the_list(self) -> None:
        queue = self.queue
        assert (queue.min_offset, queue.max_offset) == (self.minimum, self.next)
        units = queue.units(self.minimum, 10_000)
        want = [self.kept[offset] for offset in range(self.minimum, self.next)]
        assert units.log_offsets.tolist() == [unit.log_offset for unit in want]
        assert units.message_bytes.tolist() == [unit.message_bytes for unit in want]
        assert units.tags_codes.tolist() == [unit.tags_code for unit in want]
        if want:
            assert queue.last_log_end == want[-1].log_offset + SIZE
            middle = want[len(want) // 2]
            answer = queue.offset_by_time(
                middle.log_offset, Boundary.LOWER, store_time=lambda log_offset, size: log_offset
            )
            assert self.kept[answer] == middle


TestQueueMachine = QueueMachine.TestCase
