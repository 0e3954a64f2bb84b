"""Reads by queue offset: where a batch ends, runs by columns, and filters that name their tags.

Each quick way gives the same answer as the plain one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local.store_audit import flip_bits, opened
from tieredstore.codec.columns import FoundKeys, ParsedRun
from tieredstore.codec.queue_unit import QueueUnits, decode_units, encode_units
from tieredstore.codec.record import RECORD_BYTES_MIN, tags_code
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import keys_of_run
from tieredstore.local import queue_reader
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.queue_reader import ReadLimits
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import INT32_MAX, INT64_MAX, GetStatus
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 2_500
FILE_BYTES = 65_536


def a_store(root: Path, **settings: object) -> LocalMessageStore:
    """A store without an index, with queue files of 1000 units."""
    sizes = {"commit_log_file_bytes": FILE_BYTES, "queue_file_bytes": 20_000}
    return opened(root, **{**sizes, "index_enabled": False, **settings})


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
    """Selects by tags codes, if given, and by bytes of the record; counts the units it is shown."""

    def __init__(self, *tags: str, codes: Collection[int] | None = None, body: bytes = b"") -> None:
        self.codes = [tags_code(tag) for tag in tags] or codes
        self.shown = 0
        self._body = body

    def matches_tags_code(self, tags_code: int) -> bool:
        self.shown += 1
        if self.codes is None:
            return True
        low = {code & 0xFFFFFFFF for code in self.codes}
        return tags_code < -(2**31) or tags_code & 0xFFFFFFFF in low

    def matches_record(self, record: bytes) -> bool:
        return self._body in record


class TagFilter(Filter):
    """The same filter with its tags codes named, so that a store may apply them by itself."""

    @property
    def tags_codes(self) -> Collection[int]:
        return self.codes or ()


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


def test_a_page_skips_the_messages_that_have_gone_and_none_that_follows(tmp_path: Path) -> None:
    store = a_store(tmp_path, commit_log_file_bytes=8_192)
    store.put_messages([a_message(n, body_bytes=3_000) for n in range(7)])
    queue, log = store._loaded().queues.queue(TOPIC, 0), store._loaded().log
    assert queue is not None
    log.queue.delete_before(8_192)
    first = next(n for n in range(7) if queue.unit(n).log_offset >= 8_192)
    for offset in range(first):
        got = store.get_message(TOPIC, 0, offset)
        assert (got.status, got.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, first)


def test_nor_the_first_one_that_is_left_if_its_unit_says_that_it_has_gone(tmp_path: Path) -> None:
    store = a_store(tmp_path, commit_log_file_bytes=8_192)
    store.put_messages([a_message(n, body_bytes=3_000) for n in range(7)])
    queue, log = store._loaded().queues.queue(TOPIC, 0), store._loaded().log
    assert queue is not None
    first = next(n for n in range(7) if queue.unit(n).log_offset == 8_192)
    path, position = queue.place_of(first)
    flip_bits(Path(path), position + 6, 0x20)  # of its place: 0 instead of 8192
    log.queue.delete_before(8_192)
    got = store.get_message(TOPIC, 0, first - 1)
    assert (got.status, got.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, first)
    assert store.get_message(TOPIC, 0, first).messages[0].queue_offset == first


def test_what_goes_while_it_is_read_is_told_before_what_follows_it(tmp_path: Path) -> None:
    """The log has deleted a file and the queue does not know yet."""
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


def test_a_run_of_one_message_has_one(store: LocalMessageStore) -> None:
    for count_max, bytes_max in ((1, 10**9), (50, 1), (50, 0), (1, 1)):
        run = store.read_range(TOPIC, 0, 990, count_max=count_max, bytes_max=bytes_max)
        assert (run.first_offset, run.end_offset) == (990, 991)


def test_a_run_crosses_queue_files_and_log_files(store: LocalMessageStore) -> None:
    run = store.read_range(TOPIC, 0, 990, count_max=1_300, bytes_max=10**9)
    assert (run.first_offset, run.end_offset) == (990, 2_290)
    for row in (0, 9, 10, 11, 1_299):
        one = store.get_message(TOPIC, 0, 990 + row, count_max=1).messages[0]
        assert bytes(run.record(row)) == one.record
        assert (run.log_offsets[row], run.tags_codes[row]) == (one.log_offset, one.tags_code)


RUN_COUNT = 252
QUEUES = 3


def filled(root: Path, order: list[int]) -> LocalMessageStore:
    """A store with messages of several queues in this order, in many small files."""
    mixed_store = a_store(root, commit_log_file_bytes=16_384, queue_file_bytes=2_000)
    mixed_store.put_messages(
        [
            a_message(
                number,
                queue_id=queue_id,
                body_bytes=10 + number % 300,
                properties=[{}, {"KEYS": f"a b{number} a"}, {"UNIQ_KEY": f"u{number}"}][number % 3],
            )
            for number, queue_id in enumerate(order)
        ]
    )
    return mixed_store


def both_ways(
    mixed_store: LocalMessageStore, offset: int, count_max: int, bytes_max: int
) -> list[MessageRun | tuple[str, int | None]]:
    """The answer by columns, and the plain answer."""
    answers: list[MessageRun | tuple[str, int | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        for few in (0, INT32_MAX):
            patch.setattr(queue_reader, "FEW_ROWS_MAX", few)
            try:
                answers.append(
                    mixed_store.read_range(
                        TOPIC, 0, offset, count_max=count_max, bytes_max=bytes_max
                    )
                )
            except SegmentCorruptError as error:
                answers.append((str(error), error.position))
    return answers


def check_same(mixed_store: LocalMessageStore, offset: int, count_max: int, bytes_max: int) -> int:
    """Check that both ways agree; return how many rows they give."""
    quick, plain = both_ways(mixed_store, offset, count_max, bytes_max)
    if isinstance(plain, tuple) or isinstance(quick, tuple):
        assert quick == plain
        return 0
    assert quick.first_offset == plain.first_offset == offset
    assert quick.records == plain.records
    for column in ("log_offsets", "message_bytes", "tags_codes", "starts"):
        ours, theirs = getattr(quick, column), getattr(plain, column)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    check_same_keys(quick, plain)
    return len(quick)


def check_same_keys(parsed: MessageRun, plain: MessageRun) -> None:
    """The reader finds the same keys as the index does by itself."""
    found = FoundKeys.of(TOPIC, parsed)
    assert (found is not None) == isinstance(parsed, ParsedRun)
    assert FoundKeys.of(TOPIC, parsed.head(len(parsed) - 1)) is None
    handed, own = (
        keys_of_run(TOPIC, 1, 0, CommittedRun(run=plain, log_offsets=plain.starts, keys=keys))
        for keys in (found, None)
    )
    assert handed.key_counts.tolist() == own.key_counts.tolist()
    for column in ("key_hashes", "log_offsets", "message_bytes", "store_timestamps"):
        ours, theirs = getattr(handed.columns, column), getattr(own.columns, column)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


ORDERS = [
    [0] * RUN_COUNT,
    [number % QUEUES for number in range(QUEUES * RUN_COUNT)],
    [number // 7 % QUEUES for number in range(QUEUES * RUN_COUNT)],
]


@pytest.fixture(scope="module", params=ORDERS, ids=["alone", "in turns", "in groups"])
def mixed_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalMessageStore]:
    mixed_store = filled(tmp_path_factory.mktemp("runs") / "store", request.param)
    yield mixed_store
    mixed_store.shutdown()


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(0, RUN_COUNT + 1),
    count_max=st.integers(-1, RUN_COUNT + 5),
    bytes_max=st.one_of(st.just(10**9), st.integers(-1, 60_000)),
)
def test_runs_are_the_same_both_ways(
    mixed_store: LocalMessageStore, offset: int, count_max: int, bytes_max: int
) -> None:
    rows = check_same(mixed_store, offset, count_max, bytes_max)
    if count_max > 0 and offset < RUN_COUNT:
        assert rows >= 1
        assert rows == min(count_max, RUN_COUNT - offset) or bytes_max < 10**9


@settings(max_examples=80, deadline=None)
@given(
    row=st.integers(0, 60),
    at=st.one_of(st.integers(0, 140), st.integers(-40, -1)),
    written=st.binary(min_size=1, max_size=8),
    from_row=st.integers(0, 60),
)
def test_bytes_that_changed_end_a_run_at_the_same_message(
    mixed_store: LocalMessageStore, row: int, at: int, written: bytes, from_row: int
) -> None:
    whole = mixed_store.read_range(TOPIC, 0, 0, count_max=RUN_COUNT, bytes_max=10**9)
    begin, size = int(whole.log_offsets[row]), int(whole.message_bytes[row])
    file = mixed_store._loaded().log.queue.find(begin)
    assert file is not None
    position = begin - file.start_offset + (min(at, size - 1) if at >= 0 else size + at)
    written = written[: file.wrote - position]
    before = file.read(position, len(written))
    queue = mixed_store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    unit = queue.unit(row)
    file.write_at(position, written)
    try:
        check_same(mixed_store, from_row, RUN_COUNT, 10**9)
    finally:
        file.write_at(position, before)
        queue.mend(row, unit)  # a read may have given the unit the changed tags of the record
    assert check_same(mixed_store, 0, RUN_COUNT, 10**9) == RUN_COUNT


def test_each_byte_of_a_head_counts_as_in_the_plain_way(mixed_store: LocalMessageStore) -> None:
    whole = mixed_store.read_range(TOPIC, 0, 0, count_max=64, bytes_max=10**9)
    begin = int(whole.log_offsets[40])
    file = mixed_store._loaded().log.queue.find(begin)
    assert file is not None
    for at in range(88):
        position = begin - file.start_offset + at
        before = file.read(position, 1)
        for change in (1, 0x80):
            file.write_at(position, bytes([before[0] ^ change]))
            check_same(mixed_store, 35, 10, 10**9)
        file.write_at(position, before)


WRONG_UNITS = [
    {"size": 0},
    {"size": 90},
    {"size": 91},
    {"size": INT32_MAX},
    {"log_offset": INT64_MAX},
    {"log_offset": INT64_MAX - 100},
    {"log_offset": INT64_MAX, "size": INT32_MAX},
    {"log_offset": 10**9},
    {"log_offset": 5},
    {"log_offset": 16_384 - 50},
]


@pytest.mark.parametrize("few", [0, INT32_MAX], ids=["columns", "plain"])
@pytest.mark.parametrize("row", [0, 1, 50])
def test_a_unit_that_names_no_record_ends_a_run_and_is_made_again_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int, few: int
) -> None:
    monkeypatch.setattr(queue_reader, "FEW_ROWS_MAX", few)
    mixed_store = filled(tmp_path, ORDERS[0])
    queue = mixed_store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    file = queue._files.find(row * 20)
    assert file is not None
    before = file.read(row * 20, 12)
    for wrong in WRONG_UNITS:
        if "log_offset" in wrong:
            file.write_at(row * 20, wrong["log_offset"].to_bytes(8, "big"))
        if "size" in wrong:
            file.write_at(row * 20 + 8, wrong["size"].to_bytes(4, "big"))
        if row:
            run = mixed_store.read_range(TOPIC, 0, 0, count_max=100, bytes_max=10**12)
            assert len(run) == row, wrong
        run = mixed_store.read_range(TOPIC, 0, row, count_max=100 - row, bytes_max=10**12)
        assert len(run) == 100 - row, wrong
        assert run.first_offset == row
        assert file.read(row * 20, 12) == before, wrong
    assert {damage.position for damage in mixed_store.damages} == {row * 20}
    assert all(damage.mended for damage in mixed_store.damages)


def test_a_run_ends_where_the_log_lost_a_file(tmp_path: Path) -> None:
    mixed_store = filled(tmp_path, ORDERS[2])
    log = mixed_store._loaded().log
    whole = mixed_store.read_range(TOPIC, 0, 0, count_max=RUN_COUNT, bytes_max=10**9)
    second = log.queue.files[1].start_offset
    behind = int(np.searchsorted(whole.log_offsets, log.queue.files[2].start_offset))
    before = int(np.searchsorted(whole.log_offsets, second))
    log.queue.files[1].destroy()  # a reader may have found the file just before
    assert check_same(mixed_store, 0, RUN_COUNT, 10**9) == before
    assert check_same(mixed_store, before, RUN_COUNT, 10**9) == 0
    assert check_same(mixed_store, behind, RUN_COUNT, 10**9) == RUN_COUNT - behind


def test_who_reads_a_run_owns_its_bytes(tmp_path: Path) -> None:
    mixed_store = filled(tmp_path, ORDERS[0])
    for count in (1, 2, RUN_COUNT):
        run = mixed_store.read_range(TOPIC, 0, 0, count_max=count, bytes_max=10**9)
        assert isinstance(run.records, bytearray)
        assert isinstance(run, ParsedRun) == (count == RUN_COUNT)
        before = bytes(run.records)
        run.records[:] = bytes(len(before))
        again = mixed_store.read_range(TOPIC, 0, 0, count_max=count, bytes_max=10**9)
        assert again.records == before


@pytest.mark.parametrize("bytes_max", [-1, 0, 1_000, 100_000])
def test_a_run_looks_at_no_more_units_than_its_bytes_have_room_for(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    units, looked = ConsumeQueue.units, []

    def counted(queue: ConsumeQueue, offset: int, count: int) -> QueueUnits:
        looked.append(count)
        return units(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "units", counted)
    run = store.read_range(TOPIC, 0, 0, count_max=INT32_MAX, bytes_max=bytes_max)
    assert 1 <= len(run) <= max(looked) <= max(0, bytes_max) // RECORD_BYTES_MIN + 1


def test_few_messages_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_store = filled(tmp_path, ORDERS[0])
    monkeypatch.setattr(queue_reader, "read_records", lambda *_, **__: pytest.fail("as columns"))
    few = queue_reader.FEW_ROWS_MAX
    assert len(mixed_store.read_range(TOPIC, 0, 0, count_max=few, bytes_max=10**9)) == few
    with pytest.raises(pytest.fail.Exception):
        mixed_store.read_range(TOPIC, 0, 0, count_max=few + 1, bytes_max=10**9)


TAGGED_COUNT = 1_500
TAGS = ("often", "sometimes", "rare")
CODES = [tags_code(tag) for tag in TAGS] + [0, 7]
LOST_FILES = 2


@pytest.fixture(scope="module")
def tagged_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMessageStore]:
    """Messages of many sizes; the first log files are gone, and the queue does not know."""
    root = tmp_path_factory.mktemp("tags")
    tagged_store = a_store(root, memory_bytes_max=4_000, memory_count_max=16)
    dice = random.Random(7)
    messages = []
    for number in range(TAGGED_COUNT):
        tag = dice.choices((*TAGS, ""), (50, 10, 1, 5))[0]
        size = dice.choice((10, 100, 100, 900, 3_500))
        properties = {"TAGS": tag} if tag else {}
        messages.append(a_message(number, body_bytes=size, properties=properties))
    tagged_store.put_messages(messages)
    assert tagged_store._loaded().log.queue.delete_before(LOST_FILES * FILE_BYTES)
    yield tagged_store
    tagged_store.shutdown()


@given(
    offset=st.one_of(st.integers(0, TAGGED_COUNT - 1), st.integers(0, 400)),
    count_max=st.sampled_from([1, 2, 5, 16, 32, 900]),
    bytes_max=st.sampled_from([1, 500, 2_000, 10_000, 1 << 20]),
    codes=st.frozensets(st.sampled_from(CODES)),
    body=st.sampled_from([b"", b"7|", b"not there"]),
    page_cache_bytes=st.sampled_from([0, 50_000, 300_000, 1 << 40]),
)
def test_both_ways_give_the_same_answer(
    tagged_store: LocalMessageStore,
    offset: int,
    count_max: int,
    bytes_max: int,
    codes: frozenset[int],
    body: bytes,
    page_cache_bytes: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_reader, "_page_cache_bytes", lambda: page_cache_bytes)
        asked, named = (
            tagged_store.get_message(
                *(TOPIC, 0, offset),
                count_max=count_max,
                bytes_max=bytes_max,
                message_filter=make(codes=codes, body=body),
            )
            for make in (Filter, TagFilter)
        )
    assert asked == named


def test_it_is_asked_for_no_message(tagged_store: LocalMessageStore) -> None:
    named = TagFilter(codes=[12345])
    got = tagged_store.get_message(TOPIC, 0, 0, message_filter=named)
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    assert named.shown == 0


def test_a_filter_that_names_no_codes_is_asked(tagged_store: LocalMessageStore) -> None:
    class Undecided(Filter):
        tags_codes = None

    filter_ = Undecided(codes=[12345])
    got = tagged_store.get_message(TOPIC, 0, 0, message_filter=filter_)
    assert (got.next_offset, filter_.shown) == (800, 800)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    count=st.integers(1, 9),
    size=st.integers(0, 700),
    data=st.data(),
)
def test_the_first_unit_without_room_is_the_same_for_one_and_for_many(
    lengths: list[int], count: int, size: int, data: st.DataObject
) -> None:
    units = decode_units(
        encode_units(
            log_offsets=np.arange(len(lengths)) * 1_000,
            message_bytes=np.array(lengths),
            tags_codes=np.zeros(len(lengths), np.int64),
        )
    )
    limits = ReadLimits(
        count_max=data.draw(st.integers(1, 9)),
        bytes_max=data.draw(st.integers(100, 900)),
        memory_count_max=data.draw(st.integers(1, 16)),
        memory_bytes_max=data.draw(st.integers(1, 2_000)),
        memory_from=data.draw(st.integers(-1, 20)) * 1_000,
    )
    start = data.draw(st.integers(0, len(lengths)))
    full = [
        row
        for row in range(start, len(lengths))
        if limits.is_full(count, size, lengths[row], row * 1_000)
    ]
    found = limits.first_full(units, start, len(lengths), count=count, size=size)
    assert found == (full[0] if full else None)


def test_a_page_from_the_disk_is_a_quarter_of_one_from_memory() -> None:
    limits = ReadLimits(
        count_max=100, bytes_max=10_000, memory_count_max=20, memory_bytes_max=4_000, memory_from=50
    )
    in_memory, on_disk = (
        QueueUnits(
            log_offsets=np.array([at, at + 9]),
            message_bytes=np.array([9, 9]),
            tags_codes=np.array([0, 0]),
        )
        for at in (50, 0)
    )
    for units, log_offset, count, size in ((in_memory, 50, 20, 4_000), (on_disk, 0, 5, 1_000)):
        assert limits.is_full(count, 0, 9, log_offset)
        assert not limits.is_full(count - 1, 0, 9, log_offset)
        assert limits.first_full(units, 0, 2, count=count, size=0) == 0
        assert limits.first_full(units, 0, 2, count=count - 1, size=0) is None
        assert limits.is_full(1, size - 8, 9, log_offset)
        assert not limits.is_full(1, size - 9, 9, log_offset)
        assert limits.first_full(units, 0, 2, count=1, size=size - 8) == 0
        assert limits.first_full(units, 0, 2, count=1, size=size - 9) is None


def test_a_later_unit_may_be_the_first_without_room() -> None:
    limits = ReadLimits(
        count_max=100, bytes_max=100, memory_count_max=20, memory_bytes_max=4_000, memory_from=0
    )
    units = decode_units(
        encode_units(
            log_offsets=np.arange(3),
            message_bytes=np.array([9, 100, 9]),
            tags_codes=np.zeros(3, np.int64),
        )
    )
    assert limits.first_full(units, 0, 3, count=1, size=1) == 1
    assert limits.first_full(units, 0, 3, count=1, size=0) is None
