"""Every promise of the places for published catalogues and staged files as test suites.

class TestMyGenerations(GenerationsContract):
    def open_generations(self, broker: str) -> Generations:
        return MyGenerations(broker)  # of one backend, however often it is called in a test
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.driver.shelf import Generations, GenerationTakenError, ListedGeneration, Scratch
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)

WRITERS = 8


class GenerationsContract:
    """Subclass it, give `open_generations`, and run it with pytest."""

    @abstractmethod
    def open_generations(self, broker: str) -> Generations:
        """Those of a broker; the bytes may be gone when the test is over."""
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
