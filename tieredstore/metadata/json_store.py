"""`JsonMetadataStore`: the catalogue in RocketMQ's own JSON file and a journal next to it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.driver.metadata import CatalogueFacts, CatalogueUpkeep, Change, Put
from tieredstore.driver.one_process import LockOfOneProcess
from tieredstore.driver.provider import Generations
from tieredstore.driver.runtime import SystemClock
from tieredstore.metadata import journal as codec
from tieredstore.metadata.files import (
    Catalogue,
    CatalogueFiles,
    CatalogueWriter,
    Follower,
    OpenReport,
)
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.published import CataloguePublisher, PublishedSource
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError, system_says
from tieredstore.model.printable import log_of
from tieredstore.model.values import TopicRecord

log = log_of(__name__)

FILE_NAME: Final = "tieredStoreMetadata.json"
"""RocketMQ's name of the catalogue, in the folder `config` of its store."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """One caller's batch on its way to the disk."""

    changes: list[Change]
    encoded: list[bytes]
    done: bool = False
    failure: BaseException | None = None


class JsonMetadataStore(MemoryReads):
    """A catalogue that RocketMQ can open: its JSON file, and a journal that makes changes cheap.

    * A batch is one line of the journal, written and synced before any read sees it. Batches that
      wait for the same sync share a line.
    * The journal becomes part of the snapshot when it outgrows it, and on close; RocketMQ sees
      only the snapshot. If RocketMQ has written the snapshot since, the journal is set aside,
      never replayed.
    * One writer at a time, among all processes, holds a lock beside the file; readers need none.
    * After a failed write every later one raises MetadataError until the store is reopened.
    """

    def __init__(
        self,
        files: CatalogueFiles,
        access: CatalogueWriter | Follower,
        catalogue: Catalogue,
        *,
        stale_journal: Path | None,
        clock_ms: Callable[[], int],
    ) -> None:
        super().__init__(catalogue.tables, name=str(files.snapshot))
        self._files = files
        self._access = access
        self._clock_ms = clock_ms
        self._pending: deque[_Ticket] = deque()
        self._change_count = 0  # batches since the store was opened
        # Held to commit, compact, refresh or close, also during I/O. Tables change only
        # under both locks, so either one keeps them from changing.
        self._commit_lock = LockOfOneProcess(self._process)
        self.report = OpenReport.of(files, catalogue, stale_journal)
        self.report.warn(files)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        clock_ms: Callable[[], int] | None = None,
        journal_bytes_max: int | None = None,
    ) -> JsonMetadataStore:
        """The catalogue at `path`; empty if there is none yet.

        `clock_ms` gives new topics their time. The journal is compacted when it is longer than
        `journal_bytes_max`; by default, when it exceeds both 4 MiB and the size of the snapshot.
        Raises CatalogueLockedError if another process writes it, MetadataError if it is not sound.
        """
        if journal_bytes_max is not None and journal_bytes_max < 1:
            raise MetadataError(os.fspath(path), f"journal_bytes_max is {journal_bytes_max}")
        files = CatalogueFiles.at(path)
        access: CatalogueWriter | Follower
        stale = None
        with _translated(files, "opening"):
            if read_only:
                access = Follower(files)
                catalogue = _loaded(access)
            else:
                access, catalogue, stale = CatalogueWriter.open(
                    files, journal_bytes_max=journal_bytes_max
                )
        clock_ms = clock_ms or SystemClock().now_ms
        return cls(files, access, catalogue, stale_journal=stale, clock_ms=clock_ms)

    # -- writes -------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change]) -> None:
        self._writer()
        ticket = self._ticket(changes)
        if not ticket.changes:
            return
        self._pending.append(ticket)
        with self._commit_lock:
            if not ticket.done:
                self._commit_pending(self._writer())
        self._settle(ticket)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        self._writer()
        known = self.topic(topic)
        if known is not None:
            return known
        with self._commit_lock:
            writer = self._writer()
            known = self.topic(topic)
            if known is not None:
                return known
            record = self._tables.new_topic(topic, reserve_hours, self._clock_ms())
            ticket = self._ticket([Put(record)])
            self._commit(writer, [ticket])
            self._settle(ticket)
            return self._tables.topics[topic]

    def compact(self) -> None:
        """Write all that the catalogue has now to RocketMQ's file, and remove the journal."""
        self._writer()
        with self._commit_lock:
            writer = self._writer()
            with _translated(self._files, "compacting"):
                writer.compact(self._tables)

    def refresh(self) -> None:
        self._require_open()
        if isinstance(self._access, CatalogueWriter):
            return
        with self._commit_lock:
            self._require_open()
            try:
                with _translated(self._files, "reading"):
                    gained = self._access.poll()
                    catalogue = None if gained is not None else self._access.load()
                with self._tables_lock:
                    if catalogue is not None:
                        self._tables = catalogue.tables
                    elif gained:
                        self._tables.apply(gained)
            except BaseException:  # what was read may not be in the tables
                self._access.forget()
                raise
            if catalogue is not None:
                self.report = OpenReport.of(self._files, catalogue, None)
                self.report.warn(self._files)

    def close(self) -> None:
        with self._commit_lock:
            if self._closed:
                return
            if isinstance(self._access, Follower):
                self._closed = True
                self._access.close()
                return
            self._closed = True  # before the rest, so that waiting commits are refused
            self._access.close(self._tables)

    # -- publishing ---------------------------------------------------------------------------

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source="file", place=self._name)

    def publisher(
        self, generations: Generations, *, cluster: str, broker: str
    ) -> CataloguePublisher:
        self._writer()
        source = PublishedSource(
            tables=self._copied,
            last_change=lambda: self._change_count,
            apply=self.apply,
            now_ms=self._clock_ms,
            cluster=cluster,
            broker=broker,
        )
        return CataloguePublisher(source, generations)

    def _copied(self) -> tuple[Tables, int]:
        """The tables as of one moment, and the number of batches in them. Blocks commits only
        briefly."""
        with self._tables_lock:
            return self._open_tables().copied(), self._change_count

    # -- commits ------------------------------------------------------------------------------

    def _ticket(self, changes: Iterable[Change]) -> _Ticket:
        try:
            encoded = [codec.encode(change) for change in changes]
        except ValueError as error:
            raise MetadataError(str(self._files.snapshot), f"refused: {error}") from error
        return _Ticket([seen for seen, _ in encoded], [data for _, data in encoded])

    def _commit_pending(self, writer: CatalogueWriter) -> None:
        # A ticket stays in line until it is done: whoever commits may be interrupted anywhere.
        tickets = [ticket for ticket in self._pending.copy() if not ticket.done]
        if tickets:
            self._commit(writer, tickets)
        while self._pending and self._pending[0].done:
            self._pending.popleft()

    def _commit(self, writer: CatalogueWriter, tickets: Sequence[_Ticket]) -> None:
        """Write one line for all tickets, then change the tables. Hold the commit lock."""
        try:
            writer.commit([data for ticket in tickets for data in ticket.encoded])
            with self._tables_lock:
                for ticket in tickets:
                    self._tables.apply(ticket.changes)
                self._change_count += len(tickets)
        except BaseException as error:
            writer.fail(error)
            for ticket in tickets:
                ticket.failure = error
            if not isinstance(error, Exception):
                raise
            return
        finally:
            for ticket in tickets:
                ticket.done = True
        if writer.outgrown:
            self._compact_by_size(writer)

    def _compact_by_size(self, writer: CatalogueWriter) -> None:
        try:
            writer.compact(self._tables)
        except (OSError, MetadataError) as error:
            # Not a failure of the commit: its changes are durable in the journal.
            log.warning("%s: not compacted: %s", self._files.snapshot, error)

    def _settle(self, ticket: _Ticket) -> None:
        if ticket.failure is not None:
            raise MetadataError(
                str(self._files.snapshot), f"not written: {ticket.failure}"
            ) from ticket.failure

    def _writer(self) -> CatalogueWriter:
        self._require_open()
        if isinstance(self._access, Follower):
            raise MetadataError(str(self._files.snapshot), "it was opened read only")
        return self._access

    @property
    def upkeep(self) -> CatalogueUpkeep:
        access = self._access
        return access.upkeep if isinstance(access, CatalogueWriter) else CatalogueUpkeep()


def _loaded(follower: Follower) -> Catalogue:
    try:
        return follower.load()
    except BaseException:
        follower.close()
        raise


@contextmanager
def _translated(files: CatalogueFiles, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MetadataError(
            str(files.snapshot), f"{doing} it failed: {system_says(error)}"
        ) from error
