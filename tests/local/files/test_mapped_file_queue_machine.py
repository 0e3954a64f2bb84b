"""A queue of mapped files beside one bytearray, through histories that hypothesis makes up."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue

SIZE = 64


def a_queue(folder: Path, files: MappedFiles) -> MappedFileQueue:
    return MappedFileQueue(folder / "q", file_bytes=SIZE, files=files)


class QueueBesideBytes(RuleBasedStateMachine):
    """The queue does what one bytearray would do that forgets its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.files = MappedFiles(open_max=2)
        self.queue = a_queue(self.folder, self.files)
        self.held = bytearray()
        self.start = 0
        self.flushed = 0

    @rule(data=st.binary(min_size=1, max_size=150))
    def append(self, data: bytes) -> None:
        assert self.queue.append(data) == len(self.held)
        self.held += data

    @rule()
    def flush(self) -> None:
        assert self.queue.flush() == len(self.held)

    @rule(count=st.integers(1, 3))
    def reserve(self, count: int) -> None:
        self.queue.reserve(count)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.start, len(self.held)))
        self.queue.truncate_dirty(end)
        del self.held[end:]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.queue.delete_before(data.draw(st.integers(0, len(self.held))))
        self.start = self.queue.min_offset or 0
        assert self.start % SIZE == 0

    @precondition(lambda self: self.held)
    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.queue = a_queue(self.folder, self.files)
        self.queue.load()
        self.queue.truncate_dirty(len(self.held))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.held)))
        length = data.draw(st.integers(1, SIZE))
        file_end = offset - offset % SIZE + SIZE
        want = bytes(self.held[offset : min(offset + length, file_end)])
        if offset < self.start:
            want = b""
        assert self.queue.read(offset, length) == (want if len(want) == length else None)

    @invariant()
    def ends_agree(self) -> None:
        assert self.queue.max_offset == len(self.held)
        assert self.queue.flushed_offset <= len(self.held)
        assert self.files.open_count <= 2

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.folder)


TestQueueBesideBytes = QueueBesideBytes.TestCase
