"""A scan gives exactly the selected messages, and reports every one that it cannot read."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.job_kit import Harmed
from tests.jobs.load_kit import rows_of as batch_of
from tests.jobs.load_kit import staged
from tests.jobs.written_tier import SECOND_MS, START_MS, WrittenTier, posix_config, properties_of
from tieredstore.access.reader import TieredReader
from tieredstore.access.upkeep import PublishChore
from tieredstore.codec.names import segment_name
from tieredstore.flat import file_store
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.index.store import IndexStore
from tieredstore.jobs.load import begin_load, commit_load
from tieredstore.jobs.load_records import LoadDefaults
from tieredstore.jobs.packs import packed
from tieredstore.jobs.scan import (
    OnCorrupt,
    PickedMessages,
    Scan,
    plan_scan,
    refuse_unknown_topics,
    selected_queues,
)
from tieredstore.jobs.slices import EVER, EVERYTHING, Selection, Slice
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.errors import (
    BackendUnavailableError,
    BodyNotPlainError,
    InvalidConfigError,
    SegmentCorruptError,
    SegmentError,
)
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentType

TOPIC, OTHER = "orders", "payments"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> WrittenTier:
    """Three queues of two topics; the newest messages are not in the uploaded index."""
    made = WrittenTier(config=posix_config(tmp_path_factory.mktemp("tier")))
    made.add(TOPIC, 0, 200, seal=True)
    made.add(TOPIC, 1, 100, seal=True)
    made.add(OTHER, 0, 50)
    made.add(TOPIC, 0, 40)
    return made


def rows_of(
    tier: WrittenTier,
    selection: Selection = EVERYTHING,
    columns: Sequence[str] = ("topic", "queue_id", "queue_offset"),
    *,
    split_bytes: int = 4096,
    **others: Any,
) -> list[dict[str, Any]]:
    scan = Scan(columns=tuple(columns), selection=selection, **others)
    with TieredReader.open(tier.config) as reader:
        items = plan_scan(
            reader, selection, split_bytes=split_bytes, accepts_loss=scan.accepts_loss
        )
    return [
        row
        for item in items
        for batch in scan.batches(tier.config, item)
        for row in batch.to_pylist()
    ]


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in rows)


def everything(tier: WrittenTier) -> list[tuple[str, int, int]]:
    return sorted((*key, offset) for key, end in tier.ends.items() for offset in range(end))


def keys_of(number: int) -> list[str]:
    properties = properties_of(number)
    return [
        each for each in (properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split()) if each
    ]


def test_everything_is_there_once_however_it_is_split(tier: WrittenTier) -> None:
    for split_bytes in (1, 3000, 1 << 26):
        assert places(rows_of(tier, split_bytes=split_bytes)) == everything(tier)


@given(
    topics=st.sampled_from([None, frozenset([TOPIC]), frozenset([OTHER, "none"])]),
    pattern=st.sampled_from([None, "ord.*", "x"]),
    queue_ids=st.sampled_from([None, frozenset([1])]),
    offsets=st.tuples(st.integers(0, 250), st.sampled_from([30, 120, INT64_MAX])),
    seconds=st.tuples(st.integers(-5, 250), st.integers(-5, 250)),
    is_timed=st.booleans(),
    keys=st.sampled_from([None, ["shared-3"], ["shared-22", "order-7"], ["none"], ["U00000205"]]),
    use_index=st.booleans(),
)
def test_what_is_selected_is_what_passes_every_condition(
    tier: WrittenTier,
    topics: frozenset[str] | None,
    pattern: str | None,
    queue_ids: frozenset[int] | None,
    offsets: tuple[int, int],
    seconds: tuple[int, int],
    is_timed: bool,
    keys: list[str] | None,
    use_index: bool,
) -> None:
    begin, until = (START_MS + each * SECOND_MS for each in seconds)
    selection = Selection(
        topics=topics,
        topic_pattern=pattern,
        queue_ids=queue_ids,
        offsets=offsets,
        keys=None if keys is None else frozenset(keys),
        times=(begin, until) if is_timed else EVER,
    )
    wanted = [
        (topic, queue_id, number)
        for topic, queue_id, number in everything(tier)
        if (topics is None or topic in topics)
        and (pattern is None or (pattern == "ord.*" and topic == TOPIC))
        and (queue_ids is None or queue_id in queue_ids)
        and offsets[0] <= number < offsets[1]
        and (not is_timed or seconds[0] <= number < seconds[1])
        and (keys is None or set(keys) & set(keys_of(number)))
    ]
    chosen = (
        tier
        if use_index
        else WrittenTier(
            config=posix_config(Path(tier.config.path).parent, index_enabled=False), ends=tier.ends
        )
    )
    assert places(rows_of(chosen, selection)) == wanted


def test_keys_are_looked_up_and_only_what_is_not_indexed_yet_is_read(tier: WrittenTier) -> None:
    selection = Selection(topics=frozenset([TOPIC]), keys=frozenset(["order-7"]))
    with TieredReader.open(tier.config) as reader:
        items = plan_scan(reader, selection)
        assert [reader.indexed_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [200, 100]
    picked = [item for item in items if isinstance(item, PickedMessages)]
    assert [(item.key, len(item.places), item.others) for item in picked] == [
        (QueueKey(TOPIC, 0), 1, ((200, INT64_MAX),)),
        (QueueKey(TOPIC, 1), 1, ((100, INT64_MAX),)),
    ]
    rest = [item for item in items if not isinstance(item, PickedMessages)]
    assert [(item.key, item.first_offset, item.end_offset) for item in rest] == [
        (QueueKey(TOPIC, 0), 200, 240)
    ]


def test_a_plan_by_key_reads_no_message(tier: WrittenTier, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[SegmentType] = []
    plain = FlatAppendFile.read

    def noted(file: FlatAppendFile, offset: int, length: int) -> bytes:
        read.append(file.type)
        return plain(file, offset, length)

    selection = Selection(topics=frozenset([TOPIC]), keys=frozenset(["shared-3", "order-7"]))
    with TieredReader.open(tier.config) as reader:
        monkeypatch.setattr(FlatAppendFile, "read", noted)
        items = plan_scan(reader, selection)
    assert sum(len(item.places) for item in items if isinstance(item, PickedMessages)) > 10
    assert read == []


def test_damage_where_an_index_has_a_message_is_that_of_the_message_and_a_stale_place_is_none(
    tmp_path: Path,
) -> None:
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(TOPIC, 0, 60, seal=True)
    selection = Selection(keys=frozenset(["shared-1"]))
    with TieredReader.open(made.config) as reader:
        planned = plan_scan(reader, selection)
    (item,) = [each for each in planned if isinstance(each, PickedMessages)]
    numbers = [n for n in range(10, 20) if n % 7 != 6]
    assert len(item.places) == len(numbers)
    place, size = item.places[2]

    def found(item: PickedMessages, on_corrupt: OnCorrupt) -> list[tuple[int, bool]]:
        scan = Scan(columns=("queue_offset", "damage"), selection=selection, on_corrupt=on_corrupt)
        rows = [row for batch in scan.batches(made.config, item) for row in batch.to_pylist()]
        return [(row["queue_offset"], row["damage"] is not None) for row in rows]

    sound = [(number, False) for number in numbers]
    assert found(item, OnCorrupt.FAIL) == sound
    # Places where no message begins, and wrong lengths.
    stale = [(place + 1, size), (place, size + 8), (1 << 40, 90), (place, 1 << 30), (-5, 20)]
    odd = replace(item, places=(*item.places[:2], *stale, *item.places[2:]))
    assert found(odd, OnCorrupt.FAIL) == sound
    (log,) = Path(made.config.path).glob("*/*/orders/0/COMMIT_LOG/*")
    data = log.read_bytes()
    for at in (4, 100):  # the magic, and the body
        damaged = bytearray(data)
        damaged[place + at] ^= 255
        log.write_bytes(damaged)
        with pytest.raises(SegmentCorruptError, match=f"message {numbers[2]}"):
            found(item, OnCorrupt.FAIL)
        assert found(item, OnCorrupt.SKIP) == [each for each in sound if each[0] != numbers[2]]
        assert sorted(found(item, OnCorrupt.REPORT)) == [
            (number, number == numbers[2]) for number in numbers
        ]


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ([f"COMMIT_LOG/{segment_name(0)}"], [190]),
        ([f"CONSUME_QUEUE/{segment_name(0)}"], [10, 11, 12, 14, 15, 16, 17, 18, 19, 190]),
        (["COMMIT_LOG/*", "CONSUME_QUEUE/*"], []),
    ],
)
def test_what_is_lost_where_an_index_has_messages_is_passed_over_where_that_is_asked_for(
    tmp_path: Path, lost: list[str], left: list[int]
) -> None:
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(TOPIC, 0, 200, seal=True)
    selection = Selection(keys=frozenset(["shared-1", "order-190"]))
    with TieredReader.open(made.config) as reader:
        items = plan_scan(reader, selection)
    for pattern in lost:
        for path in Path(made.config.path).rglob(f"orders/0/{pattern}"):
            path.unlink()

    def found(**how: Any) -> list[int]:
        scan = Scan(columns=("queue_offset",), selection=selection, **how)
        batches = (batch for item in items for batch in scan.batches(made.config, item))
        return [row["queue_offset"] for batch in batches for row in batch.to_pylist()]

    assert found(on_corrupt=OnCorrupt.SKIP) == left
    assert found(fails_on_loss=False) == left
    if len(left) < 10:
        with pytest.raises(SegmentError, match=segment_name(0)):
            found()


def test_a_topic_deleted_behind_the_plan_is_passed_over_though_its_log_began_late(
    tmp_path: Path,
) -> None:
    sizes = {"commit_log_segment_bytes": 2048, "consume_queue_segment_bytes": 20 * 8}
    made = WrittenTier(config=posix_config(tmp_path, index_enabled=False, **sizes))
    made.add(TOPIC, 0, 40)
    with made.open() as parts:
        file = parts.files.get(QueueKey(TOPIC, 0))
        assert file is not None
        file.log.drop(file.log.segments[:1])
        assert file.min_offset % 8
    with TieredReader.open(made.config) as reader:
        items = plan_scan(reader, EVERYTHING)
    made.delete(TOPIC)
    patient = Scan(fails_on_loss=False)
    assert [*(batch for item in items for batch in patient.batches(made.config, item))] == []
    with pytest.raises(SegmentError):
        [*(batch for item in items for batch in Scan().batches(made.config, item))]


def test_messages_that_outlived_their_index_file_are_read_for(tmp_path: Path) -> None:
    """Index files are dropped by their own age, not by that of the messages."""
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(TOPIC, 0, 100, seal=True)
    made.add(TOPIC, 0, 8000, body_bytes=1, seal=True)
    with made.open() as parts:
        assert isinstance(parts.index, IndexStore)
        assert parts.index.expire(START_MS + 100 * SECOND_MS) == 1
    selection = Selection(keys=frozenset(["order-12", "order-8001"]))
    assert [place[2] for place in places(rows_of(made, selection))] == [12, 8001]


def test_an_index_file_that_goes_behind_the_back_of_a_plan_takes_no_message_with_it(
    tmp_path: Path,
) -> None:
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(TOPIC, 0, 100, seal=True)
    made.add(TOPIC, 0, 8000, body_bytes=1, seal=True)
    selection = Selection(keys=frozenset(["order-12", "order-8001"]))
    with TieredReader.open(made.config) as reader:
        with made.open() as parts:
            assert isinstance(parts.index, IndexStore)
            assert parts.index.expire(START_MS + 100 * SECOND_MS) == 1
        items = plan_scan(reader, selection)
    scan = Scan(columns=("queue_offset",), selection=selection)
    batches = (batch for item in items for batch in scan.batches(made.config, item))
    found = sorted(row["queue_offset"] for batch in batches for row in batch.to_pylist())
    assert found == [12, 8001]


def test_the_column_key_has_a_row_for_each_key_of_a_message(tier: WrittenTier) -> None:
    rows = rows_of(tier, columns=("key", "topic", "queue_id", "queue_offset"))
    found = sorted(
        (*(row[name] for name in ("topic", "queue_id", "queue_offset")), row["key"] or "")
        for row in rows
    )
    wanted = sorted(
        (*place, key) for place in everything(tier) for key in keys_of(place[2]) or [""]
    )
    assert found == wanted
    chosen = Selection(keys=frozenset(["shared-3"]))
    rows = rows_of(tier, chosen, ("key", "topic", "queue_id", "queue_offset"))
    assert {row["key"] for row in rows} == {"shared-3"}
    assert places(rows) == [each for each in everything(tier) if "shared-3" in keys_of(each[2])]


def test_unique_keys_are_no_other_keys(tier: WrittenTier) -> None:
    assert rows_of(tier, Selection(unique_keys=frozenset(["order-7"]))) == []
    both = Selection(unique_keys=frozenset(["U00000007"]), keys=frozenset(["shared-0"]))
    assert [place[2] for place in places(rows_of(tier, both))] == [7, 7, 7]


def test_messages_of_1970_are_selected_by_their_times(tmp_path: Path) -> None:
    config, key = posix_config(tmp_path), QueueKey(TOPIC, 0)
    times = [0, 1, 400_000, 500_000]
    for number, time in enumerate(times):
        defaults = LoadDefaults(store_time_ms=time)
        begin_load(config)
        part = staged(config, str(number), 0, [batch_of(key, [number])], defaults=defaults)
        commit_load(config, str(number), [part])
    tier = WrittenTier(config=config)
    for begin in (EVER[0], EVER[0] + 1, -400_000, *times):
        for until in (*times, EVER[1] - 1, EVER[1]):
            wanted = [number for number, time in enumerate(times) if begin <= time < until]
            found = rows_of(tier, Selection(times=(begin, until)))
            assert [row["queue_offset"] for row in found] == wanted, (begin, until)


def test_a_topic_that_is_not_there_is_named_with_those_that_are(tier: WrittenTier) -> None:
    with TieredReader.open(tier.config) as reader:
        refuse_unknown_topics(reader, frozenset([TOPIC]))
        with pytest.raises(InvalidConfigError, match="no topic 'order'; its 2 topics: orders, pay"):
            refuse_unknown_topics(reader, frozenset(["order", TOPIC]))


def test_a_queue_that_could_not_be_reached_is_not_read_as_far_as_an_older_catalogue_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(TOPIC, 0, 10)
    made.add(OTHER, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PublishChore, "step", lambda _: True)
        made.add(TOPIC, 0, 20)
    elsewhere = replace(made.config, store_path=str(tmp_path / "elsewhere"))
    is_away = True

    def unreachable(file: FlatMessageFile, *given: Any, **how: Any) -> None:
        if is_away and file.key.topic == TOPIC:
            raise BackendUnavailableError(file.path, "size", "away")
        recover(file, *given, **how)

    monkeypatch.setattr(file_store, "recover", unreachable)
    with TieredReader.open(elsewhere) as reader:
        with pytest.raises(BackendUnavailableError, match="away"):
            selected_queues(reader, EVERYTHING)
        (other,) = selected_queues(reader, Selection(topics=frozenset([OTHER])))
        assert other.end_offset == 5
        is_away = False
        assert [each.end_offset for each in selected_queues(reader, EVERYTHING)] == [30, 5]


def test_small_pieces_are_packed_and_stay_in_order(tier: WrittenTier) -> None:
    with TieredReader.open(tier.config) as reader:
        items = plan_scan(reader, EVERYTHING, split_bytes=4096)
    provider = worker_provider(tier.config)
    packs = packed(items, split_bytes=1 << 20, provider=provider)
    assert len(packs) < len(items)
    assert [item for pack in packs for item in pack] == items
    assert len(packed(items, split_bytes=1, provider=provider)) == len(items)


# Damage


@pytest.fixture
def damaged(tmp_path: Path) -> WrittenTier:
    """The tenth message differs in size from its unit, the twentieth has wrong inner lengths, and
    the second log segment is missing."""
    made = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=8192))
    made.add(TOPIC, 0, 100)
    with TieredReader.open(made.config) as reader:
        rows = reader.get_message(TOPIC, 0, 0, count_max=32).messages
        bases = [
            row.base_offset
            for row in reader.segments(TOPIC, 0)
            if row.type is SegmentType.COMMIT_LOG
        ]
    files = sorted(Path(made.config.path).glob("*/*/orders/0/COMMIT_LOG/*"), key=base_of)
    data = bytearray(files[0].read_bytes())
    data[rows[10].log_offset : rows[10].log_offset + 4] = b"\x7f\xff\xff\xff"
    data[rows[20].log_offset + 84 : rows[20].log_offset + 88] = b"\x7f\xff\xff\xff"
    files[0].write_bytes(data)
    assert [base_of(file) for file in files] == bases
    files[1].unlink()
    return made


def base_of(file: Path) -> int:
    return int(file.name[-20:])


def lost_numbers(tier: WrittenTier) -> list[int]:
    """What lay in the second log segment."""
    with TieredReader.open(tier.config) as reader:
        file = [row for row in reader.segments(TOPIC, 0) if row.type is SegmentType.COMMIT_LOG]
    units = b"".join(
        path.read_bytes()
        for path in sorted(Path(tier.config.path).glob("*/*/orders/0/CONSUME_QUEUE/*"), key=base_of)
    )
    log_offsets = [int.from_bytes(units[at : at + 8], "big") for at in range(0, len(units), 20)]
    begin, end = file[1].base_offset, file[1].end_offset
    return [number for number, place in enumerate(log_offsets) if begin <= place < end]


def test_damage_fails_and_names_file_and_position(damaged: WrittenTier) -> None:
    with pytest.raises(SegmentCorruptError, match=r"COMMIT_LOG/\w+: damaged at byte \d+: .*10"):
        rows_of(damaged)
    with pytest.raises(SegmentCorruptError, match=r"lengths within message 20 do not add up"):
        rows_of(damaged, Selection(offsets=(11, 30)))


def test_damage_is_left_out_and_everything_around_it_is_given(
    damaged: WrittenTier, caplog: pytest.LogCaptureFixture
) -> None:
    lost = {10, 20, *lost_numbers(damaged)}
    assert len(lost) > 10
    for split_bytes in (500, 1 << 26):
        rows = rows_of(damaged, on_corrupt=OnCorrupt.SKIP, split_bytes=split_bytes)
        assert [row["queue_offset"] for row in rows] == [
            number for number in range(100) if number not in lost
        ]
    with caplog.at_level(logging.WARNING):
        rows_of(damaged, on_corrupt=OnCorrupt.SKIP)
    assert "message 10" in caplog.text


def test_damage_is_reported_message_by_message_where_that_is_asked_for(
    damaged: WrittenTier,
) -> None:
    columns = ("topic", "queue_offset", "body", "damage")
    rows = rows_of(damaged, columns=columns, on_corrupt=OnCorrupt.REPORT)
    assert sorted(row["queue_offset"] for row in rows) == list(range(100))
    told = {row["queue_offset"]: row for row in rows if row["damage"] is not None}
    assert set(told) == {10, 20, *lost_numbers(damaged)}
    assert all(row["body"] is None and row["topic"] == TOPIC for row in told.values())
    assert "COMMIT_LOG" in told[10]["damage"]
    assert all(row["body"] is not None for row in rows if row["damage"] is None)


def test_a_segment_that_is_gone_is_passed_over_where_loss_is_no_failure(
    damaged: WrittenTier,
) -> None:
    lost = set(lost_numbers(damaged))
    rows = rows_of(damaged, Selection(offsets=(21, INT64_MAX)), fails_on_loss=False)
    assert [row["queue_offset"] for row in rows] == [
        number for number in range(21, 100) if number not in lost
    ]
    with pytest.raises(SegmentCorruptError, match="damaged at byte"):
        rows_of(damaged, fails_on_loss=False)


# Plain bodies


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> WrittenTier:
    """A plain body, one of zlib, a damaged one, one of zlib; then thirty large ones."""
    made = WrittenTier(config=posix_config(tmp_path_factory.mktemp("compressed")))
    stored = zlib.compress(b"an order")
    made.add(TOPIC, 0, 1, bodies=[b"as it is"])
    made.add(TOPIC, 0, 3, bodies=[stored, stored[:-1], stored], sys_flag=1)
    large = [zlib.compress(bytes([number]) * 10_000) for number in range(30)]
    made.add(OTHER, 0, 30, bodies=large, sys_flag=1, seal=True)
    return made


def test_plain_bodies_are_as_producers_made_them_and_a_damaged_one_fails_or_is_null(
    compressed: WrittenTier, caplog: pytest.LogCaptureFixture
) -> None:
    columns = "queue_offset", "body_plain", "body"
    here = Selection(topics=frozenset({TOPIC}))
    line = "orders, queue 0, message 2: the compressed body is damaged (zlib): it ends too early"
    with pytest.raises(BodyNotPlainError) as failure:
        rows_of(compressed, here, columns)
    assert str(failure.value) == line
    others = rows_of(compressed, Selection(topics=here.topics, offsets=(0, 2)), columns)
    assert [row["body_plain"] for row in others] == [b"as it is", b"an order"]
    for on_corrupt in (OnCorrupt.SKIP, OnCorrupt.REPORT):
        caplog.clear()
        found = rows_of(compressed, here, (*columns, "damage"), on_corrupt=on_corrupt)
        assert [row["queue_offset"] for row in found] == [0, 1, 2, 3]
        assert [row["body_plain"] for row in found] == [b"as it is", b"an order", None, b"an order"]
        assert [row["damage"] is None for row in found] == [True, True, False, True]
        assert found[2]["body"] is not None
        assert line in caplog.text
    assert len(rows_of(compressed, here, ("body",))) == 4  # without `body_plain` nothing fails


@pytest.mark.parametrize("columns", [("body_plain",), ("key", "queue_offset", "body_plain")])
def test_a_batch_of_plain_bodies_ends_before_it_is_large(
    compressed: WrittenTier, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...]
) -> None:
    selection = Selection(topics=frozenset({OTHER}))
    scan = Scan(columns=columns, selection=selection)
    wanted = rows_of(compressed, selection, columns)
    assert {row["body_plain"] for row in wanted} == {bytes([n]) * 10_000 for n in range(30)}
    monkeypatch.setattr("tieredstore.jobs.scan.PLAIN_BATCH_BYTES", 25_000)
    with TieredReader.open(compressed.config) as reader:
        items = plan_scan(reader, selection)
    batches = [batch for item in items for batch in scan.batches(compressed.config, item)]
    assert [row for batch in batches for row in batch.to_pylist()] == wanted
    sizes = [sum(len(body) for body in batch["body_plain"].to_pylist()) for batch in batches]
    assert len(sizes) >= 10
    assert max(sizes) <= 25_000 + 3 * 10_000  # plus one message with its keys


def test_a_queue_that_has_lost_its_end_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    os.truncate(tier.file("GoldAa/0", "CONSUME_QUEUE", 1600), 30)
    with TieredReader.open(tier.config) as reader:
        end = reader.max_offset("GoldAa", 0) or 0
        with pytest.raises(SegmentCorruptError, match=r"GoldAa/0: damaged at byte \d+: .*30 bytes"):
            plan_scan(reader, EVERYTHING)
        assert plan_scan(reader, Selection(offsets=(0, end)))
        items = plan_scan(reader, EVERYTHING, accepts_loss=True)
    assert (
        sum(item.end_offset - item.first_offset for item in items if isinstance(item, Slice)) == 531
    )
