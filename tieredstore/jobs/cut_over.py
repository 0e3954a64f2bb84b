"""The cut-over of a migration: the source held still, the target's catalogue published in one
step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tieredstore.access.queue_upload import history_note
from tieredstore.access.wiring import catalogue_of, provider_of, publisher_of
from tieredstore.driver.durable import FileLock
from tieredstore.driver.metadata import Change, Json, MetadataStore, Put, PutNote
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.index import watermarks
from tieredstore.jobs.migrate_copy import place_of
from tieredstore.jobs.migrate_plan import (
    OBJECT_PROVIDERS,
    SourceQueue,
    SourceTier,
    target_key,
    target_path,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    MetadataError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType

log = log_of(__name__)

NOTE: Final = "migration"
"""Notes of this kind say where a tier, or a queue's history, came from."""

NAMES_SHOWN: Final = 5
FENCE_TOPIC: Final = "rmq_sys_PROBE"  # nothing is ever written there


@contextmanager
def held_still(source: StoreConfig, target: StoreConfig, *, adopt: bool) -> Iterator[None]:
    """No broker writes to the source meanwhile, nor to the target of an adoption.

    The lock of the catalogue and that of the broker's store are held, and in an object store the
    writer's epoch is taken: a writer elsewhere is fenced off for good. Raises BackendRefusedError
    where a broker runs.
    """
    with ExitStack() as held:
        if adopt:  # a broker that starts later is met by `publish`, and in a bucket stops us
            with _all_locked(target):
                log.debug("no broker runs on %s", target.catalogue_path)
        held.enter_context(_all_locked(source))
        if source.provider in OBJECT_PROVIDERS:
            _take_epoch(source)
        yield


@contextmanager
def _all_locked(config: StoreConfig) -> Iterator[None]:
    """Hold the locks of all writers, as far as there is anything to lock."""
    catalogue = os.path.realpath(config.catalogue_path)
    lock, rocketmqs = f"{catalogue}.lock", os.path.join(config.store_path, "lock")
    with ExitStack() as held:
        has_lock = os.path.exists(lock)
        if has_lock or os.path.exists(catalogue):
            # What was there stays as it was: RocketMQ has no such file.
            held.callback(_locked(lock).release, remove=not has_lock)
        if os.path.exists(rocketmqs):
            held.callback(_locked(rocketmqs).release)
        yield


def _locked(path: str) -> FileLock:
    reason = "a broker is running on this store: stop it first"
    try:
        lock = FileLock.acquire(path)
    except OSError as error:
        raise BackendRefusedError(path, "cut over", f"it cannot be locked: {error}") from error
    if lock is None:
        raise BackendRefusedError(path, "cut over", reason)
    return lock


def _take_epoch(config: StoreConfig) -> None:
    """Deleting what never was is the least that makes us the writer."""
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        provider = provider_of(replace(config, certify="off"), runtime, NoMetrics())
        try:
            path = f"{config.broker_name}/{FENCE_TOPIC}/0"
            provider.open(path, SegmentType.COMMIT_LOG, 0).delete()
        finally:
            provider.close()


def check_same(before: SourceTier, now: SourceTier) -> None:
    """Refuse where the source has changed: some brokers, Java's among them, take no lock."""
    was = {row.key: row.size for row in before.rows()}
    for row in now.rows():
        if was.get(row.key) != row.size:
            reason = f"{row.size} bytes, and {was.get(row.key, 0)} when it was copied: a broker is "
            raise BackendRefusedError(row.path, "cut over", f"{reason}still writing: stop it first")


def check_own_catalogue(tier: SourceTier) -> None:
    """Refuse a catalogue that may not know all that there is."""
    if tier.copy_of is not None:
        raise InvalidConfigError(
            "metadata_path: to cut over takes the broker's own catalogue, and not the "
            f"{tier.copy_of}; where that is lost, `tieredstore rebuild` makes one"
        )


def not_there(
    tier: SourceTier, target: StoreConfig, provider: SegmentProvider, *, adopt: bool
) -> list[SegmentRecord]:
    """Rows, as the target is to have them, whose segment it has not, or of another size.

    A copy may be gone again, or lie on a disk that only one machine sees.
    """
    index = () if adopt else tier.index
    rows = [*(row for queue in tier.queues for row in (*queue.log, *queue.units)), *index]
    wanted = {target_key(row, target): _row(row, target) for row in rows}
    provider.refresh()
    # Of a tier that others use too, only its own queues; else all of them at once.
    for path in sorted({path for path, *_ in wanted}) if adopt else [target.broker_name]:
        for found in provider.list(path):
            row = wanted.get((found.path, found.type, found.base))
            if row is not None and row.size == found.size:
                del wanted[row.key]
    return [row for row in wanted.values() if row.size]


def cut_over_note(
    tier: SourceTier,
    target: StoreConfig,
    source: StoreConfig,
    provider: SegmentProvider,
    runtime: Runtime,
) -> bool:
    """Whether this very migration was brought to its end before.

    Raises InvalidConfigError where the target's catalogue holds a tier that came from elsewhere, or
    lacks queues of this one, or where one is published beside the target's segments.
    """
    with catalogue_of(target, runtime, read_only=True) as metadata:
        if metadata.note(NOTE, "source") == place_of(source):
            keys = [queue.record.key for queue in tier.queues]
            left_out = [f"{key.topic}/{key.queue_id}" for key in keys if not metadata.queue(*key)]
            if left_out:
                raise InvalidConfigError(
                    f"{target.catalogue_path}: the target was cut over before, and without "
                    f"{', '.join(left_out[:NAMES_SHOWN])}; move these to a target of their own"
                )
            return True
        if metadata.queues() or metadata.segments():
            raise InvalidConfigError(
                f"{target.catalogue_path}: the target's catalogue names a tier already; name an "
                "empty one, or adopt these queues into it with --adopt"
            )
    published = provider.generations(target.broker_name)
    if published is not None and published.listed():
        raise InvalidConfigError(
            f"{published.describe()}: a catalogue of this broker is published there: the target "
            "is a tier already"
        )
    return False


def made_with(config: StoreConfig, runtime: Runtime) -> dict[str, int]:
    """The settings that the tier of this catalogue fixes, by name."""
    with catalogue_of(config, runtime, read_only=True) as metadata:
        return watermarks.Watermarks.made_with(metadata.notes(watermarks.STORE))


def held_by_both(
    tier: SourceTier, target: StoreConfig, source: StoreConfig, runtime: Runtime
) -> bool:
    """Whether these queues were adopted before.

    Raises InvalidConfigError that names all queues which the target has on its own.
    """
    with catalogue_of(target, runtime, read_only=True) as metadata:
        adopted = metadata.notes(NOTE)
        mine = place_of(source)
        both = [
            queue.record.key
            for queue in tier.queues
            if metadata.queue(*queue.record.key) is not None
            and adopted.get(_adopted_key(queue.record.key)) != mine
        ]
        if both:
            names = ", ".join(f"{key.topic}/{key.queue_id}" for key in both)
            raise InvalidConfigError(f"both tiers have: {names}; nothing was adopted")
        return all(metadata.queue(*queue.record.key) is not None for queue in tier.queues)


def publish(
    tier: SourceTier,
    source: StoreConfig,
    target: StoreConfig,
    provider: SegmentProvider,
    runtime: Runtime,
    *,
    adopt: bool,
) -> None:
    """Make the copy a tier: one change of the target's catalogue, all of it or nothing.

    Then the catalogue is published for readers that start from the tier alone. Where that fails,
    the broker publishes it.
    """
    Path(target.catalogue_path).parent.mkdir(parents=True, exist_ok=True)
    try:
        metadata = catalogue_of(target, runtime, read_only=False)
    except MetadataError as error:
        raise BackendRefusedError(target.catalogue_path, "cut over", str(error)) from error
    with metadata:
        if adopt:
            metadata.apply(_adopted(tier, source, target, metadata))
        else:
            metadata.apply(_moved(tier, source, target))
        try:
            publisher = publisher_of(target, provider, metadata)
            if publisher is not None:
                publisher.publish()
        except TieredStoreError as error:
            log.warning("the catalogue could not be published: %s", error)


def _moved(tier: SourceTier, source: StoreConfig, target: StoreConfig) -> Iterator[Change]:
    for topic in tier.topics:
        yield Put(topic)
    for queue in tier.queues:
        yield from _queue(queue, target)
        for kind, note in queue.notes.items():
            yield PutNote(kind, target_path(queue.path, target), note)
    for row in tier.index:
        yield Put(_row(row, target))
    yield from _index_notes(tier, keeps_local_files=source.store_path == target.store_path)
    yield PutNote(NOTE, "source", dict(place_of(source)))


def _adopted(
    tier: SourceTier, source: StoreConfig, target: StoreConfig, metadata: MetadataStore
) -> list[Change]:
    """Topics get the target's own numbers. The queues take nothing more: they are history."""
    for topic in tier.topics:
        metadata.add_topic(topic.topic, reserve_hours=topic.reserve_hours)
    changes: list[Change] = []
    for queue in tier.queues:
        changes += _queue(queue, target)
        changes.append(history_note(target_path(queue.path, target), source.broker_name))
        changes.append(PutNote(NOTE, _adopted_key(queue.record.key), dict(place_of(source))))
    return changes


def _queue(queue: SourceQueue, target: StoreConfig) -> Iterator[Change]:
    yield Put(replace(queue.record, broker_name=target.broker_name))
    for row in (*queue.log, *queue.units):
        yield Put(_row(row, target))


def _row(row: SegmentRecord, target: StoreConfig) -> SegmentRecord:
    return replace(row, path=target_path(row.path, target))


def _adopted_key(key: QueueKey) -> str:
    return f"{key.topic}/{key.queue_id}"


def _index_notes(tier: SourceTier, *, keeps_local_files: bool) -> Iterator[Change]:
    """Up to where keys are durable. Keys in local files that stay behind are put again."""
    notes = tier.index_notes
    for name, value in notes[watermarks.STORE].items():
        yield PutNote(watermarks.STORE, name, value)
    marks = dict(notes[watermarks.QUEUE])
    if keeps_local_files:
        for kind in (watermarks.FILE, watermarks.START):
            for key, value in notes[kind].items():
                yield PutNote(kind, key, value)
    else:
        _lower(marks, notes[watermarks.START])
    for key, value in marks.items():
        yield PutNote(watermarks.QUEUE, key, value)


def _lower(marks: dict[str, Json], starts: Mapping[str, Any]) -> None:
    for name, start in starts.items():
        key = name.partition("/")[2]
        mark = marks.get(key)
        held = mark[0] if isinstance(mark, list) and mark else mark
        if isinstance(held, int) and isinstance(start, int) and start < held:
            marks[key] = [start, *mark[1:]] if isinstance(mark, list) else start
