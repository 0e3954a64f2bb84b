"""A segment beside a byte string: whatever happens to the one happens to the other."""

from __future__ import annotations

import itertools
from abc import abstractmethod

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
)

_number = itertools.count()  # each history has a segment of its own


class SegmentMachine(RuleBasedStateMachine):
    """Random histories of one segment; `model` is None while there is none."""

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
