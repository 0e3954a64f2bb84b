"""What a catalogue says of itself, and the contract of what publishes it.

What lives here: values and `Publisher`. Implementations live in `tieredstore.metadata`; where the
published ones lie is said in `generations`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from tieredstore.model.errors import MetadataError

LINEAGE: Final = "published"
"""The kind of the notes by which a writer knows what it published, one a broker: they are not
published."""


class StaleCatalogueError(MetadataError):
    """The published catalogue is not this one's to replace: another writer's, or a newer one."""

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueFacts:
    """Where a catalogue comes from.

    A `copy` is as of some time: it may name segments that have expired since, and not name the
    newest. All below it is known of published ones only.
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
    """What is only in the journal of a catalogue, and when its snapshot was written.

    None where there is no snapshot yet, or nobody knows.
    """

    journal_bytes: int = 0
    snapshot_ms: int | None = None


class Publisher(ABC):
    """Publishes one writer's catalogue, generation by generation.

    * A catalogue that is published already costs no request.
    * Once another writer has published, or the published one is found to be newer than the
      catalogue, this one is stale: every further call raises StaleCatalogueError without a request.
    * Any thread may call; one publishes at a time. The catalogue can be changed meanwhile.
    """

    problem: str | None = None  # why the last one failed; None when one has succeeded since
    published_count: int = 0
    failure_count: int = 0

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
    def adopt(self) -> None:
        """What is published has become part of this catalogue, which may replace it from now on."""
