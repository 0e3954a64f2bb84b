"""The key index of a tier: takes the keys of what was committed, and finds messages by them.

What lives here: `IndexStore`, its life and what it does in the background. Taking keys is in
`filling`, uploading in `compact_upload`, searching in `key_search`, opening in `index_opening`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime, Service
from tieredstore.flat import doomed
from tieredstore.flat.commit_log import HOUR_MS
from tieredstore.index import footer_cache
from tieredstore.index.compact_upload import CompactUpload
from tieredstore.index.filling import Filling
from tieredstore.index.footer_cache import FooterCache
from tieredstore.index.hits import NOTHING, CommittedRun, IndexAnswer, IndexFigures, IndexHit
from tieredstore.index.index_opening import open_local_files
from tieredstore.index.key_search import Asked, ask
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.local_search import ask_local
from tieredstore.index.run_keys import keys_of_run
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)

STEP_MS: Final = 5_000
UPLOAD_AGAIN_MS: Final = 60_000
_ASKED_AGAIN_MAX: Final = 16


class IndexStore:
    """Finds messages of the tier by their keys, in files on the broker's disk and in the backend.

    * A message whose `put` returned is found at once, and after a crash as soon as it was put
      again: `indexed_offset` tells from where on. It may be found twice and is shown once.
    * Files are full, or old enough, before they are uploaded; small ones stay over restarts.
    * What fails in the background is tried again at the next step; `failure` tells the last one.
    * Any thread may call anything.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
    ) -> None:
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
        self._folder = LocalFolder(config)
        self._watermarks = Watermarks(metadata, config.broker_name)
        self._cache = FooterCache(
            Path(self._folder.path) / footer_cache.FOLDER,
            bytes_max=config.index_footer_cache_bytes,
        )
        self._uploaded = UploadedTable(
            config, provider=provider, metadata=metadata, runtime=runtime, cache=self._cache
        )
        self._filling = self._new_filling()
        self._uploading = threading.RLock()  # of the table of uploaded files, and who changes it
        self._life_guard = threading.RLock()
        self._service: Service | None = None
        self._is_open = self._is_closing = False
        self._next_upload = 0
        self.failure: TieredStoreError | None = None
        self._process = self._this_process()

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open what there is; damaged files are dropped, and their messages put again.

        Raises InvalidConfigError for a store with files of other sizes. The backend is asked only
        about files whose upload was cut short, and need not answer; but it must before an index
        is taken over that is not noted in the catalogue: BackendError where it does not.
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
            self._cache.keep_only(each.origin for each in self._uploaded.segments)
            self._filling = self._new_filling()
            begins = [row.begin_timestamp or 0 for row in self._uploaded.rows()]
            begins += self._watermarks.begins()
            now = self._runtime.clock.now_ms()
            known = self._uploaded, self._watermarks, self._metadata
            files = open_local_files(self._config, self._folder, *known, now_ms=now)
            self._filling.open(files, begins=begins)
            self._is_open, self._is_closing = True, False
            self._process = self._this_process()

    def start(self) -> None:
        """Upload and expire in the background from now on."""
        with self._life_guard:
            if self._service is None:
                self._check_open()
                self._service = self._runtime.service("tier-index", self.step, interval_ms=STEP_MS)

    def shutdown(self) -> None:
        """Make what was taken durable and let go of it. What is local stays so."""
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
                self._filling.sync()
            except TieredStoreError as error:
                log.warning("what the index took last is put again after a restart: %s", error)
            finally:
                with self._uploading:
                    self._filling.close()
                    self._uploaded.close()

    def destroy(self) -> None:
        """Delete everything: files, copies of footers, uploaded files and notes."""
        if self._is_open:
            self._process.require()
        with self._life_guard, self._uploading:
            self._is_open = False
            self._filling.close()
            self._uploaded.drop_all()
            self._metadata.apply(self._watermarks.everything())
            for begin in self._folder.begins():
                self._folder.remove(begin)
            self._cache.load()
            self._cache.clear()

    @property
    def problem(self) -> str | None:
        return self._filling.problem if self.failure is None else str(self.failure)

    # -- keys ---------------------------------------------------------------------------------

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        """Take messages that were committed. After an error none of them was taken."""
        self._check_open()
        if not len(run):
            return
        queue, first = QueueId(topic_id, queue_id), run.run.first_offset
        keys = keys_of_run(topic, topic_id, queue_id, run)
        if first < self._watermarks.held(queue):  # the queue was made anew: see `of_queue`
            self._metadata.apply(self._watermarks.moved({queue: first}))
        filling = self._filling
        full_before = len(filling.full)
        filling.put(queue, first, first + len(run), keys)
        if filling.is_due:
            self._try(lambda _: filling.sync(), 0)
        if self._service is not None and len(filling.full) > full_before:
            self._service.wake()

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """Below this it has taken every message of the queue, and a crash loses none of them."""
        queue = QueueId(topic_id, queue_id)
        taken = self._filling.taken(queue)
        return self._watermarks.of_queue(topic, queue) if taken is None else taken

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Where messages may lie that have the key: at most `count_max`, the newest first.

        Of equal seconds any come first. As many as were asked for: there may be more. Of
        messages at or above `indexed_offset` nothing is promised, also where it is complete.
        """
        asked = Asked.of(topic, topic_id, key, count_max=count_max, begin=begin, end=end)
        if not asked.can_have_answers:
            return NOTHING
        for _ in range(_ASKED_AGAIN_MAX):
            self._check_open()
            is_drained = self._filling.has_drained()
            files = self._filling.files  # before those that are uploaded: one may become one
            uploaded = self._uploaded.segments
            near = [partial(ask_local, file) for file in files if file.item_count]
            far: list[Callable[[Asked], list[IndexHit]]] = [each.ask for each in reversed(uploaded)]
            try:
                answer = ask(asked, near, far, self._runtime)
            except StoreClosedError:  # one was uploaded, or expired, just now
                continue
            if not answer.complete and self._uploaded.segments is not uploaded:
                continue
            return IndexAnswer(hits=answer.hits, complete=answer.complete and is_drained)
        raise StoreClosedError("the index is being closed")

    def seal(self) -> None:
        """Upload what is only on the broker's disk, now. Raises what the backend raises."""
        self._check_open()
        with self._uploading:
            self._filling.roll()
            self._upload_full()

    # -- in the background --------------------------------------------------------------------

    def step(self) -> None:
        """One look at what is to be done. What fails is logged and done the next time."""
        if not self._is_open:
            return
        now = self._runtime.clock.now_ms()
        failures = []
        for work in (self._keep_up, self._upload_in_time, self._expire, self._copy_footers):
            with self._uploading:
                failures.append(self._try(work, now))
        self.failure = next((each for each in failures if each is not None), None)

    def _try(self, work: Callable[[int], None], now: int) -> TieredStoreError | None:
        try:
            work(now)
        except TieredStoreError as error:
            log.warning("the key index: %s", error)
            self.failure = error
            return error
        return None

    def expire(self, before_ms: int) -> int:
        """Drop the oldest uploaded files whose messages were all stored before; how many."""
        self._check_open()
        with self._uploading:
            return self._uploaded.drop_before(before_ms)

    def _keep_up(self, now: int) -> None:
        self._filling.roll_if_older(now - self._config.index_rolling_hours * HOUR_MS)
        self._filling.drain()
        if self._filling.is_due:
            self._filling.sync()

    def _upload_full(self) -> None:
        """Oldest first; a failure ends it, so that they stay in order."""
        with self._uploading:
            if self._uploaded.has_leftovers:
                self._uploaded.settle()
            full = self._filling.full
            if full:
                self._filling.sync()
            for file in full:
                self._compact_upload().upload(file)

    def _upload_in_time(self, now: int) -> None:
        """One that failed waits a while: it may be hundreds of MiB."""
        if now < self._next_upload:
            return
        self._next_upload = now + UPLOAD_AGAIN_MS
        self._upload_full()
        self._next_upload = 0

    def _expire(self, now: int) -> None:
        if not self._config.expiry_enabled or not self._uploaded.segments:
            return
        hours = [row.reserve_hours or 0 for row in self._metadata.topics()]
        self.expire(now - max([self._config.reserve_hours, *hours]) * HOUR_MS)

    def _copy_footers(self, now: int) -> None:
        for each in self._uploaded.segments:
            if each.wants_copy:
                each.make_copy()

    def _compact_upload(self) -> CompactUpload:
        return CompactUpload(
            self._filling,
            self._uploaded,
            self._watermarks,
            self._metadata,
            self._cache,
            is_stopped=lambda: self._is_closing,
        )

    def _new_filling(self) -> Filling:
        return Filling(self._folder, self._watermarks, self._metadata, self._runtime.clock)

    def _settle(self) -> None:
        """Where the backend does not answer, this is done before the next upload."""
        try:
            doomed.finish(self._provider, self._metadata, self._uploaded.path)
            if self._uploaded.has_leftovers:
                self._uploaded.settle()
        except TieredStoreError as error:
            log.warning("an index upload was cut short and is looked at later: %s", error)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the key index is not open")
        self._process.require()

    def _this_process(self) -> OneProcess:
        return OneProcess(f"the key index in {self._folder.path}")

    @property
    def figures(self) -> IndexFigures:
        return self._uploaded.figures(*self._filling.file_counts)
