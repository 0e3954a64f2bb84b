"""Audit and rebuild of a tier whose catalogue is the log in its bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.access.tiered_kit import Broker
from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import NewerCatalogueError, RebuildReport, rebuild
from tieredstore.access.upkeep import expire_tier
from tieredstore.access.wiring import open_tier, written_catalogue
from tieredstore.codec.message import decode_message
from tieredstore.driver.metadata import Change, MetadataStore
from tieredstore.index.contract import NoIndex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError, MetadataError
from tieredstore.model.values import SegmentType, StorageLevel
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.roundlog.upkeep import ROUNDS_MERGED
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import TOPIC

ROUNDS = ".rounds/"


class Machine(Broker):
    """A broker on the bucket that the test shares; each instance is another machine."""

    def __init__(self, folder: Path, objects: MemoryObjects) -> None:
        super().__init__(folder, storage_level=StorageLevel.FORCE, index_slot_count=64)
        self.objects = objects
        self.client = MemoryObjectClient(objects)
        self.own = ObjectProvider(self.client, self.config.cluster_name, self.runtime)
        self.provider = self.own  # type: ignore[assignment]
        self.store = self.wrap(self.local)

    @contextmanager
    def written(self) -> Iterator[MetadataStore]:
        with written_catalogue(self.config, self.runtime, self.own) as (metadata, _):
            yield metadata

    def repair(self) -> AuditReport:
        with self.written() as metadata:
            return audit(metadata, self.own, self.config, self.runtime, repair=True)

    def audit(self) -> AuditReport:
        found = self.own.catalogue(self.config.broker_name, read_only=True)
        assert found is not None
        return audit(found, self.own, self.config, self.runtime)

    def rebuild(self) -> RebuildReport:
        with self.written() as metadata:
            report = rebuild(metadata, self.own, self.config, self.runtime, takes_in=True)
            report.told()
            return report

    def bodies(self) -> list[bytes]:
        client = MemoryObjectClient(self.objects)
        provider = ObjectProvider(client, self.config.cluster_name, self.runtime)
        with TieredReader(self.config, runtime=self.runtime, provider=provider) as reader:
            return [decode_message(one.record).body for one in reader.messages(TOPIC, 0)]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def broker(tmp_path: Path, objects: MemoryObjects) -> Iterator[Machine]:
    made = Machine(tmp_path / "one", objects)
    made.open()
    yield made
    made.store.shutdown(drain=False)


@pytest.fixture
def other(tmp_path: Path, objects: MemoryObjects) -> Machine:
    return Machine(tmp_path / "other", objects)


def flush(machine: Machine, *, seal: bool = False) -> list[bytes]:
    assert machine.store.flush(seal=seal)
    return machine.bodies()


def kinds(report: AuditReport) -> list[str]:
    return sorted(str(found.kind) for found in report.left)


def keys(objects: MemoryObjects, part: str) -> list[str]:
    return [key for key in objects.held_keys() if part in key]


def test_a_tier_that_grows_has_nothing_to_tell(broker: Machine, other: Machine) -> None:
    broker.put(5)
    flush(broker)
    assert other.audit().findings == ()
    broker.put(5, first=5)
    flush(broker, seal=True)
    assert other.audit().findings == ()


def test_a_repair_loses_nothing_that_a_writer_beside_it_was_told(
    broker: Machine, other: Machine
) -> None:
    broker.put(5)
    flush(broker)
    stale = other.audit()  # its view of the log is old when it repairs
    broker.put(5, first=5)
    told = flush(broker)
    assert len(told) == 10
    report = other.repair()
    assert report.is_clean, report.findings
    assert stale.is_clean
    assert broker.bodies() == told
    broker.put(5, first=10)
    assert not broker.store.flush()
    fence = broker.own.fence(broker.config.broker_name)
    assert fence is not None
    assert fence.epoch == 2
    assert broker.bodies() == told
    assert other.audit().is_clean


def test_an_expiry_that_cannot_be_written_is_no_success(
    broker: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put(5)
    told = flush(broker)
    now_ms = other.runtime.clock.now_ms() + 1000 * 3_600_000

    def is_away(key: str, *given: Any, **how: Any) -> NoReturn:
        raise BackendUnavailableError(key, "put", "it is away")

    def expire() -> None:
        with monkeypatch.context() as patch, other.written() as metadata:
            tier = open_tier(
                other.config,
                runtime=other.runtime,
                provider=other.own,
                metadata=metadata,
                index=NoIndex(),
            )
            with closing(tier):
                tier.load()
                patch.setattr(other.client, "put", is_away)
                list(expire_tier(tier.files, metadata, other.config, now_ms=now_ms))

    with pytest.raises(BackendUnavailableError, match="it is away"):
        expire()
    assert broker.bodies() == told


def test_objects_that_are_gone_or_cut_are_named(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    broker.put(5)
    flush(broker, seal=True)
    broker.put(5, first=5)
    flush(broker)
    (units,) = keys(objects, "/CONSUME_QUEUE/")
    data, facts = objects.held[units]
    objects.held[units] = data[:-1], replace(facts, size=len(data) - 1)
    del objects.held[keys(objects, "/COMMIT_LOG/")[0]]
    report = other.audit()
    named = {found.where: str(found.kind) for found in report.damage}
    assert named[units] == "size"
    assert "missing" in named.values()


def test_what_is_in_no_log_is_told_and_never_deleted(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    broker.put(5)
    flush(broker, seal=True)
    (units,) = keys(objects, "/CONSUME_QUEUE/")
    strange = units.replace(f"/{TOPIC}/", "/Strange/")
    objects.put(strange, b"x" * 40, {})
    assert kinds(other.audit()) == ["not-in-log"]
    broker.store.shutdown()
    assert kinds(other.repair()) == ["not-in-log"]
    assert strange in objects.held_keys()


def test_what_crashes_left_goes_with_a_repair(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    broker.put(5)
    told = flush(broker)
    (first,) = keys(objects, "/log/" + f"{1:020d}")
    orphan = first.replace("/log/" + f"{1:020d}", f"/data/{1:010d}-gone-1-0")
    objects.put(orphan, b"left by a crash", {})
    assert kinds(other.audit()) == []  # the next entry of a live writer may still name it
    (entry,) = keys(objects, "/epoch/")
    objects.begin_upload(entry.replace("/epoch/", "/data/"))
    done = other.repair()
    assert sorted(str(each.kind) for each in done.findings) == ["abandoned-upload", "orphan"]
    assert all(each.repaired for each in done.findings)
    assert orphan not in objects.held_keys()
    assert not objects.uploads
    assert other.bodies() == told


def test_a_copied_bucket_is_taken_in(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    broker.put(9)
    told = flush(broker, seal=True)
    broker.store.shutdown()
    for key in keys(objects, ROUNDS):
        del objects.held[key]
    report = other.rebuild()
    assert report.problems == ()
    assert list(report.topics) == [TOPIC]
    assert other.bodies() == told
    assert other.audit().is_clean
    with pytest.raises(NewerCatalogueError):
        other.rebuild()


def test_a_log_that_is_lost_is_made_from_what_was_merged(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    for number in range(ROUNDS_MERGED):
        broker.put(1, first=number)
        flush(broker)
    while broker.own.tend(broker.config.broker_name):
        pass
    broker.put(1, first=ROUNDS_MERGED)
    told = flush(broker)
    for part in ("/log/", "/state/"):
        for key in keys(objects, part):
            del objects.held[key]
    damage = other.own.damage(other.config.broker_name)
    assert ["no entry is left" in found.detail for found in damage] == [True]
    there = keys(objects, "/data/")
    assert kinds(other.repair()) == [
        "lost-log"
    ]  # the repair has begun a new log, without the old one
    assert keys(objects, "/data/") == there
    report = other.rebuild()
    assert any("were not merged yet are gone" in problem for problem in report.problems)
    found = other.bodies()
    assert found == told[: len(found)]
    assert len(told) - 3 <= len(found) < len(told)


def lose_a_merged_log(broker: Machine, objects: MemoryObjects) -> None:
    for number in range(ROUNDS_MERGED):
        broker.put(1, first=number)
        flush(broker)
    while broker.own.tend(broker.config.broker_name):
        pass
    for key in (*keys(objects, "/log/"), *keys(objects, "/state/")):
        del objects.held[key]


def test_what_was_lost_with_a_log_is_told_once_if_the_catalogue_is_elsewhere(
    broker: Machine, other: Machine, objects: MemoryObjects, tmp_path: Path
) -> None:
    """Rows may go to a catalogue of the settings, and only the bytes to the log."""
    lose_a_merged_log(broker, objects)
    with closing(JsonMetadataStore.open(tmp_path / "elsewhere.json")) as metadata:
        report = rebuild(metadata, other.own, other.config, other.runtime, takes_in=True)
        assert any("were not merged yet are gone" in problem for problem in report.problems)
        report.told()
        with pytest.raises(NewerCatalogueError):
            rebuild(metadata, other.own, other.config, other.runtime, takes_in=True)


def test_what_was_lost_with_a_log_is_told_by_the_rebuild_that_ends(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    lose_a_merged_log(broker, objects)

    def killed(_: Iterable[Change]) -> None:
        raise SimulatedCrash

    with other.written() as metadata, pytest.raises(SimulatedCrash):
        rebuild(metadata, other.own, other.config, other.runtime, takes_in=True, apply=killed)
    lost = ["were not merged yet are gone" in problem for problem in other.rebuild().problems]
    assert lost == [True]
    assert other.bodies()
    with pytest.raises(NewerCatalogueError):
        other.rebuild()
    assert not other.audit().damage


def test_what_was_lost_with_a_log_is_told_again_until_it_was_shown(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    lose_a_merged_log(broker, objects)
    with other.written() as metadata:  # a command that dies before it prints its report
        rebuild(metadata, other.own, other.config, other.runtime, takes_in=True)
    lost = ["were not merged yet are gone" in problem for problem in other.rebuild().problems]
    assert lost == [True]
    with pytest.raises(NewerCatalogueError):
        other.rebuild()


def test_a_broker_begins_no_new_log_in_place_of_one_that_is_lost(
    broker: Machine, other: Machine, objects: MemoryObjects
) -> None:
    """It gave the same numbers again, and a repair deleted what was left of the lost log."""
    lose_a_merged_log(broker, objects)
    for _ in range(2):  # the first one has claimed an epoch
        with pytest.raises(MetadataError, match="rebuild"):
            other.open()
    other.rebuild()
    found = other.bodies()
    assert found
    other.open()
    assert flush(other) == found
    other.store.shutdown()


def test_open_parts_of_an_older_layout_are_refused_with_one_line(
    other: Machine, objects: MemoryObjects
) -> None:
    layout = ObjectLayout(other.config.cluster_name)
    path = f"{other.config.broker_name}/{TOPIC}/0"
    key = layout.segment_key(path, SegmentType.COMMIT_LOG, 0)
    objects.put(f".parts/{key}/{0:020d}-{1000:010d}", b"open", {})
    with pytest.raises(BackendRefusedError, match="seal them with the version that wrote them"):
        other.rebuild()
    assert [str(each.kind) for each in other.own.damage(other.config.broker_name)] == ["old-layout"]
    assert not keys(objects, ROUNDS)
