"""How much faster the codecs are than the plain way. Exits with 1 if a promise is missed.

python -m bench.codec
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench._java import Java, java
from bench._rows import Row, java_row, report
from bench._timing import Comparison, compare, row_of
from tieredstore.codec import queue_unit
from tieredstore.codec import record as record_fields
from tieredstore.codec.checks import body_crc
from tieredstore.codec.java import string_hash, string_hashes
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.model.values import Host
from tieredstore.testing.samples import a_record

KEY_COUNT = 1_000
DECODED, TURNS = 20_000, 5
UNIT_COUNT = 1_000_000


def hashes(keys: list[str], what: str, promised: float | None) -> Comparison:
    def plain() -> list[int]:
        return [masked_loop(key) for key in keys]

    assert plain() == string_hashes(keys).tolist() == [string_hash(key) for key in keys]
    return compare(what, plain=plain, ours=lambda: string_hashes(keys), promised=promised)


def masked_loop(text: str) -> int:
    """String.hashCode as most would first write it; right for text without surrogates."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def queue_units() -> Iterator[Comparison]:
    offsets = np.arange(UNIT_COUNT, dtype=np.int64) * 300
    sizes = np.full(UNIT_COUNT, 300, np.int32)
    codes = np.arange(UNIT_COUNT, dtype=np.int64) * 7919 - 10**9
    columns = (offsets.tolist(), sizes.tolist(), codes.tolist())
    data = queue_unit.encode_units(log_offsets=offsets, message_bytes=sizes, tags_codes=codes)
    unit = struct.Struct(">qiq")

    def encode_plainly() -> bytes:
        return b"".join([unit.pack(*values) for values in zip(*columns, strict=True)])

    assert encode_plainly() == data
    assert queue_unit.decode_units(data).tags_codes.tolist() == columns[2]
    yield compare(
        "decode 1 M queue units (struct.iter_unpack)",
        plain=lambda: list(unit.iter_unpack(data)),
        ours=lambda: queue_unit.decode_units(data),
        promised=40,
    )
    yield compare(
        "encode 1 M queue units (struct.pack, join)",
        plain=encode_plainly,
        ours=lambda: queue_unit.encode_units(
            log_offsets=offsets, message_bytes=sizes, tags_codes=codes
        ),
    )


def messages() -> Iterator[Comparison]:
    host = Host(b"\x0a\x00\x00\x05", 10911)
    formats = (
        "i",
        "I",
        "i",
        "i",
        "i",
        "q",
        "q",
        "i",
        "q",
        "4s",
        "i",
        "q",
        "4s",
        "i",
        "i",
        "q",
        "i",
    )
    body, properties = bytes(300), b"KEYS\x01order-1 user-7\x02TAGS\x01TagA\x02"

    def ours() -> bytes:
        return encode_message(
            topic="TopicTest",
            queue_id=3,
            queue_offset=42,
            log_offset=16,
            born_timestamp=1700000000123,
            born_host=host,
            store_timestamp=1700000000456,
            store_host=host,
            body=body,
            property_bytes=properties,
        )

    record = ours()
    message = decode_message(record)
    values = struct.unpack_from(">" + "".join(formats), record)
    parts = [struct.Struct(">" + kind) for kind in formats]

    def plain() -> bytes:
        fixed = [part.pack(value) for part, value in zip(parts, values, strict=True)]
        fixed[2] = parts[2].pack(body_crc(body))
        topic = message.topic.encode()
        fixed += [body, struct.pack(">b", len(topic)), topic]
        fixed += [struct.pack(">h", len(properties)), properties]
        return b"".join(fixed)

    assert plain() == record
    yield compare("encode a message (single packs, no checks)", plain=plain, ours=ours, loops=500)
    yield compare(
        "store timestamp and keys of a message (decode it)",
        plain=lambda: (
            decode_message(record).store_timestamp,
            decode_message(record).property_bytes,
        ),
        ours=lambda: (
            record_fields.peek_store_timestamp(record),
            record_fields.peek_property_bytes(record),
        ),
        loops=500,
    )


def decode_rows(asked: Java) -> Iterator[Row]:
    """Records of 1 KB into messages, with bodies checked and unchecked, and by Java's decoder."""
    records = [a_record(number, body_bytes=900) for number in range(DECODED)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "records")
        file.write_bytes(b"".join(records))
        for checked in (False, True):
            ours, java_rates = [], []
            for _ in range(TURNS):
                started = time.perf_counter()
                for record in records:
                    decode_message(record, check_crc=checked)
                ours.append(DECODED / (time.perf_counter() - started))
                seconds = asked.seconds("decode", file=file, crc=int(checked))
                java_rates += [] if seconds is None else [DECODED / seconds]
            how = "with a CRC of each body" if checked else "no CRC"
            yield java_row(f"messages of 1 KB decoded one by one, {how}", java_rates or None, ours)


def main() -> int:
    ascii_keys = [f"TopicTest#order-{number:08d}-{number % 97}" for number in range(KEY_COUNT)]
    other_keys = [f"主题#订单-{number:08d}-{number % 97}-键" for number in range(KEY_COUNT)]
    compared = [
        hashes(ascii_keys, "hash 1 000 keys (masked loop)", 8),
        hashes(other_keys, "hash 1 000 keys, Chinese", None),
        hashes(ascii_keys[:8], "hash 8 keys", None),
        *queue_units(),
        *messages(),
    ]
    with java() as asked:
        return report("codec", [*map(row_of, compared), *decode_rows(asked)])


if __name__ == "__main__":
    sys.exit(main())
