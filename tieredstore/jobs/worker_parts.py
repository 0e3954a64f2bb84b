"""The parts that a worker reads and writes a tier with, made once per process and settings.

What lives here: `worker_runtime`, `worker_provider` and `queue_file`. A worker never opens the
catalogue: what it is to do brings the rows it needs.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from tieredstore.access.wiring import provider_of
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueKey

PROVIDERS_MAX: Final = 8  # tiers that one worker keeps open; the one used longest ago goes
FETCH_THREADS: Final = 4  # reads under way in one worker: a machine has several workers
DISPATCH_THREADS: Final = 4


@dataclass(slots=True)
class _Parts:
    """What this process has made. Clients do not survive a fork, so a child makes its own."""

    runtime: Runtime | None = None
    providers: OrderedDict[tuple[StoreConfig, str], SegmentProvider] = field(
        default_factory=OrderedDict
    )
    # Two providers of one object store would be two writers, and stop each other.
    guard: threading.RLock = field(default_factory=threading.RLock)

    def forget(self) -> None:
        """Drop all of it unclosed: it is the parent's."""
        self.guard = threading.RLock()
        self.runtime = None
        self.providers = OrderedDict()


_PARTS: Final = _Parts()
os.register_at_fork(after_in_child=_PARTS.forget)


def worker_runtime() -> Runtime:
    """The runtime of this process. Nobody closes it: its threads end with the process."""
    with _PARTS.guard:
        if _PARTS.runtime is None:
            _PARTS.runtime = Runtime.threads(
                dispatch_threads=DISPATCH_THREADS, fetch_threads=FETCH_THREADS
            )
        return _PARTS.runtime


def worker_provider(config: StoreConfig, *, run: str = "") -> SegmentProvider:
    """The provider of these settings in this process; stays open for the next item.

    A job that writes names its run: a provider that has written takes itself for the only writer,
    and would not see what others wrote since.
    """
    place = config.with_full_paths(), run
    with _PARTS.guard:
        provider = _PARTS.providers.get(place)
        if provider is None:
            provider = provider_of(config, worker_runtime(), NoMetrics())
            _PARTS.providers[place] = provider
            if len(_PARTS.providers) > PROVIDERS_MAX:
                _PARTS.providers.popitem(last=False)[1].close()
        else:
            _PARTS.providers.move_to_end(place)
        return provider


def queue_file(
    config: StoreConfig,
    key: QueueKey,
    path: str,
    rows: Sequence[SegmentRecord],
    *,
    provider: SegmentProvider | None = None,
) -> FlatMessageFile:
    """A queue as these rows of the catalogue show it, to be read only. Makes no request.

    The rows are those of its commit log and its consume queue, in any order, their sizes true.
    """
    opened = worker_provider(config) if provider is None else provider
    file = FlatMessageFile(
        QueueRecord(broker_name=path.partition("/")[0], topic=key.topic, queue_id=key.queue_id),
        TopicRecord(topic=key.topic, topic_id=-1),
        config,
        path=path,
        provider=opened,
        metadata=_NO_CATALOGUE,  # type: ignore[arg-type]
        clock=worker_runtime().clock,
    )
    for part in (file.log, file.queue):
        part.take_over(
            tuple(
                FlatSegment(opened.open(path, row.type, row.base_offset), row)
                for row in sorted(rows, key=lambda row: row.base_offset)
                if row.type is part.type
            )
        )
    file.problem = "a worker only reads"
    return file


class _NoCatalogue:
    """Stands where a queue has its catalogue: a worker that asks it anything has a bug."""

    def __getattr__(self, name: str) -> NoReturn:
        raise MetadataError("", f"a worker has no catalogue to {name}")


_NO_CATALOGUE: Final = _NoCatalogue()
