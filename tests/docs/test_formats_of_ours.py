"""Files of ours are written by a store, and read only by what docs/formats.md says."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c

from tests.docs.pages import page, section, tables
from tests.jobs.load_kit import loaded, rows_of
from tests.jobs.written_tier import posix_config
from tieredstore import StoreConfig, TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import QueueKey
from tieredstore.roundlog.entry import EntryHead, Extents
from tieredstore.roundlog.frames import FrameKind, encode, encode_table
from tieredstore.roundlog.state import _StateHead as StateHead
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

U64 = (1 << 64) - 1
COUNT = 40
SLOTS = 100


def key_of(number: int) -> str:
    return f"Schlüssel-{number}"


def offload(folder: Path, *, seal: bool, **settings: Any) -> bytes:
    """Write a tier; return the catalogue's journal, if any, from before the shutdown folded it."""
    config = StoreConfig(
        store_path=str(folder),
        broker_name="b",
        cluster_name="c",
        index_slot_count=SLOTS,
        index_item_count=1000,
        **settings,
    )
    runtime = Runtime.inline()
    store = TieredMessageStore(ListMessageStore(runtime), config, runtime=runtime)
    store.load()
    store.start()
    for number in range(COUNT):
        store.put_message(a_message(number, properties={"KEYS": key_of(number)}))
    assert store.flush(seal=seal)
    journals = [each.read_bytes() for each in (folder / "config").glob("*.journal")]
    store.shutdown()
    return b"".join(journals)


@pytest.fixture
def index_file(tmp_path: Path) -> bytes:
    offload(tmp_path, seal=True, provider="posix", path=str(tmp_path / "tier"))
    (file,) = (tmp_path / "tier").glob("*/b/rmq_sys_INDEX/0/INDEX/*")
    return file.read_bytes()


def fields(heading: str, number: int, data: bytes) -> dict[str, bytes]:
    """The bytes of each field, as a table of the page describes them."""
    rows = list(tables(section(page("formats.md"), heading)))[number]
    return {name: data[int(at) : int(at) + int(width)] for at, width, name in rows}


def number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def test_a_footer_is_what_the_page_says(index_file: bytes) -> None:
    trailer = fields("Footer of an index file", 0, index_file[-84:])
    length = number(trailer["bytes of the footer"])
    assert length % 28 == 0
    assert number(trailer["slots of the file"]) == SLOTS
    assert number(trailer["items"]) == COUNT
    assert len(index_file) == 28 + 8 * SLOTS + 28 * COUNT + length
    assert trailer["magic TSINDEX1"] == b"TSINDEX1"
    fences, filters = number(trailer["fence blocks"]), number(trailer["filter blocks"])
    assert (fences, filters) == (1, 1)
    footer = index_file[-length:]
    covered = footer[4096 * (fences + filters) : length - 16]
    (checksum,) = [data for name, data in trailer.items() if name.startswith("checksum of")]
    assert crc32c(covered) == int.from_bytes(checksum, "big")
    for at in range(0, 4096 * (fences + filters), 4096):
        block = footer[at : at + 4096]
        assert crc32c(block[:4092]) == int.from_bytes(block[4092:], "big")
    fence = fields("Footer of an index file", 1, footer[4096 * filters :])
    names = list(fence)
    assert number(fence[names[0]]) == 0
    assert number(fence[names[1]]) == 28 + 8 * SLOTS
    items = index_file[28 + 8 * SLOTS : 28 + 8 * SLOTS + 28 * COUNT]
    assert len(items) <= 16_380
    assert crc32c(items) == int.from_bytes(fence[names[2]], "big")
    assert number(fence[names[5]]) == 28 + 8 * SLOTS + 28 * COUNT
    assert covered[:4] == bytes(4)  # the first slot of the only fence block


def may_hold(block: bytes, text: str) -> bool:
    hashed = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        hashed = hashed * 0x9E3779B50000001F + int.from_bytes(units[at : at + 2], "big") & U64
    mixed = hashed ^ hashed >> 30
    mixed = mixed * 0xBF58476D1CE4E5B9 & U64
    mixed ^= mixed >> 27
    mixed = mixed * 0x94D049BB133111EB & U64
    mixed ^= mixed >> 31
    step = (mixed * 0x9E3779B97F4A7C15 & U64) >> 32 | 1
    bits = [(mixed + turn * step & 0xFFFFFFFF) * 32736 >> 32 for turn in range(6)]
    return all(block[bit // 8] & 1 << bit % 8 for bit in bits)


def test_a_filter_is_what_the_page_says(index_file: bytes) -> None:
    text = section(page("formats.md"), "Footer of an index file")
    for constant in ("9E3779B50000001F", "BF58476D1CE4E5B9", "94D049BB133111EB", "32736"):
        assert constant in text
    length = number(index_file[-84:-80])
    block = index_file[-length:][:4096]
    assert all(may_hold(block, f"{TOPIC}#{key_of(each)}") for each in range(COUNT))
    assert sum(may_hold(block, f"{TOPIC}#absent-{each}") for each in range(1000)) < 20


def sealed(line: bytes) -> dict[str, Any]:
    """The content of a line of ours, with its checksum checked."""
    found = re.fullmatch(rb'\{"crc":"([0-9a-f]{8})",(.*)', line.rstrip(b"\n"), re.DOTALL)
    assert found
    assert crc32c(found[2]) == int(found[1], 16)
    told: dict[str, Any] = json.loads(line)
    return told


def test_journal_notes_and_published_catalogue_are_what_the_page_says(tmp_path: Path) -> None:
    journal = offload(tmp_path, seal=False, provider="posix", path=str(tmp_path / "tier"))
    lines = [sealed(line) for line in journal.splitlines()]
    assert [line["line"] for line in lines] == list(range(len(lines)))
    assert (lines[0]["format"], set(lines[0])) == (1, {"crc", "line", "format", "snapshot"})
    assert all({"crc", "line", "changes"} == set(line) for line in lines[1:])
    (notes,) = (tmp_path / "config").glob("*.notes")
    assert set(sealed(notes.read_bytes())) == {"crc", "notes"}
    (newest,) = (tmp_path / "tier").glob(".catalog/*/b/*.json")
    told = sealed(newest.read_bytes())
    text = section(page("formats.md"), "Published catalogue")
    assert set(told) == set(re.findall(r"`(\w+)`", text))
    assert int(newest.stem) == told["generation"] == 1


def test_the_objects_of_a_bucket_lie_where_the_page_says(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    offload(tmp_path, seal=True, provider="fsspec", url=f"file://{bucket}", certify="off")
    rounds = ".rounds/*/b"
    assert [path.name for path in bucket.glob(f"{rounds}/epoch/*")] == [f"{1:010d}"]
    entries = sorted(path.name for path in bucket.glob(f"{rounds}/log/*"))
    assert entries == [f"{sequence + 1:020d}" for sequence in range(len(entries))]
    (first,) = bucket.glob(f"{rounds}/log/{1:020d}")
    assert read_frame(first.read_bytes())[1]["beginsEpoch"]
    (queue,) = bucket.glob("*_*/b/*/0/CONSUME_QUEUE/*")
    assert len(queue.read_bytes()) == 20 * COUNT
    told = {row[0] for row in next(tables(section(page("formats.md"), LOG)))}
    settings = {"index_slot_count": SLOTS, "index_item_count": 1000, "certify": "off"}
    url, place = f"file://{bucket}", tmp_path / "loads"
    config = posix_config(place, broker_name="b", provider="fsspec", url=url, **settings)
    loaded(config, [[rows_of(QueueKey("Loaded", 0), range(3))]])
    (adopted,) = bucket.glob(f"{rounds}/adopted/{'[0-9]' * 10}-{'[0-9]' * 20}-*")
    head = read_frame(adopted.read_bytes())[1]
    assert len(head["begun"]) == len(head["sealed"]) == 3  # log, units and index
    (broker,) = bucket.glob(rounds)
    assert all((broker / key).stat().st_size == size for _, key, size, _ in head["sealed"])
    loads = {"segment of a load", "what a load has added"}
    assert {"entry", "data object", "state", "claim", "sealed segment"} | loads == told


LOG = "The log in a bucket"
EXTENTS = {
    "number": np.repeat([4, 5], 40),
    "position": np.arange(80) * 20,
    "crc": np.arange(80, dtype=np.uint32)[::-1] ** 4,
    "begin": np.full(80, -1),
}


def unsigned(data: bytes) -> int:
    return int.from_bytes(data, "little")


def read_frame(data: bytes) -> tuple[dict[str, bytes], dict[str, Any], dict[str, list[int]]]:
    """Header, head and columns, read as the page says."""
    header = fields(LOG, 1, data)
    assert header["magic TSRL"] == b"TSRL"
    at, parts = 64, []
    for part in ("head", "columns"):
        size = unsigned(header[f"bytes of the {part}"])
        stored = data[at : at + unsigned(header[f"bytes of the {part} as they are stored"])]
        at += len(stored)
        parts.append(stored if len(stored) == size else zlib.decompress(stored))
        assert len(parts[-1]) == size
    (crc,) = [found for name, found in header.items() if name.startswith("CRC-32C of head")]
    assert crc32c(data[64:at]) == unsigned(crc)
    assert crc32c(data[:60]) == unsigned(header["CRC-32C of the bytes 0 to 59"])
    told, numbers = json.loads(parts[0]), parts[1]
    columns: dict[str, list[int]] = {}
    for column in told["columns"]:
        width, steps = column["width"], "first" in column
        count = column["rows"] - steps
        stored_values = [unsigned(numbers[i * width : (i + 1) * width]) for i in range(count)]
        numbers = numbers[count * width :]
        values = [value + column["base"] for value in stored_values]
        if steps:
            values = [column["first"] + sum(values[:i]) for i in range(count + 1)]
        columns[column["name"]] = values
    assert not numbers
    return header, told["head"], columns


def test_frames_of_the_log_are_what_the_page_says() -> None:
    data = encode(FrameKind.ENTRY, {"epoch": 3}, EXTENTS, [b"pay", b"load"])
    header, head, columns = read_frame(data)
    assert header["version: 1"] == b"\x01\x00"
    assert header["kind: 1 an entry, 2 a state, 3 a table"] == b"\x01"
    assert unsigned(header["bytes of the payload"]) == 7
    assert unsigned(header["CRC-32C of the payload"]) == crc32c(b"payload") == crc32c(data[-7:])
    assert head == {"epoch": 3}
    assert columns == {name: column.tolist() for name, column in EXTENTS.items()}
    told = list(tables(section(page("formats.md"), LOG)))
    (named,) = [rows for rows in told if rows[0][0] == "number"]
    assert [name for row in named for name in row[0].split(", ")] == list(Extents.none().columns())
    fields_named = {name for rows in told for row in rows for name in row[0].split(", ")}
    assert {
        *EntryHead.__struct_encode_fields__,
        *StateHead.__struct_encode_fields__,
    } <= fields_named
    data = encode_table({"segments": {}}, EXTENTS, payload_bytes=7, payload_crc=crc32c(b"payload"))
    tail = fields(LOG, -1, data[-16:])
    assert tail["magic TSRLTAIL"] == data[-8:]
    assert unsigned(tail["bytes of the table"]) == len(data) - 16
    assert read_frame(data)[1:] == ({"segments": {}}, columns)
