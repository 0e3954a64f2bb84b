"""Every promise of `FileSegment` as a test suite and as a state machine.

    class TestMySegment(FileSegmentContract):
        def open_segment(self, path: str) -> FileSegment:
            return MySegment(path, SegmentType.COMMIT_LOG, 0)

`open_segment` returns a new handle on the same bytes each time it is called with the same path.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from array import array

from tieredstore.model.extras import brought_by

with brought_by("testing"):
    import pytest
    from hypothesis import HealthCheck, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        invariant,
        precondition,
        rule,
        run_state_machine_as_test,
    )

from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
)

_number = itertools.count()  # each history has a segment of its own


class SegmentMachine(RuleBasedStateMachine):
    """Random histories of one segment; `model` is None while there is no segment."""

    seals_for_good = False  # whether a new handle on a sealed segment is sealed too

    def __init__(self) -> None:
        super().__init__()
        self._path = f"broker-a/machine/{next(_number)}"
        self.segment = self.open_segment(self._path)
        self.model: bytes | None = None
        self.sealed = False

    @abstractmethod
    def open_segment(self, path: str) -> FileSegment:
        """A new handle on the segment at this queue path."""
        raise NotImplementedError

    @precondition(lambda self: not self.sealed)
    @rule(data=st.binary(max_size=200))
    def append(self, data: bytes) -> None:
        self.segment.write(len(self.model or b""), data)
        if data:
            self.model = (self.model or b"") + data

    @precondition(lambda self: not self.sealed)
    @rule(position=st.integers(0, 300), data=st.binary(max_size=5))
    def write_anywhere(self, position: int, data: bytes) -> None:
        end = len(self.model or b"")
        if position == end:
            return
        with pytest.raises(PositionMismatchError) as caught:
            self.segment.write(position, data)
        assert caught.value.actual == end

    @rule(position=st.integers(-5, 400), length=st.integers(-5, 400))
    def read(self, position: int, length: int) -> None:
        if self.model is None:
            with pytest.raises(SegmentNotFoundError):
                self.segment.read(position, length)
        elif position < 0 or length < 0 or position + length > len(self.model):
            with pytest.raises(OffsetOutOfRangeError):
                self.segment.read(position, length)
        else:
            assert self.segment.read(position, length) == self.model[position:][:length]

    @rule()
    def seal(self) -> None:
        self.segment.seal()
        self.sealed = True
        with pytest.raises(SegmentSealedError):
            self.segment.write(len(self.model or b""), b"x")

    @rule()
    def delete(self) -> None:
        self.segment.delete()
        self.model = None

    @rule()
    def reopen(self) -> None:
        self.segment.close()
        self.segment = self.open_segment(self._path)
        self.sealed = self.seals_for_good and self.sealed and self.model is not None

    @invariant()
    def the_size_is_true(self) -> None:
        if self.model is None:
            with pytest.raises(SegmentNotFoundError):
                self.segment.size()
        else:
            assert self.segment.size() == len(self.model)

    def teardown(self) -> None:
        if not self.sealed:
            self.segment.delete()
        self.segment.close()


PATH = "broker-a/TopicTest/0"


class FileSegmentContract:
    """Subclass it, define `open_segment`, and run it with pytest."""

    machine_examples = 30
    seals_for_good = False  # whether a new handle on a sealed segment is sealed too

    @abstractmethod
    def open_segment(self, path: str) -> FileSegment:
        """A new handle on the segment at this queue path."""
        raise NotImplementedError

    @pytest.fixture
    def segment(self) -> FileSegment:
        return self.open_segment(PATH)

    def test_a_segment_never_written_is_not_there(self, segment: FileSegment) -> None:
        for call in (segment.size, lambda: segment.read(0, 1), lambda: segment.read(0, 0)):
            with pytest.raises(SegmentNotFoundError):
                call()
        with pytest.raises(FileNotFoundError):
            segment.size()

    def test_a_write_at_position_0_creates(self, segment: FileSegment) -> None:
        segment.write(0, b"first")
        assert segment.size() == 5
        assert segment.read(0, 5) == b"first"

    def test_writes_at_the_end_append(self, segment: FileSegment) -> None:
        segment.write(0, b"first")
        segment.write(5, b"second")
        assert segment.size() == 11
        assert segment.read(0, 11) == b"firstsecond"

    @pytest.mark.parametrize("position", [0, 4, 6, 1 << 40])
    def test_a_write_elsewhere_is_told_the_true_end(
        self, segment: FileSegment, position: int
    ) -> None:
        segment.write(0, b"first")
        with pytest.raises(PositionMismatchError) as caught:
            segment.write(position, b"x")
        assert (caught.value.expected, caught.value.actual) == (position, 5)
        segment.write(caught.value.actual, b"-tail")
        assert segment.read(0, 10) == b"first-tail"

    def test_a_write_beyond_0_creates_nothing(self, segment: FileSegment) -> None:
        with pytest.raises(PositionMismatchError) as caught:
            segment.write(3, b"x")
        assert caught.value.actual == 0
        with pytest.raises(SegmentNotFoundError):
            segment.size()

    def test_writing_no_bytes_only_checks_the_position(self, segment: FileSegment) -> None:
        segment.write(0, b"")
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        with pytest.raises(PositionMismatchError):
            segment.write(1, b"")
        segment.write(0, b"data")
        segment.write(4, b"")
        with pytest.raises(PositionMismatchError):
            segment.write(0, b"")
        assert segment.size() == 4

    def test_any_buffer_can_be_written_and_is_copied(self, segment: FileSegment) -> None:
        mine = bytearray(b"abc")
        segment.write(0, mine)
        mine[:] = b"xyz"
        segment.write(3, memoryview(b"-def-")[1:4])
        wide = memoryview(bytearray(b"12345678")).cast("I")
        segment.write(6, wide)
        assert segment.size() == 14
        assert segment.read(0, 14) == b"abcdef12345678"

    def test_a_buffer_that_cannot_be_written_leaves_no_segment(self, segment: FileSegment) -> None:
        with pytest.raises((TypeError, ValueError, BufferError)):
            segment.write(0, memoryview(b"0123456789")[::2])
        with pytest.raises(SegmentNotFoundError):
            segment.size()

    def test_a_read_gives_exactly_what_was_asked(self, segment: FileSegment) -> None:
        segment.write(0, b"0123")
        segment.write(4, b"456789")
        for start, end in itertools.combinations_with_replacement(range(11), 2):
            data = segment.read(start, end - start)
            assert type(data) is bytes
            assert data == b"0123456789"[start:end]

    @pytest.mark.parametrize(
        ("position", "length"), [(-1, 1), (0, 6), (5, 1), (6, 0), (3, -1), (1 << 62, 1 << 62)]
    )
    def test_a_read_outside_is_an_error_and_never_short(
        self, segment: FileSegment, position: int, length: int
    ) -> None:
        segment.write(0, b"01234")
        with pytest.raises(OffsetOutOfRangeError):
            segment.read(position, length)

    def test_a_large_write_comes_back_whole(self, segment: FileSegment) -> None:
        data = array("I", range(9 << 18)).tobytes() + b"end"  # 9 MiB, no two pages alike
        segment.write(0, data)
        assert segment.size() == len(data)
        assert segment.read(len(data) - 5, 5) == data[-5:]
        assert segment.read(0, len(data)) == data

    def test_a_sealed_segment_is_read_and_not_written(self, segment: FileSegment) -> None:
        segment.write(0, b"data")
        segment.seal()
        segment.seal()
        with pytest.raises(SegmentSealedError):
            segment.write(4, b"more")
        assert segment.read(0, 4) == b"data"

    def test_a_deleted_segment_is_gone_and_can_be_made_anew(self, segment: FileSegment) -> None:
        segment.delete()  # no error, although nothing is there yet
        segment.write(0, b"data")
        segment.delete()
        segment.delete()
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        with pytest.raises(SegmentNotFoundError):
            self.open_segment(PATH).read(0, 1)
        segment.write(0, b"anew")
        assert segment.read(0, 4) == b"anew"

    def test_a_closed_handle_refuses_everything_but_close(self, segment: FileSegment) -> None:
        segment.write(0, b"data")
        segment.close()
        segment.close()
        calls = (
            segment.size,
            lambda: segment.read(0, 1),
            lambda: segment.write(4, b"x"),
            segment.seal,
            segment.delete,
        )
        for call in calls:
            with pytest.raises(StoreClosedError):
                call()
        assert self.open_segment(PATH).read(0, 4) == b"data"

    def test_another_handle_sees_and_continues_the_segment(self, segment: FileSegment) -> None:
        segment.write(0, b"first")
        again = self.open_segment(PATH)
        assert again.read(0, again.size()) == b"first"
        again.write(5, b"second")
        assert segment.size() == 11
        with pytest.raises(PositionMismatchError):
            segment.write(5, b"late")

    def test_segments_of_different_paths_are_apart(self, segment: FileSegment) -> None:
        other = self.open_segment("broker-a/TopicTest/1")
        segment.write(0, b"mine")
        with pytest.raises(SegmentNotFoundError):
            other.size()
        assert segment.path != other.path
        assert segment.queue_path == PATH
        assert PATH in segment.path

    def test_it_closes_as_a_context_manager(self) -> None:
        with self.open_segment(PATH) as segment:
            segment.write(0, b"data")
        with pytest.raises(StoreClosedError):
            segment.size()

    def test_readers_never_see_a_wrong_byte_while_a_writer_appends(
        self, segment: FileSegment
    ) -> None:
        pattern = bytes(range(251)) * 8
        segment.write(0, pattern)

        def read_often(seed: int) -> int:
            wrong = 0
            for turn in range(200):
                start = (seed * 7919 + turn * 104729) % (segment.size() - 8)
                expected = bytes((start + i) % 251 for i in range(8))
                wrong += segment.read(start, 8) != expected
            return wrong

        with Runtime.threads() as runtime:
            readers = [runtime.fetch.submit(read_often, seed) for seed in range(4)]
            for turn in range(1, 50):
                segment.write(turn * len(pattern), pattern)
            assert [reader.result() for reader in readers] == [0, 0, 0, 0]

    def test_any_history_equals_that_of_a_byte_string(self) -> None:
        open_segment, for_good = self.open_segment, self.seals_for_good

        class Machine(SegmentMachine):
            seals_for_good = for_good

            def open_segment(self, path: str) -> FileSegment:
                return open_segment(path)

        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
