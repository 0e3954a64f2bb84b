"""Everything that reads many messages notices a body that is not the one that was put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.job_kit import exported, golden_config, messages, moved, run_inline, table
from tests.jobs.load_kit import rows_of, staged
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import segment_name
from tieredstore.codec.record import peek_message_bytes
from tieredstore.jobs import migrate_copy
from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.jobs.job import JobState
from tieredstore.jobs.load_records import LoadRefusedError
from tieredstore.jobs.migrate_copy import PassingBodies
from tieredstore.jobs.reindex import ReindexKeys
from tieredstore.jobs.scan import OnCorrupt, Scan, plan_scan
from tieredstore.jobs.slices import EVERYTHING
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import QueueKey, SegmentType

T = TypeVar("T")

DAMAGED = 7  # this message of Orders, queue 0
COUNT = 40


@dataclass(frozen=True)
class Tier:
    config: StoreConfig
    path: Path  # of the log segment with the damaged body
    place: int  # of the record in it


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    written = WrittenTier(config=posix_config(tmp_path / "tier"))
    written.add("Orders", 0, COUNT)
    written.add("Other", 1, 5)
    with TieredReader(written.config) as reader:
        message = reader.get_message("Orders", 0, DAMAGED, count_max=1).messages[0]
        row = next(
            row
            for row in reader.segments("Orders", 0)
            if row.type is SegmentType.COMMIT_LOG
            and row.base_offset <= message.log_offset < row.end_offset
        )
    (path,) = (tmp_path / "tier" / "tiered").rglob(
        f"Orders/0/COMMIT_LOG/{segment_name(row.base_offset)}"
    )
    body = decode_message(message.record).body
    place = message.log_offset - row.base_offset
    data = bytearray(path.read_bytes())
    data[place + message.record.index(body)] ^= 1
    path.write_bytes(data)
    return Tier(written.config, path, place)


def unchecked(config: StoreConfig) -> StoreConfig:
    return replace(config, crc_check_enabled=False)


def until_damage(given: Iterable[T]) -> tuple[list[T], SegmentCorruptError]:
    taken = []
    try:
        for each in given:
            taken.append(each)  # noqa: PERF402 - what came before the damage is kept
    except SegmentCorruptError as error:
        return taken, error
    raise AssertionError("there was no damage")


@pytest.mark.parametrize("setting", [None, True])
def test_a_reader_gives_all_before_it_and_says_which_it_is(
    tier: Tier, setting: bool | None
) -> None:
    with TieredReader(replace(tier.config, crc_check_enabled=setting)) as reader:
        taken, error = until_damage(reader.messages("Orders", 0))
        assert [message.queue_offset for message in taken] == list(range(DAMAGED))
        assert "Orders/0/" in str(error)
        assert f"message {DAMAGED} " in str(error)
        assert error.position == tier.place
        runs, _ = until_damage(reader.runs("Orders", 0))
        assert [run.end_offset for _, run in runs] == [DAMAGED]
        with pytest.raises(SegmentCorruptError):
            next(reader.runs("Orders", 0, start=DAMAGED))
        behind = [each.queue_offset for each in reader.messages("Orders", 0, start=DAMAGED + 1)]
        assert behind == list(range(DAMAGED + 1, COUNT))


def scanned(config: StoreConfig, scan: Scan) -> pa.Table:
    with TieredReader(config) as reader:
        items = plan_scan(reader, EVERYTHING, split_bytes=4000)
    batches = [batch for item in items for batch in scan.batches(config, item)]
    return pa.Table.from_batches(batches, scan.schema)


@pytest.mark.parametrize(
    "columns", [("queue_offset", "body"), ("queue_offset",), ("key",), tuple(MESSAGE_COLUMNS)]
)
def test_a_scan_fails_whatever_columns_are_asked_for(tier: Tier, columns: tuple[str, ...]) -> None:
    with pytest.raises(SegmentCorruptError, match=f"Orders/0/.*message {DAMAGED} "):
        scanned(tier.config, Scan(columns=columns))


def test_a_scan_leaves_it_out_or_gives_a_row_that_says_so(tier: Tier) -> None:
    columns = ("topic", "queue_offset", "body", "damage")
    skipped = scanned(tier.config, Scan(columns=columns, on_corrupt=OnCorrupt.SKIP))
    assert skipped.num_rows == COUNT + 5 - 1
    told = scanned(tier.config, Scan(columns=columns, on_corrupt=OnCorrupt.REPORT))
    assert told.num_rows == COUNT + 5
    marked = [row for row in told.to_pylist() if row["damage"]]
    assert [(row["topic"], row["queue_offset"], row["body"]) for row in marked] == [
        ("Orders", DAMAGED, None)
    ]
    assert f"body of message {DAMAGED}" in marked[0]["damage"]


def test_a_column_tells_of_it_where_the_check_is_turned_off(tier: Tier) -> None:
    scan = Scan(columns=("topic", "queue_offset", "body_crc_ok"))
    told = scanned(unchecked(tier.config), scan)
    wrong = [row for row in told.to_pylist() if not row["body_crc_ok"]]
    assert wrong == [{"topic": "Orders", "queue_offset": DAMAGED, "body_crc_ok": False}]
    assert told.num_rows == COUNT + 5


def test_it_never_goes_to_parquet_unmarked(tier: Tier, tmp_path: Path) -> None:
    failed = exported(tier.config, tmp_path / "a")
    assert failed.state is not JobState.DONE
    assert any(f"message {DAMAGED} " in str(each) for each in failed.failures)
    skipped = exported(tier.config, tmp_path / "b", on_corrupt=OnCorrupt.SKIP)
    assert skipped.counts["damaged"] == 1
    assert sum(messages(tmp_path / "b").values()) == COUNT + 5 - 1
    columns = ("queue_id", "queue_offset", "body", "body_crc_ok")
    assert exported(tier.config, tmp_path / "c", columns=columns).state is not JobState.DONE
    marked = exported(unchecked(tier.config), tmp_path / "c", columns=columns)
    assert marked.state is JobState.DONE
    rows = table(tmp_path / "c").to_pylist()
    assert [row["queue_offset"] for row in rows if not row["body_crc_ok"]] == [DAMAGED]


@pytest.mark.parametrize("block_bytes", [50, 333, 8 << 20])
def test_it_never_goes_to_another_tier(
    tier: Tier, tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_copy, "NEAR_BYTES", block_bytes)
    target = posix_config(tmp_path / "target")
    for _ in range(2):  # the second run compares what has landed and finds the damage again
        report = moved(tier.config, target, cut_over=True)
        assert report.state is not JobState.DONE
        told = [str(each) for each in report.failures if "body of message" in str(each)]
        assert len(told) == 1
        assert f"message {DAMAGED} " in told[0]
        assert "Orders/0" in told[0]
        assert not Path(target.catalogue_path).exists()
    # Unchecked, the body is copied as it is; all the other bytes are there already.
    assert moved(unchecked(tier.config), target, cut_over=True).state is JobState.DONE


def test_one_switch_turns_it_off_everywhere(tier: Tier, tmp_path: Path) -> None:
    config = unchecked(tier.config)
    with TieredReader(config) as reader:
        assert len(list(reader.messages())) == COUNT + 5
        assert sum(len(run) for _, run in reader.runs()) == COUNT + 5
        assert len(reader.get_message("Orders", 0, DAMAGED).messages)
    assert scanned(config, Scan(columns=("body",))).num_rows == COUNT + 5
    assert exported(config, tmp_path / "parquet").state is JobState.DONE


def test_pages_are_checked_only_where_that_is_asked_for(tier: Tier) -> None:
    with TieredReader(tier.config) as reader:  # nor does RocketMQ check them
        assert reader.get_message("Orders", 0, DAMAGED).messages[0].queue_offset == DAMAGED
    with (
        TieredReader(replace(tier.config, crc_check_enabled=True)) as reader,
        pytest.raises(SegmentCorruptError),
    ):
        reader.get_message("Orders", 0, DAMAGED)


def test_its_keys_are_indexed_all_the_same(tier: Tier) -> None:
    report = run_inline(ReindexKeys(config=tier.config))
    assert report.state is JobState.DONE
    with TieredReader(tier.config) as reader:
        found = reader.query_message("Orders", f"order-{DAMAGED - 2}")
        assert [each.queue_offset for each in found.messages] == [DAMAGED - 2]


def test_what_is_marked_is_not_loaded_as_if_it_were_sound(tmp_path: Path) -> None:
    config = posix_config(tmp_path)
    rows = rows_of(QueueKey("Orders", 2), range(4))
    marks = pa.array([True, None, False, True])
    marked = rows.append_column("body_crc_ok", marks)
    marked = marked.append_column("queue_offset", pa.array(range(100, 104), pa.int64()))
    with pytest.raises(
        LoadRefusedError, match="topic Orders, queue_id 2, queue_offset 102.*leave out the row"
    ):
        staged(config, "run", 0, [marked])
    sound = rows.append_column("body_crc_ok", pa.array([True, None, True, True]))
    staged(config, "run", 0, [sound])


# -- bodies that pass by ------------------------------------------------------------------------


def log_segments() -> Iterator[tuple[int, bytes]]:
    """Base and bytes of the log segments that Java wrote."""
    config = golden_config()
    with TieredReader(config) as reader:
        rows = [row for row in reader.segments() if row.type is SegmentType.COMMIT_LOG]
    for row in rows:
        root = Path(config.path)
        found = list(root.rglob(f"{row.path}/COMMIT_LOG/{segment_name(row.base_offset)}"))
        yield row.base_offset, found[0].read_bytes()[: row.size]


SEGMENTS = [(base, data) for base, data in log_segments() if len(data) > 2000]


def bodies_in(data: bytes) -> list[tuple[int, int]]:
    """Where the bodies lie that are long enough to damage."""
    found = []
    at = 0
    while at < len(data):
        end = at + peek_message_bytes(data, at)
        body = decode_message(data[at:end]).body
        if len(body) > 8:
            start = data.index(body, at)
            found.append((start, start + len(body)))
        at = end
    return found


def pass_by(base: int, data: bytes, cuts: list[int]) -> None:
    bodies = PassingBodies("segment", base, 0, len(data))
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for start, end in pairwise(places):
        bodies.take(data[start:end])


@given(
    segment=st.integers(0, len(SEGMENTS) - 1),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_sound_bodies_pass_however_the_bytes_are_cut(segment: int, cuts: list[int]) -> None:
    pass_by(*SEGMENTS[segment], cuts)


@given(
    segment=st.integers(0, len(SEGMENTS) - 1),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
    which=st.integers(0, 1 << 20),
    bit=st.integers(0, 1 << 20),
    is_lost=st.booleans(),
)
def test_a_flipped_bit_of_a_body_is_found_also_behind_bytes_that_are_no_record(
    segment: int, cuts: list[int], which: int, bit: int, is_lost: bool
) -> None:
    base, data = SEGMENTS[segment]
    spans = bodies_in(data)
    chosen = which % (len(spans) - 1) + 1
    start, end = spans[chosen]
    harmed = bytearray(data)
    harmed[start + bit // 8 % (end - start)] ^= 1 << bit % 8
    if is_lost:  # the magic of the first record
        harmed[4] ^= 0xFF
    with pytest.raises(SegmentCorruptError):
        pass_by(base, bytes(harmed), cuts)


def test_a_length_that_is_not_true_takes_no_memory() -> None:
    base, data = SEGMENTS[0]
    harmed = bytearray(data)
    harmed[0:4] = (len(data) - 1).to_bytes(4, "big")
    bodies = PassingBodies("segment", base, 0, len(data))
    for at in range(0, len(data), 100):
        bodies.take(bytes(harmed[at : at + 100]))
        assert len(bodies._held) <= 512


def test_a_copy_of_it_goes_on_from_the_same_place() -> None:
    base, data = SEGMENTS[0]
    bodies = PassingBodies("segment", base, 0, len(data))
    bodies.take(data[:777])
    for again in (copy(bodies), copy(bodies)):
        again.take(data[777:])
    bodies.take(data[777:])
