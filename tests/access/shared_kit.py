"""A backend that shares rounds and keeps the catalogue with the bytes, as a log does, in memory.

No tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

from tieredstore.driver.metadata import Change, Put
from tieredstore.driver.provider import Fence, ListedSegment, SegmentProvider, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment, check_range
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import (
    BackendUnavailableError,
    FencedError,
    PositionMismatchError,
    SegmentNotFoundError,
)
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord

Name = tuple[str, SegmentType, int]


class SharedSegment(FileSegment):
    def __init__(self, owner: SharedProvider, name: Name) -> None:
        super().__init__(*name)
        self.name = name
        self._owner = owner

    @property
    def path(self) -> str:
        return f"{self.queue_path}/{self.type.name}/{self.base}"

    def size(self) -> int:
        self._owner.asked += 1
        return len(self._held())

    def read(self, position: int, length: int) -> bytes:
        held = self._held()
        check_range(self.path, position, length, len(held))
        return bytes(held[position : position + length])

    def write(self, position: int, data: Buffer) -> None:
        held = self._owner.held.setdefault(self.name, bytearray())
        if position != len(held):
            raise PositionMismatchError(self.path, expected=position, actual=len(held))
        held += data

    def seal(self) -> None:
        """Nothing to do."""

    def delete(self) -> None:
        self._owner.held.pop(self.name, None)

    def close(self) -> None:
        """Nothing is held open."""

    def _held(self) -> bytearray:
        if self.name not in self._owner.held:
            raise SegmentNotFoundError(self.path)
        return self._owner.held[self.name]


class SharedCatalogue(MemoryReads):
    """Staged changes become durable together with the next round or `apply`; `crash` drops them."""

    def __init__(self) -> None:
        super().__init__(Tables(), name="catalogue")
        self._durable = Tables()
        self._staged: list[Change] = []
        self.applied = 0  # calls that a real catalogue needs a request for

    def stage(self, changes: Iterable[Change]) -> None:
        with self._tables_lock:
            found = list(changes)
            self._staged += found
            self._open_tables().apply(found)

    def apply(self, changes: Iterable[Change]) -> None:
        wanted = [change for change in changes if not self._is_known(change)]
        if not wanted:
            return
        self.applied += 1
        self.stage(wanted)
        self.commit(())

    def commit(self, changes: Sequence[Change]) -> None:
        """Make these and all staged changes durable, as a round does with its bytes."""
        self.stage(changes)
        with self._tables_lock:
            self._durable.apply(self._staged)
            self._staged = []

    def crash(self) -> None:
        with self._tables_lock:
            self._tables, self._staged = self._durable.copied(), []

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        known = self.topic(topic)
        if known is None:
            number = self._tables.topic_serial + 1
            known = TopicRecord(topic=topic, topic_id=number, reserve_hours=reserve_hours)
            self.stage([Put(known)])
        return known

    def refresh(self) -> None:
        """Nothing to do: the only writer made all changes."""

    def close(self) -> None:
        """Nothing to do: it outlives the tier."""

    def _is_known(self, change: Change) -> bool:
        """Whether a round has already committed this row."""
        if not isinstance(change, Put) or not isinstance(change.record, SegmentRecord):
            return False
        return self.segment(*change.record.key) == change.record


class SharedProvider(SegmentProvider):
    """Writes one round at a time, whole or not at all; if `is_held`, only when a test lets it."""

    shares_rounds = True

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.held: dict[Name, bytearray] = {}
        self.rows = SharedCatalogue()
        self.rounds: list[int] = []  # the number of pairs in each
        self.asked = 0  # requests for a size
        self.is_held = False
        self.waiting: list[tuple[Sequence[WritePair], list[Future[None]]]] = []
        self.fails = False  # if set, replies are lost
        self.fenced: Fence | None = None

    def open(self, path: str, type: SegmentType, base: int) -> SharedSegment:
        return SharedSegment(self, (path, type, base))

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        for (path, kind, base), data in self.held.items():
            if f"{path}/".startswith(f"{prefix}/" if prefix else ""):
                yield ListedSegment(path, kind, base, len(data))

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        self.rounds.append(len(pairs))
        futures: list[Future[None]] = [Future() for _ in pairs]
        self.waiting.append((pairs, futures))
        assert len(self.waiting) == 1
        if not self.is_held:
            self.let_go()
        return futures

    def let_go(self) -> None:
        ((pairs, futures),) = self.waiting
        self.waiting = []
        error: Exception | None = None
        if self.fenced is not None:
            error = FencedError("log", "append", epoch=self.fenced.epoch)
        else:
            for pair in pairs:
                for write in (pair.log, pair.queue):
                    if write is not None:
                        write.segment.write(write.position, write.data)
            self.rows.commit([Put(row) for pair in pairs for row in pair.rows])
            if self.fails:
                error = BackendUnavailableError("log", "append", "the reply was lost")
        for future in futures:
            future.set_exception(error) if error else future.set_result(None)

    def fence(self, broker: str) -> Fence | None:
        return self.fenced
