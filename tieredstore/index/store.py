"""The key index of a tier: it takes the keys of committed messages and finds messages by key.

Opening continues with the usable local files, whichever program filled them last:

| a local file that                        | becomes                                   |
| ---------------------------------------- | ----------------------------------------- |
| is in the backend with all durable items | removed                                   |
| is damaged, or gone                      | given up: its messages are put again      |
| has items, and its upload was begun      | full: it is uploaded again                |
| is empty, and not the last one           | removed                                   |

Items that RocketMQ has put in the meantime count only as far as its uploaded files show them,
message by message. An upload is one stream: the compacted file, then its footer. The footer is also
copied to the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer
from tieredstore.codec.tiered_index import compacted_file_bytes
from tieredstore.driver.metadata import MetadataStore, StaleCatalogueError
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime, Service
from tieredstore.flat import append_file
from tieredstore.flat.message_file import HOUR_MS
from tieredstore.index import footer_cache
from tieredstore.index.compaction import Compaction
from tieredstore.index.contract import NOTHING, CommittedRun, IndexAnswer, IndexFigures
from tieredstore.index.footer import Footer, footer_or_header
from tieredstore.index.footer_cache import FooterCache, FooterCopy
from tieredstore.index.keys import keys_of_run
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.search import ASKED_AGAIN_MAX, KeyQuery, ask
from tieredstore.index.uploaded import UploadedSegment, UploadedTable, newest_timestamp
from tieredstore.index.watermarks import QueueId, QueueLag, Watermarks
from tieredstore.index.writer import IndexWriter, LocalFolder
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)


TAKEN_OVER_BYTES_MAX: Final = 2 << 30  # of uploaded files that one open may read
STEP_MS: Final = 5_000
UPLOAD_AGAIN_SECONDS: Final = 60
LOOK_SECONDS: Final = 600  # between two searches for queues that are gone


class IndexStore:
    """Finds messages of the tier by their keys, in files on the broker's disk and in the backend.

    * A message is found as soon as its `put` has returned. After a crash it may have to be put
      again: `indexed_offset` says from which offset on. Found twice, it is shown once.
    * Files are uploaded when they are full or old enough; small ones survive restarts.
    * Failed background work is tried again at the next step; `failure` is the last failure.
    * Any thread may call anything.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
        publish: append_file.Publish | None = None,
    ) -> None:
        """`publish` tells readers elsewhere what the catalogue says; see `Announcement`."""
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
        self._announcement = append_file.Announcement(publish, runtime.clock)
        self._folder = LocalFolder(config)
        self._name = f"the key index in {self._folder.path}"
        self._watermarks = Watermarks(metadata, config.broker_name)
        self._cache = FooterCache(
            Path(self._folder.path) / footer_cache.FOLDER,
            bytes_max=config.index_footer_cache_bytes,
        )
        self._uploaded = UploadedTable(
            config, provider=provider, metadata=metadata, runtime=runtime, cache=self._cache
        )
        self._writer = self._new_writer()
        self._uploading = threading.RLock()  # guards the table of uploaded files
        self._life_guard = threading.RLock()
        self._service: Service | None = None
        self._is_open = self._is_closing = False
        self._next_upload = self._next_look = self._next_deletion = 0.0
        self.failure: TieredStoreError | None = None
        self._process = OneProcess(self._name)

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the existing files; damaged ones are dropped, and their messages put again.

        Raises InvalidConfigError for a store with files of other sizes. The backend is asked only
        about files whose upload was cut short, and need not answer. But to take over an index that
        the catalogue has no note of, it must answer: else BackendError.
        """
        if self._is_open:
            self._process.require()
        with self._life_guard, self._uploading:
            if self._is_open:
                return
            self._folder.prepare()
            self._uploaded.load()
            self._settle()
            self._cache.load()
            self._cache.keep_only(segment.origin for segment in self._uploaded.segments)
            self._writer = self._new_writer()
            begins = [row.begin_timestamp or 0 for row in self._uploaded.rows()]
            begins += self._watermarks.begins()
            self._writer.open(self._open_local_files(), begins=begins)
            self._is_open, self._is_closing = True, False
            self._process = OneProcess(self._name)

    def start(self) -> None:
        """Upload and expire in the background from now on."""
        with self._life_guard:
            if self._service is None:
                self._check_open()
                self._service = self._runtime.service("tier-index", self.step, interval_ms=STEP_MS)

    def shutdown(self) -> None:
        """Make what was taken durable, and close the files. Local files stay local."""
        if self._is_open:
            self._process.require()
        with self._life_guard:
            service, self._service = self._service, None
            self._is_closing = True
            if service is not None:
                service.stop()
            if not self._is_open:
                return
            self._is_open = False
            try:
                self._writer.sync()
            except TieredStoreError as error:
                log.warning("the newest index items are added again after a restart: %s", error)
            finally:
                with self._uploading:
                    self._writer.close()
                    self._uploaded.close()

    def destroy(self) -> None:
        """Delete everything: files, copies of footers, uploaded files and notes."""
        if self._is_open:
            self._process.require()
        with self._life_guard, self._uploading:
            self._is_open = False
            self._writer.close()
            self._uploaded.drop_all()
            self._metadata.apply(self._watermarks.everything())
            for begin in self._folder.begins():
                self._folder.remove(begin)
            self._cache.load()
            self._cache.clear()

    @property
    def problem(self) -> str | None:
        return self._writer.problem if self.failure is None else str(self.failure)

    @property
    def figures(self) -> IndexFigures:
        return self._uploaded.figures(*self._writer.file_counts)

    # -- keys ---------------------------------------------------------------------------------

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        """Take messages that were committed. If this raises, it has taken none of them."""
        self._check_open()
        if not len(run):
            return
        queue, first = QueueId(topic_id, queue_id), run.run.first_offset
        keys = keys_of_run(topic, topic_id, queue_id, run)
        if first < self._watermarks.held(queue):  # the queue was made again: see `of_queue`
            self._metadata.apply(self._watermarks.moved({queue: first}))
        writer = self._writer
        full_before = len(writer.full)
        writer.put(queue, first, first + len(run), keys)
        if writer.is_due:
            self._try(writer.sync)
        if self._service is not None and len(writer.full) > full_before:
            self._service.wake()

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """The index has every message of the queue below this, and a crash loses none of them."""
        queue = QueueId(topic_id, queue_id)
        taken = self._writer.taken(queue)
        return self._watermarks.of_queue(topic, queue) if taken is None else taken

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Places of messages that may have the key: at most `count_max`, the newest first.

        Hits of the same second come in any order. If there are `count_max` of them, there may be
        more. Even a complete answer may lack messages at or above `indexed_offset`.
        """
        query = KeyQuery(topic, topic_id, key, count_max, begin, end)
        if not query.can_have_answers:
            return NOTHING
        for _ in range(ASKED_AGAIN_MAX):
            self._check_open()
            is_drained = self._writer.has_drained()
            files = self._writer.files  # first: any of them may be uploaded meanwhile
            uploaded = self._uploaded.segments
            self._check_open()  # again: after a shutdown there are no files to search
            try:
                newest_first = [segment.ask for segment in reversed(uploaded)]
                answer = ask(query, files, newest_first, self._runtime)
            except StoreClosedError:  # a file was uploaded, or expired, just now
                continue
            if not answer.complete and self._uploaded.segments is not uploaded:
                continue
            return IndexAnswer(
                hits=answer.hits,
                complete=answer.complete and is_drained,
                newest_timestamp=newest_timestamp(files, uploaded),
            )
        return IndexAnswer(complete=False)  # files come and go all the time

    def seal(self) -> None:
        """Upload now what is only on the broker's disk. Raises what the backend raises."""
        self._check_open()
        with self._uploading:
            self._writer.roll()
            self._upload_full()

    # -- in the background --------------------------------------------------------------------

    def step(self) -> None:
        """Do the work that is due. Work that fails is logged and tried again at the next step."""
        if not self._is_open:
            return
        failures = []
        for work in (
            *(self._delete_dropped, self._keep_up, self._upload_in_time),
            *(self._expire, self._copy_footers, self._forget_gone),
        ):
            with self._uploading:
                failures.append(self._try(work))
        found = next((failure for failure in failures if failure is not None), None)
        # Until a failed upload is due again, `failure` keeps it.
        if found is not None or self._is_due(self._next_upload):
            self.failure = found

    def _try(self, work: Callable[[], None]) -> TieredStoreError | None:
        try:
            work()
        except TieredStoreError as error:
            log.warning("the key index: %s", error)
            self.failure = error
            return error
        return None

    def expire(self, before_ms: int) -> int:
        """Drop the oldest uploaded files, as long as all their messages are older; return how
        many."""
        self._check_open()
        with self._uploading:
            return self._drop_before(before_ms)

    def expire_unopened(self) -> None:
        """Drop the uploaded files that have expired, for a tier without a broker. Files on the
        broker's disk are left alone."""
        with self._life_guard, self._uploading:
            self._uploaded.load()
            try:
                self._delete_marked()
                if self._config.expiry_enabled:
                    self._drop_before(self._expired_before())
            finally:
                self._uploaded.close()

    def _drop_before(self, before_ms: int) -> int:
        count = self._uploaded.drop_before(before_ms, keep_bytes=self._announcement.is_needed)
        if count and self._announcement.is_needed:
            self._delete_marked()
        return count

    def _is_due(self, seconds: float) -> bool:
        return self._runtime.clock.monotonic() >= seconds

    def _seconds_from_now(self, seconds: float) -> float:
        return self._runtime.clock.monotonic() + seconds

    def _delete_dropped(self) -> None:
        """After a failure, wait a while: each attempt may publish the whole catalogue."""
        if self._is_due(self._next_deletion):
            are_left = self._delete_marked() > 0
            self._next_deletion = self._seconds_from_now(UPLOAD_AGAIN_SECONDS) if are_left else 0

    def _delete_marked(self) -> int:
        """Delete the files that are marked for deletion; return how many are still there."""
        pending = append_file.PendingDeletions(self._provider, self._metadata)
        path = self._uploaded.path
        marked = frozenset(key for key in pending.marked() if key[0] == path)
        if marked and (self._announcement.make() or self._announcement.is_overdue()):
            seconds = append_file.WAIT_SECONDS
            return pending.delete_path(path, seconds=seconds, only=marked)
        return len(marked)

    def _keep_up(self) -> None:
        now = self._runtime.clock.now_ms()
        self._writer.roll_if_older(now - self._config.index_rolling_hours * HOUR_MS)
        self._writer.drain()
        if self._writer.is_due:
            self._writer.sync()

    def _forget_gone(self) -> None:
        """Now and then, forget queues whose topics were deleted: a new topic gets a new number, so
        nothing else replaces their entries."""
        if not self._is_due(self._next_look):
            return
        self._next_look = self._seconds_from_now(LOOK_SECONDS)
        put = self._writer.queues()  # first: the catalogue names a queue before anything is put
        self._writer.forget(put - self._watermarks.queues())
        if gone := self._watermarks.unknown():
            self._metadata.stage(gone)

    def _upload_full(self) -> None:
        """Oldest first; the first failure ends it, so that the files stay in order."""
        with self._uploading:
            if self._uploaded.has_leftovers:
                self._uploaded.settle()
            full = self._writer.full  # first: one that fills during the sync is not synced by it
            if full:
                self._refuse_stale()
                self._writer.sync()
            sound = self._writer.full  # without those that the disk could not sync
            for file in full:
                if file in sound:
                    self._upload(file)
            self._next_upload = 0.0

    def _refuse_stale(self) -> None:
        """Raise StaleCatalogueError if a newer catalogue than ours is published: the name of our
        next file may be that of a file which ours does not know."""
        self._announcement.make()
        if self._announcement.is_stale:
            path, reason = (
                self._uploaded.path,
                "nothing is uploaded: a newer catalogue is published",
            )
            raise StaleCatalogueError(path, reason)

    def _upload(self, file: IndexStoreFile) -> None:
        """Upload the full file and remove it from the disk.

        Raises what the backend, the disk and the catalogue raise: then the file is still local, or
        the next attempt finds it in the backend.
        """
        begin = file.begin_timestamp
        forgotten = self._watermarks.forgotten(begin)
        if not file.item_count or self._uploaded.holds(begin, file.item_count):
            self._metadata.apply(forgotten)
        else:
            compaction = Compaction.of_file(file)
            with closing(compaction), self._cache.keeping() as copy:
                segment = self._uploaded.upload(
                    self._blocks(compaction, copy),
                    *forgotten,
                    begin=begin,
                    end=file.end_timestamp,
                    from_offset=self._watermarks.end(),
                )
                copy.keep(segment.origin)
            self._uploaded.renew()
        self._writer.remove(file)

    def _blocks(self, compaction: Compaction, copy: FooterCopy) -> Iterator[Buffer]:
        """The whole file; its footer goes into the cache too.

        A shutdown cuts it short, rather than wait for hundreds of MiB: they are sent again.
        """
        yield from map(self._unless_closing, compaction.blocks())
        for block in compaction.footer():
            copy.write(block)
            yield self._unless_closing(block)

    def _unless_closing(self, block: Buffer) -> Buffer:
        if self._is_closing:
            raise StoreClosedError("the index is being closed")
        return block

    def _upload_in_time(self) -> None:
        """After a failure, wait a while: a file may be hundreds of MiB."""
        if self._is_due(self._next_upload):
            self._next_upload = self._seconds_from_now(UPLOAD_AGAIN_SECONDS)
            self._upload_full()

    def _expire(self) -> None:
        if not self._config.expiry_enabled or not self._uploaded.segments:
            return
        self.expire(self._expired_before())

    def _expired_before(self) -> int:
        hours = [row.reserve_hours or 0 for row in self._metadata.topics()]
        now = self._runtime.clock.now_ms()
        return now - max([self._config.reserve_hours, *hours]) * HOUR_MS

    def _copy_footers(self) -> None:
        for segment in self._uploaded.segments:
            if segment.wants_copy:
                segment.make_copy()

    def _new_writer(self) -> IndexWriter:
        return IndexWriter(self._folder, self._watermarks, self._metadata, self._runtime.clock)

    def _settle(self) -> None:
        """If the backend does not answer, this is done before the next upload."""
        try:
            self._delete_marked()
            if self._uploaded.has_leftovers:
                self._uploaded.settle()
        except TieredStoreError as error:
            log.warning("an interrupted index upload is checked later: %s", error)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the key index is not open")
        self._process.require()

    # -- opening ------------------------------------------------------------------------------

    def _open_local_files(self) -> list[IndexStoreFile]:
        """The files to go on with, oldest first; the catalogue is brought up to date.

        InvalidConfigError if the store has other sizes: then nothing was changed.
        """
        self._check_sizes()
        folder, watermarks = self._folder, self._watermarks
        begins = folder.begins()
        begun = {segment.begin_timestamp for segment in self._uploaded.segments}
        opened: list[IndexStoreFile] = []
        try:
            for begin in begins:
                if begin in begun and self._is_uploaded(begin):
                    self._metadata.apply(watermarks.forgotten(begin))
                    folder.remove(begin)
                    continue
                file = folder.open(begin, watermarks.durable(begin))
                if file is None:
                    self._give_up(begin)
                    continue
                opened.append(file)
                # A file that is in the backend, or may be, gets no more keys.
                if file.item_count and (begin in begun or self._uploaded.has_leftovers):
                    file.seal()
            for begin in set(watermarks.begins()) - set(begins):
                # RocketMQ fills our files further, and at its shutdown uploads and deletes them.
                if begin in begun and self._is_uploaded(begin):
                    log.info("the index file %d was uploaded by another process", begin)
                    self._metadata.apply(watermarks.forgotten(begin))
                else:
                    log.warning("the index file %d is gone and is rebuilt", begin)
                    self._give_up(begin)
        except BaseException:
            for file in opened:
                file.close()
            raise
        folder.remove_stray_notes()
        self._metadata.apply(watermarks.unknown())
        self._take_over_puts()
        for file in opened[:-1]:  # only the last file can be filled, so only it may be empty
            if not file.item_count:
                file.delete()
        return [*(file for file in opened[:-1] if file.item_count), *opened[-1:]]

    def _check_sizes(self) -> None:
        """Compare the sizes with the store's, or note them. Another program's index is taken over.

        An index of ours whose notes are lost is not: what it holds is unknown, so all is put again.
        """
        folder, slots = self._folder, self._config.index_slot_count
        items = self._config.index_item_count
        is_noted = self._watermarks.check_sizes(slot_count=slots, item_capacity=items)
        begins = folder.begins()
        for begin in begins:
            if not (is_noted and folder.is_ours(begin)):  # else a wrong length is damage
                folder.check_size(begin)
        if is_noted:
            return
        ours = [folder.is_ours(begin) for begin in begins]
        uploaded = [_check_uploaded(segment, slots) for segment in self._uploaded.segments]
        changes = [self._watermarks.sizes(slot_count=slots, item_capacity=items)]
        if (begins or False in uploaded) and not (any(ours) or True in uploaded):
            folder.sync()
            changes += self._watermarks.adopted(now_ms=self._runtime.clock.now_ms())
        self._metadata.apply(changes)

    def _is_uploaded(self, begin: int) -> bool:
        """Whether a local file is no longer needed; False if the backend does not answer."""
        durable = self._watermarks.durable(begin)
        # Its upload was completed and noted, or nothing in it was durable.
        if durable is None or not durable.item_count:
            return True
        try:
            return self._uploaded.holds(begin, durable.item_count)
        except (BackendError, SegmentError) as error:
            log.warning("the index file %d was uploaded and is kept: %s", begin, error)
            return False

    def _give_up(self, begin: int) -> None:
        """The watermarks go back before the file is removed."""
        self._metadata.apply(self._watermarks.lost(begin, is_ours=self._folder.is_ours(begin)))
        self._folder.remove(begin)

    def _take_over_puts(self) -> None:
        """Move the watermarks past what RocketMQ has committed and put since, as far as its
        uploaded files show every message. The rest is put again; all of it if the backend fails."""
        lags = {lag.queue: lag for lag in self._watermarks.behind()}
        since = min((lag.put_at for lag in lags.values()), default=0)
        recent = [
            segment
            for segment in self._uploaded.segments
            if lags and segment.record.create_timestamp >= since
        ]
        if not recent or sum(segment.record.size for segment in recent) > TAKEN_OVER_BYTES_MAX:
            return
        try:
            files = [segment for segment in recent if _is_of_rocketmq(segment)]
            ends = {
                queue: self._put_to(lags[queue], np.unique(np.concatenate(places)))
                for queue, places in _places(files, lags).items()
            }
        except (BackendError, SegmentError, OffsetOutOfRangeError) as error:
            log.warning("RocketMQ's index items are added again: %s", error)
            return
        now = self._runtime.clock.now_ms()
        self._metadata.apply(self._watermarks.moved(ends, dict.fromkeys(ends, now)))

    def _put_to(self, lag: QueueLag, places: NDArray[np.int64]) -> int:
        """The first queue offset from the mark on whose message is at none of these places."""
        at = lag.mark
        for units in self._uploaded.queue_units(lag.path, lag.mark, lag.end):
            missing = np.flatnonzero(~np.isin(units.log_offsets, places))
            if len(missing):
                return at + int(missing[0])
            at += len(units.log_offsets)
        return at


def _is_of_rocketmq(segment: UploadedSegment) -> bool:
    file = segment.file()
    return file.footer is None and not file.is_legacy


def _places(
    files: Iterable[UploadedSegment], queues: Collection[QueueId]
) -> dict[QueueId, list[NDArray[np.int64]]]:
    """The places of messages of these queues that the files have keys of."""
    known = {(queue.topic_id << 32) + queue.queue_id: queue for queue in queues}
    found: dict[QueueId, list[NDArray[np.int64]]] = {}
    for file in files:
        for items in file.item_blocks():
            numbers = items["topic_id"].astype(np.int64) << 32
            numbers += items["queue_id"].astype(np.int64)
            for number in known.keys() & set(np.unique(numbers).tolist()):
                places = items["log_offset"][numbers == number].astype(np.int64)
                found.setdefault(known[number], []).append(np.unique(places))
    return found


def _check_uploaded(segment: UploadedSegment, slot_count: int) -> bool | None:
    """Check the slot count of a file; returns whether the file is ours, None if it is damaged.
    Raises what the backend raises.

    Java's files do not say how many slots they have, but their length shows it.
    """
    size, handle = segment.record.size, segment.flat.segment
    try:
        found = footer_or_header(handle.read, size, path=handle.path)
    except SegmentError as error:
        log.warning("the sizes of an index file could not be checked: %s", error)
        return None
    if isinstance(found, Footer):
        is_right = found.slot_count == slot_count
    else:
        wanted = compacted_file_bytes(slot_count=slot_count, item_count=found.item_count)
        is_right = size in (wanted, wanted + 4)  # files of RocketMQ 5.1 are four bytes longer
    if not is_right:
        raise InvalidConfigError(
            f"index_slot_count: {slot_count}, but {handle.path} was made with another number; "
            "it must never change"
        )
    return isinstance(found, Footer)
