"""The checksum of the small files beside RocketMQ's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.store_audit import a_config, opened
from tieredstore.driver.runtime import Runtime
from tieredstore.local.side_file import read_document, write_document
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import MetadataError, TieredStoreError
from tieredstore.testing.samples import TOPIC, a_message

NAMES = ("version", "topics")
DOCUMENT = {"version": 1, "topics": {"T\n\ud800主": 73_400, "U": 5}}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_document(tmp_path / "config" / "file", DOCUMENT)
    assert read_document(tmp_path / "config" / "file", names=NAMES) == DOCUMENT


def test_one_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(DOCUMENT, indent=1))
    assert read_document(tmp_path / "file", names=NAMES) == DOCUMENT


def test_no_flipped_bit_gives_another_document(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_document(path, DOCUMENT)
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert read_document(path, names=NAMES) == DOCUMENT, bit  # a bit of white space
        except ValueError:
            continue


def load_beside_damaged(root: Path, name: str) -> None:
    """The store either refuses the file or does without it."""
    store = LocalMessageStore(a_config(root), Runtime.inline())
    try:
        store.load()
    except TieredStoreError:
        assert name in ("sizes", "deleted")
    else:
        assert store.max_offset(TOPIC, 0) == 1
        store.shutdown()


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff\xfe", b"null", b"{}", b"1e999", b""])
@pytest.mark.parametrize("name", ["queues", "index", "sizes", "deleted"])
def test_odd_json_beside_a_store_is_an_error_of_ours_or_read_as_none(
    tmp_path: Path, name: str, data: bytes
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    store.shutdown()
    (tmp_path / "config" / f"tieredstore-{name}.json").write_bytes(data)
    load_beside_damaged(tmp_path, name)


@pytest.mark.parametrize("name", ["queues", "index", "sizes", "deleted", "lost"])
def test_a_number_of_more_than_64_bits_is_no_offset(tmp_path: Path, name: str) -> None:
    """A document of an earlier version has no checksum that would tell."""
    store = opened(tmp_path)
    store.put_message(a_message(0))
    store.shutdown()
    path = tmp_path / "config" / f"tieredstore-{name}.json"
    document = {"version": 1, "parts": [[0, 1 << 70]]}
    if path.exists():
        document = json.loads(path.read_bytes(), parse_int=lambda text: int(text) + (1 << 70))
        document.pop("crc32", None)
        document["version"] = 1
    path.write_text(json.dumps(document))
    load_beside_damaged(tmp_path, name)


def test_a_deletion_whose_offset_is_damaged_is_not_believed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0, topic="Gone"))
    store.put_message(a_message(0))
    assert store.delete_topics(["Gone"]) == 1
    store.shutdown()
    path = tmp_path / "config" / "tieredstore-deleted.json"
    whole = path.read_bytes()
    [end] = json.loads(whole)["topics"].values()
    path.write_bytes(whole.replace(str(end).encode(), str(end + 1).encode()))
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    with pytest.raises(MetadataError, match="damaged"):
        store.load()
    path.write_bytes(whole)
    store.load()
    assert store.max_offset("Gone", 0) is None
    store.shutdown()


def test_queue_ends_that_are_damaged_are_not_believed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(5):
        store.put_message(a_message(number))
    store.shutdown()
    path = tmp_path / "config" / "tieredstore-queues.json"
    text = path.read_text()
    path.write_text(text.replace('"logEnd": ', '"logEnd": 9'))
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) == 5
    store.shutdown()
    assert path.read_text() == text
