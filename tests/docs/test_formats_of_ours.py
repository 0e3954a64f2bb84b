"""Files of ours, written by a store, and read by what docs/formats.md says and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c

from tests.docs.pages import page, section, tables
from tieredstore import StoreConfig, TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

U64 = (1 << 64) - 1
COUNT = 40
SLOTS = 100


def key_of(number: int) -> str:
    return f"Schlüssel-{number}"


def offload(folder: Path, *, seal: bool, **settings: Any) -> bytes:
    """What the journal of the catalogue said before it was folded at the end, if there was one."""
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
    """The bytes of each field of a table of the page."""
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
    assert number(fence[names[3]]) == 28 + 8 * SLOTS + 28 * COUNT
    assert covered[:4] == bytes(4)  # the first slot of the one fence block


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
    """What a line of ours says, its checksum looked at."""
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


def test_parts_and_epochs_are_what_the_page_says(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    offload(tmp_path, seal=False, provider="fsspec", url=f"file://{bucket}", certify="off")
    parts = sorted(bucket.glob(".parts/*/b/*/0/CONSUME_QUEUE/*/*"))
    (epoch,) = [re.fullmatch(r"0{20}-([0-9]{10})", part.name)[1] for part in parts]  # type: ignore[index]
    assert len(parts[0].read_bytes()) == 20 * COUNT
    (claim,) = bucket.glob(f".epochs/*/b/{epoch}")
    assert claim.read_bytes() == b""
    boundary = json.loads(claim.with_name(f"{claim.name}.ends").read_bytes())
    (row,) = [
        row
        for rows in tables(section(page("formats.md"), "Objects in a bucket"))
        for row in rows
        if row[0].startswith("its boundary")
    ]
    assert all(name in row[1] for name in boundary)
    assert boundary["epoch"] == int(epoch)
