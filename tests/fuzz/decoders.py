"""Every decoder of the codecs, of a bucket's log and of catalogues, as a function of its input and
of random arguments.

Each is called as its users call it, and starts from golden bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, TypeAlias

import msgspec

from tests.codec.encoders import decode_coda, encode_stored
from tests.codec.golden_files import GOLDEN, files_under, local_records
from tests.fuzz.mutations import extreme_number
from tests.index.index_kit import BEGINS, columns_of, create, golden_rows, uploaded
from tieredstore.codec import (
    checks,
    fastjson,
    java,
    local_index,
    message,
    names,
    queue_unit,
    tiered_index,
)
from tieredstore.codec import record as properties
from tieredstore.codec import record as record_fields
from tieredstore.codec.checks import Buffer
from tieredstore.driver.metadata import (
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.index import footer
from tieredstore.local import recovery
from tieredstore.local.consume_queue import QueueEnd
from tieredstore.local.recovery import QueueEnds, decode_checkpoint, encode_checkpoint
from tieredstore.local.side_file import MALFORMED, read_document
from tieredstore.metadata import journal, published
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError, SegmentCorruptError
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.roundlog import frames
from tieredstore.roundlog.entry import Begun, Entry, Extents, Sealed
from tieredstore.roundlog.state import LogState

Decode: TypeAlias = Callable[[Buffer, Random], object]
LOCAL_SLOTS, TIER_SLOTS = 101, 64
FOOTER_SLOTS, FOOTER_ITEMS = 97, 1299
FOOTER_AT = tiered_index.compacted_file_bytes(slot_count=FOOTER_SLOTS, item_count=FOOTER_ITEMS)


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder, its seeds, and the errors that it may raise."""

    name: str
    decode: Decode
    seeds: Sequence[bytes]
    is_text_parser: bool = False
    refusals: tuple[type[Exception], ...] = (SegmentCorruptError,)

    @property
    def expected(self) -> tuple[type[Exception], ...]:
        """All errors that it may raise for damaged bytes."""
        return (*self.refusals, ValueError) if self.is_text_parser else self.refusals


def _some_position(data: Buffer, random: Random) -> int:
    if random.randrange(3):
        return 0
    return extreme_number(random, len(data))


def _decode_message(data: Buffer, random: Random) -> object:
    found = message.decode_message(data, _some_position(data, random), check_crc=False)
    return found.properties, found.keys, found.tags_code, found.offset_id


def _decode_checked_message(data: Buffer, random: Random) -> object:
    return encode_stored(message.decode_message(data))


def _peek(data: Buffer, random: Random) -> object:
    peeks = (
        *(record_fields.peek_message_bytes, record_fields.peek_magic, record_fields.peek_topic),
        *(record_fields.peek_queue_id, record_fields.peek_queue_offset),
        *(record_fields.peek_log_offset, record_fields.peek_sys_flag),
        *(record_fields.peek_store_timestamp, record_fields.peek_property_bytes),
    )
    return random.choice(peeks)(data, _some_position(data, random))


def _read_properties(data: Buffer, random: Random) -> object:
    found = properties.decode_properties(data)
    keys = properties.split_keys(found.get(properties.KEYS))
    checks.reserve_property_crc(bytes(data))
    return (
        keys,
        properties.tags_code(found.get(properties.TAGS)),
        properties.encode_properties(found),
    )


def _check_crc(data: Buffer, random: Random) -> object:
    return checks.has_property_crc(data), checks.matches_property_crc(data)


def _end_marks(data: Buffer, random: Random) -> object:
    position = _some_position(data, random)
    message.is_blank(data, position)
    message.is_coda(data, position)
    return decode_coda(data, position)


def _hash(data: Buffer, random: Random) -> object:
    texts = java.decode_utf8(data).split("e")
    assert java.string_hashes(texts).tolist() == [java.string_hash(text) for text in texts]
    return [java.tiered_probes(text, TIER_SLOTS) for text in texts[:4]]


def _units(data: Buffer, random: Random) -> object:
    whole = len(data) - len(data) % 20 if random.randrange(2) else len(data)
    return queue_unit.decode_units(memoryview(data)[:whole])


def _one_unit(data: Buffer, random: Random) -> object:
    return queue_unit.decode_unit(data, _some_position(data, random))


def _local_header(data: Buffer, random: Random) -> object:
    return local_index.decode_header(data)


def _local_part(data: Buffer, random: Random) -> object:
    number = extreme_number(random, 100)
    if random.randrange(2):
        return local_index.decode_slot(data, 40 + 4 * number)
    position = local_index.item_position(number, slot_count=LOCAL_SLOTS)
    return local_index.decode_item(data, position)


def _tier_file(data: Buffer, random: Random) -> object:
    header = tiered_index.decode_header(data)
    size = len(data)
    tiered_index.is_legacy_compacted(header, file_bytes=size, slot_count=TIER_SLOTS)
    return tiered_index.view_items(
        data, slot_count=TIER_SLOTS, item_count=header.item_count
    ).tolist()


def _uploaded_slot(data: Buffer, random: Random) -> object:
    at = tiered_index.slot_position(random.randrange(TIER_SLOTS))
    slot = tiered_index.decode_compacted_slot(data, at)
    items = memoryview(data)[slot.position : slot.position + slot.items_bytes]
    return tiered_index.view_compacted_items(items).tolist()


def _footer(data: Buffer, random: Random) -> object:
    found = footer.decode_tail(data, file_bytes=FOOTER_AT + len(data))
    slot = random.randrange(found.slot_count)
    at = found.fence_block_position(found.fence_block(slot))
    block = bytes(data[at : at + footer.BLOCK_BYTES])
    return _groups(block, slot, found)


def _resealed_footer(data: Buffer, random: Random) -> object:
    """With checksums that are right, as if the damage came before they were made."""
    trailer = footer.TRAILER_BYTES
    whole = bytearray(data)
    if len(whole) < trailer:
        return footer.decode_tail(data, file_bytes=FOOTER_AT + len(data))
    blocks = footer.BLOCK_BYTES * sum(
        int.from_bytes(whole[at : at + 4], signed=True)
        for at in (len(whole) - trailer + 20, len(whole) - trailer + 24)
    )
    start = min(max(0, blocks), len(whole) - trailer)
    whole[-16:-12] = footer.checksum(whole[start:-16])
    found = footer.decode_tail(bytes(whole), file_bytes=FOOTER_AT + len(whole))
    payload = bytes(data[: footer.PAYLOAD_BYTES]).ljust(footer.PAYLOAD_BYTES, b"\0")
    block = payload + footer.checksum(payload)
    found.fence_block_position(found.fence_block(random.randrange(found.slot_count)))
    footer.may_hold(block, random.getrandbits(64), path="", position=0)
    return _groups(block, random.randrange(found.slot_count), found)


def _groups(block: bytes, slot: int, found: footer.Footer) -> list[footer.Group]:
    footer.all_groups(block, found, path="", position=found.position)
    return footer.find_groups(block, slot, found, path="", position=found.position)


def _footers() -> list[bytes]:
    with TemporaryDirectory() as folder:
        file = create(Path(folder), BEGINS[0])
        file.put(columns_of(golden_rows(0)))
        filtered = uploaded(file)[FOOTER_AT:]
        file.notes.close()
        file.notes = None
        plain = uploaded(file)[FOOTER_AT:]
        file.delete()
    return [filtered, plain]


def _parse_names(data: Buffer, random: Random) -> object:
    text = java.decode_utf8(data)
    return random.choice((names.parse_segment_name, names.parse_local_file_name))(text)


_ABOUT: dict[str, Any] = {"epoch": 1, "nonce": "n", "time_ms": 1_000}


def _same(decode: Decode) -> Decode:
    return decode


def _log_entry(data: Buffer, random: Random) -> object:
    entry = Entry.decoded(data, "log/1", object_bytes=len(data))
    state = LogState()
    state.sequence = entry.sequence - 1
    return state.fold(entry)


def _log_state(data: Buffer, random: Random) -> object:
    return LogState.decoded(data, "state/1")


def _log_table(data: Buffer, random: Random) -> object:
    return frames.decode_tail(data, 100 + len(data), name="data/1")


def _resealed(decode: Decode) -> Decode:
    """With checksums that are right, as if the damage came before they were made."""

    def decode_resealed(data: Buffer, random: Random) -> object:
        whole = bytearray(data)
        if len(whole) >= frames.HEADER_BYTES:
            stored = sum(int.from_bytes(whole[at : at + 4], "little") for at in (12, 20))
            end = min(frames.HEADER_BYTES + stored, len(whole))
            held = frames.crc32c(whole[frames.HEADER_BYTES : end])
            whole[56:60] = held.to_bytes(4, "little")
            whole[60:64] = frames.crc32c(whole[:60]).to_bytes(4, "little")
        return decode(bytes(whole), random)

    return decode_resealed


def _journal(data: Buffer, random: Random) -> object:
    found = journal.read_journal(bytes(data), Path("journal"))
    tables = Tables()
    tables.apply(found.changes)
    assert found.whole_bytes + found.torn_bytes == len(data)
    return tables.document()


def _published(data: Buffer, random: Random) -> object:
    found = published.decode(bytes(data), "catalogue/1")
    assert published.decode_header(bytes(data), "catalogue/1")[0] == found.header
    return found.tables.document()


def _resealed_lines(decode: Decode) -> Decode:
    """With checksums of lines that are right, as if the damage came before they were made."""

    def decode_resealed(data: Buffer, random: Random) -> object:
        lines = [line.partition(b",")[2] for line in bytes(data).split(b"\n")]
        return decode(b"".join(journal.seal(line) for line in lines if line), random)

    return decode_resealed


def _snapshot(data: Buffer, random: Random) -> object:
    return Tables.from_document(fastjson.decode(bytes(data))).document()


def _side_file(data: Buffer, random: Random) -> object:
    """The table of queue ends; `QueueEnds.load` would log each input, and pytest keeps logs."""
    with NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as file:
        file.write(data)
        file.flush()
        return recovery._decode(read_document(Path(file.name), names=recovery._ENDS_NAMES))


def _checkpoint(data: Buffer, random: Random) -> object:
    values = decode_checkpoint(bytes(data))
    return decode_checkpoint(encode_checkpoint(values)) == values


def _items(data: Buffer, random: Random) -> object:
    """A run of items of an uploaded file, with or without its checksum."""
    group = footer.Group(0, len(data), random.choice((int.from_bytes(footer.checksum(data)), None)))
    footer.check_items(data, group, path="")
    return tiered_index.view_compacted_items(data).tolist()


def _catalogue_objects() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Journals, published catalogues, and snapshots."""
    rows: list[Change] = [
        Put(TopicRecord(topic="T", topic_id=1)),
        Put(QueueRecord(broker_name="b", topic="T", queue_id=3, min_offset=1, max_offset=9)),
        Put(SegmentRecord(path="b/T/0", type=SegmentType.COMMIT_LOG, base_offset=0, size=9)),
        PutNote("kind", "key", {"a": [1, None, "two"]}),
    ]
    gone: list[Change] = [DeleteNote("kind", "key"), DeleteQueue("T", 3), DeleteTopic("T")]
    tables = Tables()
    tables.apply(rows)
    name = journal.SnapshotName(length=7, crc32c=9)
    begun = journal.header_line(None) + journal.commit_line(1, encoded(rows))
    journals = [
        begun,
        begun + journal.commit_line(2, encoded(gone)) + journal.compact_line(3, name),
    ]
    header = published.PublishedHeader(
        generation=4, epoch=2, writer="w", lineage="l", written_ms=5, cluster="c", broker="b"
    )
    snapshots = [msgspec.json.encode(tables.document())]
    snapshots += [path.read_bytes() for path in files_under("metadata") if path.suffix == ".json"]
    return journals, [published.encode(header, published.body_of(tables))], snapshots


def _queue_ends() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "ends")
        key, end = QueueKey("T", 3), QueueEnd(0, 9, 900)
        QueueEnds(log_end=900, log_min=0, queues={key: end}).save(path)
        return path.read_bytes()


def encoded(changes: Sequence[Change]) -> list[bytes]:
    return [journal.encode(change)[1] for change in changes]


def _log_objects() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Entries that begin, grow and seal segments, a state of the first two, and a table."""
    log, queue = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
    topic = TopicRecord(topic="T", topic_id=1)
    row = SegmentRecord(path="b/T/0", type=log, base_offset=0, size=9)
    grown = Extents.of([(1, 0, 9, 0, 0, 7, 3, 5), (2, 0, 20, 1, 4, 8, -1, -1)])
    further = Extents.of([(1, 9, 4, 0, 0, 7, 6, 6), (2, 20, 40, 0, 4, 8, 6, 6)])
    first = Entry(
        **(_ABOUT | {"sequence": 1, "begins_epoch": True}),
        begun=(Begun(1, "b/T/0", log, 0), Begun(2, "b/T/0", queue, 0)),
        changes=(Put(topic), Put(row)),
        objects=("data/0000000001-x-1-0",),
        extents=grown,
    )
    second = Entry(**(_ABOUT | {"sequence": 2}), extents=further)
    third = Entry(
        **(_ABOUT | {"sequence": 3}), sealed=(Sealed(1, "D/b/T/0/0", 13, 5),), merged=(1,)
    )
    objects = [
        first.encoded([bytes(9)]),
        second.encoded([bytes(44)]),
        third.encoded(),
    ]
    state, states = LogState(), []
    for data in objects[:2]:
        state.fold(Entry.decoded(data, "log/1", object_bytes=len(data)))
        states.append(state.encoded())
    tables = [
        frames.encode_table({"a": 1}, each.columns(), payload_bytes=100, payload_crc=5)
        for each in (grown, further)
    ]
    return objects, states, tables


def _read_all(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in files_under(folder)]


def targets() -> list[Target]:
    records = [record for record in local_records() if len(record) < 1200]
    texts = [record_fields.peek_property_bytes(record) for record in records]
    marks = [data[-16:] for data in _read_all("legacy/tiered")]
    marks += [log[-40:] for log in _read_all("local-clean/commitlog")]
    queues = _read_all("local-clean/consumequeue")
    folder = "tier-posix/tiered/1cfb8c9b_GoldenCluster/broker-gold-a/rmq_sys_INDEX"
    uploaded = _read_all(folder)
    written = _read_all("tier-posix/store/tiered_index_file")
    local = _read_all("local-clean/index")
    files = [path.name for path in GOLDEN.rglob("*") if path.is_file()]
    crcs = [checks.reserve_property_crc(text)[:-20] for text in texts]
    crcs = [text + checks.encode_property_crc(checks.body_crc(text)) for text in crcs]
    footers = _footers()
    entries, states, tables = _log_objects()
    journals, catalogues, snapshots = _catalogue_objects()
    return [
        Target("message", _decode_message, records),
        Target("checked_message", _decode_checked_message, records),
        Target("peeks", _peek, records),
        Target("properties", _read_properties, [text for text in texts if text]),
        Target("property_crc", _check_crc, crcs),
        Target("end_marks", _end_marks, marks),
        Target("hashes", _hash, [text for text in texts if text]),
        Target("units", _units, queues),
        Target("one_unit", _one_unit, queues),
        Target("local_index", _local_header, local),
        Target("local_index_parts", _local_part, local),
        Target("tiered_index", _tier_file, written),
        Target("uploaded_slot", _uploaded_slot, uploaded),
        Target("index_footer", _footer, footers),
        Target("index_footer_resealed", _resealed_footer, footers),
        *(
            Target(f"{name}{end}", wrap(decode), seeds, refusals=(MetadataError, frames.NeedMore))
            for name, decode, seeds in (
                ("log_entry", _log_entry, entries),
                ("log_state", _log_state, states),
                ("log_table", _log_table, tables),
            )
            for end, wrap in (("", _same), ("_resealed", _resealed))
        ),
        Target("index_items", _items, [data[-70 * 28 :] for data in uploaded]),
        *(
            Target(f"{name}{end}", wrap(decode), seeds, refusals=(MetadataError,))
            for name, decode, seeds in (
                ("journal", _journal, journals),
                ("published_catalogue", _published, catalogues),
            )
            for end, wrap in (("", _same), ("_resealed", _resealed_lines))
        ),
        Target("catalogue_snapshot", _snapshot, snapshots, True),
        Target("queue_ends", _side_file, [_queue_ends()], True, MALFORMED),
        Target("checkpoint", _checkpoint, [(GOLDEN / "local-clean" / "checkpoint").read_bytes()]),
        Target("names", _parse_names, [n.encode() for n in files if n], True),
    ]
