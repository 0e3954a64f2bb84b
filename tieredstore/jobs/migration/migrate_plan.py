"""What a migration has to do: which segments, how many bytes, requests and dollars.

What lives here: `plan_migration` and what it refuses. Copying is in `migrate_copy`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tieredstore.codec.names import queue_path
from tieredstore.driver.object_requests import PriceTable
from tieredstore.jobs.job import Plan
from tieredstore.jobs.migration.migrate_copy import BLOCK_BYTES, CopyItem, Proof
from tieredstore.jobs.migration.migrate_journal import Copied, Key, place_of
from tieredstore.jobs.migration.migrate_source import SourceTier
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError

OBJECT_PROVIDERS: Final = ("s3", "fsspec")
_MULTIPART_BYTES: Final = 16 << 20  # of one part of a long object


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan(Plan[CopyItem]):
    """The items, and the source as it was when they were made."""

    tier: SourceTier
    known: Mapping[Key, Copied]
    made_with: Mapping[str, int] = field(default_factory=dict)
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
    """The target under the names of the source, or under those that were asked for.

    Raises InvalidConfigError where the target's settings have others, and nobody asked for them.
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
    """The queue path that a segment of this one has in the target."""
    _, topic, queue_id = path.split("/")
    return queue_path(target.broker_name, topic, int(queue_id))


def plan_migration(
    tier: SourceTier,
    known: Mapping[Key, Copied],
    source: StoreConfig,
    target: StoreConfig,
    *,
    adopt: bool,
    proof: Proof,
) -> MigrationPlan:
    """The segments that are not known to be whole in the target, the largest first."""
    items = [
        item
        for row, is_last in _rows(tier, adopt=adopt)
        if row.size and (item := _item(row, known, target, is_growing=is_last and not adopt))
    ]
    # A long one that began last would be waited for alone.
    items.sort(key=lambda item: -item.missing_bytes)
    missing = [item.missing_bytes for item in items]
    rows = [row for row, _ in _rows(tier, adopt=adopt) if row.size]
    requests = _requests(items, source, target, proof)
    dollars = _dollars(requests, source, target)
    byte_counts = {"tier": sum(row.size for row in rows), "to_copy": sum(missing)}
    counts = {"queues": len(tier.queues), "segments": len(rows), "to_copy": len(items)}
    return MigrationPlan(
        items=items,
        item_bytes=missing,
        counts=counts,
        byte_counts=byte_counts,
        requests=dict(requests),
        dollars=dollars,
        lines=_lines(counts, byte_counts, requests, dollars),
        facts={"proof": proof.value},
        tier=tier,
        known=known,
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
    path = target_path(row.path, target)
    copied = known.get((path, row.type, row.base_offset), Copied(0, 0))
    if copied.size == row.size:
        return None
    return CopyItem(
        row=row,
        target_path=path,
        is_growing=is_growing,
        known_bytes=copied.size,
        known_crc=copied.crc,
    )


def _requests(
    items: list[CopyItem], source: StoreConfig, target: StoreConfig, proof: Proof
) -> Counter[str]:
    """About how many; a failed one is asked again, and what lies near is fetched together."""
    found: Counter[str] = Counter()
    for item in items:
        blocks = math.ceil(item.missing_bytes / BLOCK_BYTES)
        if source.provider in OBJECT_PROVIDERS:
            found["get"] += blocks
        if target.provider not in OBJECT_PROVIDERS:
            continue
        if item.is_growing or item.known_bytes:
            found["put"] += blocks
            found["head"] += blocks + 1
        else:  # a mark, the object, and three looks
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
    stores = [each for each in (target, source) if each.provider in OBJECT_PROVIDERS]
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
        f"{counts['segments']} segments of {counts['queues']} queues, {byte_counts['tier']} bytes",
        f"to copy: {counts['to_copy']} segments, {byte_counts['to_copy']} bytes",
    ]
    if dollars is not None:
        asked = ", ".join(f"{count} {name}" for name, count in sorted(requests.items()) if count)
        lines.append(f"requests: about {asked or 'none'}: ${dollars:.4f}")
    return tuple(lines)
