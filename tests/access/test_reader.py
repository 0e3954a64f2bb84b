"""A tier is read without its broker: the golden tier of a Java broker, and one that grows."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.access.tiered_kit import a_config
from tests.codec.golden_files import BROKER, GOLDEN, expected
from tests.jobs.job_kit import flipped, verified
from tests.jobs.written_tier import START_MS, WrittenTier, a_run, posix_config
from tieredstore.access.reader import TieredReader, retry_after_refresh
from tieredstore.access.upkeep import expire
from tieredstore.access.wiring import AnotherTierError, NoCatalogueError, open_tier
from tieredstore.codec.record import QUEUE_OFFSET_POSITION
from tieredstore.codec.tiered_index import (
    HEADER_BYTES,
    TieredIndexHeader,
    encode_header,
    file_bytes,
)
from tieredstore.driver.provider import ProviderWrapper, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.times import first_unit_from
from tieredstore.index.local_file import FileSizes
from tieredstore.index.store import IndexStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidArgumentError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import TOPIC


def golden_config(root: Path) -> StoreConfig:
    return StoreConfig(
        broker_name=BROKER,
        cluster_name="GoldenCluster",
        provider="posix",
        path=str(root / "tiered"),
        metadata_path=str(root / "store" / "config" / "tieredStoreMetadata.json"),
        store_path=str(root / "store"),
        commit_log_segment_bytes=16_000,
        consume_queue_segment_bytes=400,
    )


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    copy = tmp_path / "tier"
    shutil.copytree(GOLDEN / "tier-posix", copy)
    return copy


@pytest.fixture
def reader(golden: Path) -> Iterator[TieredReader]:
    with TieredReader(golden_config(golden), runtime=Runtime.inline()) as reader:
        yield reader


def contents(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """The bytes and the time of the last change of every file and folder."""
    found: dict[str, tuple[bytes | None, int]] = {}
    for path in sorted(root.rglob("*")):
        data = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = data, os.stat(path).st_mtime_ns
    return found


# The broker's own tier


def test_every_message_of_the_golden_tier_comes_once_and_in_order(reader: TieredReader) -> None:
    wanted: dict[QueueKey, list[tuple[int, int, int, int]]] = {}
    for row in expected("tier-posix.expect-messages.json"):
        wanted.setdefault(QueueKey(row["topic"], row["queueId"]), []).append(
            (row["queueOffset"], row["tieredCommitLogOffset"], row["tagsCode"], row["size"])
        )
    assert reader.queues() == sorted(wanted)
    for key, rows in wanted.items():
        found = list(reader.messages(*key))
        assert [
            (one.queue_offset, one.log_offset, one.tags_code, len(one.record)) for one in found
        ] == rows


def test_all_messages_are_those_of_all_queues(reader: TieredReader) -> None:
    one_by_one = [one for key in reader.queues() for one in reader.messages(*key)]
    assert list(reader.messages()) == one_by_one
    assert len(one_by_one) == len(expected("tier-posix.expect-messages.json"))


def test_looking_at_a_tier_changes_not_one_byte_of_it(golden: Path) -> None:
    before = contents(golden)
    with TieredReader(golden_config(golden)) as reader:
        for key in reader.queues():
            reader.summary(*key)
            reader.store_time(*key, 3)
            reader.earliest_time(*key)
            reader.offset_by_time(*key, 1_795_171_540_000)
            reader.query_message(key.topic, "k")
            for offset in (-1, 0, 5, 1 << 40):
                reader.get_message(*key, offset)
        reader.segments()
        reader.topics()
        assert sum(1 for _ in reader.messages())
        reader.refresh()
    assert contents(golden) == before


def test_a_tier_that_may_not_be_written_can_be_read(golden: Path) -> None:
    """The reader may not create a lock file."""
    for folder in [golden, *(path for path in golden.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    try:
        with TieredReader(golden_config(golden)) as reader:
            assert sum(1 for _ in reader.messages()) > 100
    finally:
        for folder in [golden, *(path for path in golden.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)


def test_segments_and_topics_are_those_of_the_catalogue(reader: TieredReader, golden: Path) -> None:
    path = golden_config(golden).catalogue_path
    with JsonMetadataStore.open(path, read_only=True) as catalogue:
        wanted = {
            (row.path, row.type, row.base_offset, row.size)
            for row in catalogue.segments()
            if "rmq_sys_INDEX" not in row.path
        }
        topics = {row.topic for row in catalogue.topics()}
    found = [(row.path, row.type, row.base_offset, row.size) for row in reader.segments()]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert {row.topic for row in reader.topics()} == topics


def test_a_summary_says_where_a_queue_begins_and_ends(reader: TieredReader) -> None:
    rows = expected("tier-posix.expect-messages.json")
    for key in reader.queues():
        mine = [row for row in rows if (row["topic"], row["queueId"]) == key]
        summary = reader.summary(*key)
        assert summary is not None
        assert (summary.min_offset, summary.max_offset) == (
            mine[0]["queueOffset"],
            mine[-1]["queueOffset"] + 1,
        )
        assert summary.log_bytes >= sum(row["size"] for row in mine)
        assert summary.problem is None
    assert reader.summary("Nowhere", 0) is None


def test_reading_may_begin_in_the_middle(reader: TieredReader) -> None:
    key = reader.queues()[0]
    everything = list(reader.messages(*key))
    assert list(reader.messages(*key, start=everything[3].queue_offset)) == everything[3:]
    assert list(reader.messages(*key, start=-5)) == everything
    assert list(reader.messages(*key, start=1 << 40)) == []
    assert list(reader.messages("Nowhere")) == []
    assert list(reader.messages(key.topic, 99)) == []


@pytest.mark.parametrize("wrong", ["0", True, 0.5, float("nan"), [0]])
def test_a_queue_or_a_start_that_is_no_number_is_refused(reader: TieredReader, wrong: Any) -> None:
    topic = reader.queues()[0].topic
    for call in (
        lambda: list(reader.messages(topic, wrong)),
        lambda: list(reader.messages(topic, 0, start=wrong)),
        lambda: reader.segments(topic, wrong),
        lambda: reader.summary(topic, wrong),
        lambda: reader.indexed_offset(topic, wrong),
        lambda: reader.queues([wrong]),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError):
            call()


def test_bytes_are_read_in_bounded_pieces(golden: Path) -> None:
    config = StoreConfig(
        **{
            name: getattr(golden_config(golden), name)
            for name in ("broker_name", "cluster_name", "provider", "path", "metadata_path")
        },
        read_ahead_bytes=3_000,
        read_ahead_count=7,
    )
    with TieredReader(config) as reader:
        runs = list(reader.runs())
        assert max(len(run) for _, run in runs) <= 7
        assert all(int(run.message_bytes.sum()) <= 3_000 or len(run) == 1 for _, run in runs)
        total = sum(len(run) for _, run in runs)
    assert total == len(expected("tier-posix.expect-messages.json"))


# Life


def test_a_reader_answers_only_while_it_is_open(golden: Path) -> None:
    reader = TieredReader(golden_config(golden))
    for call in (
        reader.queues,
        reader.topics,
        reader.segments,
        reader.refresh,
        reader.runs,
        reader.messages,
        lambda: reader.get_message(TOPIC, 0, 0),
        lambda: reader.query_message(TOPIC, "k"),
        lambda: reader.offset_by_time(TOPIC, 0, 0),
        lambda: reader.max_offset(TOPIC, 0),
    ):
        with pytest.raises(StoreClosedError):
            call()
    reader.load()
    reader.load()
    messages = iter(reader.messages())
    next(messages)
    reader.close()
    reader.close()
    with pytest.raises(StoreClosedError):
        reader.queues()
    with pytest.raises(StoreClosedError):
        list(messages)


def test_open_gives_an_open_reader(golden: Path) -> None:
    with TieredReader.open(golden_config(golden)) as reader:
        assert reader.queues()


def test_a_catalogue_that_is_damaged_leaves_nothing_open(golden: Path) -> None:
    config = golden_config(golden)
    for path in Path(config.catalogue_path).parent.iterdir():
        path.write_bytes(b"no json")
    reader = TieredReader(config)
    with pytest.raises(MetadataError):
        reader.load()
    with pytest.raises(StoreClosedError):
        reader.queues()


def test_a_tier_that_is_not_there_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    config = a_config(tmp_path, provider="posix", path=str(tmp_path / "tier"))
    with pytest.raises(NoCatalogueError, match="rebuild"):
        TieredReader.open(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"broker_name": "nobody"}, f"has no broker 'nobody'; it has {BROKER}"),
        (
            {"cluster_name": "Another"},
            "cluster_name: no cluster 'Another' (442c0184_Another) lies in {root}/tiered;"
            " there is GoldenCluster",
        ),
        ({"path": "{root}/nowhere"}, "path: there is no directory {root}/nowhere"),
        ({"path": "{root}/store"}, "lies in {root}/store; there is none"),
    ],
)
def test_a_tier_that_is_not_the_one_of_the_catalogue_is_an_error_that_names_what_is_there(
    golden: Path, settings: dict[str, str], line: str
) -> None:
    root = str(golden)
    named: Any = {name: text.replace("{root}", root) for name, text in settings.items()}
    line = line.replace("{root}", root)
    with pytest.raises(AnotherTierError) as refusal:
        TieredReader.open(dataclasses.replace(golden_config(golden), **named))
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_broker_whose_bytes_are_all_gone_has_lost_them_and_is_no_other_tier(
    golden: Path,
) -> None:
    for segment in (golden / "tiered").rglob("*"):
        if segment.is_file():
            segment.unlink()
    with TieredReader(golden_config(golden), runtime=Runtime.inline()) as reader:
        problems = [
            found.problem
            for key in reader.queues()
            if (found := reader.summary(*key)) is not None and found.log_bytes
        ]
        assert problems
        assert all(problem is not None for problem in problems)


def test_damage_is_an_error_after_all_that_comes_before_it(golden: Path) -> None:
    config = golden_config(golden)
    with TieredReader(config) as reader:
        key = next(key for key in reader.queues() if len(list(reader.messages(*key))) > 10)
        whole = list(reader.messages(*key))
        broken = whole[5]
        segment = next(
            row
            for row in reader.segments(*key)
            if row.type == 0 and row.base_offset <= broken.log_offset < row.end_offset
        )
    provider = PosixProvider(config.path, config.cluster_name, Runtime.inline())
    file = next(
        path
        for path in (golden / "tiered").rglob("*")
        if path.is_file()
        and str(path).endswith(provider.open(segment.path, segment.type, segment.base_offset).path)
    )
    data = bytearray(file.read_bytes())
    at = broken.log_offset - segment.base_offset
    data[at + 4 : at + 8] = b"\xff\xff\xff\xff"
    file.write_bytes(data)
    found: list[bytes] = []
    with TieredReader(config) as reader:
        with pytest.raises(SegmentCorruptError):
            found += [one.record for one in reader.messages(*key)]
        for one in whole[:5]:
            assert reader.get_message(*key, one.queue_offset, count_max=1).messages == [one]


def test_hashes_are_the_brokers_but_for_the_log_offset(reader: TieredReader) -> None:
    rows = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["sha256"]
        for row in expected("tier-posix.expect-messages.json")
    }
    equal = sum(
        rows[(*key, one.queue_offset)] == sha256(one.record).hexdigest()
        for key in reader.queues()
        for one in reader.messages(*key)
    )
    assert equal == len(rows)


# A reader on the broker's host also asks the index files that are not uploaded; one elsewhere
# reports that it cannot


ORDERS = "orders"
SEALED, LATER = 17, 3


def tier(tmp_path: Path, **settings: int) -> StoreConfig:
    """20 messages; the keys of the last 3 are only on the broker's disk."""
    config = posix_config(tmp_path, **settings)
    made = WrittenTier(config=config)
    made.add(ORDERS, 0, SEALED, seal=True)
    made.add(ORDERS, 0, LATER)
    return config


def offsets(result: QueryResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def ask_all(reader: TieredReader) -> tuple[int, int]:
    """How many messages are found by key, and how many answers are incomplete."""
    found = partial = 0
    for number in range(SEALED + LATER):
        if number % 7 != 6:  # the others have no key
            result = reader.query_message(ORDERS, f"order-{number}")
            assert offsets(result) in ([number], [])
            assert result.messages or not result.complete
            found += len(result.messages)
            partial += not result.complete
    return found, partial


WITH_KEYS = sum(number % 7 != 6 for number in range(SEALED + LATER))
LATER_WITH_KEYS = sum(number % 7 != 6 for number in range(SEALED, SEALED + LATER))


def index_folder(config: StoreConfig) -> Path:
    return Path(config.store_path) / "tiered_index_file"


def local_bytes(config: StoreConfig) -> dict[str, bytes]:
    files = index_folder(config).rglob("*")
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def test_a_reader_on_the_brokers_host_finds_what_is_not_uploaded_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)  # use only the index
    config = tier(tmp_path)
    before = local_bytes(config)
    with TieredReader.open(config) as reader:
        assert ask_all(reader) == (WITH_KEYS, 0)
        assert reader.indexed_offset(ORDERS, 0) == SEALED  # counts only uploaded files
    assert local_bytes(config) == before


def test_what_a_running_broker_has_put_and_not_noted_is_found_or_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path)
    made = WrittenTier(config=config)
    made.add(ORDERS, 0, SEALED, seal=True)
    parts = open_tier(config, runtime=Runtime.inline(now_ms=START_MS))
    try:
        parts.load()
        key = QueueKey(ORDERS, 0)
        made.write(parts, key, a_run(key, made.ends[key], LATER))
        index = parts.index
        assert isinstance(index, IndexStore)
        index._writer.drain()  # not synced yet
        with TieredReader.open(config) as reader:
            assert ask_all(reader) == (WITH_KEYS, 0)
        monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)
        with TieredReader.open(config) as reader:
            assert ask_all(reader) == (WITH_KEYS, WITH_KEYS)
            index._writer.sync()
            reader.refresh()
            assert ask_all(reader) == (WITH_KEYS, 0)
            index.seal()  # for the reader's catalogue the file is still a local one
            assert ask_all(reader) == (WITH_KEYS, 0)
    finally:
        parts.close()


def test_a_reader_elsewhere_says_up_to_where_the_index_goes(tmp_path: Path) -> None:
    config = tier(tmp_path)
    with TieredReader(config, is_brokers_host=False) as reader:
        assert ask_all(reader) == (WITH_KEYS - LATER_WITH_KEYS, WITH_KEYS)
        result = reader.query_message(ORDERS, "order-1")
        assert (result.complete, result.lags) == (False, True)
        assert reader.indexed_offset(ORDERS, 0) == SEALED
        absent = reader.query_message(ORDERS, "absent")
        assert (absent.messages, absent.complete, absent.lags) == ([], False, True)
        old = reader.query_message(ORDERS, "order-1", end=START_MS - 1)
        assert (old.messages, old.complete) == ([], True)


@pytest.mark.parametrize("left", ["slots", "header", "all but a word"])
def test_what_a_power_cut_left_behind_durable_keys_hides_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Of one more item, only the slots reached the disk, or also the header, or all but the word
    that links to the previous item. The broker has not been started since.
    """
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)
    config = tier(tmp_path, index_slot_count=17)
    (path,) = [each for each in index_folder(config).iterdir() if each.name.isdigit()]
    data = bytearray(path.read_bytes())
    sizes = FileSizes.of(path, config.index_slot_count, config.index_item_count)
    last = int.from_bytes(data[24:28])
    assert last == 3 * LATER_WITH_KEYS
    heads = np.frombuffer(data, ">i4", 2 * sizes.slot_count, HEADER_BYTES)[::2]
    at = sizes.position(last + 1)
    if left == "all but a word":
        assert (at + 28) % 512 == 0
        before = sizes.position(last - 1)
        key_hash = int.from_bytes(data[before : before + 4])
        data[at : at + 28] = data[before : before + 28]
        data[at : at + 4] = (key_hash + sizes.slot_count).to_bytes(4)  # in the same slot
        heads[key_hash % sizes.slot_count] = last + 1
    else:
        heads[heads > 0] = last + 1
    if left != "slots":
        data[24:28] = (last + 1).to_bytes(4)
    path.write_bytes(data)
    with TieredReader.open(config) as reader:
        assert ask_all(reader) == (WITH_KEYS, 0)
    assert verified(config).findings == ()


@pytest.mark.parametrize("harm", ["items", "cut off", "header"])
def test_a_damaged_file_on_the_brokers_disk_is_named_by_no_answer_that_is_complete(
    tmp_path: Path, harm: str
) -> None:
    config = tier(tmp_path)
    (path,) = [each for each in index_folder(config).iterdir() if each.name.isdigit()]
    data = bytearray(path.read_bytes())
    if harm == "items":
        data[28 + 8 * config.index_slot_count + 32 + 3] ^= 4
    elif harm == "cut off":
        del data[-1]
    else:
        data[:28] = b"x" * 28
    path.write_bytes(data)
    with TieredReader.open(config) as reader:
        result = reader.query_message(ORDERS, "order-18")
        assert (result.complete, result.lags) == (False, False)
        assert ask_all(reader)[1] == WITH_KEYS


def test_without_the_brokers_disk_an_answer_may_lack_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)
    config = tier(tmp_path)
    (Path(config.store_path) / "tiered_index_file").rename(tmp_path / "elsewhere")
    with TieredReader.open(config) as reader:
        assert ask_all(reader) == (WITH_KEYS - LATER_WITH_KEYS, WITH_KEYS)


def test_a_file_that_a_broker_just_begins_harms_no_question(tmp_path: Path) -> None:
    config = tier(tmp_path)
    folder = Path(config.store_path) / "tiered_index_file"
    size = file_bytes(slot_count=config.index_slot_count, item_capacity=config.index_item_count)
    (folder / str(START_MS - 5)).write_bytes(b"")
    (folder / str(START_MS - 6)).write_bytes(bytes(size))
    header = encode_header(TieredIndexHeader(begin_timestamp=START_MS - 7))
    (folder / str(START_MS - 7)).write_bytes(header.ljust(size, b"\0"))
    with TieredReader.open(config) as reader:
        assert ask_all(reader) == (WITH_KEYS, 0)


# A reader closes although its backend never answers


__all__ = ["golden"]  # a fixture


class _HungSegment(SegmentWrapper):
    answers = threading.Event()

    def read(self, position: int, length: int) -> bytes:
        assert self.answers.wait(300)
        return self.inner.read(position, length)


class _HungProvider(ProviderWrapper):
    def wrap(self, segment: FileSegment) -> _HungSegment:
        return _HungSegment(segment)


def test_a_backend_that_never_answers_does_not_keep_a_reader_from_closing(golden: Path) -> None:
    config = golden_config(golden)
    with Runtime.inline() as inline:
        hung = _HungProvider(PosixProvider.from_config(config, inline), inline)
        reader = TieredReader(config, provider=hung)
        reader.load()
        key = reader.queues()[0]

        def ask() -> None:
            with suppress(StoreClosedError, RuntimeError):  # depends on how far it has come
                reader.get_message(*key, 0)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        try:
            started = time.monotonic()
            reader.close(timeout=0.2)
            assert time.monotonic() - started < 60
        finally:
            _HungSegment.answers.set()
            asking.join(60)
        assert not asking.is_alive()


# A question is asked again only if a refresh shows another state


MISSING = [
    SegmentNotFoundError("a segment"),
    SegmentCorruptError("a segment", "it is damaged", position=0),
    OffsetOutOfRangeError("a shorter segment", offset=60, minimum=0, maximum=20),
    StoreClosedError("a queue is closed"),
]


class Asked:
    """Fails until it has been refreshed `refreshes` times; its state changes twice at most."""

    def __init__(self, error: TieredStoreError, *, refreshes: int) -> None:
        self._error = error
        self._refreshes = refreshes
        self.state = 0

    def call(self) -> str:
        if self.state < self._refreshes:
            raise self._error
        return "found"

    def refresh(self) -> None:
        self.state = min(self.state + 1, 2)


@pytest.mark.parametrize("error", MISSING, ids=lambda error: type(error).__name__)
def test_what_is_missing_is_looked_for_again_until_nothing_changes(error: TieredStoreError) -> None:
    asked = Asked(error, refreshes=2)
    found = retry_after_refresh(asked.call, state=lambda: asked.state, refresh=asked.refresh)
    assert found == "found"
    asked = Asked(error, refreshes=3)
    with pytest.raises(type(error)):
        retry_after_refresh(asked.call, state=lambda: asked.state, refresh=asked.refresh)


@pytest.mark.parametrize("error", MISSING, ids=lambda error: type(error).__name__)
def test_nothing_is_called_missing_while_no_refresh_succeeds(error: TieredStoreError) -> None:
    def away() -> None:
        raise BackendUnavailableError("a bucket", "list", "no reply")

    asked = Asked(error, refreshes=1)
    with pytest.raises(BackendUnavailableError, match="no reply") as unknown:
        retry_after_refresh(asked.call, state=lambda: asked.state, refresh=away)
    assert unknown.value.__cause__ is error


def test_real_damage_is_told_though_a_writer_changes_the_catalogue_all_the_time() -> None:
    """In a bucket each entry of the log is another generation, so each refresh may show one."""
    generations = iter(range(1_000))

    def damaged() -> str:
        raise SegmentCorruptError("a segment", "it is damaged", position=0)

    with pytest.raises(SegmentCorruptError):
        retry_after_refresh(damaged, state=lambda: next(generations), refresh=lambda: None)
    assert next(generations) < 100


@pytest.mark.parametrize("bits", [0x10, 0x80, 0x01])
def test_the_oldest_record_with_another_number_lets_nobody_pass_messages(
    tmp_path: Path, bits: int
) -> None:
    """After what came before it has expired, its number says where the queue begins."""
    made = WrittenTier(config=posix_config(tmp_path))
    made.add(ORDERS, 0, 200)
    with made.open() as parts:
        (file,) = parts.files.files()
        first = first_unit_from(file, file.log.segments[1].base)
        assert expire(file, START_MS + 1_000 * first).segment_count
    (log, *_) = sorted(Path(made.config.path).rglob("COMMIT_LOG/*"), key=lambda log: log.name[8:])
    with flipped(log, QUEUE_OFFSET_POSITION + 7, bits), TieredReader(made.config) as reader:
        with pytest.raises(SegmentCorruptError, match=f"this is not message {first}"):
            reader.get_message(ORDERS, 0, first)
        page = reader.get_message(ORDERS, 0, first + 1, count_max=200)
        assert [each.queue_offset for each in page.messages][:2] == [first + 1, first + 2]
