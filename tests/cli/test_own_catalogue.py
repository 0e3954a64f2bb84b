"""The command line on a tier whose provider keeps the catalogue with the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.log_kit import BUCKETS, DOTTED, Bucket
from tests.cli.cli_kit import Command
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

BROKER = "broker-a"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    yield BUCKETS.setdefault(str(tmp_path), Bucket())
    del BUCKETS[str(tmp_path)]


@pytest.fixture
def settings(tmp_path: Path, bucket: Bucket) -> Path:
    """The settings of a tier in that bucket."""
    path = tmp_path / "tier.toml"
    path.write_text(
        f'[tieredstore]\nprovider = "{DOTTED}"\nbucket = "{tmp_path}"\nbroker_name = "{BROKER}"\n'
        f'store_path = "{tmp_path / "store"}"\n'
    )
    return path


@pytest.fixture
def written(settings: Path, bucket: Bucket) -> Path:
    """The settings of a tier that holds three messages."""
    config = StoreConfig.from_toml(settings)
    with TieredMessageStore(ListMessageStore(Runtime.inline()), config) as store:
        for number in range(3):
            store.put_message(a_message(number))
        assert store.flush(seal=True)
    bucket.claims.clear()
    return settings


def test_verbs_that_look_read_the_log_and_claim_nothing(
    command: Command, bucket: Bucket, written: Path
) -> None:
    (row,) = command.run("topics", "--config", written, "--json").rows
    assert row["topic"] == TOPIC
    (row,) = command.run("catalogue", "show", "--config", written, "--json").rows
    assert (row["source"], row["queue_count"], row["generation"]) == ("log", 1, None)
    assert command.run("cat", TOPIC, "--config", written, "--json").code == 0
    assert command.run("audit", "--config", written).code == 0
    assert bucket.claims == []


def test_what_is_only_on_this_disk_is_not_needed(
    command: Command, tmp_path: Path, written: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(written.read_text().replace("/store", "/nothing"))
    assert len(command.run("cat", TOPIC, "--config", elsewhere, "--json").rows) == 3
    assert not (tmp_path / "nothing").exists()


def test_a_bucket_without_a_log_is_told_in_one_line(command: Command, settings: Path) -> None:
    command.run("topics", "--config", settings).refused(
        3, "no log was written there", "sealed segments that lie there are taken in by `rebuild`"
    )


def test_a_verb_that_writes_takes_the_tier_over(
    command: Command, bucket: Bucket, written: Path
) -> None:
    ran = command.run("catalogue", "reserve", TOPIC, 7, "--config", written).done()
    assert "published" not in ran.out
    assert bucket.claims == [BROKER]
    assert bucket.tables[BROKER].topics[TOPIC].reserve_hours == 7


def test_a_verb_that_writes_fences_no_broker_of_this_machine(
    command: Command, bucket: Bucket, written: Path
) -> None:
    path = StoreConfig.from_toml(written).catalogue_path
    with JsonMetadataStore.open(path):
        ran = command.run("catalogue", "reserve", TOPIC, 7, "--config", written)
    assert ran.code == 5
    assert bucket.claims == []


def test_a_topic_that_is_not_there_is_an_error(
    command: Command, bucket: Bucket, written: Path
) -> None:
    command.run("catalogue", "reserve", "Nowhere", 7, "--config", written).refused(3, "Nowhere")


def test_nothing_is_to_be_published(command: Command, bucket: Bucket, written: Path) -> None:
    command.run("catalogue", "snapshot", "--config", written).refused(2, "lies with its bytes")
    assert bucket.claims == []


def test_the_catalogue_is_written_to_a_file(
    command: Command, tmp_path: Path, written: Path
) -> None:
    target = tmp_path / "catalogue.json"
    command.run("catalogue", "snapshot", "--out", target, "--config", written).done()
    with JsonMetadataStore.open(target, read_only=True) as found:
        assert [row.topic for row in found.topics()] == [TOPIC]


def test_a_rebuild_fills_the_log(command: Command, bucket: Bucket, written: Path) -> None:
    bucket.tables.clear()
    bucket.epochs.clear()
    command.run("rebuild", "--config", written).done()
    assert bucket.claims == [BROKER]
    assert len(command.run("cat", TOPIC, "--config", written, "--json").rows) == 3


def test_what_was_lost_with_a_log_is_told_once(
    command: Command, bucket: Bucket, written: Path
) -> None:
    bucket.tables.clear()
    bucket.losses.append("the log was lost")
    ran = command.run("rebuild", "--config", written)
    assert (ran.code, "problem: the log was lost" in ran.out) == (4, True)
    command.run("rebuild", "--config", written).refused(5, "has everything that the backend has")
