"""Every promise of `SegmentProvider` as a test suite, and of the places that it may offer for small
objects: published catalogues and staged files.

class TestMyProvider(SegmentProviderContract):
    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return MyProvider(runtime)

class TestMyGenerations(GenerationsContract):
    def open_generations(self, broker: str) -> Generations:
        return MyGenerations(broker)  # on the same backend for all calls of a test
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import google_crc32c
import pytest

from tieredstore.driver.metadata import Put
from tieredstore.driver.provider import (
    LOADS,
    Adoption,
    Generations,
    GenerationTakenError,
    ListedGeneration,
    ListedSegment,
    Scratch,
    SegmentProvider,
    SegmentRead,
    SegmentWrite,
    WritePair,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentNotFoundError,
)
from tieredstore.model.values import SegmentRecord, SegmentType

WRITERS = 8
LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX


class SegmentProviderContract:
    """Subclass it, define `open_provider`, and run it with pytest."""

    pairs_are_whole = False  # whether a log is written only together with its queue

    @abstractmethod
    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        """A provider; the bytes need not outlive the test."""
        raise NotImplementedError

    @pytest.fixture
    def provider(self) -> Iterator[SegmentProvider]:
        with Runtime.threads() as runtime, self.open_provider(runtime) as provider:
            yield provider

    def test_segments_differ_by_path_type_and_base(self, provider: SegmentProvider) -> None:
        keys = [
            ("b/t/0", LOG, 0),
            ("b/t/0", LOG, 10),
            ("b/t/0", QUEUE, 0),
            ("b/t/1", LOG, 0),
            ("b/u/0", LOG, 0),
            ("c/t/0", LOG, 0),
        ]
        segments = [provider.open(*key) for key in keys]
        assert len({segment.path for segment in segments}) == len(keys)
        for number, segment in enumerate(segments):
            segment.write(0, bytes([number]))
        for number, key in enumerate(keys):
            segment = provider.open(*key)
            assert (segment.queue_path, segment.type, segment.base) == key
            assert segment.read(0, 1) == bytes([number])

    def test_ranges_that_are_read_together_are_those_that_were_asked_for(
        self, provider: SegmentProvider
    ) -> None:
        held = {("b/t/0", LOG, 0): b"abcdef", ("b/t/0", QUEUE, 0): b"gh", ("b/u/1", LOG, 7): b"ij"}
        for key, data in held.items():
            provider.open(*key).write(0, data)
        reads = [
            SegmentRead("b/t/0", LOG, 0, 1, 3),
            SegmentRead("b/u/1", LOG, 7, 0, 2),
            SegmentRead("b/u/1", LOG, 7, 0, 3),
            SegmentRead("b/none/0", LOG, 0, 0, 1),
            SegmentRead("b/t/0", QUEUE, 0, 0, 2),
            SegmentRead("b/t/0", LOG, 0, 0, 6),
            SegmentRead("b/t/0", LOG, 0, 6, 0),
        ]
        first, second, beyond, absent, *others = provider.read_together(reads)
        assert [first, second, *others] == [b"bcd", b"ij", b"gh", b"abcdef", b""]
        assert isinstance(beyond, OffsetOutOfRangeError)
        assert isinstance(absent, SegmentNotFoundError)
        assert list(provider.read_together([])) == []

    def test_the_reading_order_has_a_number_for_each_segment(
        self, provider: SegmentProvider
    ) -> None:
        provider.open("b/t/0", LOG, 0).write(0, b"x")
        rows = [SegmentRecord(path=path, type=LOG, base_offset=0) for path in ("b/t/0", "b/t/1")]
        assert len(provider.reading_order(rows)) == 2
        assert len(provider.reading_order([])) == 0

    def test_deleting_one_base_leaves_those_that_start_like_it(
        self, provider: SegmentProvider
    ) -> None:
        bases = [0, 1, 10, 100, 104857600, 1048576000, 10485760000]
        for base in bases:
            provider.open("b/t/0", LOG, base).write(0, b"x")
        provider.open("b/t/0", LOG, 104857600).delete()
        left = sorted(found.base for found in provider.list("b/t/0"))
        assert left == [0, 1, 10, 100, 1048576000, 10485760000]

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "b",
            "b/t",
            "b/t/0/0",
            "/t/0",
            "b//0",
            "b/t/",
            "../t/0",
            "b/../0",
            "b/./0",
            "b/t/..",
            "b/t/00",
            "b/t/-1",
            "b/t/x",
            "b/t\0/0",
            "b/a\\b/0",
            "b/a/../../../0",
            "b/\ud800/0",
            "b/" + "t" * 256 + "/0",
        ],
    )
    def test_a_name_that_would_leave_its_place_is_refused(
        self, provider: SegmentProvider, path: str
    ) -> None:
        with pytest.raises(BackendRefusedError):
            provider.open(path, LOG, 0)

    @pytest.mark.parametrize("base", [-1, 1 << 63])
    def test_a_base_that_is_no_offset_is_refused(
        self, provider: SegmentProvider, base: int
    ) -> None:
        with pytest.raises(BackendRefusedError):
            provider.open("b/t/0", LOG, base)

    @pytest.mark.parametrize(
        "topic",
        [
            "%RETRY%group",
            "%DLQ%a|b",
            "topic with space",
            "主题",
            "a.b-c_d",
            "...",
            "a::b",
            "file::x",
            "dot at the end.",
            " blanks ",
            "a%2Fb#c?d&e=f+g",
            "<\"a\">'b'*~{c}^[d]",
            "😀",
            "t" * 255,
        ],
    )
    def test_a_topic_keeps_its_name(self, provider: SegmentProvider, topic: str) -> None:
        provider.open(f"b/{topic}/3", QUEUE, 20).write(0, b"0123456789")
        assert list(provider.list()) == [ListedSegment(f"b/{topic}/3", QUEUE, 20, 10)]

    def test_a_listing_names_everything_below_a_prefix(self, provider: SegmentProvider) -> None:
        expected = [
            ListedSegment("b/a/0", LOG, 0, 1),
            ListedSegment("b/a/0", LOG, 500, 2),
            ListedSegment("b/a/0", QUEUE, 40, 3),
            ListedSegment("b/a/1", LOG, 0, 4),
            ListedSegment("b/a-1/0", LOG, 0, 5),
            ListedSegment("b/ab/0", LOG, 0, 6),
            ListedSegment("b2/a/0", LOG, 0, 7),
            ListedSegment("b/rmq_sys_INDEX/0", INDEX, 0, 8),
        ]
        for one in expected:
            provider.open(one.path, one.type, one.base).write(0, b"x" * one.size)

        def listed(prefix: str) -> set[ListedSegment]:
            found = list(provider.list(prefix))
            assert len(found) == len(set(found))
            return set(found)

        assert listed("") == set(expected)
        assert listed("b") == {one for one in expected if one.path.startswith("b/")}
        assert listed("b/a") == listed("b/a/") == set(expected[:4])
        assert listed("b/a/0") == set(expected[:3])
        for absent in ("c", "b/a/2", "b/a/0/x", "..", "b\0", "\ud800"):
            assert listed(absent) == set()

    def test_a_round_writes_each_pair_and_answers_for_each(self, provider: SegmentProvider) -> None:
        logs = [provider.open(f"b/t/{number}", LOG, 0) for number in range(4)]
        queues = [provider.open(f"b/t/{number}", QUEUE, 0) for number in range(4)]
        pairs = [
            WritePair(SegmentWrite(logs[0], 0, b"log-0"), SegmentWrite(queues[0], 0, b"q" * 20)),
            WritePair(SegmentWrite(logs[1], 7, b"log-1"), SegmentWrite(queues[1], 0, b"q" * 20)),
            WritePair(SegmentWrite(logs[2], 0, b"log-2"), SegmentWrite(queues[2], 20, b"q" * 20)),
            WritePair(None, SegmentWrite(queues[3], 0, b"q" * 20)),
        ]
        outcomes = [future.exception() for future in provider.write_many(pairs)]
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            PositionMismatchError,
            PositionMismatchError,
            type(None),
        ]
        assert (logs[0].size(), queues[0].size()) == (5, 20)
        missing = [logs[1], queues[1], queues[2], logs[3]]
        if self.pairs_are_whole:
            missing.append(logs[2])
        else:
            assert logs[2].size() == 5  # its log is durable, but it has no queue unit
        for untouched in missing:
            with pytest.raises(SegmentNotFoundError):
                untouched.size()

    def test_a_segment_is_created_from_a_stream(self, provider: SegmentProvider) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 28)
        blocks: list[Buffer] = [b"head", bytearray(1_000_000), b"", memoryview(b"tail")]
        assert provider.create(segment, iter(blocks)) == 1_000_008
        assert segment.size() == 1_000_008
        assert segment.read(0, 5) == b"head\0"
        assert segment.read(1_000_004, 4) == b"tail"

    def test_an_empty_stream_makes_no_segment(self, provider: SegmentProvider) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)
        assert provider.create(segment, [b"", b""]) == 0
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        assert list(provider.list()) == []

    def test_a_stream_that_breaks_off_leaves_nothing(self, provider: SegmentProvider) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)

        def broken() -> Iterator[bytes]:
            yield b"x" * 100_000
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            provider.create(segment, broken())
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        assert list(provider.list()) == []
        assert provider.create(segment, [b"whole"]) == 5

    def test_a_segment_that_has_bytes_is_not_created_again(self, provider: SegmentProvider) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)
        segment.write(0, b"mine")
        with pytest.raises(PositionMismatchError) as caught:
            provider.create(segment, [b"other"])
        assert caught.value.actual == 4
        assert self._content(segment) == b"mine"

    def test_staged_objects_become_segments_as_they_are(self, provider: SegmentProvider) -> None:
        wanted = {LOG: [b"a" * 100_000, b"b"], QUEUE: [b"units"]}
        adoptions = self._staged(provider, wanted)
        if adoptions is None:
            return
        assert list(provider.list()) == []
        provider.claim("b")
        rows = [
            SegmentRecord(path="b/t/0", type=each.type, base_offset=each.base, size=each.size)
            for each in adoptions
        ]
        in_one_step = provider.adopt("b", adoptions, [Put(row) for row in rows])
        for kind, blocks in wanted.items():
            assert self._content(provider.open("b/t/0", kind, 40)) == b"".join(blocks)
        listed = {found.type: (found.path, found.base, found.size) for found in provider.list()}
        assert listed == {LOG: ("b/t/0", 40, 100_001), QUEUE: ("b/t/0", 40, 5)}
        catalogue = provider.catalogue("b", read_only=True)
        assert in_one_step is (catalogue is not None)
        if catalogue is not None:
            assert list(catalogue.segments("b/t/0")) == rows
        scratch = provider.staged_segments("b")
        assert scratch is not None
        scratch.delete([each.name for each in adoptions])  # the segments must stay
        assert scratch.listed(f"{LOADS}/run") == []
        for kind, blocks in wanted.items():
            assert self._content(provider.open("b/t/0", kind, 40)) == b"".join(blocks)

    def test_what_has_bytes_is_not_adopted_over(self, provider: SegmentProvider) -> None:
        adoptions = self._staged(provider, {LOG: [b"other"]})
        if adoptions is None:
            return
        provider.claim("b")
        log, queue = provider.open("b/t/0", LOG, 40), provider.open("b/t/0", QUEUE, 40)
        pair = WritePair(SegmentWrite(log, 0, b"mine"), SegmentWrite(queue, 0, b"unit"))
        assert [future.exception() for future in provider.write_many([pair])] == [None]
        with pytest.raises(PositionMismatchError):
            provider.adopt("b", adoptions, [])
        assert self._content(log) == b"mine"

    def _staged(
        self, provider: SegmentProvider, wanted: Mapping[SegmentType, Sequence[bytes]]
    ) -> list[Adoption] | None:
        """Stage these blocks as objects for `adopt`; None if the provider cannot stage."""
        scratch = provider.staged_segments("b")
        if scratch is None:
            with pytest.raises(BackendRefusedError, match="nothing can be staged"):
                provider.adopt("b", [], [])
            return None
        found = []
        for kind, blocks in wanted.items():
            name = f"{LOADS}/run/{0:013d}.0-{kind.name}"
            found.append(
                Adoption(
                    path="b/t/0",
                    type=kind,
                    base=40,
                    name=name,
                    size=scratch.put(name, blocks),
                    crc=int(google_crc32c.value(b"".join(blocks))),
                )
            )
        return found

    def test_a_probe_passes_and_leaves_nothing(self, provider: SegmentProvider) -> None:
        findings = provider.probe()
        assert findings
        assert [finding for finding in findings if finding.is_damage] == []
        assert list(provider.list()) == []
        assert not provider.places()

    def test_close_is_idempotent(self, provider: SegmentProvider) -> None:
        provider.close()
        provider.close()

    def _content(self, segment: FileSegment) -> bytes:
        return segment.read(0, segment.size())


class GenerationsContract:
    """Subclass it, define `open_generations`, and run it with pytest."""

    @abstractmethod
    def open_generations(self, broker: str) -> Generations:
        """The generations of a broker; the bytes need not outlive the test."""
        raise NotImplementedError

    def test_there_are_none_at_first(self) -> None:
        generations = self.open_generations("broker")
        assert list(generations.listed()) == []
        assert generations.describe()
        with pytest.raises(SegmentNotFoundError):
            generations.read(ListedGeneration(1, 3))
        generations.delete([1])

    def test_what_is_created_is_listed_in_order_and_read_elsewhere(self) -> None:
        generations = self.open_generations("broker")
        data = {2: b"two", 1: b"first", 10: b"the tenth", 9_999_999_999: b"late"}
        for number, text in data.items():
            generations.create(number, text)
        elsewhere = self.open_generations("broker")
        listed = elsewhere.listed()
        assert [(generation.number, generation.size) for generation in listed] == [
            (number, len(data[number])) for number in sorted(data)
        ]
        assert [elsewhere.read(generation) for generation in listed] == [
            data[generation.number] for generation in listed
        ]

    def test_a_number_is_taken_once(self) -> None:
        self.open_generations("broker").create(1, b"first")
        other = self.open_generations("broker")
        with pytest.raises(GenerationTakenError):
            other.create(1, b"other")
        (listed,) = other.listed()
        assert other.read(listed) == b"first"

    def test_of_those_who_race_one_wins(self) -> None:
        places = [self.open_generations("broker") for _ in range(WRITERS)]

        def create(writer: int) -> bool:
            try:
                places[writer].create(7, bytes([writer]) * 1_000)
            except GenerationTakenError:
                return False
            return True

        with Runtime.threads(fetch_threads=WRITERS) as runtime:
            futures = [runtime.fetch.submit(create, writer) for writer in range(WRITERS)]
            outcomes = [future.result() for future in futures]
        assert outcomes.count(True) == 1
        (listed,) = places[0].listed()
        assert places[0].read(listed) == bytes([outcomes.index(True)]) * 1_000

    def test_what_is_deleted_is_gone_and_nothing_else(self) -> None:
        generations = self.open_generations("broker")
        for number in (1, 2, 3):
            generations.create(number, b"data")
        generations.delete([1, 2, 77])
        (listed,) = generations.listed()
        assert listed == ListedGeneration(3, 4)
        with pytest.raises(SegmentNotFoundError):
            generations.read(ListedGeneration(1, 4))

    def test_each_broker_has_its_own(self) -> None:
        for broker in ("broker", "broker-2", "主 broker%"):
            self.open_generations(broker).create(1, broker.encode())
        for broker in ("broker", "broker-2", "主 broker%"):
            generations = self.open_generations(broker)
            (listed,) = generations.listed()
            assert generations.read(listed) == broker.encode()


class ScratchContract(ABC):
    """Each test begins with an empty place; `open_scratch` acts as a new process would."""

    @abstractmethod
    def open_scratch(self, broker: str) -> Scratch:
        """The place of this broker; the same for each call of a test."""

    def test_an_object_is_there_as_it_was_put(self) -> None:
        scratch = self.open_scratch("b")
        assert scratch.put("load/run/part-0.0", [b"abc", bytearray(b"de"), memoryview(b"f")]) == 6
        again = self.open_scratch("b")
        assert again.read("load/run/part-0.0", 0, 6) == b"abcdef"
        assert again.read("load/run/part-0.0", 2, 3) == b"cde"

    def test_a_long_object_is_there_as_it_was_put(self) -> None:
        scratch, block = self.open_scratch("b"), os.urandom(1 << 20)
        assert scratch.put("long", (block for _ in range(20))) == 20 << 20
        assert scratch.read("long", (20 << 20) - 5, 5) == block[-5:]

    def test_a_name_that_is_put_again_stays_whole(self) -> None:
        scratch = self.open_scratch("b")
        for _ in range(2):
            assert scratch.put("a", [b"same"]) == 4
        assert scratch.read("a", 0, 4) == b"same"

    def test_folders_and_brokers_are_listed_apart(self) -> None:
        scratch, other = self.open_scratch("b"), self.open_scratch("bb")
        for name in ("load/one/a", "load/one/b", "load/two/a", "loader/a"):
            scratch.put(name, [b"12"])
        other.put("load/one/a", [b"1"])
        assert {staged.name for staged in scratch.listed("load/one")} == {
            "load/one/a",
            "load/one/b",
        }
        assert {staged.name for staged in scratch.listed("load")} == {
            *("load/one/a", "load/one/b", "load/two/a")
        }
        assert {staged.size for staged in scratch.listed()} == {2}
        assert len(scratch.listed()) == 4
        assert [staged.size for staged in other.listed()] == [1]

    def test_what_is_deleted_is_gone(self) -> None:
        scratch = self.open_scratch("b")
        scratch.put("a/b", [b"1"])
        scratch.delete(["a/b", "a/c"])
        assert scratch.listed() == []
        with pytest.raises(SegmentNotFoundError):
            scratch.read("a/b", 0, 1)
        scratch.delete([])

    def test_a_range_beyond_the_end_is_an_error(self) -> None:
        scratch = self.open_scratch("b")
        scratch.put("a", [b"123"])
        with pytest.raises(OffsetOutOfRangeError):
            scratch.read("a", 1, 3)

    @pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/..", ".a", "a b", "a\0"])
    def test_names_that_are_none_are_refused(self, name: str) -> None:
        scratch = self.open_scratch("b")
        with pytest.raises(BackendRefusedError):
            scratch.put(name, [b"1"])
