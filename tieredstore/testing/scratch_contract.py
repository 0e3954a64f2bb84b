"""The tests that every place for staged objects has to pass.

What lives here: `ScratchContract`: subclass it and give it `open_scratch`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import pytest

from tieredstore.driver.scratch import Scratch
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)


class ScratchContract(ABC):
    """Each test begins with an empty place; `open_scratch` is what a new process does."""

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
        assert {each.name for each in scratch.listed("load/one")} == {"load/one/a", "load/one/b"}
        assert {each.name for each in scratch.listed("load")} == {
            *("load/one/a", "load/one/b", "load/two/a")
        }
        assert {each.size for each in scratch.listed()} == {2}
        assert len(scratch.listed()) == 4
        assert [each.size for each in other.listed()] == [1]

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
