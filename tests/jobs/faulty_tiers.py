"""Backends that fail, with names that a setting can give: workers make them from settings.

The faults and the objects in memory belong to this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self

from tests.providers.object_kit import StruckClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.jobs import worker
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Faults, FaultyClient, FaultyProvider, ObjectFaults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

POSIX_FAULTS = Faults()
REQUEST_FAULTS = [Faults()]  # of the simulated process that runs now
OBJECT_FAULTS: dict[str, ObjectFaults] = {}
BUCKETS: dict[str, MemoryObjects] = {}


class FaultyPosix(FaultyProvider):
    """A directory; `POSIX_FAULTS` strikes, and nothing is retried."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        made = cls(PosixProvider.from_config(config, runtime), POSIX_FAULTS, runtime)
        made.retries_itself = True
        return made


class LyingPosix(PosixProvider):
    """A directory that stores one wrong byte, in one segment."""

    lies_about: tuple[str, SegmentType, int] | None = None

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        if (segment.queue_path, segment.type, segment.base) != self.lies_about:
            return super().create(segment, blocks)
        damaged = bytearray(b"".join(blocks))
        damaged[7] ^= 1
        return super().create(segment, [bytes(damaged)])


class StruckObjects(ObjectProvider):
    """A bucket in memory, named by the setting `bucket`; `REQUEST_FAULTS` strikes, and nothing is
    retried."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        client = MemoryObjectClient(BUCKETS.setdefault(config.bucket, MemoryObjects()))
        return cls(
            StruckClient(client, REQUEST_FAULTS[0]),
            config.cluster_name,
            Runtime.inline(),
            joins_epoch=not config.claim_epoch,
            retry=RetryPolicy(retries_max=0),
        )


def in_struck_bucket(config: StoreConfig, name: str, **settings: Any) -> StoreConfig:
    """The same settings for a bucket of `StruckObjects`."""
    provider = f"{__name__}:{StruckObjects.__name__}"
    return replace(config, provider=provider, bucket=name, path="", **settings)


@contextmanager
def struck(bucket: str, held: Mapping[str, Any], faults: Faults) -> Iterator[None]:
    """The process of this block finds these objects in its bucket, and may fail of these faults.
    Another process follows."""
    BUCKETS[bucket].held = dict(held)
    worker._PARTS.providers.clear()  # they know the log that was put back
    REQUEST_FAULTS[0] = faults
    try:
        with suppress(TieredStoreError):
            yield
    finally:
        REQUEST_FAULTS[0] = Faults()
        worker._PARTS.providers.clear()


class FaultyObjects(ObjectProvider):
    """A bucket in memory, named by the setting `bucket`; each bucket has its own faults."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        client = MemoryObjectClient(BUCKETS.setdefault(config.bucket, MemoryObjects()))
        faults = OBJECT_FAULTS.setdefault(config.bucket, ObjectFaults(0.0))
        # Delays and retries take no time: nobody waits for this clock.
        waiting = Runtime.inline()
        inner = FaultyClient(client, faults, waiting.clock)
        return cls(inner, config.cluster_name, waiting, joins_epoch=not config.claim_epoch)
