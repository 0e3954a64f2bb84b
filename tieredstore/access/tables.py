"""Consumer offsets and topics of a broker: in RocketMQ's files on its disk, and a copy in the tier.

    config/consumerOffset.json   written every few seconds, if changed
    config/topics.json           likewise; each has its previous version as `.bak`
    notes of the catalogue       the changed rows, every half minute

The notes are written with the rounds. A machine that has lost its disk restores both tables from
them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from tieredstore.codec import broker_tables
from tieredstore.codec.broker_tables import (
    FILE_BYTES_MAX,
    DataVersion,
    OffsetRow,
    TableContents,
    TableFormat,
    TopicConfig,
)
from tieredstore.codec.fastjson import refuse_deep
from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, PutNote
from tieredstore.driver.runtime import Clock, Runtime, with_deadline
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    MetadataError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import (
    INT32_MAX,
    INT64_MAX,
    Json,
    QueueKey,
    require_place,
    require_text,
    texts_of,
)

log = log_of(__name__)

R = TypeVar("R")

OFFSETS_MAX: Final = 1_000_000  # of all groups and queues: 20 MB of a file
TOPICS_MAX: Final = 100_000
TOPIC_BYTES_MAX: Final = 64 << 10  # of one topic, with its attributes
GROUP_BYTES_MAX: Final = 255
COPY_BYTES_MAX: Final = 1 << 20  # of rows that are handed to the catalogue at a time
COPIES_MAX: Final = 1_000  # of these, while other threads keep changing rows
RIDE_MS: Final = 300_000  # staged rows that no round took along by then are written separately
_NAMED_MAX: Final = 8

VERSIONS: Final = "broker-tables"
"""The kind of the notes that hold the versions of the tables, keyed by file name. The note of a row
has the file name as its kind and the row's key as its key."""


class BrokerTables:
    """Both tables of one life of a store.

    * Changes before `keep` are on disk, and changes before `settle` are in the tier too. A kill
      loses later changes: consumers get some messages twice, but none is lost.
    * `load` takes the newer of file and copy, by their versions; the file if they are equal.
    * A failure is logged, shown by `problem`, and tried again with the next step. Any thread may
      call.
    """

    def __init__(self, config: StoreConfig, metadata: MetadataStore, runtime: Runtime) -> None:
        folder = Path(config.store_path) / "config"
        self.consumer_offsets = ConsumerOffsets(folder, metadata, runtime.clock)
        self.topic_table = TopicTable(folder, metadata, runtime.clock)
        self._problems: dict[str, str] = {}  # by operation; replaced, never changed
        self._tables = (self.consumer_offsets, self.topic_table)
        self._metadata = metadata
        self._runtime = runtime
        self._copy_interval_ms = config.tables_copy_interval_ms
        self._copying = threading.Lock()
        self._staged_at: float | None = None  # since then, rows wait to go with a round
        self._copied_at: float | None = None

    @property
    def problem(self) -> str | None:
        """What failed at its last try; None if nothing did."""
        return next(iter(self._problems.values()), None)

    def load(self) -> None:
        """Raises InvalidConfigError for an unusable file if the tier has no copy of it."""
        for table in self._tables:
            table.load()

    def step(self) -> None:
        """Write what has changed; also copy it to the tier, if that is due."""
        self._attempt("write", self._keep)
        self._attempt("copy", self._copy_if_due)

    def keep(self) -> bool:
        """Write what has changed; return whether all of it is on disk."""
        return self._attempt("write", self._keep)

    def stage(self) -> bool:
        """Write what has changed, and stage all of it in the catalogue: the next round takes it."""
        return self.keep() and self._attempt("copy", self._stage_all)

    def settle(self, timeout: float | None = None) -> bool:
        """Make what was staged durable in the tier; True if it is within `timeout` seconds.

        Costs an entry of the log, unless a round took it along.
        """

        def settle() -> bool:
            return self._attempt("copy", self._settle)

        done = with_deadline(self._runtime, "tier-tables-end", settle, timeout)
        if not done.done():
            log.warning("the copy of consumer offsets and topics is late")
            return False
        return done.result()

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Forget deleted topics: on disk before this returns, and in the tier soon after.

        Raises what the write raises: after a crash, groups would be in the middle of a topic that
        was made again.
        """
        topics = set(topics)
        self.consumer_offsets.forget_topics(topics)
        self.topic_table.delete(*topics)
        self._attempt("write", self._keep, is_needed=True)
        self._attempt("copy", self._stage_all)

    def clamp(self, ends: Mapping[QueueKey, int]) -> None:
        """Move groups that are beyond the end of one of these queues back to it.

        Changes are logged, and on disk before this returns: after a crash the queue may be longer,
        and the group would miss the newer messages. Raises what the write raises.
        """
        moved = self.consumer_offsets.clamp(ends)
        if moved:
            named = ", ".join(
                f"{key.topic}/{key.queue_id} of {group}: {was} to {ends[key]}"
                for (group, key), was in list(moved.items())[:_NAMED_MAX]
            )
            log.warning("%d consumer offsets were beyond their queues' ends: %s", len(moved), named)
            self._attempt("write", self._keep, is_needed=True)

    def close(self) -> None:
        """Write what has changed, and take no more changes."""
        for table in self._tables:
            table.close()
        self.keep()

    def destroy(self) -> None:
        """Delete the files, and the copy."""
        for table in self._tables:
            table.destroy()

    def _attempt(self, name: str, what: Callable[[], bool], *, is_needed: bool = False) -> bool:
        """Call `what`; return whether it did not fail. Its result says whether it did anything.

        If it `is_needed`, the failure is also raised.
        """
        problems = {other: text for other, text in self._problems.items() if other != name}
        try:
            if what():
                self._problems = problems
        except (OSError, TieredStoreError) as error:
            log.warning("consumer offsets and topics: %s failed: %s", name, error)
            self._problems = {**problems, name: f"{name}: {error}"}
            if is_needed:
                raise
            return False
        return True

    def _keep(self) -> bool:
        written = False
        failed: OSError | TieredStoreError | None = None
        for table in self._tables:  # each, whatever becomes of the other
            try:
                written |= table.write()
            except (OSError, TieredStoreError) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return written

    def _copy_if_due(self) -> bool:
        with self._copying:
            now = self._runtime.clock.monotonic()
            if self._metadata.has_staged:
                # Stage nothing more for now, so that what waits stays bounded.
                if self._staged_at is None:  # another part staged it
                    self._staged_at = now
                if (now - self._staged_at) * 1000 < RIDE_MS:
                    return False
                self._staged_at = now  # if this fails, the next try waits as long
                self._metadata.apply([])
                return True
            self._staged_at = None
            if self._copied_at is None or (now - self._copied_at) * 1000 >= self._copy_interval_ms:
                return self._stage_some() > 0
            return False

    def _stage_all(self) -> bool:
        with self._copying:
            for _ in range(COPIES_MAX):
                if self._stage_some() < COPY_BYTES_MAX:
                    break
            return True

    def _stage_some(self) -> int:
        """Stage changed rows up to `COPY_BYTES_MAX`; return how many bytes were staged."""
        size = 0
        for table in self._tables:
            size += table.stage(COPY_BYTES_MAX - size)
        if size:
            self._copied_at = self._runtime.clock.monotonic()
            if self._staged_at is None:
                self._staged_at = self._copied_at
        return size

    def _settle(self) -> bool:
        with self._copying:
            if self._metadata.has_staged:
                self._metadata.apply([])
            self._staged_at = None
            return True


class _Table(Generic[R]):
    """Rows by key, in memory, in a file and in notes; keeps track of what these two lack."""

    def __init__(
        self, format: TableFormat[R], folder: Path, metadata: MetadataStore, clock: Clock
    ) -> None:
        self._format = format
        self._path = folder / format.file_name
        self._backup = folder / f"{format.file_name}.bak"
        self._metadata = metadata
        self._clock = clock
        self._guard = threading.Lock()  # only ever held briefly
        self._writing = threading.Lock()
        self._rows: dict[str, R] = {}
        self._version = DataVersion()
        self._others: Mapping[str, Json] = {}
        self._is_written = True
        self._uncopied: dict[str, None] = {}  # in the order of their changes
        self._is_version_copied = True
        self._is_sound = True  # the file may become the backup
        self._is_open = False

    @property
    def version(self) -> DataVersion:
        """The version of the file."""
        with self._guard:
            return self._version

    def load(self) -> None:
        """Take the newer of the file and the copy in the tier."""
        found, problem = self._read_files()
        try:
            copy, is_damaged = copied(self._format, self._metadata), False
        except MetadataError as error:
            if found is None:
                raise
            log.error("%s: it is used, and copied again: %s", self._path, error)
            copy, is_damaged = None, True
        if problem is not None and found is None and copy is None:
            raise InvalidConfigError(problem)
        if problem is not None:
            log.error("%s: the newest of the other copies is used", problem)
        is_from_tier = copy is not None and (found is None or copy.version > found.version)
        chosen = copy if is_from_tier else found
        if chosen is None:
            chosen = TableContents()
        elif is_from_tier:
            log.warning(
                "%s: taken from the tier (%d rows, version %d), which is newer than %s",
                self._path,
                len(chosen.rows),
                chosen.version.counter,
                "no file" if found is None else f"version {found.version.counter}",
            )
        there = {} if copy is None else copy.rows
        noted = self._metadata.notes(self._format.file_name)
        with self._guard:
            self._rows, self._version = dict(chosen.rows), chosen.version
            self._others = chosen.others
            self._is_written = not is_from_tier and problem is None
            changed = (key for key, row in self._rows.items() if row != there.get(key))
            gone = (key for key in noted if key not in self._rows)
            self._uncopied = dict.fromkeys([*changed, *gone])
            is_same = not is_damaged if copy is None else copy.version == self._version
            if copy is not None and is_same and self._uncopied:
                log.warning(
                    "%s: %d rows differ from the copy of this version in the tier; the file counts",
                    self._path,
                    len(self._uncopied),
                )
            self._is_version_copied = is_same and not self._uncopied
            self._counted()
            self._is_open = True

    def write(self) -> bool:
        """Replace the file if anything has changed; return whether it had. After an error the
        change still has to be written.
        """
        with self._writing:
            with self._guard:
                if self._is_written:
                    return False
                self._version = self._version.next(self._clock.now_ms())
                self._is_written, self._is_version_copied = True, False
                contents = self._contents()
            try:
                data = self._format.encode(contents)
                if len(data) > FILE_BYTES_MAX:  # the next start could not read it
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self._path))
                self._replace(data)
            except BaseException:
                self._is_written = False
                raise
            return True

    def stage(self, bytes_max: int) -> int:
        """Stage changed rows in the catalogue, about `bytes_max` at most; return the bytes."""
        if bytes_max <= 0:
            return 0
        with self._guard:
            keys, changes, size = self._changes(bytes_max)
        if not changes:
            return 0
        try:
            self._metadata.stage(changes)
        except BaseException:
            with self._guard:
                self._uncopied = dict.fromkeys([*keys, *self._uncopied])
                self._is_version_copied = False
            raise
        return size

    def close(self) -> None:
        """Take no more changes; idempotent."""
        with self._guard:
            self._is_open = False

    def destroy(self) -> None:
        """Delete the file and its copy. Raises MetadataError if the copy cannot be deleted."""
        kind = self._format.file_name
        gone: list[Change] = [DeleteNote(kind, key) for key in self._metadata.notes(kind)]
        if self._metadata.note(VERSIONS, kind) is not None:
            gone.append(DeleteNote(VERSIONS, kind))
        self._metadata.apply(gone)
        self._path.unlink(missing_ok=True)
        self._backup.unlink(missing_ok=True)

    # The caller holds `_guard`

    def _open_rows(self) -> dict[str, R]:
        if not self._is_open:
            raise StoreClosedError(f"{self._path}: the store is closed")
        return self._rows

    def _changed(self, *keys: str) -> None:
        self._is_written = False
        for key in keys:
            self._uncopied[key] = None

    def _contents(self) -> TableContents[R]:
        """A copy of the current contents, which later changes do not touch."""
        return TableContents(rows=dict(self._rows), version=self._version, others=self._others)

    def _counted(self) -> None:
        """Called after the rows were replaced."""

    def _changes(self, bytes_max: int) -> tuple[list[str], list[Change], int]:
        keys: list[str] = []
        changes: list[Change] = []
        size = 0
        kind = self._format.file_name
        for key in self._uncopied:
            if size >= bytes_max:
                break
            keys.append(key)
            row = self._rows.get(key)
            if row is None:
                changes.append(DeleteNote(kind, key))
                size += len(key)
            else:
                value = self._format.as_json(row)
                changes.append(PutNote(kind, key, value))
                size += len(key) + len(msgspec.json.encode(value))
        for key in keys:
            del self._uncopied[key]
        if not self._uncopied and not self._is_version_copied:
            facts: dict[str, Json] = {"version": self._version.as_json(), **self._others}
            changes.append(PutNote(VERSIONS, kind, facts))
            size += len(msgspec.json.encode(facts))
            self._is_version_copied = True
        return keys, changes, size

    # Files and notes

    def _read_files(self) -> tuple[TableContents[R] | None, str | None]:
        """The contents of the file, or else of its backup; and why the file, or else the backup,
        cannot be used.
        """
        problem: str | None = None
        for path in (self._path, self._backup):
            try:
                data = _read(path)
                if not data:
                    # RocketMQ leaves an empty file when its disk is full: no backup either.
                    self._is_sound &= data is None
                    continue
                return self._format.decode(data), problem
            except (OSError, ValueError) as error:
                self._is_sound = False
                problem = problem or f"{path}: cannot be used: {error!s:.300}"
        return None, problem

    def _replace(self, data: bytes) -> None:
        make_directories(self._path.parent)
        if self._is_sound:  # else it would replace a backup that can still be used
            with suppress(FileNotFoundError):
                write_atomically(self._backup, [self._path.read_bytes()])
        write_atomically(self._path, [data])
        self._is_sound = True


class ConsumerOffsets(_Table[OffsetRow]):
    """The next message of each group in each queue.

    Changes take effect at once, and are written soon. All groups together have at most OFFSETS_MAX.
    Any thread may call. Raises InvalidArgumentError for an invalid group, queue or offset, and
    StoreClosedError once the store is shut down.
    """

    def __init__(self, folder: Path, metadata: MetadataStore, clock: Clock) -> None:
        super().__init__(broker_tables.CONSUMER_OFFSETS, folder, metadata, clock)
        self._count = 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's offset in a queue; None if it has committed none there."""
        with self._guard:
            row = self._open_rows().get(f"{topic}@{group}")
            return None if row is None else row.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of the message that the group takes next, wherever it was before."""
        key = QueueKey(topic, queue_id)
        _require_offset(key, offset)
        name = f"{topic}@{group}"
        with self._guard:
            row = self._open_rows().get(name, {})
            if queue_id in row:
                if row[queue_id] != offset:
                    row[queue_id] = int(offset)
                    self._changed(name)
                return
        self.reset(group, {key: offset})

    def reset(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Commit offsets of several queues together: all of them, or none."""
        for key, offset in offsets.items():
            _require_offset(key, offset)
        for topic in {key.topic for key in offsets}:
            _require_names(group, topic)
        with self._guard:
            rows = self._open_rows()
            named = {key: f"{key.topic}@{group}" for key in offsets}
            new = sum(key.queue_id not in rows.get(name, ()) for key, name in named.items())
            if self._count + new > OFFSETS_MAX:
                raise InvalidArgumentError(f"there are {OFFSETS_MAX} consumer offsets already")
            for key, name in named.items():
                row = rows.setdefault(name, {})
                if row.get(key.queue_id) != offsets[key]:
                    row[int(key.queue_id)] = int(offsets[key])
                    self._changed(name)
            self._count += new

    def of_group(self, group: str) -> dict[QueueKey, int]:
        """All that the group has committed."""
        with self._guard:
            return {
                QueueKey(topic, queue_id): offset
                for topic, its_group, row in self._named()
                if its_group == group
                for queue_id, offset in row.items()
            }

    def groups(self, topic: str | None = None) -> list[str]:
        """The groups that have committed anything, for this topic or for any."""
        with self._guard:
            return sorted({group for its, group, _ in self._named() if topic in (None, its)})

    def forget_group(self, group: str) -> None:
        """Drop all that the group has committed.

        Raises StoreClosedError while the store is not loaded.
        """
        self._forget(lambda _, its_group: its_group == group)

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop what any group has committed of these topics.

        Raises InvalidArgumentError for what is no collection of texts, and StoreClosedError while
        the store is not loaded.
        """
        wanted = set(texts_of("topics", topics))
        self._forget(lambda topic, _: topic in wanted)

    def queues(self) -> set[QueueKey]:
        """The queues of which any group has an offset."""
        with self._guard:
            return {QueueKey(topic, at) for topic, _, row in self._named() for at in row}

    def clamp(self, ends: Mapping[QueueKey, int]) -> dict[tuple[str, QueueKey], int]:
        """Move offsets beyond the end of their queue back to it; return their old values by group.

        This is for a store that lost its last messages: otherwise a group would miss as many new
        ones.
        """
        moved: dict[tuple[str, QueueKey], int] = {}
        with self._guard:
            for topic, group, row in list(self._named()):
                for queue_id, offset in row.items():
                    key = QueueKey(topic, queue_id)
                    end = ends.get(key)
                    if end is not None and offset > end:
                        moved[group, key] = offset
                        row[queue_id] = end
                        self._changed(f"{topic}@{group}")
        return moved

    def _contents(self) -> TableContents[OffsetRow]:
        rows = {key: dict(row) for key, row in self._rows.items()}
        return TableContents(rows=rows, version=self._version, others=self._others)

    def _counted(self) -> None:
        self._rows = {key: dict(row) for key, row in self._rows.items()}
        self._count = sum(map(len, self._rows.values()))

    def _named(self) -> Iterable[tuple[str, str, OffsetRow]]:
        for key, row in self._open_rows().items():
            topic, _, group = key.partition("@")
            yield topic, group, row

    def _forget(self, is_wanted: Callable[[str, str], bool]) -> None:
        with self._guard:
            rows = self._open_rows()
            gone = [f"{at}@{group}" for at, group, _ in self._named() if is_wanted(at, group)]
            for key in gone:
                self._count -= len(rows.pop(key, ()))
            if gone:
                self._changed(*gone)


class TopicTable(_Table[TopicConfig]):
    """The topics of a broker and their settings, by name; at most TOPICS_MAX.

    Changes take effect at once, and are written soon. Any thread may call. Raises
    InvalidArgumentError for one topic too many, and StoreClosedError once the store is shut down.
    """

    def __init__(self, folder: Path, metadata: MetadataStore, clock: Clock) -> None:
        super().__init__(broker_tables.TOPICS, folder, metadata, clock)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's settings; None for one that is not there.

        Raises StoreClosedError while the store is not loaded.
        """
        with self._guard:
            return self._open_rows().get(topic)

    def all(self) -> list[TopicConfig]:
        """The settings of every topic.

        Raises StoreClosedError while the store is not loaded.
        """
        with self._guard:
            return list(self._open_rows().values())

    def put(self, topic: TopicConfig) -> None:
        """Add a topic, or replace the one of this name.

        Raises InvalidArgumentError for what is not a TopicConfig or is too large, and for one
        topic too many; StoreClosedError while the store is not loaded.
        """
        kept = _plain(topic)
        with self._guard:
            rows = self._open_rows()
            if rows.get(kept.name) == kept:
                return
            if kept.name not in rows and len(rows) >= TOPICS_MAX:
                raise InvalidArgumentError(f"there are {TOPICS_MAX} topics already")
            rows[kept.name] = kept
            self._changed(kept.name)

    def delete(self, *topics: str) -> None:
        """Forget these topics; their messages stay.

        Raises StoreClosedError while the store is not loaded.
        """
        with self._guard:
            rows = self._open_rows()
            gone = [topic for topic in topics if rows.pop(topic, None) is not None]
            if gone:
                self._changed(*gone)


def copied(format: TableFormat[R], metadata: MetadataStore) -> TableContents[R] | None:
    """The copy of a table in a catalogue; None if there is none.

    Raises MetadataError if the notes are not such a table.
    """
    kind = format.file_name
    facts = metadata.note(VERSIONS, kind)
    rows = metadata.notes(kind)
    if facts is None and not rows:
        return None
    try:
        if facts is not None and not isinstance(facts, dict):
            raise TypeError(f"{VERSIONS} says {facts!r:.40}")
        facts = dict(facts or {})
        version = DataVersion.from_json(facts.pop("version", None))
        return TableContents(rows=format.rows_of(rows), version=version, others=facts)
    except (TypeError, ValueError) as error:
        raise MetadataError(metadata.facts.place, f"its copy of {kind}: {error}") from error


def notes_of(metadata: MetadataStore, *, wants: Callable[[str], bool]) -> list[Change]:
    """The changes that give another catalogue the same copy, of the wanted topics only."""
    changes: list[Change] = []
    for kind in (broker_tables.CONSUMER_OFFSETS.file_name, broker_tables.TOPICS.file_name):
        for key, row in metadata.notes(kind).items():
            if wants(key.partition("@")[0]):
                changes.append(PutNote(kind, key, row))
    return [*changes, *(PutNote(VERSIONS, *each) for each in metadata.notes(VERSIONS).items())]


def _read(path: Path) -> bytes | None:
    """The file's bytes; None if there is no file. Raises OSError and ValueError."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data


def _plain(topic: object) -> TopicConfig:
    """The topic as it will be read back, independent of the caller's mappings.

    A topic that could not be read back would also keep all the others from being written.
    """
    if not isinstance(topic, TopicConfig):
        raise InvalidArgumentError(f"topic: want a TopicConfig, not {topic!r:.80}")
    row = broker_tables.TOPICS.as_json(topic)
    try:
        refuse_deep(row)
        data = msgspec.json.encode(row)
        found = msgspec.json.decode(data)
        if found != row:
            raise ValueError("a field is no JSON")
        kept = broker_tables.TOPICS.read_row(topic.name, found)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"topic {topic.name}: {error}") from error
    if len(data) > TOPIC_BYTES_MAX:
        raise InvalidArgumentError(f"topic {topic.name}: more than {TOPIC_BYTES_MAX} bytes")
    return kept


def _require_offset(key: QueueKey, offset: int) -> None:
    require_place(*key, offset)
    if not 0 <= key.queue_id <= INT32_MAX or not 0 <= offset <= INT64_MAX:
        raise InvalidArgumentError(f"{key.topic}/{key.queue_id}: {offset} is no offset of a queue")


def _require_names(group: object, topic: str) -> None:
    require_text("group", group)
    reason = why_no_topic(topic)
    if reason is None and "@" in topic:
        reason = "it holds '@', which parts topic and group"
    if reason is not None:
        raise InvalidArgumentError(f"topic {topic!r:.80}: {reason}")
    name = str(group)
    if not name or "@" in name or len(name.encode(errors="replace")) > GROUP_BYTES_MAX:
        raise InvalidArgumentError(f"{name!r:.80} cannot name a group")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{name!r:.80} cannot name a group") from error
