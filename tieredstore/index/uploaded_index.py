"""The key index of a tier as one sees it who only reads: the uploaded files, and maybe local ones.

What lives here: `UploadedIndex`. On the broker's host the files that are not uploaded yet lie
beside the catalogue, and are asked too; elsewhere what is in them is not found.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.index.hits import NOTHING, CommittedRun, IndexAnswer, IndexFigures
from tieredstore.index.index_reach import indexed_offset
from tieredstore.index.key_search import Asked, ask
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.local_search import LocalFiles, ask_local
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.uploaded_segment import UploadedSegment
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)

_ASKED_AGAIN_MAX: Final = 16


class UploadedIndex:
    """Finds messages in the uploaded files, and in those of `local_folder` if one is given; changes
    nothing and keeps nothing on a disk.

    A file that is asked for the first time takes three reads of at most 36 KiB together, then two.
    What the catalogue shows is what is asked: `MetadataStore.refresh` shows new files. A file that
    cannot be read may have expired: then the catalogue is refreshed, and what it names now is
    asked. Any thread may call anything.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
        local_folder: Path | None = None,
    ) -> None:
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
        self._watermarks = Watermarks(metadata, config.broker_name)
        self._local_folder = local_folder
        self._local: LocalFiles | None = None
        self._missing: set[int] = set()  # local files that the newest catalogue names all the same
        self._uploaded = self._table(config)
        self._refreshing = threading.Lock()
        self._is_open = False

    def _table(self, config: StoreConfig) -> UploadedTable:
        return UploadedTable(
            config,
            provider=self._provider,
            metadata=self._metadata,
            runtime=self._runtime,
            cache=None,
        )

    @property
    def problem(self) -> str | None:
        return None

    @property
    def figures(self) -> IndexFigures:
        return self._uploaded.figures(0, 0)

    def load(self) -> None:
        """Open what the catalogue names; it may know better than the settings how many slots."""
        marks, config = self._watermarks, self._config
        slots = marks.slot_count()
        if slots is not None:
            items = marks.item_capacity() or config.index_item_count
            config = replace(config, index_slot_count=slots, index_item_count=items)
            self._uploaded = self._table(config)
        if self._local_folder is not None:
            self._local = LocalFiles(LocalFolder(config, self._local_folder), marks)
        self._uploaded.load()
        self._is_open = True

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        if self._is_open:
            self._is_open = False
            self._uploaded.close()

    def destroy(self) -> None:
        raise BackendRefusedError("the key index", "destroy", "it was opened for reading")

    def seal(self) -> None:
        pass

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        raise BackendRefusedError("the key index", "put", "it was opened for reading")

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """Below this queue offset it finds every message, as the catalogue notes it.

        None where nobody has noted anything: the index is not ours.
        """
        queue = QueueId(topic_id, queue_id)
        if self._local is None or self._watermarks.slot_count() is None:
            return indexed_offset(self._metadata, self._config.broker_name, topic, queue)
        self._see_what_was_uploaded(self._local)
        return self._local.indexed_offset(topic, queue)

    def _see_what_was_uploaded(self, local: LocalFiles) -> None:
        """A local file that is gone is an uploaded one, as the catalogue knows by now."""
        missing = local.missing()
        if missing != self._missing:
            with suppress(TieredStoreError):  # else `indexed_offset` tells
                self._metadata.refresh()
            self._missing = local.missing()

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Where messages may lie that have the key: at most `count_max`, the newest first."""
        if not self._is_open:
            raise StoreClosedError("the key index is not open")
        asked = Asked.of(topic, topic_id, key, count_max=count_max, begin=begin, end=end)
        if not asked.can_have_answers:
            return NOTHING
        with ExitStack() as opened:
            local, is_whole = self._opened_local(opened)
            answer = self._asked_all(asked, local)
        return answer if is_whole else IndexAnswer(hits=answer.hits, complete=False)

    def _opened_local(self, opened: ExitStack) -> tuple[Sequence[IndexStoreFile], bool]:
        """Before the uploaded files are looked up: what is uploaded meanwhile is asked twice."""
        if self._local is None:
            return (), True
        try:
            files = opened.enter_context(self._local.opened())
        except (TieredStoreError, OSError) as error:
            log.warning("a key index file of the broker's disk is not asked: %s", error)
            return (), False
        self._see_what_was_uploaded(self._local)
        return files, True

    def _asked_all(self, asked: Asked, local: Sequence[IndexStoreFile]) -> IndexAnswer:
        known = self._segments()
        answer = self._asked(asked, local, known)
        for _ in range(_ASKED_AGAIN_MAX):
            if answer.complete:
                break
            with suppress(TieredStoreError):  # that the answer is not complete says enough
                self._metadata.refresh()
                self._provider.refresh()
            before, known = known, self._segments()
            if known == before:  # nothing has expired meanwhile: it is damage
                break
            answer = self._asked(asked, local, known)
        return answer

    def _asked(
        self, asked: Asked, local: Sequence[IndexStoreFile], segments: Sequence[UploadedSegment]
    ) -> IndexAnswer:
        near = [partial(ask_local, file) for file in local if file.item_count]
        return ask(asked, near, [each.ask for each in reversed(segments)], self._runtime)

    def _segments(self) -> tuple[UploadedSegment, ...]:
        """Those that the catalogue names now."""
        with self._refreshing:
            self._uploaded.refresh()
            return self._uploaded.segments
