"""Every promise of `SegmentProvider` as a test suite.

class TestMyProvider(SegmentProviderContract):
    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return MyProvider(runtime)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import pytest

from tieredstore.driver.provider import (
    ListedSegment,
    SegmentProvider,
    SegmentWrite,
    WritePair,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import (
    BackendRefusedError,
    PositionMismatchError,
    SegmentNotFoundError,
)
from tieredstore.model.values import SegmentType

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX


class SegmentProviderContract:
    """Subclass it, give `open_provider`, and run it with pytest."""

    @abstractmethod
    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        """A provider; the bytes may be gone when the test is over."""
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
        assert logs[2].size() == 5  # its log is durable, its queue unit is not there
        for untouched in (logs[1], queues[1], queues[2], logs[3]):
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

    def test_a_probe_passes_and_leaves_nothing(self, provider: SegmentProvider) -> None:
        findings = provider.probe()
        assert findings
        assert [finding for finding in findings if finding.is_damage] == []
        assert list(provider.list()) == []

    def test_close_is_idempotent(self, provider: SegmentProvider) -> None:
        provider.close()
        provider.close()

    def _content(self, segment: FileSegment) -> bytes:
        return segment.read(0, segment.size())
