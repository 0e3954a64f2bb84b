"""How a tier is doing: what a broker shows to who looks after it.

What lives here: values, and how they become JSON. They are put together in `tier_health`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tieredstore.model.values import StorageLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """One queue of the tier."""

    topic: str
    queue_id: int
    commit_offset: int | None = None
    behind_count: int = 0
    """Messages of the next store that are not in the tier yet."""
    problem: str | None = None
    """Why nothing more is uploaded until somebody has looked."""
    lost_count: int = 0
    """Messages that were lost before they were uploaded: gaps in the queue."""
    last_error: str | None = None
    """Why the last upload or expiry failed; it is tried again."""
    not_indexed_count: int = 0
    """Messages of the tier that the key index still has to take."""

    @property
    def ok(self) -> bool:
        return self.problem is None and self.last_error is None and not self.lost_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheHealth:
    """The read cache in figures."""

    held_bytes: int = 0
    extent_count: int = 0
    access_count: int = 0
    hit_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueHealth:
    """The catalogue as readers elsewhere find it."""

    published_count: int = 0
    failure_count: int = 0
    error: str | None = None
    """Why the newest changes are not published, the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDamage:
    """A place of the local store that was not what it must be; `mended` if nothing is missing."""

    path: str
    position: int
    reason: str
    mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth:
    """The whole tier; `ok` where no queue needs a person, fails or has lost something, and the
    local store misses nothing for damage."""

    level: StorageLevel
    queues: tuple[QueueHealth, ...] = ()
    cache: CacheHealth = CacheHealth()
    buffered_bytes: int = 0
    """Bytes that wait for their upload."""
    uploads: int = 0
    """Uploads under way."""
    index_error: str | None = None
    """Why the key index could not be uploaded or expired, the last time."""
    catalogue: CatalogueHealth = CatalogueHealth()
    local_damages: tuple[LocalDamage, ...] = ()
    """What the local store has found damaged since it was opened, if it tells."""

    @property
    def ok(self) -> bool:
        sound = self.index_error is None and self.catalogue.error is None
        sound = sound and all(damage.mended for damage in self.local_damages)
        return sound and all(queue.ok for queue in self.queues)

    @property
    def behind_count(self) -> int:
        return sum(queue.behind_count for queue in self.queues)

    @property
    def lost_count(self) -> int:
        return sum(queue.lost_count for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `json.dumps` takes them."""
        return {
            "ok": self.ok,
            "level": self.level.name,
            "behind_count": self.behind_count,
            "lost_count": self.lost_count,
            "buffered_bytes": self.buffered_bytes,
            "uploads": self.uploads,
            "index_error": self.index_error,
            "queues": [{"ok": queue.ok, **asdict(queue)} for queue in self.queues],
            "cache": asdict(self.cache),
            "catalogue": asdict(self.catalogue),
            "local_damages": [asdict(damage) for damage in self.local_damages],
        }
