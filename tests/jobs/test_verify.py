"""A sound tier verifies without a finding; damage anywhere in it is found and located."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.cli_kit import picture
from tests.codec.encoders import encode_stored
from tests.codec.golden_files import BROKER, GOLDEN
from tests.jobs.job_kit import (
    Harmed,
    changed,
    flipped,
    golden_config,
    kinds,
    run_inline,
    verified,
)
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.access.audit import audit
from tieredstore.access.upkeep import expire
from tieredstore.codec.columns import Properties
from tieredstore.codec.java import string_hash
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import index_queue_path, segment_name
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.tiered_index import compacted_file_bytes
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.times import first_unit_from
from tieredstore.index.watermarks import Watermarks
from tieredstore.index.writer import LocalFolder
from tieredstore.jobs.job import JobExit
from tieredstore.jobs.verify import TierPicture, VerifyJob, indexed_queues
from tieredstore.jobs.verify_findings import SHIFT_MIN, VerifyKind
from tieredstore.jobs.verify_slice import (
    SegmentBytes,
    SliceItem,
    _with_empty_key,
    codes_agree,
)
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, MetadataError
from tieredstore.model.findings import Place
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.providers.posix import PosixProvider

LOG, QUEUE = "COMMIT_LOG", "CONSUME_QUEUE"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Harmed:
    """Shared: each test must leave it as it was."""
    return Harmed.golden(tmp_path_factory.mktemp("verify"))


def test_the_tier_that_java_wrote_has_no_finding_and_stays_as_it_was(golden: Harmed) -> None:
    before = picture(golden.root)
    report = verified(golden.config, split_bytes=3_000)
    assert report.findings == ()
    assert report.exit_code is JobExit.DONE
    assert (report.counts["messages"], report.counts["queues"]) == (533, 9)
    # Java's entries for the empty key count here, though no message has that key.
    assert (report.counts["keys"], report.counts["entries"]) == (1279, 1324)
    assert picture(golden.root) == before


def test_a_queue_without_a_message_is_passed_by(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 10, seal=True)
    with tier.open() as parts:
        parts.files.create("Empty", 0).start_at(0)
    report = verified(tier.config)
    assert report.findings == ()
    assert (report.counts["messages"], report.counts["queues"]) == (10, 2)


def test_a_tier_that_is_new_has_nothing_to_verify_and_another_broker_s_is_told(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    with tier.open() as parts:
        assert not parts.files.files()
    report = verified(tier.config)
    assert (report.findings, report.exit_code) == ((), JobExit.DONE)
    tier.add("Orders", 0, 10)
    with pytest.raises(MetadataError, match="names no segment of the broker 'another'"):
        verified(replace(tier.config, broker_name="another"))
    Path(tier.config.catalogue_path).write_text("{}")
    with pytest.raises(MetadataError, match="a rebuild adds it"):
        verified(tier.config)


def test_a_tier_of_ours_with_uploaded_and_local_index_files_has_no_finding(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 1, 90)
    tier.add("%RETRY%group", 0, 40, body_bytes=0)
    report = verified(tier.config, split_bytes=5_000)
    assert report.findings == ()
    assert report.counts["messages"] == 280
    assert report.counts["keys"] == report.counts["entries"] > 500
    assert 0 < report.counts["entries_local"] < report.counts["entries"]


def test_keys_of_which_none_was_uploaded_yet_are_no_damage(tmp_path: Path) -> None:
    """Even if the queue does not begin at 0: the note of its keys begins where the queue does."""
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.ends[QueueKey("Orders", 0)] = 4
    tier.add("Orders", 0, 2)
    elsewhere = replace(tier.config, store_path=str(tmp_path / "elsewhere"), catalogue="published")
    with tier.open() as parts:
        assert parts.publishing.step()
    report = verified(elsewhere)
    assert kinds(report) == {"no-index"}, report.findings


def test_keys_that_wait_behind_those_of_expired_messages_are_no_damage(tmp_path: Path) -> None:
    """Within one stretch of the log the index has keys, but none of the messages that are left."""
    settings = {"commit_log_segment_bytes": 3_500}
    probe = WrittenTier(config=posix_config(tmp_path / "probe", **settings))
    probe.add("Orders", 0, 40)
    with probe.open() as parts:
        (file,) = parts.files.files()
        border = file.log.segments[1].base
        count = first_unit_from(file, border)
    assert border % (1 << SHIFT_MIN)
    tier = WrittenTier(config=posix_config(tmp_path, **settings))
    tier.add("Orders", 0, count, seal=True)
    tier.add("Orders", 0, 2)
    with tier.open() as parts:
        (file,) = parts.files.files()
        assert expire(file, START_MS + 1_000 * count).segment_count
        assert parts.publishing.step()
    elsewhere = replace(tier.config, store_path=str(tmp_path / "elsewhere"), catalogue="published")
    report = verified(elsewhere)
    assert kinds(report) == {"keys-not-uploaded"}, report.findings


def test_an_index_file_that_is_being_made_is_no_damage(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 20)
    (local,) = LocalFolder(tier.config).path.glob("[0-9]*[0-9]")
    size = local.stat().st_size
    for head in (b"", local.read_bytes()[:7]):
        local.with_name(str(int(local.name) + 1)).write_bytes(head + bytes(size - len(head)))
        assert verified(tier.config).findings == ()


def test_keys_of_a_local_file_that_is_gone_are_no_damage(tmp_path: Path) -> None:
    """The disk was lost; the broker puts the keys again when it starts."""
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 20, seal=True)
    tier.add("Orders", 0, 20)
    for path in LocalFolder(tier.config).path.glob("[0-9]*"):
        path.unlink()
    report = verified(tier.config)
    assert kinds(report) == {"keys-not-uploaded"}, report.findings


def test_a_segment_that_rocketmq_closed_with_an_end_marker_is_sound() -> None:
    report = verified(golden_config(GOLDEN / "legacy"))
    assert kinds(report) <= {"no-index"}
    assert report.counts["messages"] > 0


LOG_FIELDS = {
    "total size": (3, {"no-message"}),
    "magic": (4, {"no-message"}),
    "body CRC": (8, {"body-crc"}),
    "queue id": (15, {"wrong-queue"}),
    "queue offset": (27, {"wrong-queue-offset"}),
    "log offset": (35, {"wrong-log-offset"}),
    "IPv6 flag": (39, {"no-message"}),
    "store time": (56, {"store-time"}),
    "body length": (86, {"no-message"}),
    "body": (88, {"body-crc"}),
}


@pytest.mark.parametrize("name", LOG_FIELDS)
def test_a_byte_of_a_record_that_is_another_is_found(golden: Harmed, name: str) -> None:
    position, wanted = LOG_FIELDS[name]
    path = golden.file("GoldAa/1", LOG, 0)
    data, at = path.read_bytes(), 0
    while not (record := decode_message(data, at)).body or not at:
        at += len(encode_stored(record))
    with flipped(path, at + position, 0x10):
        report = verified(golden.config)
    assert wanted <= kinds(report)
    assert report.exit_code is JobExit.DAMAGE
    found = next(each for each in report.findings if each.kind in wanted)
    wanted_place = Place(
        path=str(path),
        topic="GoldAa",
        queue_id=1,
        position=at,
        queue_offset=record.queue_offset,
    )
    assert (found.where, found.place) == (str(path), wanted_place)


def test_the_topic_tags_and_keys_in_a_record_count(golden: Harmed) -> None:
    path = golden.file("GoldAa/1", LOG, 0)
    data = path.read_bytes()
    for text, wanted in ((b"GoldAa", "wrong-queue"), (b"TAGS\x01", "tags-code")):
        with flipped(path, data.index(text) + len(text), 0x01 if text == b"GoldAa" else 0x02):
            assert kinds(verified(golden.config)) & {wanted, "no-message"}, text
    with flipped(path, data.index(b"UNIQ_KEY\x01") + 12, 0x01):
        assert kinds(verified(golden.config)) == {"key-missing", "key-unfounded"}


@pytest.mark.parametrize(
    ("position", "bits", "wanted"),
    [
        (0, 0x01, "unit-beyond-log"),
        (7, 0x01, "no-message"),
        (8, 0x40, "unit-beyond-log"),
        (11, 0x01, "no-message"),
        (19, 0x01, "tags-code"),
    ],
)
def test_a_byte_of_a_unit_that_is_another_is_found(
    golden: Harmed, position: int, bits: int, wanted: str
) -> None:
    path = golden.file("GoldBB/0", QUEUE, 400)
    with flipped(path, 3 * UNIT_BYTES + position, bits):
        report = verified(golden.config)
    found = [each for each in report.findings if each.is_damage]
    assert [each.kind for each in found] == [wanted]
    assert found[0].place.queue_offset == 23


def test_a_unit_that_names_too_many_bytes_does_not_have_them_read(
    golden: Harmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size with a flipped bit may lead over a gigabyte of the log."""
    lengths: list[int] = []
    read = SegmentBytes.read

    def noted(held: SegmentBytes, start: int, stop: int) -> bytes:
        lengths.append(stop - start)
        return read(held, start, stop)

    monkeypatch.setattr(SegmentBytes, "read", noted)
    monkeypatch.setattr("tieredstore.jobs.verify_slice.NEAR_BYTES_AT_ONCE", 2_000)
    assert verified(golden.config).findings == ()
    most = max(lengths)  # of a message that is larger than what is read at once
    lengths.clear()
    path = golden.file("GoldBB/0", QUEUE, 0)
    with flipped(path, 3 * UNIT_BYTES + 10, 0x40):
        report = verified(golden.config)
    found = [each for each in report.findings if each.is_damage]
    assert [(each.kind, each.place.queue_offset) for each in found] == [("no-message", 3)]
    assert max(lengths) <= most


@pytest.mark.parametrize("code", [string_hash("TagA"), string_hash("TagB-long-name"), 0])
def test_no_bit_of_a_tags_code_can_be_another(code: int) -> None:
    flips = np.uint64(1) << np.arange(64, dtype=np.uint64)
    held = (np.array([code] * 64).view(np.uint64) ^ flips).view(np.int64)
    wanted = np.full(64, code)
    for row in range(64):
        others = np.array([code, held[row], code])
        assert codes_agree(others, np.full(3, code)).tolist() == [True, False, True]
    assert codes_agree(wanted, wanted).all()


def test_places_of_extended_units_are_no_codes() -> None:
    places = np.array([60 * number - 2**63 for number in range(5)])
    assert codes_agree(places, np.array([0, 7, 2**31 - 1, -(2**31), 0])).all()


def test_two_units_that_changed_places_are_both_found(golden: Harmed) -> None:
    path = golden.file("GoldBB/0", QUEUE, 400)
    data = path.read_bytes()
    first, second = data[100:120], data[120:140]
    path.write_bytes(data[:100] + second + first + data[140:])
    try:
        report = verified(golden.config)
    finally:
        path.write_bytes(data)
    offsets = [each.place.queue_offset for each in report.findings]
    assert kinds(report) == {"wrong-queue-offset"}
    assert offsets == [26, 25] or offsets == [25, 26]


INDEX_REGIONS = {
    "magic": (0, "index-file"),
    "begin": (9, "index-file"),
    "end": (18, "index-file"),
    "used slots": (23, "index-file"),
    "items": (27, "index-file"),
    "slot position": (28 + 8 * 5 + 3, "index-slot"),
    "slot size": (28 + 8 * 5 + 7, "index-slot"),
    "hash": (28 + 512 + 28 * 40 + 3, "index-slot"),
    "topic id": (28 + 512 + 28 * 40 + 7, "key-missing"),
    "queue id": (28 + 512 + 28 * 40 + 11, "key-missing"),
    "log offset": (28 + 512 + 28 * 40 + 19, "key-missing"),
    "size": (28 + 512 + 28 * 40 + 23, "key-missing"),
    "time": (28 + 512 + 28 * 40 + 26, "key-time"),
}


@pytest.mark.parametrize("name", INDEX_REGIONS)
def test_a_byte_of_an_index_file_that_is_another_is_found(golden: Harmed, name: str) -> None:
    position, wanted = INDEX_REGIONS[name]
    with flipped(golden.files("INDEX")[2], position, 0x02):
        report = verified(golden.config)
    assert wanted in kinds(report)
    assert report.exit_code is JobExit.DAMAGE


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_first_index_file_may_have_a_row_that_begins_earlier(
    tmp_path: Path, number: int
) -> None:
    """It gets one if keys of older messages come into a tier that RocketMQ began."""
    tier = Harmed.golden(tmp_path)
    path = f"{BROKER}/rmq_sys_INDEX/0"
    with JsonMetadataStore.open(tier.root / "store/config/tieredStoreMetadata.json") as metadata:
        row = metadata.segments(path, SegmentType.INDEX)[number]
        assert row.begin_timestamp is not None
        metadata.put(replace(row, begin_timestamp=row.begin_timestamp - 1))
    assert kinds(verified(tier.config)) == (set() if number == 0 else {"index-file"})


def test_a_local_index_file_is_looked_at_too(golden: Harmed) -> None:
    path = golden.local_index()
    first_item = 28 + 8 * 64 + 32
    for position, wanted in ((28 + 3, "index-slot"), (first_item + 19, "key-unfounded")):
        with flipped(path, position, 0x02):
            assert wanted in kinds(verified(golden.config))


def test_where_the_local_index_is_not_seen_the_newest_keys_are_a_note(golden: Harmed) -> None:
    report = verified(_without_store(golden))
    assert kinds(report) == {"keys-not-uploaded"}
    assert report.exit_code is JobExit.DONE


def test_a_key_that_is_not_the_newest_is_missed_all_the_same(golden: Harmed) -> None:
    first = golden.files("INDEX")[-2]
    with flipped(first, 28 + 512 + 19, 0x01):
        report = verified(_without_store(golden))
    assert {"key-missing"} < kinds(report)


def test_a_truncated_log_and_a_lost_queue_segment_are_found(tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    log = tier.file("GoldAa/0", LOG, 13167)
    log.write_bytes(log.read_bytes()[:-2_000])
    tier.file("GoldBB/0", QUEUE, 400).unlink()
    report = verified(tier.config)
    assert {"lost-bytes", "short", "missing"} <= kinds(report)
    lost = {
        (each.place.topic, each.place.queue_id): each.place.queue_offset
        for each in report.findings
        if each.kind == "lost-bytes"
    }
    assert lost[("GoldBB", 0)] == 20
    assert ("GoldAa", 0) in lost


def test_messages_whose_units_were_lost_with_their_row_are_found(tmp_path: Path) -> None:
    """The catalogue forgot a queue segment: the log still has the messages."""
    tier = Harmed.golden(tmp_path)
    catalogue = tier.root / "store/config/tieredStoreMetadata.json"
    with JsonMetadataStore.open(catalogue) as metadata:
        metadata.delete_segment(f"{BROKER}/GoldBB/0", SegmentType.CONSUME_QUEUE, 400)
    tier.file("GoldBB/0", QUEUE, 400).unlink()
    report = verified(tier.config)
    unnamed = [each for each in report.findings if each.kind == "unnamed-message"]
    offsets = {each.place.queue_offset for each in unnamed}
    assert offsets == {*range(20, 40)}


def test_a_log_whose_units_were_all_lost_with_their_rows_is_found(tmp_path: Path) -> None:
    """As after a rebuild of a tier that lost them."""
    tier = Harmed.golden(tmp_path)
    with JsonMetadataStore.open(tier.config.catalogue_path) as metadata:
        for row in metadata.segments(f"{BROKER}/GoldBB/0", SegmentType.CONSUME_QUEUE):
            metadata.delete_segment(row.path, row.type, row.base_offset)
            tier.file("GoldBB/0", QUEUE, row.base_offset).unlink()
    report = verified(tier.config)
    assert kinds(report) == {"no-units", "key-stale"}


def log_files(tier: WrittenTier) -> set[str]:
    root = Path(tier.config.path)
    return {str(path.relative_to(root)) for path in root.rglob("*/COMMIT_LOG/*")}


def begin_a_segment_with(change: Callable[[bytes], bytes], tmp_path: Path) -> WrittenTier:
    """A tier whose second log segment was begun with a message as `change` returns it, and nothing
    was committed; since then the message is the first of another segment."""
    tier, twin = (WrittenTier(config=posix_config(tmp_path / name)) for name in ("a", "b"))
    twin.add("Orders", 0, 1)
    [first] = log_files(twin)
    while log_files(twin) == {first}:
        tier.add("Orders", 0, 1)
        twin.add("Orders", 0, 1)
    [torn] = log_files(twin) - {first}
    begun = (Path(twin.config.path) / torn).read_bytes()
    (Path(tier.config.path) / torn).write_bytes(change(begun))
    with twin.open() as from_parts, tier.open() as parts:
        row = from_parts.metadata.segments("broker-a/Orders/0", SegmentType.COMMIT_LOG)[-1]
        parts.metadata.put(replace(row, size=0))  # as when it was announced
    tier.add("Orders", 0, 5)
    assert len(log_files(tier)) == 3
    return tier


@pytest.mark.parametrize("byte_count", [1, 20, 50, 130])
def test_what_a_kill_within_a_write_has_left_is_no_damage(tmp_path: Path, byte_count: int) -> None:
    tier = begin_a_segment_with(lambda begun: begun[:byte_count], tmp_path)
    report = verified(tier.config)
    assert [(each.kind, each.detail) for each in report.findings] == [
        ("second-copy", f"{byte_count} bytes that no unit names, cut off")
    ]
    assert report.counts["messages"] == tier.ends[QueueKey("Orders", 0)]


@pytest.mark.parametrize("byte_count", [1, 20, 50, 130])
def test_nor_is_it_where_all_messages_before_have_expired(tmp_path: Path, byte_count: int) -> None:
    tier = begin_a_segment_with(lambda begun: begun[:byte_count], tmp_path)
    with tier.open() as parts:
        [file] = parts.files.files()
        first, left, _ = parts.metadata.segments(file.path, SegmentType.COMMIT_LOG)
        border = first_unit_from(file, left.base_offset)
        parts.metadata.delete_segment(first.path, first.type, first.base_offset)
    expired = min(log_files(tier), key=lambda name: name[-20:])
    (Path(tier.config.path) / expired).unlink()
    report = verified(tier.config)
    assert [(each.kind, each.detail) for each in report.findings] == [
        ("second-copy", f"{byte_count} bytes that no unit names, cut off")
    ]
    assert report.counts["messages"] == tier.ends[QueueKey("Orders", 0)] - border


@pytest.mark.parametrize("byte_count", [4, 28, 512])
def test_zeros_that_a_power_cut_has_left_within_a_write_are_no_damage(
    tmp_path: Path, byte_count: int
) -> None:
    tier = begin_a_segment_with(lambda begun: bytes(byte_count) + begun[byte_count:], tmp_path)
    report = verified(tier.config)
    ((kind, detail),) = [(each.kind, each.detail) for each in report.findings]
    assert kind == "second-copy"
    assert detail.endswith("bytes that no unit names, never written")
    assert report.counts["messages"] == tier.ends[QueueKey("Orders", 0)]


def test_what_no_unit_names_and_is_neither_a_message_nor_unwritten_is_damage(
    tmp_path: Path,
) -> None:
    tier = begin_a_segment_with(lambda begun: b"?" * 512 + begun[512:], tmp_path)
    assert kinds(verified(tier.config)) == {"unnamed-message"}


@pytest.mark.parametrize("split_bytes", [1 << 26, 1_000])
def test_units_may_have_expired_before_their_records(tmp_path: Path, split_bytes: int) -> None:
    """Expiry drops units first; if it is killed then, the records wait for the next round."""
    tier = Harmed.golden(tmp_path)
    with JsonMetadataStore.open(tier.root / "store/config/tieredStoreMetadata.json") as metadata:
        metadata.delete_segment(f"{BROKER}/GoldBB/0", SegmentType.CONSUME_QUEUE, 0)
    tier.file("GoldBB/0", QUEUE, 0).unlink()
    report = verified(tier.config, split_bytes=split_bytes)
    assert report.findings == ()
    assert report.counts["entries_of_expired"] > 0


@pytest.mark.parametrize("split_bytes", [1 << 26, 3_000])
def test_a_unit_that_names_an_expired_place_behind_one_that_does_not_is_damage(
    tmp_path: Path, split_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first one of a slice, and the first one of those that are read together."""
    monkeypatch.setattr("tieredstore.jobs.verify_slice.UNITS_AT_ONCE", 16)
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 200)
    with tier.open() as parts:
        (file,) = parts.files.files()
        border = first_unit_from(file, file.log.segments[1].base)
        assert expire(file, START_MS + 1_000 * border).segment_count
    (queue,) = TierPicture.take(tier.config).queues
    assert 0 < queue.min_offset < border
    job = VerifyJob(config=tier.config, topics=("Orders",), split_bytes=split_bytes)
    assert run_inline(job).findings == ()
    slices = (item.slice for item in job.plan().items if isinstance(item, SliceItem))
    firsts = {slice_.first_offset for slice_ in slices}
    for offset in sorted({border, border + 1, 96, 128, 199, *firsts} - {*range(border)}):
        row = next(row for row in queue.queue if offset * UNIT_BYTES < row.end_offset)
        path = Path(tier.config.path).rglob(f"CONSUME_QUEUE/{segment_name(row.base_offset)}")
        with changed(next(path), offset * UNIT_BYTES - row.base_offset, bytes(8)):
            report = run_inline(job)
        assert report.exit_code is JobExit.DAMAGE, offset


def test_what_lies_in_a_gap_since_it_was_planned_is_not_looked_at_again(tmp_path: Path) -> None:
    """As after a decision on two histories: the queue goes on behind all numbers of either."""
    config = posix_config(tmp_path)
    WrittenTier(config=config).add("t", 0, 5)
    items = VerifyJob(config=config).plan().items
    (item,) = (each for each in items if isinstance(each, SliceItem))
    picture = TierPicture.take(config)
    (queue,) = picture.queues
    (row,) = queue.queue
    units = replace(row, size=2 * UNIT_BYTES), replace(row, base_offset=9 * UNIT_BYTES)
    now = replace(picture, queues=(replace(queue, queue=units),))

    def again(first: int, end: int) -> object:
        part = replace(item.slice, first_offset=first, end_offset=end)
        return now.as_now(replace(item, slice=part))

    assert again(2, 5) is None
    left = again(1, 5)
    assert isinstance(left, SliceItem)
    assert (left.slice.first_offset, left.slice.end_offset) == (1, 2)


def test_a_queue_of_which_no_planned_unit_is_left_has_no_keys_to_compare(tmp_path: Path) -> None:
    """As after a decision on two histories: its log has the name of the former one."""
    config = posix_config(tmp_path)
    WrittenTier(config=config).add("t", 0, 5)
    queues = indexed_queues(VerifyJob(config=config).plan().items, {})
    picture = TierPicture.take(config)
    (queue,) = picture.queues
    (row,) = queue.queue
    units = (replace(row, base_offset=UNIT_BYTES),)
    now = replace(picture, queues=(replace(queue, queue=units),))
    (gone,) = now.gone_from(queues).values()
    assert gone.log_start == gone.log_end > 0


def test_what_has_come_into_a_gap_since_it_was_planned_is_no_message_without_a_unit(
    tmp_path: Path,
) -> None:
    """As after a decision on two histories: the queue was made again, and has no gap now."""
    config = posix_config(tmp_path)
    WrittenTier(config=config).add("t", 0, 5)
    job = VerifyJob(config=config)
    (item,) = (each for each in job.plan().items if isinstance(each, SliceItem))
    planned = replace(item, slice=replace(item.slice, end_offset=2), next_offset=4)
    (before,) = job.work(planned)
    assert {each.kind for each in before.findings.found} == {VerifyKind.UNNAMED}
    now = TierPicture.take(config).as_now(planned)
    assert isinstance(now, SliceItem)
    (after,) = job.work(now)
    assert not after.findings.found


@pytest.mark.parametrize("split_bytes", [1 << 26, 1_000])
def test_a_dry_run_and_an_audit_name_the_same_bytes(tmp_path: Path, split_bytes: int) -> None:
    tier = Harmed.golden(tmp_path)
    tier.file("GoldAa/0", LOG, 70_000).write_bytes(bytes(5_000))  # no row names them
    planned = VerifyJob(config=tier.config, split_bytes=split_bytes).plan()
    runtime = Runtime.inline()
    with JsonMetadataStore.open(tier.config.catalogue_path, read_only=True) as metadata:
        provider = PosixProvider.from_config(tier.config, runtime)
        report = audit(metadata, provider, tier.config, runtime)
    assert planned.byte_counts["read"] == report.size == 346_788
    assert planned.counts["queues"] == report.queue_count


def test_only_some_topics_can_be_read_and_an_unknown_one_is_named(golden: Harmed) -> None:
    job = VerifyJob(config=golden.config, topics=("Gold*",))
    assert {item.slice.key.topic for item in job.plan().items if hasattr(item, "slice")} == {
        "GoldAa",
        "GoldBB",
    }
    with pytest.raises(InvalidConfigError, match="no topic is called 'Silver'"):
        VerifyJob(config=golden.config, topics=("Silver",)).plan()


def _without_store(golden: Harmed) -> StoreConfig:
    """The configuration of somebody who is not on the broker's machine."""
    return replace(
        golden.config,
        metadata_path=golden.config.catalogue_path,
        store_path=str(golden.root / "elsewhere"),
    )


def test_a_byte_of_our_footer_that_is_another_is_found(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 40, seal=True)
    (path,) = (tmp_path / "tiered").rglob("INDEX/*")
    size = path.stat().st_size
    keys = verified(tier.config).counts["keys"]
    filter_block = compacted_file_bytes(slot_count=512, item_count=keys)
    for position in (filter_block + 9, filter_block + 4096 + 9, size - 60, size - 13):
        with flipped(path, position):
            assert "index-footer" in kinds(verified(tier.config)), position
    data = path.read_bytes()
    path.write_bytes(data[:-5000])
    assert "index-file" in kinds(verified(tier.config))


@pytest.mark.parametrize("field", range(0, 28, 4))
def test_a_byte_of_an_item_of_ours_that_is_another_is_found(tmp_path: Path, field: int) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 40, seal=True)
    (path,) = (tmp_path / "tiered").rglob("INDEX/*")
    with flipped(path, 28 + 8 * 512 + 28 * 7 + field):
        assert "index-items" in kinds(verified(tier.config))
    assert "index-items" not in kinds(verified(tier.config))


def test_keys_of_the_oldest_messages_may_have_expired_with_their_index_file(
    tmp_path: Path,
) -> None:
    tier = Harmed.golden(tmp_path)
    path = f"{BROKER}/rmq_sys_INDEX/0"
    with JsonMetadataStore.open(tier.root / "store/config/tieredStoreMetadata.json") as metadata:
        oldest = metadata.segments(path, SegmentType.INDEX)[0]
        metadata.delete_segment(path, SegmentType.INDEX, oldest.base_offset)
    tier.file("rmq_sys_INDEX/0", "INDEX", oldest.base_offset).unlink()
    report = verified(tier.config)
    assert kinds(report) == {"keys-expired"}
    assert report.exit_code is JobExit.DONE


@pytest.mark.parametrize("body_bytes", [100, 6_000])
@pytest.mark.parametrize(("dropped_seconds", "wanted"), [(70, set()), (30, {"key-missing"})])
def test_those_of_the_newest_may_have_expired_first(
    tmp_path: Path, body_bytes: int, dropped_seconds: int, wanted: set[str]
) -> None:
    """Files are dropped by their times alone, and one with older messages may not be full yet."""
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=1 << 20))
    for _ in range(2):
        tier.add("Orders", 0, 20, body_bytes=body_bytes, seal=True)
    with tier.open() as parts:
        path = index_queue_path(tier.config.broker_name)
        newest = parts.metadata.segments(path, SegmentType.INDEX)[-1]
        parts.metadata.delete_segment(path, SegmentType.INDEX, newest.base_offset)
        parts.metadata.apply([Watermarks.dropped(START_MS + 1_000 * dropped_seconds)])
        parts.provider.open(path, SegmentType.INDEX, newest.base_offset).delete()
    report = verified(tier.config)
    assert kinds(report) == {"keys-expired", *wanted}, report.findings


@pytest.mark.parametrize(
    ("keys", "has_empty"),
    [
        ("a", False),
        ("a b", False),
        ("a ", False),
        ("a   ", False),
        (" ", False),
        (" a", True),
        ("a  b", True),
        ("a  b  ", True),
        ("  ", False),
    ],
)
def test_an_empty_piece_counts_but_at_the_end(keys: str, has_empty: bool) -> None:
    texts = [b"KEYS\x01x y\x02", f"TAGS\x01  \x02KEYS\x01{keys}\x02".encode()]
    properties = Properties.of_texts(texts)
    _, gaps = properties.keys()
    assert _with_empty_key(properties, gaps).tolist() == ([1] if has_empty else [])
