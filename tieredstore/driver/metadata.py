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
"""The kind of the notes by which a writer knows what it published, one a broker: they are not
published."""


LOG: Final = "log"
"""The source that the facts of a catalogue name which its provider keeps with the bytes: read
only it is a copy, and whole as of the moment at which it was read."""


PUBLISHED: Final = "published"
"""The source of a copy that a writer made beside the tier, some time ago."""


def was_published(lineage: Json) -> bool:
    """Whether a note of LINEAGE proves that something was published. It is written before the
    generation that it names, and the first one may never have been created."""
    match lineage:
        case {"generation": int(generation), "crc32c": int() | None as crc}:
            return crc is not None or generation > 1
    return False


class StaleCatalogueError(MetadataError):
    """This catalogue must not replace the published one: it is another writer's, or newer."""

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueFacts:
    """Where a catalogue comes from.

    A `copy` shows the catalogue at some time: it may name segments that have expired since, and
    lack the newest. The fields after it are known only for published ones.
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
    """The part of a catalogue that is only in its journal, and when its snapshot was written.

    None if there is no snapshot yet, or if it is unknown.
    """

    journal_bytes: int = 0
    snapshot_ms: int | None = None


class Publisher(ABC):
    """Publishes one writer's catalogue, generation by generation.

    * An unchanged catalogue costs no request.
    * Once another writer has published, or the published one is found to be newer than the
      catalogue, this one is stale: every further call raises StaleCatalogueError without a request.
    * Any thread may call; one publishes at a time. The catalogue can be changed meanwhile.
    """

    problem: str | None = None  # why the last one failed; None when one has succeeded since
    published_count: int = 0
    failure_count: int = 0
    is_unheard: bool = False  # nothing was published when it was last looked for

    @property
    @abstractmethod
    def has_changes(self) -> bool:
        """Whether the catalogue was changed since it was opened or published, by memory alone."""

    @abstractmethod
    def publish(self) -> int | None:
        """The generation that holds all that is in the catalogue now, made if there is none yet.

        None where there is nothing to be published. Raises StaleCatalogueError, MetadataError,
        BackendError.
        """

    @abstractmethod
    def check(self) -> None:
        """StaleCatalogueError where what is published is not this catalogue's to replace."""

    @abstractmethod
    def adopt(self, changes: Iterable[Change]) -> None:
        """Apply changes that make what is published part of this catalogue, which may replace it
        from then on: all of it or nothing."""


class CatalogueCopy(ABC):
    """A file on this machine that says what a catalogue elsewhere says; it has the writer's lock.

    No writer ever reads it, and nothing depends on it: a failure is logged, and the next step
    tries again. A class of it has `locked(path)`, which raises CatalogueLockedError where another
    writer holds the lock. Any thread may call.
    """

    @abstractmethod
    def follow(self, source: MetadataStore) -> None:
        """From now on this is what is copied; it stays the caller's."""

    @property
    @abstractmethod
    def upkeep(self) -> CatalogueUpkeep:
        """When the file was last written."""

    @abstractmethod
    def step(self) -> None:
        """Write what the catalogue says now, unless the file says so already."""

    @abstractmethod
    def close(self) -> None:
        """Give the lock back; idempotent. No step does anything afterwards."""


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
    * Reads come from memory, are consistent snapshots and never block on I/O. What they return is
      immutable and does not change under the caller's feet.
    * Any thread may call anything at any time. `close` is idempotent; afterwards everything but
      `close` raises StoreClosedError.
    * Opened read only, a store changes nothing anywhere: `apply` and `add_topic` raise
      MetadataError, and `refresh` shows what a writer has done since.

    Raises: MetadataError when the catalogue cannot be read or written, StoreClosedError after
    close.
    """

    @abstractmethod
    def topic(self, topic: str) -> TopicRecord | None:
        """The topic's row; None without one. Raises StoreClosedError after `close`."""

    @abstractmethod
    def topics(self) -> Sequence[TopicRecord]:
        """The rows of all topics. Raises StoreClosedError after `close`."""

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> QueueRecord | None:
        """The queue's row; None without one. Raises StoreClosedError after `close`."""

    @abstractmethod
    def queues(self, topic: str | None = None) -> Sequence[QueueRecord]:
        """Queues of one topic, or of all; by ascending queue id within a topic."""

    @abstractmethod
    def segment(self, path: str, type: SegmentType, base_offset: int) -> SegmentRecord | None:
        """The segment's row; None without one. Raises StoreClosedError after `close`."""

    @abstractmethod
    def segments(
        self, path: str | None = None, type: SegmentType | None = None
    ) -> Sequence[SegmentRecord]:
        """Segments of one queue path or all, of one type or all; by ascending base offset
        within a path and type."""

    @abstractmethod
    def note(self, kind: str, key: str) -> Json:
        """The value of a note; None without one. Raises StoreClosedError after `close`."""

    @abstractmethod
    def notes(self, kind: str) -> Mapping[str, Json]:
        """All notes of a kind, by key. Raises StoreClosedError after `close`."""

    @abstractmethod
    def apply(self, changes: Iterable[Change]) -> None:
        """Make all changes durable together; see the class for what that means."""

    def stage(self, changes: Iterable[Change]) -> None:
        """Changes that nothing rests on yet: seen by reads at once, durable no later than the next
        `apply`, or the next bytes of a provider that keeps this catalogue.

        So a crash before then takes them back, with all that came after. By default as `apply`.
        """
        self.apply(changes)

    @property
    def has_staged(self) -> bool:
        """Whether something that was staged is not durable yet; `apply` of nothing makes it so."""
        return False

    @abstractmethod
    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        """The topic's row; a topic not yet known gets the next topic id, which is never reused.
        `reserve_hours` counts only for a new topic."""

    @abstractmethod
    def refresh(self) -> None:
        """Show a reader what a writer has done since; does nothing for a writer."""

    @abstractmethod
    def close(self) -> None:
        """Release the files; idempotent."""

    @property
    def facts(self) -> CatalogueFacts:
        """Where all this comes from; does not change but with `refresh`."""
        return CatalogueFacts(source=type(self).__name__, place="")

    @property
    def upkeep(self) -> CatalogueUpkeep:
        """How its files are doing, where it has any."""
        return CatalogueUpkeep()

    def snapshot_bytes(self) -> bytes:
        """RocketMQ's own JSON for all that is in here now; MetadataError where a store cannot."""
        raise MetadataError(self.facts.place, "it cannot be written as RocketMQ's JSON")

    def contents(self) -> Sequence[Change]:
        """Changes that make an empty catalogue say all that this one does."""
        return [
            *map(Put, self.topics()),
            *map(Put, self.queues()),
            *map(Put, self.segments()),
        ]

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        """Show what has happened since a copy was made: until it is replaced by a newer one.

        Only for a store whose `facts` say that it is a copy; MetadataError from any other, where
        bytes that are missing are damage.
        """
        raise MetadataError(self.facts.place, "it is no copy: what it names must be there")

    def publisher(self, generations: Generations, *, cluster: str, broker: str) -> Publisher | None:
        """What publishes this catalogue; None where its kind cannot be published."""
        return None

    def put(self, *records: TopicRecord | QueueRecord | SegmentRecord) -> None:
        """Add or replace rows. Raises MetadataError where they cannot be written."""
        self.apply([Put(record) for record in records])

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's row. Raises MetadataError where that cannot be written."""
        self.apply([DeleteTopic(topic)])

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Delete a queue's row. Raises MetadataError where that cannot be written."""
        self.apply([DeleteQueue(topic, queue_id)])

    def delete_segment(self, path: str, type: SegmentType, base_offset: int) -> None:
        """Delete a segment's row. Raises MetadataError where that cannot be written."""
        self.apply([DeleteSegment(path, type, base_offset)])

    def put_note(self, kind: str, key: str, value: Json) -> None:
        """Add or replace a note. Raises MetadataError where it cannot be written."""
        self.apply([PutNote(kind, key, value)])

    def delete_note(self, kind: str, key: str) -> None:
        """Delete a note. Raises MetadataError where that cannot be written."""
        self.apply([DeleteNote(kind, key)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
