"""A broker's log over a bucket in memory, and what it has acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tieredstore.driver.object_client import (
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import SegmentKey
from tieredstore.roundlog.frames import crc32c
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

BROKER = "broker-a"
LAYOUT = ObjectLayout("DefaultCluster")


class Killed(BaseException):
    """The process ends here."""


class KillingClient(ObjectClientWrapper):
    """Ends the process at its n-th request: before it is sent, or after it has landed."""

    def __init__(self, inner: MemoryObjectClient, at: int = -1, *, lands: bool = False) -> None:
        super().__init__(inner)
        self.count = 0
        self.at = at
        self._lands = lands

    def _request(self, call: Callable[[], Any]) -> Any:
        if 0 <= self.at <= self.count:
            if self.count == self.at and self._lands:
                self.count += 1
                call()
            raise Killed
        self.count += 1
        return call()

    def head(self, key: str) -> ObjectFacts:
        found: ObjectFacts = self._request(lambda: self.inner.head(key))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = self._request(lambda: self.inner.get_range(key, start, length))
        return found

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        found: Sequence[bytes | TieredStoreError] = self._request(
            lambda: self.inner.get_ranges(ranges)
        )
        return found

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        found: ObjectFacts = self._request(
            lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent)
        )
        return found

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        found: ObjectFacts | None = self._request(
            lambda: self.inner.put_stream(
                key, blocks, metadata=metadata, if_absent=if_absent, attempt=attempt
            )
        )
        return found

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        found: Iterator[ListedKey] = self._request(lambda: self.inner.list(prefix, after=after))
        return found

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        found: Mapping[str, TieredStoreError] = self._request(lambda: self.inner.delete_many(keys))
        return found


def key_of(topic: str, base: int = 0, type: SegmentType = SegmentType.COMMIT_LOG) -> SegmentKey:
    return f"{BROKER}/{topic}/0", type, base


@dataclass
class Tier:
    """A bucket, and every byte that was acknowledged."""

    objects: MemoryObjects = field(default_factory=MemoryObjects)
    clock: ManualClock = field(default_factory=ManualClock)
    acknowledged: dict[SegmentKey, bytes] = field(default_factory=dict)
    writing: Mapping[SegmentKey, bytes] = field(default_factory=dict)  # without an answer yet
    deleting: set[SegmentKey] = field(default_factory=set)

    def opened(
        self,
        at: int = -1,
        *,
        lands: bool = False,
        recent_bytes: int = 0,
        client: ObjectClient | None = None,
        joins: bool = False,
    ) -> tuple[BrokerLog, KillingClient]:
        """A process; by default it keeps nothing that it sent in memory."""
        killing = KillingClient(MemoryObjectClient(self.objects), at, lands=lands)
        runtime = Runtime.inline()
        runtime.clock = self.clock
        calls = ObjectCalls(client or killing, runtime, RetryPolicy(retries_max=0))
        log = BrokerLog(calls, LAYOUT, BROKER, runtime, recent_bytes=recent_bytes, joins=joins)
        return log, killing

    def write(self, log: BrokerLog, round: Mapping[SegmentKey, bytes]) -> None:
        """One round: more bytes for some segments."""
        draft = Draft(
            writes=[
                DraftWrite(key, len(self.acknowledged.get(key, b"")), data)
                for key, data in round.items()
            ]
        )
        self.writing = round
        log.append([draft])
        self.writing = {}
        assert draft.error is None
        for key, data in round.items():
            self.acknowledged[key] = self.acknowledged.get(key, b"") + data

    def delete(self, log: BrokerLog, key: SegmentKey) -> None:
        self.deleting = {key}
        log.append([Draft(deleted=[key])])
        self.deleting = set()
        del self.acknowledged[key]

    def check(self, log: BrokerLog | None = None) -> LogState:
        """Everything acknowledged can be read, through `log` or by a new reader."""
        log = log or self.opened()[0]
        state = log.state()
        assert {key: len(data) for key, data in self.acknowledged.items()} == {
            each.key: each.size for each in state.segments.values()
        }
        for key, data in self.acknowledged.items():
            segment = state.segment(key)
            assert segment is not None
            assert self._bytes(log, state, segment.number) == data
        return state

    def _bytes(self, log: BrokerLog, state: LogState, number: int) -> bytes:
        sealed = state.segments[number].sealed
        if sealed is not None:
            held = self.objects.held[log.key(sealed.key)][0]
            assert (len(held), crc32c(held)) == (sealed.size, sealed.crc)
            return held
        found = b""
        for place in state.places(number):
            assert place.position == len(found)
            held = self.objects.held[log.key(place.object)][0]
            part = held[place.offset : place.offset + place.length]
            assert (len(part), crc32c(part)) == (place.length, place.crc)
            found += part
        return found
