"""The way through the queues of a tier: in pages, in bounded memory, beside who deletes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.cli.tier_kit import CATALOGUE, in_store_order, java_messages, segment_file
from tests.codec.golden_files import BROKER
from tieredstore.access.reader import TieredReader
from tieredstore.cli import read
from tieredstore.cli.read import walk_tier
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import QueueKey, SegmentType


class Asked:
    """What a walk asked of the reader."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.bytes: list[int] = []
        self.damage: list[tuple[QueueKey, int]] = []

    def add_damage(self, key: QueueKey, count: int, error: SegmentError) -> None:
        self.damage.append((key, count))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    real = TieredReader.get_message

    def seen(
        reader: TieredReader,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int = 1 << 20,
    ) -> GetResult:
        asked.counts.append(count_max)
        asked.bytes.append(bytes_max)
        return real(reader, topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max)

    monkeypatch.setattr(TieredReader, "get_message", seen)
    return asked


@pytest.fixture
def reader(root: Path) -> Iterator[TieredReader]:
    config = StoreConfig(
        broker_name=BROKER,
        cluster_name="GoldenCluster",
        provider="posix",
        path=str(root / "tiered"),
        metadata_path=str(root / CATALOGUE),
        read_ahead_enabled=False,
    )
    with TieredReader(config, runtime=Runtime.inline()) as reader:
        yield reader


def test_no_page_is_read_before_it_is_needed(reader: TieredReader, asked: Asked) -> None:
    found = walk_tier(reader, reader.queues(), count_max=2, on_damage=asked.add_damage)
    assert len(list(islice(found, 2))) == 2
    assert len(asked.counts) <= len(reader.queues()) + 1
    assert set(asked.counts) == {2}


def test_the_pages_of_all_queues_share_the_memory(
    reader: TieredReader, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_BYTES_HELD_MAX", 9_000)
    monkeypatch.setattr(read, "_PAGE_BYTES_MIN", 100)
    keys = reader.queues()
    found = list(walk_tier(reader, keys, on_damage=asked.add_damage))
    assert len(found) == len(java_messages())
    assert set(asked.bytes) == {9_000 // len(keys)}
    assert len(asked.counts) > 200


def test_what_expires_under_a_walk_is_no_damage(
    reader: TieredReader, root: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PAGE_COUNT_MAX", 4)
    key = QueueKey("GoldAa", 0)
    found = walk_tier(reader, [key], on_damage=asked.add_damage)
    shown = [next(found).message.queue_offset for _ in range(4)]
    gone = [(SegmentType.CONSUME_QUEUE, 0), (SegmentType.COMMIT_LOG, 0)]
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        for kind, base in gone:
            catalogue.delete_segment(f"{BROKER}/GoldAa/0", kind, base)
    for kind, base in gone:
        segment_file(root, "GoldAa/0", kind.name, base).unlink()
    shown += [stored.message.queue_offset for stored in found]
    left = [row["queue_offset"] for row in java_messages(*key) if row["log_offset"] >= 13_167]
    assert shown == [0, 1, 2, 3, *left]
    assert asked.damage == []


def test_what_is_stored_at_the_same_time_comes_by_queue(reader: TieredReader, asked: Asked) -> None:
    keys = [key for key in reader.queues() if key.topic == "GoldAa"]
    found = walk_tier(reader, keys[::-1], on_damage=asked.add_damage)
    places = [(each.key.queue_id, each.message.queue_offset) for each in found]
    wanted = in_store_order(java_messages("GoldAa"))
    assert places == [(row["queue_id"], row["queue_offset"]) for row in wanted]
