"""The key index of a tier as one sees it who only reads: the uploaded files, and nothing local.

What lives here: `UploadedIndex`. What the broker has not uploaded yet is not found.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.index.hits import NOTHING, CommittedRun, IndexAnswer, IndexFigures
from tieredstore.index.key_search import Asked, ask
from tieredstore.index.uploaded_segment import UploadedSegment
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, StoreClosedError, TieredStoreError

_ASKED_AGAIN_MAX: Final = 16


class UploadedIndex:
    """Finds messages in the uploaded files; changes nothing and keeps nothing on a disk.

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
    ) -> None:
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
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
        slots = Watermarks(self._metadata, self._config.broker_name).slot_count()
        if slots is not None:
            self._uploaded = self._table(replace(self._config, index_slot_count=slots))
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
        return None

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Where messages may lie that have the key: at most `count_max`, the newest first."""
        if not self._is_open:
            raise StoreClosedError("the key index is not open")
        asked = Asked.of(topic, topic_id, key, count_max=count_max, begin=begin, end=end)
        if not asked.can_have_answers:
            return NOTHING
        known = self._segments()
        answer = self._asked(asked, known)
        for _ in range(_ASKED_AGAIN_MAX):
            if answer.complete:
                break
            with suppress(TieredStoreError):  # that the answer is not complete says enough
                self._metadata.refresh()
                self._provider.refresh()
            before, known = known, self._segments()
            if known == before:  # nothing has expired meanwhile: it is damage
                break
            answer = self._asked(asked, known)
        return answer

    def _asked(self, asked: Asked, segments: Sequence[UploadedSegment]) -> IndexAnswer:
        return ask(asked, (), [each.ask for each in reversed(segments)], self._runtime)

    def _segments(self) -> tuple[UploadedSegment, ...]:
        """Those that the catalogue names now."""
        with self._refreshing:
            self._uploaded.refresh()
            return self._uploaded.segments
