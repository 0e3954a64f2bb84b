"""The plan of a migration, made from the source: segments, bytes, requests and dollars."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from tieredstore.access.log_mark import LOG_MARK
from tieredstore.access.queue_upload import STOPPED_QUEUE, TRUSTED_SIDE
from tieredstore.access.reader import amend_problems
from tieredstore.access.rebuild import layout_of
from tieredstore.access.tables import notes_of
from tieredstore.access.wiring import Tier, check_queues, open_tier
from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.driver.metadata import LOG, Change, DeleteTopic, MetadataStore, Put, PutNote
from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.provider import LOAD_RUN, LOADED, STREAMED, SegmentProvider
from tieredstore.flat import recovery
from tieredstore.flat.message_file import LOG_START_NOTE
from tieredstore.index import watermarks
from tieredstore.jobs.job import Plan
from tieredstore.jobs.migrate_copy import BLOCK_BYTES, Copied, CopyItem, Key, Proof, place_of
from tieredstore.jobs.slices import TopicPatterns
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentError,
    UnknownNameError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.settings import facts_of, settings_of
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord

log = log_of(__name__)

NOTE: Final = "migration"
"""Notes of this kind say where a tier came from (under SOURCE), or where each adopted queue did."""
SOURCE: Final = "source"
_QUEUE_NOTES: Final = (STOPPED_QUEUE, TRUSTED_SIDE, recovery.UNCONFIRMED_NOTE)
_LOAD_NOTES: Final = (LOADED, STREAMED, LOAD_RUN)
INDEX_NOTES: Final = (watermarks.STORE, watermarks.QUEUE, watermarks.FILE, watermarks.START)
_LOOKS_MAX: Final = 3
_NAMES_SHOWN: Final = 5
OBJECT_PROVIDERS: Final = ("s3", "fsspec")
_MULTIPART_BYTES: Final = 16 << 20  # of one part of a long object
# Written even if they have their defaults: the tier depends on them, or the default on the host.
_ALWAYS: Final = (
    *("broker_name", "cluster_name", "provider", "metadata_path"),
    *("index_slot_count", "index_item_count"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceQueue:
    """One queue. Its rows are sorted by base; the last one of each kind still grows."""

    record: QueueRecord
    path: str
    log: tuple[SegmentRecord, ...]
    units: tuple[SegmentRecord, ...]
    problem: str | None
    notes: Mapping[str, Json]

    @property
    def is_damaged(self) -> bool:
        """Whether committed bytes are gone, or could not be checked."""
        return self.problem is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTier:
    """Everything to copy, as the catalogue and the backend had it when it was read."""

    topics: tuple[TopicRecord, ...]
    queues: tuple[SourceQueue, ...]
    index: tuple[SegmentRecord, ...]
    index_notes: Mapping[str, Mapping[str, Json]]
    tables: tuple[Change, ...] = ()
    """What the catalogue has of consumer offsets and of the broker's own topics."""
    given: tuple[Change, ...] = ()
    """Numbers of deleted topics and ids of loads, which are never given again."""
    log_mark: Json = None
    log_starts: Mapping[str, Json] = field(default_factory=dict)  # by path, see LOG_START_NOTE
    copy_of: str | None = None
    """Set if the catalogue is a published copy: it may not know the newest queues and keys."""

    def rows(self) -> list[SegmentRecord]:
        return [*(row for queue in self.queues for row in (*queue.log, *queue.units)), *self.index]


def read_source(config: StoreConfig, *, topics: tuple[str, ...] = ()) -> SourceTier:
    """The tier of these settings; if there are patterns, only topics that match one of them.

    A queue that expires or grows while it is read looks damaged, so the tier is then read again.

    Raises UnknownNameError for a pattern that matches nothing or a broker that is not in the
    catalogue, MetadataError if there is no catalogue, and errors of the backend.
    """
    for _ in range(_LOOKS_MAX - 1):
        tier = _read_once(config, topics)
        if not any(queue.is_damaged for queue in tier.queues):
            return tier
    return _read_once(config, topics)


def _read_once(config: StoreConfig, topics: tuple[str, ...]) -> SourceTier:
    # Only names and sizes are needed: no index, no caches.
    parts = open_tier(
        replace(config, index_enabled=False, read_ahead_enabled=False), read_only=True
    )
    try:
        metadata = parts.metadata
        _check_broker(config, metadata)
        # A catalogue that lost a topic still has its queues.
        known = {record.topic for record in metadata.topics()}
        known |= {record.topic for record in metadata.queues()}
        patterns = TopicPatterns(topics)
        patterns.refuse_unknown(known)
        names = {topic for topic in known if patterns.match(topic)}
        check_queues(config, metadata, wanted=patterns.match)
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
            tables=tuple(
                notes_of(metadata, wants=lambda topic: not topics or patterns.match(topic))
            ),
            given=tuple(_given(metadata)),
            log_mark=metadata.note(LOG_MARK, config.broker_name),
            log_starts=dict(metadata.notes(LOG_START_NOTE)),
            copy_of=_copy_of(metadata),
        )
    finally:
        parts.close()


def _given(metadata: MetadataStore) -> Iterator[Change]:
    # The numbers of deleted topics stay taken: keys in the index name topics by number.
    contents = metadata.contents()
    gone = {each.topic for each in contents if isinstance(each, DeleteTopic)}
    for change in contents:
        match change:
            case Put(TopicRecord(topic=topic)) | DeleteTopic(topic) if topic in gone:
                yield change
    for kind in _LOAD_NOTES:
        yield from (PutNote(kind, key, value) for key, value in metadata.notes(kind).items())
    for key, value in metadata.notes(NOTE).items():
        if key != SOURCE:  # of a queue that was adopted
            yield PutNote(NOTE, key, value)


def _copy_of(metadata: MetadataStore) -> str | None:
    """Where a published copy was read from; None for the broker's own catalogue. A log that lies
    with the bytes does not count as a copy: it was complete when it was read."""
    facts = metadata.facts
    return facts.describe() if facts.copy and facts.source != LOG else None


def source_made_with(tier: SourceTier, provider: SegmentProvider) -> dict[str, int]:
    """The settings that the tier fixes, by name, from its notes.

    RocketMQ makes no such notes; then the length of an index file tells how many slots it has.
    """
    noted = watermarks.Watermarks.made_with(tier.index_notes.get(watermarks.STORE, {}))
    if noted or not tier.index:
        return noted
    row = tier.index[-1]
    with provider.open(row.path, row.type, row.base_offset) as segment:
        try:
            return {"index_slot_count": layout_of(segment).slot_count}
        except (SegmentError, OffsetOutOfRangeError) as error:
            log.warning("how many slots the index has is not known: %s", error)
            return {}


def _check_broker(config: StoreConfig, metadata: MetadataStore) -> None:
    brokers = {record.broker_name for record in metadata.queues()}
    brokers |= {row.path.partition("/")[0] for row in metadata.segments()}
    if not brokers:
        reason = "it names no queue: is this the catalogue of the tier?"
        raise MetadataError(metadata.facts.place, reason)
    if config.broker_name not in brokers:
        known = ", ".join(sorted(brokers)[:_NAMES_SHOWN])
        raise UnknownNameError(
            f"broker_name: {config.broker_name!r} is not in the catalogue; there are: {known}"
        )


def _queues(parts: Tier, topics: set[str]) -> list[SourceQueue]:
    found = []
    for file in sorted(parts.files.files(), key=lambda file: file.key):
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
                log=tuple(segment.record for segment in file.log.segments),
                units=tuple(segment.record for segment in file.queue.segments),
                problem=file.problem,
                notes={kind: note for kind, note in notes.items() if note is not None},
            )
        )
    if any(queue.is_damaged for queue in found):  # if the backend refuses, raise its own error
        next(iter(parts.provider.list(found[0].record.broker_name)), None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan(Plan[CopyItem]):
    """The items, and the source as it was when they were planned."""

    tier: SourceTier
    known: Mapping[Key, Copied]
    made_with: Mapping[str, int]
    """Settings that the tier fixes, by name."""


def check_places(source: StoreConfig, target: StoreConfig, *, adopt: bool) -> None:
    """Refuse what can only be a mistake, before anything is opened."""
    if place_of(source) == place_of(target):
        raise InvalidConfigError("source and target are the same tier")
    if source.catalogue_path == target.catalogue_path:
        raise InvalidConfigError(
            f"metadata_path: source and target have the same catalogue {source.catalogue_path};"
            " give the target one of its own"
        )
    for setting in ("index_slot_count", "index_item_count"):
        if not adopt and getattr(source, setting) != getattr(target, setting):
            raise InvalidConfigError(
                f"{setting}: index files of the source have {getattr(source, setting)}, the "
                f"target wants {getattr(target, setting)}: it must not change"
            )


def with_names(
    source: StoreConfig, target: StoreConfig, *, broker: str | None, cluster: str | None
) -> StoreConfig:
    """The target's settings with the names of the source, or with new names that were requested.

    Raises InvalidConfigError if the target's settings have other names that were not requested.
    """
    defaults = StoreConfig()
    names: dict[str, Any] = {}
    for word, setting, wanted in (
        ("broker", "broker_name", broker),
        ("cluster", "cluster_name", cluster),
    ):
        theirs, ours = getattr(source, setting), getattr(target, setting)
        if wanted is None and ours not in (theirs, getattr(defaults, setting)):
            raise InvalidConfigError(
                f"{setting}: the source has {theirs!r}, the target {ours!r}; say "
                f"--rename-{word} {ours} if that is meant"
            )
        names[setting] = wanted or theirs
    return replace(target, **names)


def target_path(path: str, target: StoreConfig) -> str:
    """The target's queue path for this one of the source."""
    _, topic, queue_id = path.split("/")
    return queue_path(target.broker_name, topic, int(queue_id))


def target_key(row: SegmentRecord, target: StoreConfig) -> Key:
    """The target's key for a segment of the source."""
    return target_path(row.path, target), row.type, row.base_offset


def plan_migration(
    tier: SourceTier,
    known: Mapping[Key, Copied],
    source: StoreConfig,
    target: StoreConfig,
    *,
    adopt: bool,
    cut_over: bool,
    proof: Proof,
    made_with: Mapping[str, int],
) -> MigrationPlan:
    """Plan to copy the segments that are not known to be whole in the target, largest first; and
    before a cut-over, to read doubtful ones again."""
    items = [
        item
        for row, is_last in _rows(tier, adopt=adopt)
        if row.size
        and (item := _item(row, known, target, is_growing=is_last and not adopt))
        and (cut_over or item.missing_bytes)
    ]
    # A large one that starts last would run alone at the end.
    items.sort(key=lambda item: -item.passing_bytes)
    missing = [item.missing_bytes for item in items]
    again = sum(item.known.size for item in items if item.is_doubtful)
    rows = [row for row, _ in _rows(tier, adopt=adopt) if row.size]
    requests = _requests(items, source, target, proof)
    dollars = _dollars(requests, source, target)
    byte_counts = {
        "tier": sum(row.size for row in rows),
        "to_copy": sum(missing),
        "to_read_again": again,
    }
    counts = {"queues": len(tier.queues), "segments": len(rows), "to_copy": sum(map(bool, missing))}
    return MigrationPlan(
        items=items,
        item_bytes=[item.passing_bytes for item in items],
        counts=counts,
        byte_counts=byte_counts,
        requests=dict(requests),
        dollars=dollars,
        lines=_lines(counts, byte_counts, requests, dollars),
        facts={"proof": proof.value},
        tier=tier,
        known=known,
        made_with=made_with,
    )


def _rows(tier: SourceTier, *, adopt: bool) -> Iterator[tuple[SegmentRecord, bool]]:
    """Each row, and whether its segment is the last one of its file and so may grow."""
    for queue in tier.queues:
        for rows in (queue.log, queue.units):
            for number, row in enumerate(rows):
                yield row, number == len(rows) - 1
    if not adopt:  # another broker's index names topics by numbers of its own
        for row in tier.index:
            yield row, False


def _item(
    row: SegmentRecord, known: Mapping[Key, Copied], target: StoreConfig, *, is_growing: bool
) -> CopyItem | None:
    key = target_key(row, target)
    copied = known.get(key, Copied(0, 0))
    is_recovered = _is_recovered(row)
    is_other = copied.created_ms not in (0, row.create_timestamp)
    is_other |= is_recovered and copied.size > row.size
    if is_other:  # its topic was deleted and made anew since, or it was uploaded anew
        copied = Copied(0, 0)
    is_doubtful = key in known and not is_other and (is_recovered or not copied.created_ms)
    if copied.size == row.size and not is_doubtful:
        return None
    return CopyItem(
        row=row,
        target_path=key[0],
        is_growing=is_growing,
        known=copied,
        replaces=is_other,
        is_doubtful=is_doubtful,
    )


def _is_recovered(row: SegmentRecord) -> bool:
    """Whether the row was made from the segment's bytes, which tell no time of creation (0 if none
    of them could be read). A queue that was uploaded anew after that, and lost and recovered again,
    has the same rows."""
    of_bytes = row.end_timestamp if row.type is SegmentType.INDEX else row.begin_timestamp
    return row.create_timestamp in (0, of_bytes)


def _requests(
    items: list[CopyItem], source: StoreConfig, target: StoreConfig, proof: Proof
) -> Counter[str]:
    """About how many requests: failed ones are repeated, and nearby reads are merged."""
    found: Counter[str] = Counter()
    for item in items:
        blocks = math.ceil(item.missing_bytes / BLOCK_BYTES)
        if source.provider in OBJECT_PROVIDERS:
            found["get"] += math.ceil(item.passing_bytes / BLOCK_BYTES)
        if target.provider not in OBJECT_PROVIDERS:
            continue
        if item.is_growing or item.known.size:
            found["put"] += blocks
            found["head"] += blocks + 1
        else:  # a mark, the object, and three lookups
            parts = math.ceil(item.missing_bytes / _MULTIPART_BYTES)
            found["put"] += 2 if parts < 2 else parts + 3
            found["head"] += 3
            found["delete"] += 1
        if proof is Proof.READ_BACK:
            found["get"] += blocks
    for config in (source, target):
        if config.provider in OBJECT_PROVIDERS:
            found["list"] += 2
    return found


def _dollars(requests: Counter[str], source: StoreConfig, target: StoreConfig) -> float | None:
    stores = [config for config in (target, source) if config.provider in OBJECT_PROVIDERS]
    if not stores:
        return None
    prices = PriceTable.parse(stores[0].request_prices)
    return sum(count * prices.of(name) / 1000 for name, count in requests.items())


def _lines(
    counts: Mapping[str, int],
    byte_counts: Mapping[str, int],
    requests: Counter[str],
    dollars: float | None,
) -> tuple[str, ...]:
    lines = [
        f"{counted(counts['segments'], 'segment')} of {counted(counts['queues'], 'queue')}, "
        f"{shown_size(byte_counts['tier'])}",
        f"to copy: {counted(counts['to_copy'], 'segment')}, {shown_size(byte_counts['to_copy'])}",
    ]
    if byte_counts["to_read_again"]:
        lines.append(f"to read again: {shown_size(byte_counts['to_read_again'])}")
    if dollars is not None:
        asked = ", ".join(f"{count} {name}" for name, count in sorted(requests.items()) if count)
        lines.append(f"requests: about {asked or 'none'}: ${dollars:.4f}")
    return tuple(lines)


def snippet(config: StoreConfig, made_with: Mapping[str, int] | None = None) -> str:
    """TOML that `StoreConfig.from_toml` reads back, without secrets.

    `made_with` are settings that the tier fixes. They override `config`: the tier refuses others.
    """
    fixed: dict[str, Any] = dict(made_with or {})
    config = replace(config, **fixed)
    plain = StoreConfig(broker_name=config.broker_name)
    lines = [f"[{StoreConfig.TABLE}]"]
    secret = []
    for name, spec in settings_of(config).items():
        value = getattr(config, name)
        if facts_of(spec).secret:
            secret += [f"{StoreConfig.ENV_PREFIX}{name.upper()}"] if value else []
        elif name == "metadata_path":
            lines.append(f"metadata_path = {_text(config.catalogue_path)}")
        elif name in _ALWAYS or value != getattr(plain, name):
            lines.append(f"{name} = {_text(value)}")
    if secret:
        lines.append(f"# in the environment: {', '.join(secret)}")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return json.dumps(value.name)
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    # TOML escapes texts as JSON does, except for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
