"""The key index of a local store: the files, which one is filled, and queries over all of them.

What lives here: `IndexService`. One file is `index_file`, a search over all of them `index_query`,
what stays when a store opens `index_recovery`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Self

from tieredstore.codec.java import index_key, local_key_hash
from tieredstore.driver.durable import fsync_directory, make_directories
from tieredstore.driver.runtime import Clock
from tieredstore.local.config import LocalConfig
from tieredstore.local.keys.index_batch import IndexBatch, new_items
from tieredstore.local.keys.index_file import IndexFile
from tieredstore.local.keys.index_names import index_names, next_index_name
from tieredstore.local.keys.index_query import (
    NOTHING_INDEXED,
    IndexAnswer,
    all_candidates,
    answer_like_java,
)
from tieredstore.local.keys.index_recovery import (
    IndexDirectory,
    all_files,
    cut_before,
    durable_files,
    remove_files,
    replay_start,
)
from tieredstore.local.keys.index_state import STATE_FILE, IndexState
from tieredstore.model.errors import BackendRefusedError, StoreClosedError


class IndexService:
    """Finds messages by key; what is lost in a crash comes back from the log, and only once.

    **One order.** Keys are put in the order of the log. A message below the last indexed one is
    known already and ignored, like in Java. Java takes the last one itself again and so keeps its
    keys twice after a replay; here the keys of it that are already there are counted (they are the
    last items, perhaps of two files) and that many are left out. So replaying a log from anywhere
    at or below `replay_from` gives the same files as if there had been no crash.

    **What a crash leaves.** Pages reach the disk in any order. Items are written once, in order,
    so the first n of them are good for ever after a flush that began when there were n. Slots and
    header are written again and again: after a crash they may name items that are not there, or be
    newer or older than each other. They follow from the items, so they are never trusted, but made
    again.

    **What proves an item durable.** A small file beside Java's, `config/tieredstore-index.json`,
    says for one moment how many items of each file were on disk. It is replaced as a whole after
    each flush. A full file is flushed and entered there before the next one is created, so only
    the newest file is ever incomplete. After a crash a file is cut back to the items entered, which
    gives the bytes of that moment; a file not entered is deleted. For files that Java filled, its
    checkpoint speaks: full, and ending no later than `indexMsgTimestamp`. What the entries claim
    stays true when Java goes on with the files, and Java's own rules may delete any of them: then
    the newest file entered is missing, and the log is replayed from what is left.

    **The log may be shorter.** The index may be flushed when the log is not yet. `truncate` removes
    what lies at or behind the end of the recovered log; otherwise new messages at these offsets
    would pass for known ones.

    One thread puts at a time, any may query, flush or expire. Files come with the first key.
    """

    def __init__(self, config: LocalConfig, *, clock: Clock, utc_offset_ms: int = 0) -> None:
        self._directory = IndexDirectory(
            path=config.root / "index",
            slot_count=config.index_slot_count,
            item_capacity=config.index_item_count,
        )
        self._state_path = config.root / "config" / STATE_FILE
        self._count_max = config.query_count_max
        self._clock = clock
        self._utc_offset_ms = utc_offset_ms
        self._files: tuple[IndexFile, ...] = ()
        self._indexed_to = 0
        self._min_log_offset = 0
        self._saved: IndexState | None = None
        self._saves = 0
        self._closed = False
        self.has_lost = False  # files, when it was loaded
        self._putting = threading.RLock()  # files and items; before _saving where both are held
        self._saving = threading.Lock()  # the file of what is durable

    def load(self, *, abnormal: bool, min_log_offset: int = 0, durable_timestamp: int = 0) -> int:
        """Open the files and return `replay_from`.

        `durable_timestamp` is `indexMsgTimestamp` of the checkpoint; it counts after a crash only.
        The store then recovers its log, calls `truncate` with its end, and puts every message from
        `replay_from` on.
        """
        with self._putting:
            self._saved = IndexState.load(self._state_path)
            count = len(index_names(self._directory.path))
            if abnormal:
                files = durable_files(
                    self._directory, self._saved, durable_timestamp=durable_timestamp
                )
            else:
                files = all_files(self._directory, self._saved)
            self.has_lost = len(files) < count
            self._files = tuple(files)
            self._min_log_offset = min_log_offset
            self._indexed_to = replay_start(files, self._saved, min_log_offset=min_log_offset)
            if self._saved is not None and not set(self._saved.files).issubset(self.names):
                self._saved = None  # a file to come may get the name of one that is gone
            return self._indexed_to

    @property
    def replay_from(self) -> int:
        """The log offset of the last message handed over: nothing below it has to come again."""
        return self._indexed_to

    @property
    def end_log_offset(self) -> int:
        """The log offset of the last indexed message, -1 if there is none."""
        files = self._files
        end = files[-1].header.end_log_offset if files else 0
        known = end > 0 or any(file.header.item_count for file in files)
        return end if known else NOTHING_INDEXED

    @property
    def sealed_timestamp(self) -> int:
        """What Java's checkpoint may say: the end of the newest full file that is durable, or 0."""
        saved = self._saved
        full = self._directory.item_capacity - 1
        cuts = sorted(saved.files.items()) if saved is not None else []
        return max((cut.end_timestamp for _, cut in cuts if cut.item_count == full), default=0)

    @property
    def names(self) -> list[str]:
        return [file.name for file in self._files]

    def truncate(self, log_end: int) -> int:
        """Forget the keys of messages at or behind the end of the log; return `replay_from`."""
        with self._putting:
            kept, cut = cut_before(self._files, log_end)
            if cut is None and len(kept) == len(self._files):
                self._indexed_to = max(self._min_log_offset, min(self._indexed_to, log_end))
                return self._indexed_to
            for file in kept:
                file.flush()
            end = kept[-1].header.end_log_offset if kept else self._min_log_offset
            if cut is not None:
                end = kept[-1].log_offset_at(cut.item_count)
            self._indexed_to = max(self._min_log_offset, min(self._indexed_to, end))
            # First the word, then the deed: an entry must never count items that are gone.
            cuts = {kept[-1].name: cut} if cut is not None else {}
            self._save(IndexState.of(self._indexed_to, kept, cuts))
            self._remove(self._files[len(kept) :])
            if cut is not None:
                name = kept[-1].name
                kept.pop().close()
                kept.append(self._directory.cut_back(name, cut))
            self._files = tuple(kept)
            return self._indexed_to

    def put(self, batch: IndexBatch) -> int:
        """Index a run of messages in the order of the log; return how many keys were new."""
        if not len(batch):
            return 0
        with self._putting:
            self._check_open()
            if self._saved is None:  # what is there was durable when the store opened: say so
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
        if newest is not None:
            newest.flush()
            self._save(self._now())
        name = next_index_name(
            self._clock.now_ms(),
            utc_offset_ms=self._utc_offset_ms,
            newest=newest.name if newest is not None else "",
        )
        make_directories(self._directory.path)
        file = IndexFile.create(
            self._directory.path / name,
            slot_count=self._directory.slot_count,
            item_capacity=self._directory.item_capacity,
            end_timestamp=newest.header.end_timestamp if newest is not None else 0,
            end_log_offset=newest.header.end_log_offset if newest is not None else 0,
        )
        self._files = (*self._files, file)

    def query(self, topic: str, key: str, *, count_max: int, begin: int, end: int) -> IndexAnswer:
        """Java's answer, with its cap and what it misses; `candidates` is what misses nothing."""
        self._check_open()
        count_max = min(count_max, self._count_max)
        key_hash = local_key_hash(index_key(topic, key))
        return answer_like_java(self._files, key_hash, count_max=count_max, begin=begin, end=end)

    def candidates(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """The log offsets of all messages that may carry the key, newest first, each once.

        None is missed as long as store timestamps run back by no more than `CLOCK_SLACK_MS`. Keys
        with the same hash and times just outside come along: the message itself decides.
        """
        self._check_open()
        hashed = local_key_hash(index_key(topic, key))
        return all_candidates(self._files, hashed, begin=begin, end=end)

    def flush(self) -> None:
        """Make every key put so far durable, and known to be. Puts go on meanwhile."""
        with self._putting:
            moment, saves = self._now(), self._saves
            if moment == self._saved:
                return
            newest = self._files[-1] if self._files else None
        if newest is not None:
            newest.flush()
        self._save(moment, unless_since=saves)

    def _now(self) -> IndexState:
        return IndexState.of(self._indexed_to, self._files)

    def _save(self, moment: IndexState, *, unless_since: int | None = None) -> None:
        with self._saving:
            if unless_since is not None and unless_since != self._saves:
                return  # another one was entered meanwhile, and files may have gone with it
            try:
                moment.save(self._state_path)
            except OSError as error:
                raise BackendRefusedError(str(self._state_path), "write", str(error)) from error
            self._saves += 1
            self._saved = moment

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete the oldest files that name nothing from there on, never the last; return how many.

        A query that is under way ends as it began.
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
        """Let go of the files; nothing is written. Idempotent."""
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
            remove_files(self._directory, index_names(self._directory.path))

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
