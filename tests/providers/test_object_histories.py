"""Random histories of several writers whose requests are lost, stall, or land late or twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.providers.object_kit import PATH, Bucket, Process
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import (
    BackendUnavailableError,
    FencedError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.roundlog import upkeep
from tieredstore.roundlog.state import NAME_RESTS_MS

LOG, INDEX = SegmentType.COMMIT_LOG, SegmentType.INDEX
PLACES = ((PATH, LOG, 0), (PATH, LOG, 10), ("broker-a/rmq_sys_INDEX/0", INDEX, 0))
PAUSES_MS = (0, 0, 1_000, 60_000, 3_600_000, 86_400_000, 31 * 86_400_000)
Place = tuple[str, SegmentType, int]


@pytest.fixture(autouse=True)
def _busy_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chores that a tier does after hours come after a few rounds."""
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 2)
    monkeypatch.setattr(upkeep, "CHUNKS_MERGED", 2)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 3)


def content(segment: FileSegment) -> bytes | None:
    """The segment's bytes, though others may seal, delete and make it anew in between."""
    for _ in range(9):
        try:
            return segment.read(0, segment.size())
        except SegmentNotFoundError:
            return None
        except OffsetOutOfRangeError:
            continue
    raise AssertionError("it is another one each time")


class Network:
    """The network between a process and the bucket. A lost request may land any time, or never."""

    def __init__(self, history: History, process: Process) -> None:
        self._history = history
        self._inner: Any = process.client.inner
        self.capabilities = self._inner.capabilities
        self.late: list[tuple[int, Callable[[], object]]] = []  # with the time it was sent
        process.client.inner = self  # type: ignore[assignment]

    def head(self, key: str) -> Any:
        return self._sent(lambda: self._inner.head(key))

    def get_range(self, key: str, start: int, length: int) -> Any:
        return self._sent(lambda: self._inner.get_range(key, start, length))

    def get_ranges(self, ranges: Any) -> Any:
        return [self.get_range(each.key, each.start, each.length) for each in ranges]

    def list(self, prefix: str = "", *, after: str = "") -> Any:
        return self._sent(lambda: [*self._inner.list(prefix, after=after)])

    def put(self, key: str, data: Any, **options: Any) -> Any:
        whole = bytes(data)
        return self._changed(lambda: self._inner.put(key, whole, **options))

    def delete_many(self, keys: Any) -> Any:
        named = list(keys)
        return self._changed(lambda: self._inner.delete_many(named))

    def _delay(self, call: Callable[[], object]) -> None:
        self.late.append((self._history.now_ms(), call))

    def _changed(self, call: Callable[[], Any]) -> Any:
        found = self._sent(call)
        if self._history.dice.random() < 0.03:
            self._delay(call)  # it will land a second time
        return found

    def _sent(self, call: Callable[[], Any]) -> Any:
        dice = self._history.dice
        roll = dice.random()
        if roll < 0.03 and self._history.depth < 2:
            self._history.step()  # others act before this request lands
        elif roll < 0.05:
            self._delay(call)
            raise BackendUnavailableError("request", "any", "lost on its way")
        elif roll < 0.07:
            call()
            raise BackendUnavailableError("reply", "any", "lost on its way back")
        return call()


class History:
    """What was acknowledged, and who did what last.

    `truth` holds what must be there. `doubted` holds the places where a delete or a write went
    wrong, so that they may hold less or more until somebody hears the outcome.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.runtime = Runtime.inline()
        self.bucket = Bucket(listing_ms=0)
        self.processes: list[tuple[Process, Network]] = []
        self.truth: dict[Place, bytes] = {}
        self.doubted: set[Place] = set()
        self.depth = 0
        self._written = 0
        self._busy: list[Process] = []
        self._acted: Counter[Place] = Counter()

    def now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    def step(self) -> None:
        self.depth += 1
        try:
            if not self.processes or self.dice.random() < 0.12:
                process = self.bucket.process(runtime=self.runtime)
                self.processes.append((process, Network(self, process)))
            assert isinstance(self.runtime.clock, ManualClock)
            self.runtime.clock.advance(self.dice.choice(PAUSES_MS))
            process, _ = self.dice.choice(self.processes[-3:])
            if process not in self._busy:  # a busy one is stalled in its own call
                self._busy.append(process)
                self._act(process)
                self._busy.remove(process)
            self._land()
        finally:
            self.depth -= 1

    def check(self) -> None:
        """Check what a new process finds, whatever lands now or later."""
        for _ in range(2):
            reader = self.bucket.process(runtime=self.runtime)
            for place in PLACES:
                found, wanted = content(reader.open(*place)) or b"", self.truth.get(place, b"")
                listed = reader.sizes().get(place, 0)
                assert listed == len(found), place
                if place in self.doubted:
                    continue
                assert found.startswith(wanted), (place, found, wanted)
            self._land()

    def _act(self, process: Process) -> None:
        place = self.dice.choice(PLACES)
        actions = [self._write, self._write, self._round, self._round, self._seal, self._delete]
        if place[1] is INDEX:
            actions = [self._create, self._create, self._create, self._delete, self._delete]
        actions += [self._tend] * 2
        self._acted[place] += 1
        self.dice.choice(actions)(process, place)

    def _others_acted(self, place: Place, before: int) -> bool:
        """Whether others acted on the segment during one call, in an order that nobody knows."""
        if self._acted[place] != before:
            self.doubted.add(place)
        return self._acted[place] != before

    def _land(self) -> None:
        for _, network in self.processes:
            oldest_ms = self.now_ms() - NAME_RESTS_MS
            network.late = [each for each in network.late if each[0] > oldest_ms]
            if network.late and self.dice.random() < 0.3:
                _, late = network.late.pop(self.dice.randrange(len(network.late)))
                try:
                    late()
                except (SegmentNotFoundError, OffsetOutOfRangeError, ObjectExistsError):
                    pass  # nobody waits for a late request any more

    def _write(self, process: Process, place: Place) -> None:
        segment = process.open(*place)
        self._written += 1
        data, before = b"<%d>" % self._written, self._acted[place]
        try:
            end = len(content(segment) or b"")
            segment.write(end, data)
        except (PositionMismatchError, SegmentSealedError):
            return
        except FencedError:
            return  # it may have landed before the claim, so there may be more but never less
        except BackendUnavailableError:
            return
        if self._others_acted(place, before):
            return
        assert end >= len(self.truth.get(place, b"")) or place in self.doubted
        found = content(self.bucket.process(runtime=self.runtime).open(*place)) or b""
        assert found[end : end + len(data)] == data, (place, found, data)
        self.truth[place] = found[: end + len(data)]
        self.doubted.discard(place)

    def _round(self, process: Process, place: Place) -> None:
        """A pair lands with its rows or not at all, and the catalogue's sizes match the bytes."""
        path, _, base = place
        queue_place = path, SegmentType.CONSUME_QUEUE, base
        log, queue = process.open(*place), process.open(*queue_place)
        self._written += 1
        data, before = b"<%d>" % self._written, self._acted[place]
        try:
            ends = len(content(log) or b""), len(content(queue) or b"")
            rows = [
                SegmentRecord(path=path, type=kind, base_offset=base, size=end + len(data))
                for kind, end in zip((LOG, queue_place[1]), ends, strict=True)
            ]
            writes = SegmentWrite(log, ends[0], data), SegmentWrite(queue, ends[1], data)
            (future,) = process.provider.write_many([WritePair(*writes, tuple(rows))])
            future.result()
        except (PositionMismatchError, SegmentSealedError, FencedError, BackendUnavailableError):
            return
        if self._others_acted(place, before):
            return
        reader = self.bucket.process(runtime=self.runtime)
        catalogue = reader.provider.catalogue("broker-a", read_only=True)
        assert catalogue is not None
        for row, end in zip(rows, ends, strict=True):
            found = content(reader.open(*row.key)) or b""
            assert found[end : end + len(data)] == data, (row, found)
            said = catalogue.segment(*row.key)
            assert said is not None
            assert said.size == end + len(data)
        found = content(reader.open(*place)) or b""
        self.truth[place] = found[: ends[0] + len(data)]
        self.doubted.discard(place)

    def _create(self, process: Process, place: Place) -> None:
        self._written += 1
        data, before = b"[%d]" % self._written, self._acted[place]
        try:
            process.provider.create(process.open(*place), [data])
        except TieredStoreError:
            return
        if self._others_acted(place, before):
            return
        assert content(self.bucket.process(runtime=self.runtime).open(*place)) == data
        self.truth[place] = data
        self.doubted.discard(place)

    def _seal(self, process: Process, place: Place) -> None:
        try:
            process.open(*place).seal()
        except (BackendUnavailableError, FencedError, PositionMismatchError):
            return

    def _tend(self, process: Process, place: Place) -> None:
        """The background work: merge, write the state, and delete what is dead."""
        try:
            process.provider.claim("broker-a")
            for _ in range(self.dice.randrange(6)):
                process.provider.tend("broker-a")
        except (BackendUnavailableError, FencedError):
            return

    def _delete(self, process: Process, place: Place) -> None:
        before = self._acted[place]
        try:
            process.open(*place).size()
        except SegmentNotFoundError:  # a delete would send no request
            return
        except (BackendUnavailableError, FencedError):
            pass
        self.doubted.add(place)  # until a success is heard, the outcome is open
        try:
            process.open(*place).delete()
        except TieredStoreError:
            self.doubted.add(place)
            return
        if self._others_acted(place, before):
            return
        self.truth.pop(place, None)
        self.doubted.discard(place)
        assert content(self.bucket.process(runtime=self.runtime).open(*place)) is None


def run(seed: int, steps: int) -> None:
    history = History(seed)
    for _ in range(steps):
        history.step()
        history.check()


@pytest.mark.parametrize("seed", range(25))
def test_what_was_acknowledged_is_there_whatever_lands_late(seed: int) -> None:
    run(seed, 40)


@pytest.mark.parametrize("seed", [102_622, 104_858])
def test_nor_is_it_lost_in_histories_that_failed_once(seed: int) -> None:
    run(seed, 60)


@pytest.mark.torture
def test_what_was_acknowledged_is_there_in_many_histories() -> None:
    for _ in range(3_000):
        seed = random.SystemRandom().getrandbits(32)
        try:
            run(seed, 60)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
