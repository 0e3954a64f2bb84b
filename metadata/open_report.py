"""What reading the files had to deal with, for the caller and for the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tieredstore.metadata.catalogue_files import Catalogue, CatalogueFiles, JournalState
from tieredstore.model.printable import log_of

log = log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What the last whole reading of the files had to deal with."""

    replayed_lines: int = 0
    """Batches that the journal held on top of the snapshot."""
    torn_bytes: int = 0
    """What an interrupted write left behind: a writer has cut it, a reader passes over it."""
    stale_journal: Path | None = None
    """A journal that RocketMQ's own writing overtook, or without a whole line: not replayed."""
    used_backup: bool = False
    """Was the snapshot missing or unreadable, so that the backup had to serve?"""

    @classmethod
    def of(cls, files: CatalogueFiles, catalogue: Catalogue, stale: Path | None) -> OpenReport:
        """The report of a reading; `stale` is where a writer put a stale journal."""
        journal, state = catalogue.journal, catalogue.state
        overtaken = state is JournalState.STALE and journal.commits
        if (overtaken or state is JournalState.DAMAGED) and stale is None:
            stale = files.journal  # a reader leaves it where it is
        return cls(
            replayed_lines=journal.commits if state is JournalState.LIVE else 0,
            torn_bytes=journal.torn_bytes,
            stale_journal=stale,
            used_backup=catalogue.used_backup,
        )

    def warn(self, files: CatalogueFiles) -> None:
        name = files.snapshot
        if self.used_backup:
            log.warning("%s: missing or unreadable, its backup is used", name)
        if self.torn_bytes:
            log.warning("%s: its journal ends in %d torn bytes", name, self.torn_bytes)
        if self.stale_journal is not None:
            log.warning(
                "%s: RocketMQ has written it since its journal, or that is damaged; kept aside: %s",
                name,
                self.stale_journal,
            )
