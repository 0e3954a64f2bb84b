"""`LocalReader` changes nothing, needs no sizes where they are known, and minds no writer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_kit import SIZES, Command, picture
from tests.codec.golden_files import GOLDEN
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.local.reader import LocalReader, StoreNotFoundError
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import a_message

STORE = GOLDEN / "local-clean"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LocalMessageStore]:
    config = LocalConfig(
        store_path=str(tmp_path / "live"),
        dispatch_interval_ms=0,
        commit_log_file_bytes=SIZES["commit_log_file_bytes"],
        queue_file_bytes=SIZES["queue_file_bytes"],
        index_slot_count=SIZES["index_slot_count"],
        index_item_count=SIZES["index_item_count"],
    )
    store = LocalMessageStore(config, Runtime.inline(now_ms=1_795_171_700_000))
    store.load()
    store.start()
    yield store
    store.shutdown()


def put(store: LocalMessageStore, count: int) -> None:
    for number in range(count):
        message = a_message(number, topic="Live", queue_id=0)
        assert store.put_message(message).stored


def offsets(reader: LocalReader) -> list[int]:
    run = reader.read_range("Live", 0, 0, count_max=10_000, bytes_max=1 << 30)
    return list(range(run.first_offset, run.end_offset))


def test_a_store_is_read_while_a_writer_has_it_open(
    writer: LocalMessageStore, command: Command, tmp_path: Path
) -> None:
    put(writer, 200)
    live = tmp_path / "live"
    before = picture(live)
    ran = command.run("local", "cat", live, "--json")  # the sizes are written down
    assert (ran.code, ran.err) == (0, "")
    assert [row["queue_offset"] for row in ran.rows] == list(range(200))
    assert picture(live) == before
    put(writer, 300)
    with LocalReader.open(live) as reader:
        assert offsets(reader) == list(range(500))
        assert reader.max_log_offset() == writer.max_log_offset()
        assert reader.get_message("Live", 0, 500).status is GetStatus.OFFSET_OVERFLOW_ONE


def test_an_open_reader_finds_keys_that_are_put_later(
    writer: LocalMessageStore, tmp_path: Path
) -> None:
    put(writer, 3)
    with LocalReader.open(tmp_path / "live") as reader:
        first = reader.message_at(0)
        assert first is not None
        key = writer_key(first.record)
        assert [one.log_offset for one in reader.query_message("Live", key).messages] == [0]
        put(writer, 3)  # the same keys again
        found = [one.log_offset for one in reader.query_message("Live", key).messages]
        assert len(found) == 2
        assert found[1] == 0


def writer_key(record: bytes) -> str:
    from tieredstore.codec.message import decode_message

    message = decode_message(record)
    return message.unique_key or message.keys[0]


def test_a_deleted_topic_is_found_no_more(writer: LocalMessageStore, tmp_path: Path) -> None:
    put(writer, 3)
    with LocalReader.open(tmp_path / "live") as reader:
        first = reader.message_at(0)
        assert first is not None
    assert writer.delete_topics(["Live"]) == 1
    with LocalReader.open(tmp_path / "live") as reader:
        assert list(reader.queues()) == []
        assert reader.query_message("Live", writer_key(first.record)).messages == []
        assert reader.message_at(0) is None


def test_sizes_that_were_written_down_win_over_defaults_and_not_over_words(
    writer: LocalMessageStore, command: Command, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    with LocalReader.open(live) as reader:
        assert reader.config.commit_log_file_bytes == SIZES["commit_log_file_bytes"]
    ran = command.run("local", "info", live, "--index-slots", "7")
    ran.refused(2)
    assert "made with 101, not 7" in ran.err


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"queue_file_bytes": "x"}'])
def test_sizes_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN / "local-clean", store)
    (store / "config").mkdir()
    (store / "config" / "tieredstore-sizes.json").write_text(text)
    with pytest.raises(InvalidConfigError):
        LocalReader.open(store)
    wrong = {**SIZES, "queue_file_bytes": True}
    (store / "config" / "tieredstore-sizes.json").write_text(json.dumps(wrong))
    with pytest.raises(InvalidConfigError):
        LocalReader.open(store)


def test_what_is_no_store_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        LocalReader.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_after_a_clean_end_all_of_the_log_is_confirmed() -> None:
    with LocalReader.open(GOLDEN / "local-clean", **SIZES) as reader:
        assert reader.confirmed_offset() == reader.max_log_offset() == 373380
    with LocalReader.open(GOLDEN / "local-crash" / "torn", **SIZES) as reader:
        assert reader.confirmed_offset() == 0
        assert reader.max_log_offset() == 87575


CONF = (
    "brokerName=broker-gold-a\nmappedFileSizeCommitLog=32768\nmappedFileSizeConsumeQueue=400\n"
    "maxHashSlotNum=101\nmaxIndexNum=400\n"
)
TOML = (
    '[tieredstore]\nbroker_name = "broker-gold-a"\n[local]\ncommit_log_file_bytes = 32768\n'
    "queue_file_bytes = 400\nindex_slot_count = 101\nindex_item_count = 400\n"
)


@pytest.mark.parametrize(("name", "text"), [("broker.conf", CONF), ("tier.toml", TOML)])
def test_the_sizes_of_a_file_of_settings_are_enough(
    command: Command, tmp_path: Path, name: str, text: str
) -> None:
    conf = tmp_path / name
    conf.write_text(text)
    for words in (
        ("cat", STORE, "--json"),
        ("query", STORE, "GoldAa", "order-0", "--json"),
        ("offset", STORE, "GoldAa", "0", "1795171540000"),
        ("info", STORE, "--json"),
    ):
        verb, *rest = words
        ran = command.run("local", verb, "--config", conf, *rest).done()
        assert ran.out == command.golden(*words).out
    wrong = command.run("local", "info", STORE, "--config", conf, "--queue-file-bytes", 800)
    assert wrong.code == 2  # what is said beside a file counts more than it
    assert "--config broker.conf, or --commit-log-file-bytes" in wrong.err


def test_a_report_beside_a_local_store_takes_its_sizes_from_the_settings(
    command: Command, tmp_path: Path
) -> None:
    tier, out, conf = GOLDEN / "tier-posix", tmp_path / "tier.html", tmp_path / "broker.conf"
    settings = (
        CONF + "brokerClusterName=GoldenCluster\n"
        "tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={tier}/tiered\nstorePathRootDir={tier}/store\n"
    )
    words = ("report", "--out", out, "--local", STORE, "--config", conf)
    conf.write_text(settings)
    assert command.run(*words).code == 0
    conf.write_text(settings.replace("mappedFileSize", "#mappedFileSize"))
    ran = command.run(*words)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "--config broker.conf" in ran.err
