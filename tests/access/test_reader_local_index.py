"""A reader on the broker's host asks the index that is not uploaded; one elsewhere says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import open_tier
from tieredstore.codec.tiered_index import TieredIndexHeader, encode_header, file_bytes
from tieredstore.driver.runtime import Runtime
from tieredstore.index.store import IndexStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import QueryResult

TOPIC = "orders"
SEALED, LATER = 17, 3


def tier(tmp_path: Path) -> StoreConfig:
    """20 messages, the keys of the last 3 of which are only on the broker's disk."""
    config = posix_config(tmp_path)
    made = WrittenTier(config=config)
    made.add(TOPIC, 0, SEALED, seal=True)
    made.add(TOPIC, 0, LATER)
    return config


def offsets(result: QueryResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def ask_all(reader: TieredReader) -> tuple[int, int]:
    """How many of the messages are found by their keys, and how many answers may lack one."""
    found = partial = 0
    for number in range(SEALED + LATER):
        if number % 7 != 6:  # that have no key
            result = reader.query_message(TOPIC, f"order-{number}")
            assert offsets(result) in ([number], [])
            assert result.messages or not result.complete
            found += len(result.messages)
            partial += not result.complete
    return found, partial


WITH_KEYS = sum(number % 7 != 6 for number in range(SEALED + LATER))
LATER_WITH_KEYS = sum(number % 7 != 6 for number in range(SEALED, SEALED + LATER))


def local_bytes(config: StoreConfig) -> dict[str, bytes]:
    folder = Path(config.store_path) / "tiered_index_file"
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_reader_on_the_brokers_host_finds_what_is_not_uploaded_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)  # by the index alone
    config = tier(tmp_path)
    before = local_bytes(config)
    with TieredReader.open(config) as reader:
        assert ask_all(reader) == (WITH_KEYS, 0)
        assert reader.indexed_offset(TOPIC, 0) == SEALED  # of the uploaded files
    assert local_bytes(config) == before


def test_what_a_running_broker_has_put_and_not_noted_is_found_or_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path)
    made = WrittenTier(config=config)
    made.add(TOPIC, 0, SEALED, seal=True)
    parts = open_tier(config, runtime=Runtime.inline(now_ms=START_MS))
    try:
        parts.load()
        made._write(parts, next(iter(made.ends)), LATER, 50, (), 0)
        index = parts.index
        assert isinstance(index, IndexStore)
        index._writer.drain()  # on no disk yet
        with TieredReader.open(config) as reader:
            assert ask_all(reader) == (WITH_KEYS, 0)
        monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 0)
        with TieredReader.open(config) as reader:
            assert ask_all(reader) == (WITH_KEYS, WITH_KEYS)
            index._writer.sync()
            reader.refresh()
            assert ask_all(reader) == (WITH_KEYS, 0)
            index.seal()  # the reader's catalogue still calls the file a local one
            assert ask_all(reader) == (WITH_KEYS, 0)
    finally:
        parts.close()


def test_a_reader_elsewhere_says_up_to_where_the_index_goes(tmp_path: Path) -> None:
    config = tier(tmp_path)
    with TieredReader(config, is_brokers_host=False) as reader:
        assert ask_all(reader) == (WITH_KEYS - LATER_WITH_KEYS, WITH_KEYS)
        result = reader.query_message(TOPIC, "order-1")
        assert (result.complete, result.lags) == (False, True)
        assert reader.indexed_offset(TOPIC, 0) == SEALED
        absent = reader.query_message(TOPIC, "absent")
        assert (absent.messages, absent.complete, absent.lags) == ([], False, True)
        old = reader.query_message(TOPIC, "order-1", end=START_MS - 1)
        assert (old.messages, old.complete) == ([], True)


@pytest.mark.parametrize("harm", ["items", "cut off", "header"])
def test_a_damaged_file_on_the_brokers_disk_is_named_by_no_answer_that_is_complete(
    tmp_path: Path, harm: str
) -> None:
    config = tier(tmp_path)
    folder = Path(config.store_path) / "tiered_index_file"
    (path,) = [each for each in folder.iterdir() if each.name.isdigit()]
    data = bytearray(path.read_bytes())
    if harm == "items":
        data[28 + 8 * config.index_slot_count + 32 + 3] ^= 4
    elif harm == "cut off":
        del data[-1]
    else:
        data[:28] = b"x" * 28
    path.write_bytes(data)
    with TieredReader.open(config) as reader:
        result = reader.query_message(TOPIC, "order-18")
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
