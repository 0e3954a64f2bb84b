"""The key index of a local store: takes keys in the order of the log, and queries all files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import (
    KEY_CHARACTERS_MAX,
    index_key,
    joined_key_hashes,
    local_key_hash,
    local_key_hashes,
)
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import (
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    peek_store_timestamp,
    split_keys,
)
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.durable import fsync_directory, make_directories, write_atomically
from tieredstore.driver.runtime import Clock
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.index_file import (
    CLOCK_SLACK_MS,
    IndexCut,
    IndexFile,
    IndexSize,
    ItemColumns,
    cut_back,
    index_names,
    items_below,
    next_index_name,
)
from tieredstore.local.side_file import MALFORMED, VERSION, check_version, parsed, whole
from tieredstore.model.errors import (
    BackendRefusedError,
    SegmentCorruptError,
    StoreClosedError,
    system_says,
)
from tieredstore.model.messages import QueryResult, SelectedMessage
from tieredstore.model.printable import log_of
from tieredstore.model.property_text import VALUE_END

log = log_of(__name__)

_VECTOR_MESSAGES_MIN: Final = 8
_KEYS_SEPARATOR: Final = " "
NOTHING_INDEXED: Final = -1
STATE_FILE: Final = "tieredstore-index.json"


@dataclass(slots=True, kw_only=True)
class IndexBatch:
    """Messages in the order of the log: one entry per message, and the hashes of all their keys.

    `key_counts` says how many of `key_hashes` belong to each message. Messages without keys are
    included: they tell the index how far the log has been read.
    """

    log_offsets: Sequence[int]
    store_timestamps: Sequence[int]
    sys_flags: Sequence[int]
    key_counts: NDArray[np.int64]
    key_hashes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.log_offsets)


class IndexService:
    """Finds messages by key; items lost in a crash are put again from the log, once.

    **One order.** Keys are put in the order of the log. A message below the last indexed one is
    already known and ignored, like in Java. Java takes the last indexed message again, and so keeps
    its keys twice after a replay. Here its keys that are already there are counted (they are the
    last items, perhaps of two files), and that many are skipped. So replaying a log from anywhere
    at or below `replay_from` gives the same files as if there had been no crash.

    **What a crash leaves.** Pages reach the disk in any order. Items are written once, in order, so
    after a flush that began when there were n items, the first n are safe for good. Slots and
    header are rewritten all the time: after a crash they may name missing items, or be newer or
    older than each other. They follow from the items, so they are rebuilt, never trusted.

    **What proves an item durable.** A small file beside Java's, `config/tieredstore-index.json`,
    says how many items of each file were on disk at one moment. It is replaced as a whole after
    each flush. A full file is flushed and entered there before the next one is created, so only the
    newest file is ever incomplete. After a crash a file is cut back to the items entered, which
    gives the bytes of that moment; a file not entered is deleted. For files that Java filled, its
    checkpoint decides: they are full, and end no later than `indexMsgTimestamp`. The entries stay
    true when Java continues with the files. Java's own rules may delete any of them: then the
    newest file entered is missing, and the log is replayed from the remaining ones.

    **The log may be shorter.** The index may be flushed before the log. `truncate` removes items at
    or after the end of the recovered log; otherwise new messages at these offsets would count as
    known.

    One thread puts at a time; any thread may query, flush or expire. The first key creates the
    first file.
    """

    def __init__(self, config: LocalConfig, *, clock: Clock) -> None:
        self._directory = IndexDirectory(
            config.root / "index", IndexSize(config.index_slot_count, config.index_item_count)
        )
        self._state_path = config.root / "config" / STATE_FILE
        self._clock = clock
        self._files: tuple[IndexFile, ...] = ()
        self._indexed_to = 0
        self._min_log_offset = 0
        self._saved: IndexState | None = None
        self._saves = 0
        self._closed = False
        self._failure: OSError | None = None  # of a sync
        self._putting = threading.RLock()  # guards files and items; taken before the others
        self._syncing = threading.Lock()  # the system tells a failure to one of two syncs only
        self._saving = threading.Lock()  # guards the state file

    def load(self, *, abnormal: bool, min_log_offset: int = 0, durable_timestamp: int = 0) -> int:
        """Open the files and return `replay_from`.

        `durable_timestamp` is `indexMsgTimestamp` of the checkpoint; it matters only after a crash.
        The store then recovers its log, calls `truncate` with the log's end, and puts every message
        from `replay_from` on.
        """
        with self._putting:
            self._saved = IndexState.load(self._state_path)
            if abnormal:
                files = self._directory.durable_files(
                    self._saved, durable_timestamp=durable_timestamp
                )
            else:
                files = self._directory.all_files(self._saved)
            self._files = tuple(files)
            self._min_log_offset = min_log_offset
            self._indexed_to = replay_start(files, self._saved, min_log_offset=min_log_offset)
            if self._saved is not None and not set(self._saved.files).issubset(self.names):
                self._saved = None  # a new file may get the name of a missing one
            return self._indexed_to

    @property
    def replay_from(self) -> int:
        """The log offset of the last message put: nothing below it needs to be put again."""
        return self._indexed_to

    @property
    def end_log_offset(self) -> int:
        """The log offset of the last indexed message; -1 if none."""
        files = self._files
        end = files[-1].header.end_log_offset if files else 0
        known = end > 0 or any(file.header.item_count for file in files)
        return end if known else NOTHING_INDEXED

    @property
    def end_timestamp(self) -> int:
        """The store time of the last indexed message; 0 if none."""
        files = self._files
        return files[-1].header.end_timestamp if files else 0

    @property
    def sealed_timestamp(self) -> int:
        """The time for Java's checkpoint: the end of the newest full durable file, or 0."""
        saved = self._saved
        full = self._directory.size.item_capacity - 1
        cuts = sorted(saved.files.items()) if saved is not None else []
        return max((cut.end_timestamp for _, cut in cuts if cut.item_count == full), default=0)

    @property
    def names(self) -> list[str]:
        return [file.name for file in self._files]

    def truncate(self, log_end: int) -> int:
        """Forget the keys of messages at or after the end of the log; return `replay_from`.

        A damaged file that would have to be cut is deleted as a whole: the log has what it held.
        """
        with self._putting:
            kept, cut = cut_before(self._files, log_end)
            if cut is None and len(kept) == len(self._files):
                self._indexed_to = max(self._min_log_offset, min(self._indexed_to, log_end))
                return self._indexed_to
            for file in kept:
                file.flush()
            self._keep(kept, cut)
            if cut is not None:
                file = kept.pop()
                file.close()
                try:
                    kept.append(self._directory.cut_back(file.name, cut))
                except SegmentCorruptError as error:
                    log.warning("an index file is rebuilt from the log: %s", error)
                    self._keep(kept, None)
            self._files = tuple(kept)
            return self._indexed_to

    def _keep(self, kept: Sequence[IndexFile], cut: IndexCut | None) -> None:
        """Delete all other files; `cut` says what the last kept file will hold. The state is saved
        first, because it must never count items that are gone."""
        end = kept[-1].header.end_log_offset if kept else self._min_log_offset
        if cut is not None:
            end = kept[-1].log_offset_at(cut.item_count)
        self._indexed_to = max(self._min_log_offset, min(self._indexed_to, end))
        cuts = {kept[-1].name: cut} if cut is not None else {}
        self._save(IndexState.of(self._indexed_to, kept, cuts))
        self._remove(self._files[len(kept) :])
        self._files = tuple(kept)

    def put(self, batch: IndexBatch) -> int:
        """Index a run of messages in the order of the log; return how many keys were new."""
        if not len(batch):
            return 0
        with self._putting:
            self._check_open()
            if self._saved is None:  # the files were durable when the store opened: record that
                self._save(self._now())
            columns = new_items(batch, end=self.end_log_offset, count_at_end=self._count_at_end)
            start = 0
            while start < len(columns):
                if not self._files or self._files[-1].is_full:
                    self._roll()
                start += self._files[-1].put(columns.part(start))
            self._indexed_to = max(self._indexed_to, batch.log_offsets[-1])
            return start

    def _count_at_end(self, log_offset: int) -> int:
        count = 0
        for file in reversed(self._files):
            here = file.count_at_end(log_offset)
            count += here
            if here < file.header.item_count:
                break
        return count

    def _roll(self) -> None:
        newest = self._files[-1] if self._files else None
        if newest is not None and self._failure is None:
            self._sync(newest)
            self._save(self._now())
        name = next_index_name(
            self._clock.now_ms(), newest=newest.name if newest is not None else ""
        )
        make_directories(self._directory.path)
        file = IndexFile.create(
            self._directory.path / name,
            self._directory.size,
            end_timestamp=newest.header.end_timestamp if newest is not None else 0,
            end_log_offset=newest.header.end_log_offset if newest is not None else 0,
        )
        self._files = (*self._files, file)

    def candidates(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """The log offsets of all messages that may carry the key, newest first, each once.

        None is missed as long as store timestamps step back by no more than `CLOCK_SLACK_MS`. The
        result may include other keys with the same hash, and times just outside the range: the
        caller must check the message. Raises StoreClosedError if the index is closed meanwhile.
        """
        self._check_open()
        found = _all_candidates(
            self._files, local_key_hash(index_key(topic, key)), begin=begin, end=end
        )
        return self._while_open(found)

    def _while_open(self, found: Iterator[int]) -> Iterator[int]:
        yield from found
        self._check_open()  # a closed file looks like one that has expired

    def flush(self) -> None:
        """Make every key put so far durable, and record that. Puts go on meanwhile.

        After a failed sync it fails until the store is opened again, which puts the keys again.
        """
        with self._putting:
            moment, saves = self._now(), self._saves
            if moment == self._saved:
                return
            newest = self._files[-1] if self._files else None
        if newest is not None:
            self._sync(newest)
        self._save(moment, unless_since=saves)

    def _sync(self, file: IndexFile) -> None:
        """Sync a file. After a failure no sync succeeds and no state is saved: the system drops the
        pages that it could not write, and would report success the next time."""
        with self._syncing:
            if self._failure is not None:
                reason = f"failed before: {self._failure}"
                raise BackendRefusedError(str(file.path), "fdatasync", reason)
            try:
                file.flush()
            except OSError as error:
                self._failure = error
                raise

    def _now(self) -> IndexState:
        return IndexState.of(self._indexed_to, self._files)

    def _save(self, moment: IndexState, *, unless_since: int | None = None) -> None:
        with self._saving:
            if unless_since is not None and unless_since != self._saves:
                return  # another state was saved meanwhile, and files may have been deleted
            try:
                moment.save(self._state_path)
            except OSError as error:
                raise BackendRefusedError(
                    str(self._state_path), "write", system_says(error)
                ) from error
            self._saves += 1
            self._saved = moment

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete the oldest files whose messages all lie below `min_log_offset`, never the last;
        return how many.

        A running query still sees the deleted files.
        """
        with self._putting:
            files = self._files
            count = 0
            while count < len(files) - 1 and files[count].header.end_log_offset < min_log_offset:
                count += 1
            self._files = files[count:]
            self._remove(files[:count])
            return count

    def _remove(self, files: tuple[IndexFile, ...]) -> None:
        for file in files:
            file.delete()
        if files:
            fsync_directory(self._directory.path)

    def close(self) -> None:
        """Release the files; write nothing. Idempotent."""
        with self._putting:
            self._closed = True
            for file in self._files:
                file.close()

    def destroy(self) -> None:
        """Close and remove every file of the index, damaged ones too. Idempotent."""
        with self._putting:
            self._closed = True
            self._remove(self._files)
            self._files = ()
            with self._saving:
                self._saves += 1
                self._state_path.unlink(missing_ok=True)
            self._directory.remove_files(index_names(self._directory.path))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._directory.path}: the index is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()


def _all_candidates(
    files: Sequence[IndexFile], key_hash: int, *, begin: int, end: int
) -> Iterator[int]:
    """A damaged file does not hide the others: SegmentCorruptError is raised after them."""
    last = NOTHING_INDEXED
    damaged: SegmentCorruptError | None = None
    for file in reversed(files):
        if file.may_hold(begin, end):
            try:
                for log_offset in file.candidates(key_hash, begin=begin, end=end):
                    if log_offset != last:  # in the order of the log equal ones are adjacent
                        yield log_offset
                    last = log_offset
            except SegmentCorruptError as error:
                damaged = damaged or error
        if 0 < file.header.begin_timestamp < begin - CLOCK_SLACK_MS:
            break
    if damaged is not None:
        raise damaged


def query_message(
    index: IndexService,
    commit_log: CommitLog,
    topic: str,
    key: str,
    *,
    count_max: int,
    count_limit: int,
    begin: int,
    end: int,
    tags_code: Callable[[bytes], int],
    is_named: Callable[[bytes, int], bool],
    log_offset_min: int = 0,
    counts: Callable[[bytes, int], bool] = lambda _record, _log_offset: True,
) -> QueryResult:
    """The messages with a key, newest first, each once: none below `log_offset_min`, and only those
    for which `counts` is true. `tags_code` gives the tags code that the queue holds of a record.

    A damaged or missing message does not hide others, but the answer is then incomplete. It is also
    incomplete if a record does not carry the key that its index entry says, or if the queue has
    another record at its offset (`is_named`): no checksum covers either. And it is incomplete if
    the store's own `count_limit` stops the search before the caller's `count_max`.
    """
    found: list[SelectedMessage] = []
    complete, is_cut = True, False
    nothing = QueryResult(
        indexed_log_offset=index.end_log_offset, indexed_timestamp=index.end_timestamp
    )
    if count_max <= 0 or not key:
        return nothing
    damaged: list[SegmentCorruptError] = []
    for log_offset in _candidates(index, topic, key, begin, end, damaged):
        if log_offset < log_offset_min or commit_log.lost.has(log_offset):
            continue
        try:
            record = commit_log.message_bytes(log_offset)
        except SegmentCorruptError as error:
            log.warning("a message that may have the key %r is passed over: %s", key, error)
            complete = False
            continue
        if record is None and log_offset >= (commit_log.min_offset or 0):
            log.warning("a message that may have the key %r is not at %d", key, log_offset)
            complete = False
        if record is None or not begin <= peek_store_timestamp(record) <= end:
            continue
        if not counts(record, log_offset):
            continue
        message = decode_message(record, check_crc=False)
        keys = key_texts(message.topic, unique_key=message.unique_key, keys=message.keys)
        text = index_key(topic, key)
        has_key = message.topic == topic and text in keys
        hashed = local_key_hash(text)
        fits = has_key or any(local_key_hash(other) == hashed for other in keys)
        if not fits or not is_named(record, log_offset):
            log.warning("the message at %d that may have the key %r is damaged", log_offset, key)
            complete = False
            continue
        if not has_key:
            continue
        if len(found) == count_limit:
            is_cut = True
            break
        found.append(
            SelectedRecord(
                queue_offset=message.queue_offset,
                log_offset=log_offset,
                tags_code=tags_code(record),
                record=record,
            )
        )
        if len(found) == count_max:
            break
    complete = complete and not damaged
    return replace(
        nothing,
        messages=found,
        complete=complete and not is_cut,
        is_cut=complete and is_cut,
    )


def _candidates(
    index: IndexService,
    topic: str,
    key: str,
    begin: int,
    end: int,
    damaged: list[SegmentCorruptError],
) -> Iterator[int]:
    """The index's candidates; damage that keeps it from finding more goes into `damaged`."""
    try:
        yield from index.candidates(topic, key, begin=begin, end=end)
    except SegmentCorruptError as error:
        log.warning("not every message that may have the key %r can be found: %s", key, error)
        damaged.append(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """What was on disk at one moment.

    `replay_from` is the log offset of the last message read. The items counted in `files` include
    all keys of the messages below it, and perhaps its own.
    """

    replay_from: int
    files: dict[str, IndexCut] = field(default_factory=dict)

    @property
    def newest(self) -> str:
        """The name of the newest file; empty if none."""
        return max(self.files, default="")

    @classmethod
    def of(
        cls, indexed_to: int, files: Iterable[IndexFile], cuts: Mapping[str, IndexCut] | None = None
    ) -> IndexState:
        """What these files hold now or, for a file in `cuts`, what it will hold."""
        counts = {
            file.name: IndexCut(
                item_count=file.header.item_count, end_timestamp=file.header.end_timestamp
            )
            for file in files
            if file.header.item_count > 0
        }
        return cls(replay_from=indexed_to, files=counts | dict(cuts or {}))

    def save(self, path: Path) -> None:
        make_directories(path.parent)
        files = {
            name: {"items": cut.item_count, "endTimestamp": cut.end_timestamp}
            for name, cut in self.files.items()
        }
        document = {"version": VERSION, "replayFrom": self.replay_from, "files": files}
        write_atomically(path, [json.dumps(document, indent=1).encode("ascii")])

    @classmethod
    def load(cls, path: Path) -> IndexState | None:
        """The last saved state; None if it is missing or cannot be read.

        Nothing is lost then: files that are not proven durable are made again from the log.
        """
        try:
            return _parse(parsed(path.read_bytes()))
        except FileNotFoundError:
            return None
        except MALFORMED as error:
            log.warning("%s: not readable, so the index proves less: %s", path, error)
            return None


def _parse(document: Any) -> IndexState:
    check_version(document)
    files = {
        name: IndexCut(item_count=whole(row["items"]), end_timestamp=whole(row["endTimestamp"]))
        for name, row in document["files"].items()
    }
    return IndexState(replay_from=whole(document["replayFrom"]), files=files)


class IndexDirectory(NamedTuple):
    """The directory of the index files, and their size."""

    path: Path
    size: IndexSize

    def open(self, name: str, *, read_only: bool = False) -> IndexFile:
        return IndexFile.open(self.path / name, self.size, read_only=read_only)

    def cut_back(self, name: str, cut: IndexCut) -> IndexFile:
        return cut_back(self.path / name, cut, self.size)

    def all_files(self, state: IndexState | None) -> list[IndexFile]:
        """Every file as it is, oldest first: what an orderly shutdown left is durable.

        A damaged file is deleted, with all files after it: the log has what they held.
        """
        names = self._without_hole(state)
        kept: list[IndexFile] = []
        for name in names:
            try:
                file = self.open(name)
                _check_end(file, state)
                kept.append(file)
            except SegmentCorruptError as error:
                log.warning("an index file is rebuilt from the log: %s", error)
                break
        self.remove_files(names[len(kept) :])
        return kept

    def durable_files(self, state: IndexState | None, *, durable_timestamp: int) -> list[IndexFile]:
        """The files proven durable, cut back to their proven items; the others are deleted."""
        names = self._without_hole(state)
        kept: list[IndexFile] = []
        for name in names:
            cut = state.files.get(name) if state is not None else None
            try:
                file = self._durable(name, cut, kept, durable_timestamp)
            except SegmentCorruptError as error:
                log.warning("an index file is rebuilt from the log: %s", error)
                break
            if file is None:
                break
            kept.append(file)
        self.remove_files(names[len(kept) :])
        return kept

    def remove_files(self, names: Sequence[str]) -> None:
        """Delete files, the newest first, so that a crash leaves no hole."""
        for name in reversed(names):
            (self.path / name).unlink(missing_ok=True)
        if names:
            log.info("%s: %d index files deleted", self.path, len(names))
            fsync_directory(self.path)

    def _without_hole(self, state: IndexState | None) -> list[str]:
        """The names of the files; those after a missing file are deleted.

        Keys can be put only in the order of the log: the keys of a missing file can be put again
        only if nothing after it is there. The entry of an expired file disappears with the next
        flush; after a crash before that flush, a complete index is rebuilt for nothing.
        """
        names = index_names(self.path)
        missing = sorted(set(state.files).difference(names)) if state is not None else []
        first = next((name for name in missing if name < max(names, default="")), None)
        if first is None:
            return names
        log.warning("index file %s is missing: it and the later ones are rebuilt", first)
        self.remove_files([name for name in names if name > first])
        return [name for name in names if name < first]

    def _durable(
        self,
        name: str,
        cut: IndexCut | None,
        older: Sequence[IndexFile],
        durable_timestamp: int,
    ) -> IndexFile | None:
        if cut is not None:
            if cut.item_count < self.size.item_capacity - 1:
                return self.cut_back(name, cut)
            file = self.open(name)  # full: nothing was written after it was flushed
            return file if file.is_full else self.cut_back(name, cut)
        # After a file that lost items nothing is kept: keys are put only in the order of the log,
        # so these items could not be put again. RocketMQ filled it, and began others, since.
        if durable_timestamp <= 0 or (older and not older[-1].is_full):
            return None
        file = self.open(name)
        # Java's checkpoint proves a full file by its end timestamp. A later file may end with the
        # same timestamp, or with a lower one if the clock was set back: that file is not proven.
        ends = max((other.header.end_timestamp for other in older), default=0)
        proven = ends < file.header.end_timestamp <= durable_timestamp
        return file if file.is_full and proven else None


def _check_end(file: IndexFile, state: IndexState | None) -> None:
    """Compare a header with the saved state: no checksum covers its times."""
    cut = state.files.get(file.name) if state is not None else None
    header = file.header
    if cut is None or cut.item_count < header.item_count:
        return  # the state does not know the file, or RocketMQ has added to it
    if cut.item_count > header.item_count:
        reason = f"it has {header.item_count} items, it had {cut.item_count}"
        raise SegmentCorruptError(str(file.path), reason, position=0)
    if cut.end_timestamp != header.end_timestamp or header.begin_timestamp > header.end_timestamp:
        reason = f"its times are {header.begin_timestamp} to {header.end_timestamp}"
        raise SegmentCorruptError(str(file.path), reason, position=0)


def replay_start(
    files: Sequence[IndexFile], state: IndexState | None, *, min_log_offset: int
) -> int:
    """The log offset of the first message whose keys may be missing."""
    start = files[-1].header.end_log_offset if files else 0
    if state is not None and _is_of(files, state):
        start = max(start, state.replay_from)
    return max(start, min_log_offset)


def _is_of(files: Sequence[IndexFile], state: IndexState) -> bool:
    """Whether the state describes these files, of which some may have been deleted since."""
    if not state.newest:
        return True
    counts = {file.name: file.header.item_count for file in files}
    return counts.get(state.newest, -1) >= state.files[state.newest].item_count


def cut_before(files: Sequence[IndexFile], log_end: int) -> tuple[list[IndexFile], IndexCut | None]:
    """The files that stay when the log ends at `log_end`, and what to cut the last of them to.

    The end timestamp of a cut is known only to the second. So the last message before the end of
    the log is removed too: putting its keys again restores the exact timestamp.
    """
    kept = list(files)
    while kept and kept[-1].header.end_log_offset >= log_end:
        file = kept[-1]
        count = items_below(file, log_end)
        if count > 0:
            count = items_below(file, file.log_offset_at(count))
        if count > 0:
            return kept, IndexCut(item_count=count, end_timestamp=file.timestamp_at(count))
        kept.pop()
    return kept, None


def new_items(batch: IndexBatch, *, end: int, count_at_end: Callable[[int], int]) -> ItemColumns:
    """The keys of a batch that are not indexed yet, when `end` is the last indexed message.

    Rolled-back messages and messages below `end` are left out. Of the message at `end`, the keys
    already there are left out; `count_at_end` says how many.
    """
    log_offsets = np.array(batch.log_offsets, np.int64)
    timestamps = np.array(batch.store_timestamps, np.int64)
    items = ItemColumns(
        key_hashes=batch.key_hashes,
        log_offsets=log_offsets.repeat(batch.key_counts),
        store_timestamps=timestamps.repeat(batch.key_counts),
    )
    all_kept = all(flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK for flag in set(batch.sys_flags))
    in_order = log_offsets[0] > end and bool((log_offsets[1:] > log_offsets[:-1]).all())
    if in_order and all_kept:
        return items
    kept = (np.array(batch.sys_flags, np.int64) & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    chosen = _chosen(log_offsets, batch.key_counts, kept, end, count_at_end)
    return ItemColumns(
        key_hashes=items.key_hashes[chosen],
        log_offsets=items.log_offsets[chosen],
        store_timestamps=items.store_timestamps[chosen],
    )


def _chosen(
    log_offsets: NDArray[np.int64],
    key_counts: NDArray[np.int64],
    kept: NDArray[np.bool_],
    end: int,
    count_at_end: Callable[[int], int],
) -> NDArray[np.bool_]:
    """Which of all keys are new."""
    before = np.empty_like(log_offsets)  # the greatest log offset up to then
    before[0] = end
    before[1:] = np.maximum(np.maximum.accumulate(log_offsets[:-1]), end)
    wanted = kept & (log_offsets > before)
    [again] = np.nonzero(kept & (log_offsets == end))
    known = first = 0
    if len(again) and end >= 0:
        message = int(again[0])
        wanted[message] = True
        known = min(count_at_end(end), int(key_counts[message]))
        first = int(key_counts[:message].sum())
    chosen = np.repeat(wanted, key_counts)
    chosen[first : first + known] = False
    return chosen


def key_texts(topic: str, *, unique_key: str | None, keys: Iterable[str]) -> list[str]:
    """The texts hashed for one message, in Java's order: UNIQ_KEY first, then each of KEYS."""
    texts = [] if unique_key is None else [f"{topic}#{unique_key}"]
    texts += [f"{topic}#{key}" for key in keys]
    return texts


def hashes_of_messages(
    topics: Sequence[str], unique_keys: Sequence[str | None], keys: Sequence[str | None]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The hashes of the `key_texts` of many messages in order, and how many each message has.

    `keys` holds the values of KEYS as in the properties: single keys separated by spaces.
    """
    count = len(topics)
    if count >= _VECTOR_MESSAGES_MIN:
        rows = [text or "" for text in keys]
        all_topics = topics
        unique = [text or "" for text in unique_keys] if any(unique_keys) else []
        if unique:
            rows = list(chain.from_iterable(zip(unique, rows, strict=True)))
            all_topics = list(chain.from_iterable(zip(topics, topics, strict=True)))
        joined = VALUE_END.join(rows)
        if len(joined) > KEY_CHARACTERS_MAX:
            half = count // 2
            parts = [
                hashes_of_messages(topics[part], unique_keys[part], keys[part])
                for part in (slice(half), slice(half, None))
            ]
            return (
                np.concatenate([hashes for hashes, _ in parts]),
                np.concatenate([counts for _, counts in parts]),
            )
        # A property value cannot hold VALUE_END. But a unique key may hold a space, which must not
        # split it.
        if joined.count(VALUE_END) == len(rows) - 1 and not any(" " in text for text in unique):
            hashes, counts = joined_key_hashes(joined, VALUE_END, _KEYS_SEPARATOR, all_topics)
            return hashes, counts.reshape(count, -1).sum(axis=1)
    texts = [
        key_texts(topic, unique_key=unique_key, keys=split_keys(text))
        for topic, unique_key, text in zip(topics, unique_keys, keys, strict=True)
    ]
    return (
        local_key_hashes(list(chain.from_iterable(texts))),
        np.fromiter(map(len, texts), np.int64, count),
    )
