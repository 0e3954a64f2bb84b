"""The contract of the catalogue: topics, queues, segments and notes, and how it is published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from tieredstore.model.errors import MetadataError
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord

if TYPE_CHECKING:
    from tieredstore.driver.provider import Generations

LINEAGE: Final = "published"
"""The kind of the notes, one a broker, in which a writer keeps what it has published. They are
not published themselves."""

ANNOUNCED: Final = "announced"
"""The kind of the notes that name segments which a job is about to make, and no reader knows yet.
They are not published: their names are used again without any word to readers elsewhere, and a
broker that restored a lost catalogue from such a note would delete what then has the name."""

UNPUBLISHED: Final = frozenset({LINEAGE, ANNOUNCED})
"""The kinds of the notes that concern only the writer's own catalogue."""

LOG: Final = "log"
"""The source of a catalogue that the provider keeps with the bytes. Opened to be read only, it is
a copy that is complete as of the moment when it was read."""


PUBLISHED: Final = "published"
"""The source of a copy that a writer has published beside the tier, some time ago."""


def was_published(lineage: Json) -> bool:
    """Whether a note of LINEAGE proves that something was published. The note is written before the
    generation that it names, so the first generation may never have been created."""
    match lineage:
        case {"generation": int(generation), "crc32c": int() | None as crc}:
            return crc is not None or generation > 1
    return False


class StaleCatalogueError(MetadataError):
    """This catalogue must not replace the published one, which is another writer's, or newer."""

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueFacts:
    """Where a catalogue comes from.

    A `copy` shows the catalogue as it once was: it may name segments that have expired since, and
    lack the newest. The fields after `copy` are known only for published catalogues.
    """

    source: str
    place: str
    copy: bool = False
    generation: int | None = None
    epoch: int | None = None
    writer: str | None = None
    written_ms: int | None = None

    def describe(self) -> str:
        number = "" if self.generation is None else f", generation {self.generation}"
        return f"{self.source}: {self.place}{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueUpkeep:
    """The size of a catalogue's journal, and when its snapshot was written.

    `snapshot_ms` is None if there is no snapshot yet, or if the time is unknown.
    """

    journal_bytes: int = 0
    snapshot_ms: int | None = None


class Publisher(ABC):
    """Publishes one writer's catalogue, generation by generation.

    * An unchanged catalogue costs no request.
    * Once another writer has published, or the published catalogue is found to be newer, this one
      is stale: every further call raises StaleCatalogueError without a request.
    * Any thread may call; one publishes at a time. The catalogue can be changed meanwhile.
    """

    problem: str | None = None  # why the last attempt failed; None after a success
    published_count: int = 0
    failure_count: int = 0
    is_unheard: bool = False  # the last check found nothing published

    @property
    @abstractmethod
    def has_changes(self) -> bool:
        """Whether the catalogue was changed since it was opened or published; makes no request."""

    @abstractmethod
    def publish(self) -> int | None:
        """The generation that holds all that is in the catalogue now; published if need be.

        None if there is nothing to publish. Raises StaleCatalogueError, MetadataError,
        BackendError.
        """

    @abstractmethod
    def check(self) -> None:
        """StaleCatalogueError if this catalogue may not replace what is published."""

    @abstractmethod
    def adopt(self, changes: Iterable[Change]) -> None:
        """Apply changes that take what is published into this catalogue, which may replace it from
        then on. All changes are applied, or none."""


class CatalogueCopy(ABC):
    """A file on this machine that copies a catalogue elsewhere, and holds the writer's lock.

    No writer ever reads it, and nothing depends on it: a failure is logged, and the next step
    tries again. A subclass has `locked(path)`, which raises CatalogueLockedError if another writer
    holds the lock. Any thread may call.
    """

    @abstractmethod
    def follow(self, source: MetadataStore) -> None:
        """Copy this catalogue from now on; the caller still owns it."""

    @property
    @abstractmethod
    def upkeep(self) -> CatalogueUpkeep:
        """When the file was last written."""

    @abstractmethod
    def step(self) -> None:
        """Write what the catalogue says now, unless the file is up to date."""

    @abstractmethod
    def close(self) -> None:
        """Release the lock; idempotent. Later steps do nothing."""


@dataclass(frozen=True, slots=True)
class Put:
    """Add a row, or replace the one with the same key."""

    record: TopicRecord | QueueRecord | SegmentRecord


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class DeleteSegment:
    path: str
    type: SegmentType
    base_offset: int


@dataclass(frozen=True, slots=True)
class PutNote:
    kind: str
    key: str
    value: Json


@dataclass(frozen=True, slots=True)
class DeleteNote:
    kind: str
    key: str


Change: TypeAlias = Put | DeleteTopic | DeleteQueue | DeleteSegment | PutNote | DeleteNote


class MetadataStore(ABC):
    """The catalogue of a tier: which topics, queues and segments exist, and where.

    * `apply` is the only way to change it: its changes become durable together, in order, or not at
      all. When it returns they are durable, and only then does a read see them. A crash in the
      middle leaves all of them or none.
    * Deleting an absent row is no error. A topic's rows and its segments are independent: deleting
      one deletes nothing else.
    * Reads are served from memory, are consistent snapshots and never block on I/O. What they
      return is immutable.
    * Any thread may call anything at any time. `close` is idempotent; afterwards everything but
      `close` raises StoreClosedError.
    * Opened read only, a store changes nothing anywhere: `apply` and `add_topic` raise
      MetadataError, and `refresh` shows what a writer has done since.

    Raises: MetadataError when the catalogue cannot be read or written, StoreClosedError after
    close.
    """

    @abstractmethod
    def topic(self, topic: str) -> TopicRecord | None:
        """The topic's row; None if it has none. Raises StoreClosedError after `close`."""

    @abstractmethod
    def topics(self) -> Sequence[TopicRecord]:
        """The rows of all topics. Raises StoreClosedError after `close`."""

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> QueueRecord | None:
        """The queue's row; None if it has none. Raises StoreClosedError after `close`."""

    @abstractmethod
    def queues(self, topic: str | None = None) -> Sequence[QueueRecord]:
        """The rows of one topic's queues, or of all; by ascending queue id within a topic."""

    @abstractmethod
    def segment(self, path: str, type: SegmentType, base_offset: int) -> SegmentRecord | None:
        """The segment's row; None if it has none. Raises StoreClosedError after `close`."""

    @abstractmethod
    def segments(
        self, path: str | None = None, type: SegmentType | None = None
    ) -> Sequence[SegmentRecord]:
        """Rows of segments, of one queue path or all and of one type or all; by ascending base
        offset within a path and type."""

    @abstractmethod
    def note(self, kind: str, key: str) -> Json:
        """The value of a note; None if there is none. Raises StoreClosedError after `close`."""

    @abstractmethod
    def notes(self, kind: str) -> Mapping[str, Json]:
        """All notes of a kind, by key. Raises StoreClosedError after `close`."""

    @abstractmethod
    def apply(self, changes: Iterable[Change]) -> None:
        """Make all changes durable together; see the class for what that means."""

    def stage(self, changes: Iterable[Change]) -> None:
        """Make changes that nothing depends on yet. Reads see them at once; they are durable no
        later than the next `apply`, or the next bytes of a provider that keeps this catalogue.

        So a crash before then undoes them, with all later ones. This default calls `apply`.
        """
        self.apply(changes)

    @property
    def has_staged(self) -> bool:
        """Whether staged changes are not durable yet; `apply` without changes makes them so."""
        return False

    @abstractmethod
    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        """The topic's row; a topic not yet known gets the next topic id, which is never reused.
        `reserve_hours` counts only for a new topic."""

    @abstractmethod
    def refresh(self) -> None:
        """Show a reader what a writer has done since. For a writer it does nothing."""

    @abstractmethod
    def close(self) -> None:
        """Release the files; idempotent."""

    @property
    def facts(self) -> CatalogueFacts:
        """Where this catalogue comes from; changes only with `refresh`."""
        return CatalogueFacts(source=type(self).__name__, place="")

    @property
    def upkeep(self) -> CatalogueUpkeep:
        """The state of its files, if it has any."""
        return CatalogueUpkeep()

    def snapshot_bytes(self) -> bytes:
        """RocketMQ's own JSON with all that is in the catalogue now; MetadataError if this store
        cannot write it."""
        raise MetadataError(self.facts.place, "it cannot be written as RocketMQ's JSON")

    def contents(self) -> Sequence[Change]:
        """Changes that turn an empty catalogue into a copy of this one."""
        return [
            *map(Put, self.topics()),
            *map(Put, self.queues()),
            *map(Put, self.segments()),
        ]

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        """Show what has happened since a copy was made, until a newer copy replaces it.

        Only for a store whose `facts` say that it is a copy; MetadataError from any other, where
        missing bytes are damage.
        """
        raise MetadataError(self.facts.place, "it is no copy: what it names must be there")

    def publisher(self, generations: Generations, *, cluster: str, broker: str) -> Publisher | None:
        """A publisher for this catalogue; None if its kind cannot be published."""
        return None

    def put(self, *records: TopicRecord | QueueRecord | SegmentRecord) -> None:
        """Add or replace rows. Raises MetadataError if they cannot be written."""
        self.apply([Put(record) for record in records])

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's row. Raises MetadataError if that cannot be written."""
        self.apply([DeleteTopic(topic)])

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Delete a queue's row. Raises MetadataError if that cannot be written."""
        self.apply([DeleteQueue(topic, queue_id)])

    def delete_segment(self, path: str, type: SegmentType, base_offset: int) -> None:
        """Delete a segment's row. Raises MetadataError if that cannot be written."""
        self.apply([DeleteSegment(path, type, base_offset)])

    def put_note(self, kind: str, key: str, value: Json) -> None:
        """Add or replace a note. Raises MetadataError if it cannot be written."""
        self.apply([PutNote(kind, key, value)])

    def delete_note(self, kind: str, key: str) -> None:
        """Delete a note. Raises MetadataError if that cannot be written."""
        self.apply([DeleteNote(kind, key)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
