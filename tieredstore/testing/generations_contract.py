"""Every promise of `Generations` as a test, for whoever writes one.

class TestMyGenerations(GenerationsContract):
    def open_generations(self, broker: str) -> Generations:
        return MyGenerations(broker)  # of one backend, however often it is called in a test
"""

from __future__ import annotations

from abc import abstractmethod

import pytest

from tieredstore.driver.generations import (
    Generations,
    GenerationTakenError,
    ListedGeneration,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import SegmentNotFoundError

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
        assert [(each.number, each.size) for each in listed] == [
            (number, len(data[number])) for number in sorted(data)
        ]
        assert [elsewhere.read(each) for each in listed] == [data[each.number] for each in listed]

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
