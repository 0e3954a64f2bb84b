"""When what is too old goes: each queue of a tier by its topic's reserve hours.

What lives here: the round over all queues. Which segments of a queue go, and in which order, is
for `flat.expiry` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tieredstore.access.upload.dispatcher import Dispatcher
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import Clock
from tieredstore.flat.expiry import expire, kept_from
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

BUSY_SECONDS_MAX: Final = 5.0  # a queue that is being uploaded is waited for that long

log = log_of(__name__)


class Retention:
    """Lets every queue drop what is older than its topic keeps it.

    A queue that fails is logged, remembered in `errors` and tried again in the next round, and so
    is one that is being uploaded all the time; neither keeps another from being looked after.
    """

    def __init__(
        self,
        files: FlatFileStore,
        dispatcher: Dispatcher,
        *,
        forget: Callable[[QueueKey], None],
        metadata: MetadataStore,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._forget = forget  # what is cached of messages that are no longer there
        self._metadata = metadata
        self._config = config
        self._clock = clock
        self._is_stopped = False
        self.errors: dict[QueueKey, str] = {}  # replaced, never changed

    def step(self) -> None:
        """One round; nothing where `expiry_enabled` is off."""
        if not self._config.expiry_enabled:
            return
        self._files.delete_leftovers(is_stopped=lambda: self._is_stopped)
        errors = {}
        for file in self._files.files():
            if self._is_stopped:
                break
            try:
                self._expire(file)
            except TieredStoreError as error:
                log.warning("%s: could not drop what is too old: %s", file.path, error)
                errors[file.key] = str(error)
        self.errors = errors

    def stop(self) -> None:
        """Look after no further queue."""
        self._is_stopped = True

    def _expire(self, file: FlatMessageFile) -> None:
        topic = self._metadata.topic(file.key.topic)
        before_ms = None if topic is None else kept_from(self._config, topic, self._clock.now_ms())
        if before_ms is None:
            return
        with self._dispatcher.alone_with(file.key, timeout=BUSY_SECONDS_MAX) as alone:
            if not alone:
                log.info("%s: is being uploaded, expired in the next round", file.path)
            elif self._files.get(file.key) is file:
                expire(file, before_ms)
                self._forget(file.key)
