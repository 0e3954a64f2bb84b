"""Recently sent objects are read from memory, within its bound; others from the store."""

from __future__ import annotations

from tieredstore.driver.object_client import Range
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.recent import RecentObjects
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects


def recent(bytes_max: int) -> tuple[RecentObjects, MemoryObjectClient]:
    client = MemoryObjectClient(MemoryObjects())
    for name in "abc":
        client.put(name, name.encode() * 10)
    calls = ObjectCalls(client, Runtime.inline(), RetryPolicy())
    held = RecentObjects(calls, bytes_max=bytes_max)
    for name in "ab":
        held.add(name, name.encode() * 10)
    return held, client


def test_ranges_come_from_both_in_their_order() -> None:
    held, client = recent(100)
    wanted = [Range("a", 2, 3), Range("c", 0, 4), Range("b", 9, 1)]
    assert [bytes(each) for each in held.ranges(wanted)] == [b"aaa", b"cccc", b"b"]
    assert client.requests["get"] == 1


def test_the_oldest_makes_room() -> None:
    held, client = recent(15)
    assert [bytes(each) for each in held.ranges([Range("a", 0, 1), Range("b", 0, 1)])] == [
        b"a",
        b"b",
    ]
    assert client.requests["get"] == 1
    held.ranges([Range("b", 0, 10)])
    assert client.requests["get"] == 1  # the first was a


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    held, client = recent(9)
    held.ranges([Range("a", 0, 1), Range("b", 0, 1)])
    assert client.requests["get"] == 2


def test_an_object_that_is_added_again_counts_once() -> None:
    held, client = recent(25)
    for _ in range(5):
        held.add("b", b"b" * 10)
    held.ranges([Range("a", 0, 10), Range("b", 0, 10)])
    assert client.requests["get"] == 0


def test_all_room_is_used() -> None:
    held, client = recent(20)
    held.ranges([Range("a", 0, 10), Range("b", 0, 10)])
    assert client.requests["get"] == 0


def test_what_may_still_change_is_not_kept() -> None:
    held, client = recent(20)
    held.add("c", bytearray(b"?" * 10))
    assert [bytes(each) for each in held.ranges([Range("c", 0, 3)])] == [b"ccc"]
    assert client.requests["get"] == 1


def test_a_range_that_is_not_wholly_here_is_asked_for() -> None:
    held, client = recent(20)
    held.add("c", b"c" * 5)  # as much as was sent so far
    assert [bytes(each) for each in held.ranges([Range("c", 3, 3)])] == [b"ccc"]
    assert client.requests["get"] == 1


def test_what_is_wanted_no_more_makes_room() -> None:
    held, client = recent(20)
    held.keep_only(lambda key: key == "b")
    assert held.held_bytes == 10
    held.add("c", b"c" * 10)
    held.ranges([Range("b", 0, 10), Range("c", 0, 10)])
    assert client.requests["get"] == 0
    held.ranges([Range("a", 0, 10)])
    assert client.requests["get"] == 1
