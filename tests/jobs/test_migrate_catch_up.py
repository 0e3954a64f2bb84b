"""Moving a tier beside a broker that writes to it: catching up, expiry, and the last run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flat.store_kit import content
from tests.jobs.growing_tier import Broker, broker_on, everything, tier_at
from tests.jobs.migrate_kit import files, moved
from tieredstore.driver.durable import FileLock
from tieredstore.driver.metadata import DeleteSegment
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import JobExit
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError, SegmentCorruptError
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import TOPIC


def test_each_run_copies_only_what_has_come_since(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(10)
        moved(source, target)
        broker.put(1)
        first = moved(source, target)
        assert first.counts["copied"] == 2
        assert first.byte_counts["copied"] == added(broker, 1)
        broker.put(90)
        broker.put(5, queue_id=1)
        moved(source, target)
        assert files(target) == files(source)
        assert moved(source, target).counts["copied"] == 0
    report = moved(source, target, cut_over=True)
    assert report.facts["cut_over"] == "done"
    assert files(target) == files(source)
    assert everything(target) == everything(source)
    assert len(everything(target)[QueueKey(TOPIC, 0)]) == 101


def test_the_broker_goes_on_in_the_target(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(33)
    moved(source, target, cut_over=True)
    with broker_on(target) as broker:
        assert content(broker.put(40)).keys() == set(range(73))


def test_a_live_broker_is_not_cut_over(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
        with pytest.raises(BackendRefusedError, match="a broker is running on this store: stop it"):
            moved(source, target, cut_over=True)
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"


def test_a_broker_that_holds_only_rocketmqs_own_lock_is_live_too(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
    lock = FileLock.acquire(Path(source.store_path, "lock"))
    assert lock is not None
    with lock, pytest.raises(BackendRefusedError, match="stop it first"):
        moved(source, target, cut_over=True)
    assert not Path(target.catalogue_path).exists()


def test_a_broker_without_a_lock_is_noticed_by_what_it_writes(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)

    def write_more(_plan: object) -> None:
        lockless = replace(source, metadata_path=str(tmp_path / "copy" / "metadata.json"))
        Path(lockless.catalogue_path).parent.mkdir()
        Path(lockless.catalogue_path).write_bytes(Path(source.catalogue_path).read_bytes())
        with broker_on(lockless) as java:
            java.put(2)
        Path(source.catalogue_path).write_bytes(Path(lockless.catalogue_path).read_bytes())

    with pytest.raises(BackendRefusedError, match="a broker is still writing: stop it first"):
        moved(source, target, cut_over=True, on_plan=write_more)
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert everything(target) == everything(source)


def test_what_expires_during_the_run_is_no_error(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)
        report = moved(source, target, on_plan=lambda plan: expire(source, broker))
        assert report.exit_code is JobExit.DONE
        assert report.counts["expired"] == 1
    assert moved(source, target, cut_over=True).exit_code is JobExit.DONE
    assert files(target) == files(source)


def test_what_expired_after_it_was_copied_is_not_in_the_target(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)
        moved(source, target)
        expire(source, broker)
    moved(source, target, cut_over=True)
    assert files(target) == files(source)


def test_what_the_catalogue_names_and_is_gone_is_damage(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)

    def lose(_plan: object) -> None:
        min(Path(source.path).rglob("COMMIT_LOG/*00000")).unlink()

    report = moved(source, target, on_plan=lose)
    assert report.exit_code is JobExit.DAMAGE
    assert "missing" in {each.kind for each in report.findings}
    again = moved(source, target, cut_over=True)
    assert again.facts["cut_over"] == "refused"
    assert not Path(target.catalogue_path).exists()


def test_other_bytes_in_the_target_are_told_and_never_written_over(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(10)
    moved(source, target)
    Path(f"{target.catalogue_path}.migration").unlink()
    log = min(Path(target.path).rglob("COMMIT_LOG/*"))
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 1
    log.write_bytes(damaged)
    report = moved(source, target, cut_over=True)
    assert report.exit_code is JobExit.DAMAGE
    assert report.failures[0].error == SegmentCorruptError.__name__
    assert "the target holds other bytes than the source" in report.failures[0].text
    assert log.read_bytes() == damaged
    assert not Path(target.catalogue_path).exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda old, new: {"target": old}, "source and target are the same tier"),
        (lambda old, new: {"topics": ["nix-*"]}, "no topic is called 'nix-\\*'; there are"),
        (
            lambda old, new: {"source": replace(old, metadata_path=str(Path(old.path, "no.json")))},
            "no.json",
        ),
        (
            lambda old, new: {"target": replace(new, broker_name="other")},
            "say --rename-broker other if that is meant",
        ),
        (
            lambda old, new: {
                "source": replace(old, broker_name="x"),
                "target": replace(new, broker_name="x"),
            },
            "'x' is not in the catalogue",
        ),
        (lambda old, new: {"target": replace(new, index_slot_count=7)}, "index_slot_count"),
        (
            lambda old, new: {"target": replace(new, metadata_path=old.catalogue_path)},
            "the same catalogue",
        ),
    ],
)
def test_what_can_only_be_a_mistake_is_one_line(
    tmp_path: Path, change: Callable[[StoreConfig, StoreConfig], dict[str, Any]], text: str
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(2)
    how: dict[str, Any] = {"source": source, "target": target, **change(source, target)}
    with pytest.raises(Exception, match=text) as raised:
        moved(how.pop("source"), how.pop("target"), cut_over=True, **how)
    assert "\n" not in str(raised.value)
    assert not Path(target.catalogue_path).exists()


def test_a_target_that_has_a_tier_of_its_own_is_refused(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    for config in (source, target):
        with broker_on(config) as broker:
            broker.put(2)
    before = files(target)
    with pytest.raises(InvalidConfigError, match="names a tier already"):
        moved(source, target)
    assert files(target) == before


def added(broker: Broker, count: int) -> int:
    """Bytes of the last messages of queue 0, record and unit."""
    file = broker.files.get(QueueKey(TOPIC, 0))
    assert file is not None
    units = file.units(file.commit_offset - count, count)
    return int(sum(units.message_bytes)) + 20 * count


def expire(config: StoreConfig, broker: Broker) -> None:
    """The first log segment, as the broker does it: the row, then the bytes."""
    path = f"broker-a/{TOPIC}/0"
    row = broker.metadata.segments(path, SegmentType.COMMIT_LOG)[0]
    broker.metadata.apply([DeleteSegment(path, row.type, row.base_offset)])
    with Runtime.inline() as runtime:
        provider = PosixProvider.from_config(config, runtime)
        provider.open(path, row.type, row.base_offset).delete()


@pytest.mark.parametrize("keeps_local_files", [True, False])
def test_keys_that_lie_in_local_files_are_put_again_where_those_stay_behind(
    tmp_path: Path, keeps_local_files: bool
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(50)
        notes: list[tuple[str, str, Any]] = [
            ("index", "end", 0),
            ("index-queue", "0/0", [40, 1_700_000_000_000]),
            ("index-queue", "0/1", 7),
            ("index-file", "1700000000000", 30),
            ("index-start", "1700000000000/0/0", 10),
        ]
        for kind, key, value in notes:
            broker.metadata.put_note(kind, key, value)
    if keeps_local_files:
        catalogue = target.catalogue_path
        target = replace(target, store_path=source.store_path, metadata_path=catalogue)
    moved(source, target, cut_over=True)
    with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
        noted = {
            kind: dict(metadata.notes(kind))
            for kind in ("index-queue", "index-file", "index-start")
        }
    mark = 40 if keeps_local_files else 10
    assert noted["index-queue"] == {"0/0": [mark, 1_700_000_000_000], "0/1": 7}
    assert bool(noted["index-file"]) is bool(noted["index-start"]) is keeps_local_files
