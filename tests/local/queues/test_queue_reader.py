"""Reads by queue offset: where a batch ends, what is passed over, where to go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tieredstore.codec.record import tags_code
from tieredstore.driver.runtime import Runtime
from tieredstore.local import queue_reader
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 2_500


def a_store(root: Path, **settings: object) -> LocalMessageStore:
    small: dict[str, object] = {
        "store_path": str(root),
        "commit_log_file_bytes": 65_536,
        "queue_file_bytes": 20_000,  # 1000 units
        "index_enabled": False,
        "dispatch_interval_ms": 0,
    }
    store = LocalMessageStore(LocalConfig.from_mapping({**small, **settings}), Runtime.inline())
    store.load()
    store.start()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMessageStore]:
    store = a_store(tmp_path_factory.mktemp("reader") / "store")
    store.put_messages(
        [
            a_message(number, properties={"TAGS": "rare" if number % 900 == 899 else "often"})
            for number in range(COUNT)
        ]
    )
    yield store
    store.shutdown()


class Filter:
    """By tag, or by what the record says; it counts what it was shown."""

    def __init__(self, tag: str | None = None, *, body: bytes | None = None) -> None:
        self._code = None if tag is None else tags_code(tag)
        self._body = body
        self.shown = 0

    def matches_tags_code(self, tags_code: int) -> bool:
        self.shown += 1
        return self._code is None or tags_code == self._code

    def matches_record(self, record: bytes) -> bool:
        return self._body is None or self._body in record


class TagFilter(Filter):
    """The same; it names its codes, so that nobody has to ask it."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tags_codes = [tags_code(tag)]


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (COUNT, GetStatus.OFFSET_OVERFLOW_ONE, COUNT),
        (COUNT + 1, GetStatus.OFFSET_OVERFLOW_BADLY, COUNT),
        (10**12, GetStatus.OFFSET_OVERFLOW_BADLY, COUNT),
    ],
)
def test_outside_of_the_queue_a_read_says_where_to_go_on(
    store: LocalMessageStore, offset: int, status: GetStatus, next_offset: int
) -> None:
    got = store.get_message(TOPIC, 0, offset)
    assert (got.status, got.next_offset) == (status, next_offset)
    assert (got.min_offset, got.max_offset, list(got.messages)) == (0, COUNT, [])


@pytest.mark.parametrize("offset", [0, 5, -3])
def test_a_queue_without_messages_says_so_for_every_offset(
    store: LocalMessageStore, offset: int
) -> None:
    got = store.get_message("Nobody", 0, offset)
    assert (got.status, got.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_a_read_ends_with_the_queue_file(store: LocalMessageStore) -> None:
    got = store.get_message(TOPIC, 0, 995, count_max=32)
    assert [one.queue_offset for one in got.messages] == list(range(995, 1000))
    assert got.next_offset == 1000
    got = store.get_message(TOPIC, 0, 1000, count_max=32)
    assert got.messages[0].queue_offset == 1000


@pytest.mark.parametrize(
    ("count_max", "looked_at"), [(1, 800), (32, 800), (800, 800), (900, 900), (5_000, 1_000)]
)
def test_a_filter_is_shown_800_messages_or_as_many_as_were_asked_for(
    store: LocalMessageStore, count_max: int, looked_at: int
) -> None:
    none = Filter("none")
    got = store.get_message(TOPIC, 0, 0, count_max=count_max, message_filter=none)
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, looked_at)
    assert none.shown == looked_at


def test_a_filter_finds_what_is_far_away_read_by_read(store: LocalMessageStore) -> None:
    found, offset = [], 0
    while offset < COUNT:
        got = store.get_message(TOPIC, 0, offset, message_filter=Filter("rare"))
        assert got.next_offset > offset
        found += [one.queue_offset for one in got.messages]
        offset = got.next_offset
    assert found == [899, 1799]


def test_a_filter_by_content_is_asked_after_the_one_by_tag(store: LocalMessageStore) -> None:
    got = store.get_message(TOPIC, 0, 0, message_filter=Filter(body=b"body-17|"))
    assert [one.queue_offset for one in got.messages] == [17]
    got = store.get_message(TOPIC, 0, 0, message_filter=Filter("rare", body=b"body-17|"))
    assert got.status is GetStatus.NO_MATCHED_MESSAGE


def test_a_batch_ends_before_the_bytes_are_exceeded(store: LocalMessageStore) -> None:
    size = len(store.get_message(TOPIC, 0, 0, count_max=1).messages[0].record)
    for bytes_max, count in ((size * 5, 5), (size * 5 - 1, 4), (1, 1), (0, 1), (-5, 1)):
        got = store.get_message(TOPIC, 0, 0, bytes_max=bytes_max)
        assert len(got.messages) == count, bytes_max
        assert got.next_offset == count


def test_what_is_in_memory_comes_in_larger_batches(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(store.get_message(TOPIC, 0, 0, count_max=1_000).messages) == 32
    assert store.in_memory(TOPIC, 0, 0)
    monkeypatch.setattr(queue_reader, "_page_cache_bytes", lambda: 100_000)
    assert not store.in_memory(TOPIC, 0, 0)
    assert len(store.get_message(TOPIC, 0, 0, count_max=1_000).messages) == 8
    assert store.in_memory(TOPIC, 0, COUNT - 1)
    assert len(store.get_message(TOPIC, 0, COUNT - 40, count_max=1_000).messages) == 32


def test_the_bytes_of_a_batch_have_a_limit_in_memory_and_a_smaller_one_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path, memory_bytes_max=8_000)
    store.put_messages([a_message(number, body_bytes=900, properties={}) for number in range(50)])
    assert len(store.get_message(TOPIC, 0, 0).messages) == 8  # of 1000 bytes each
    monkeypatch.setattr(queue_reader, "_page_cache_bytes", lambda: 0)
    assert len(store.get_message(TOPIC, 0, 0).messages) == 2
    store.shutdown()


def test_what_goes_while_it_is_read_is_told_before_what_follows_it(tmp_path: Path) -> None:
    """The log lost a file and the queue has not heard of it yet."""
    store = a_store(tmp_path, commit_log_file_bytes=8_192)
    store.put_messages(
        [a_message(n, properties={"TAGS": "odd" if n % 2 else "even"}) for n in range(200)]
    )
    log = store._loaded().log
    first_kept = next(
        number
        for number in range(200)
        if store.get_message(TOPIC, 0, number, count_max=1).messages[0].log_offset >= 2 * 8_192
    )
    log.queue.delete_before(2 * 8_192)
    for wanted in (None, Filter(body=b"not there"), Filter("even"), TagFilter("even")):
        got = store.get_message(TOPIC, 0, 0, count_max=3, message_filter=wanted)
        assert (got.status, got.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, first_kept)
        assert not got.messages
    got = store.get_message(TOPIC, 0, first_kept, count_max=3)
    assert [one.queue_offset for one in got.messages] == list(range(first_kept, first_kept + 3))
    assert store.message_at(0) is None
    assert not store.contains(TOPIC, 0, 0)
    assert len(store.read_range(TOPIC, 0, 0, count_max=10, bytes_max=10_000)) == 0
    store.shutdown()


@pytest.mark.parametrize("wanted", [Filter("odd"), TagFilter("odd")], ids=["asked", "by codes"])
def test_a_read_goes_on_behind_what_the_filter_left_out_and_before_what_has_gone(
    tmp_path: Path, wanted: Filter
) -> None:
    store = a_store(tmp_path, commit_log_file_bytes=8_192)
    store.put_messages(
        [a_message(n, properties={"TAGS": "odd" if n == 7 else "even"}) for n in range(200)]
    )
    store._loaded().log.queue.delete_before(8_192)
    got = store.get_message(TOPIC, 0, 0, message_filter=wanted)
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 7)
    got = store.get_message(TOPIC, 0, 7, message_filter=wanted)
    assert got.status is GetStatus.MESSAGE_WAS_REMOVING
    assert store.get_message(TOPIC, 0, got.next_offset).messages
    store.shutdown()


@pytest.mark.parametrize("count_max", [0, -1])
def test_a_read_of_no_message_gives_none_and_goes_nowhere(
    store: LocalMessageStore, count_max: int
) -> None:
    for offset in (0, 17, COUNT - 1):
        got = store.get_message(TOPIC, 0, offset, count_max=count_max)
        assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, offset)
        assert not got.messages


def test_damage_ends_a_batch_and_is_told_when_it_is_its_turn(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.put_messages([a_message(number) for number in range(20)])
    at = store.get_message(TOPIC, 0, 7, count_max=1).messages[0].log_offset
    file = store._loaded().log.queue.find(at)
    assert file is not None
    file.write_at(at + 100, b"XX")
    got = store.get_message(TOPIC, 0, 0)
    assert [one.queue_offset for one in got.messages] == list(range(7))
    assert got.next_offset == 7
    assert len(store.read_range(TOPIC, 0, 0, count_max=20, bytes_max=99_999)) == 7
    for read in (
        lambda: store.get_message(TOPIC, 0, 7),
        lambda: store.read_range(TOPIC, 0, 7, count_max=20, bytes_max=99_999),
        lambda: store.message_at(at),
    ):
        with pytest.raises(SegmentCorruptError, match=file.path) as error:
            read()
        assert error.value.position == at
    assert store.get_message(TOPIC, 0, 8).messages[0].queue_offset == 8
    store.shutdown()


def test_a_run_crosses_queue_files_and_log_files(store: LocalMessageStore) -> None:
    run = store.read_range(TOPIC, 0, 990, count_max=1_300, bytes_max=10**9)
    assert (run.first_offset, run.end_offset) == (990, 2_290)
    for row in (0, 9, 10, 11, 1_299):
        one = store.get_message(TOPIC, 0, 990 + row, count_max=1).messages[0]
        assert bytes(run.record(row)) == one.record
        assert (run.log_offsets[row], run.tags_codes[row]) == (one.log_offset, one.tags_code)
