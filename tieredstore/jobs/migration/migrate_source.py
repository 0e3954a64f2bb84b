"""What a tier holds, as a migration sees it: topics, queues, segments with their true sizes, notes.

What lives here: reading the source without changing it. What is copied of it is in `migrate_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from tieredstore.access.care.rebuild_index import slot_count_of
from tieredstore.access.copied_rows import amend_problems
from tieredstore.access.upload.agreement import STOPPED_QUEUE
from tieredstore.access.wiring import GivenParts, TierParts, open_tier
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import Json, MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat import unconfirmed
from tieredstore.index import watermarks
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentError,
    UnknownNameError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentType

log = log_of(__name__)

_QUEUE_NOTES: Final = (STOPPED_QUEUE, unconfirmed.KIND)
INDEX_NOTES: Final = (watermarks.STORE, watermarks.QUEUE, watermarks.FILE, watermarks.START)
_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceQueue:
    """One queue; its rows by base, the last of each kind still grows."""

    record: QueueRecord
    path: str
    log: tuple[SegmentRecord, ...]
    units: tuple[SegmentRecord, ...]
    problem: str | None
    notes: Mapping[str, Json]

    @property
    def is_damaged(self) -> bool:
        """Bytes that were committed are gone, or could not be asked for."""
        return self.problem is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTier:
    """All that is to be copied, as the catalogue and the backend had it a moment ago."""

    topics: tuple[TopicRecord, ...]
    queues: tuple[SourceQueue, ...]
    index: tuple[SegmentRecord, ...]
    index_notes: Mapping[str, Mapping[str, Json]]
    copy_of: str | None = None
    """Where the catalogue is a published copy: it may not know the newest queues and keys."""

    def rows(self) -> list[SegmentRecord]:
        return [*(row for each in self.queues for row in (*each.log, *each.units)), *self.index]


def read_source(config: StoreConfig, *, topics: tuple[str, ...] = ()) -> SourceTier:
    """The tier of these settings; only topics that match one of the patterns, if there are any.

    Raises UnknownNameError for a pattern that matches nothing or a broker that is not there,
    MetadataError where there is no catalogue, and what the backend raises.
    """
    # Its keys and caches are not needed: only names and sizes are asked for.
    parts = open_tier(
        replace(config, index_enabled=False, read_ahead_enabled=False), GivenParts(), read_only=True
    )
    try:
        metadata = parts.metadata
        _check_broker(config, metadata)
        names = _wanted(metadata, topics)
        parts.load()
        amend_problems(parts.files, metadata, parts.provider, config.broker_name)
        queues = _queues(parts, names)
        path = index_queue_path(config.broker_name)
        index = metadata.segments(path, SegmentType.INDEX)
        return SourceTier(
            topics=tuple(record for record in metadata.topics() if record.topic in names),
            queues=tuple(queues),
            index=tuple(row for row in index if row.size),
            index_notes={kind: dict(metadata.notes(kind)) for kind in INDEX_NOTES},
            copy_of=metadata.facts.describe() if metadata.facts.copy else None,
        )
    finally:
        parts.close()


def source_made_with(tier: SourceTier, provider: SegmentProvider) -> dict[str, int]:
    """The settings that a tier fixes, by name: as it has noted them.

    RocketMQ notes nothing, and the length of its index files tells how many slots they have.
    """
    noted = watermarks.Watermarks.made_with(tier.index_notes.get(watermarks.STORE, {}))
    if noted or not tier.index:
        return noted
    row = tier.index[-1]
    with provider.open(row.path, row.type, row.base_offset) as segment:
        try:
            return {"index_slot_count": slot_count_of(segment)}
        except (SegmentError, OffsetOutOfRangeError) as error:
            log.warning("how many slots the index has is not known: %s", error)
            return {}


def _check_broker(config: StoreConfig, metadata: MetadataStore) -> None:
    brokers = {record.broker_name for record in metadata.queues()}
    brokers |= {row.path.partition("/")[0] for row in metadata.segments()}
    if not brokers:
        reason = "it names no queue: is this the catalogue of the tier?"
        raise MetadataError(config.catalogue_path, reason)
    if config.broker_name not in brokers:
        known = ", ".join(sorted(brokers)[:_NAMES_SHOWN])
        raise UnknownNameError(
            f"broker_name: {config.broker_name!r} is not in the catalogue; there are: {known}"
        )


def _wanted(metadata: MetadataStore, patterns: tuple[str, ...]) -> set[str]:
    # A catalogue that lost a topic still has its queues.
    known = {record.topic for record in metadata.topics()}
    known |= {record.topic for record in metadata.queues()}
    for pattern in patterns:
        if not any(fnmatchcase(topic, pattern) for topic in known):
            some = ", ".join(sorted(known)[:_NAMES_SHOWN])
            raise UnknownNameError(f"no topic is called {pattern!r}; there are: {some}")
    if not patterns:
        return known
    return {topic for topic in known if any(fnmatchcase(topic, each) for each in patterns)}


def _queues(parts: TierParts, topics: set[str]) -> list[SourceQueue]:
    found = []
    for file in sorted(parts.files.files(), key=lambda each: each.key):
        record = parts.metadata.queue(file.key.topic, file.key.queue_id)
        if file.key.topic not in topics or record is None:
            continue
        if parts.files.is_out_of_reach(file.key):
            raise BackendUnavailableError(file.path, "open", file.problem or "not reached")
        notes = {kind: parts.metadata.note(kind, file.path) for kind in _QUEUE_NOTES}
        found.append(
            SourceQueue(
                record=record,
                path=file.path,
                log=tuple(each.record for each in file.log.segments),
                units=tuple(each.record for each in file.queue.segments),
                problem=file.problem,
                notes={kind: note for kind, note in notes.items() if note is not None},
            )
        )
    if any(each.is_damaged for each in found):  # a backend that refuses says so itself
        next(iter(parts.provider.list(found[0].record.broker_name)), None)
    return found
