"""One bucket and many processes that use it; a test can make each one fail or stall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tieredstore.driver.object_client import (
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
    once,
)
from tieredstore.driver.object_requests import settling
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

T = TypeVar("T")

CLUSTER = "DefaultCluster"
FIRST, SECOND = 1, 2  # the epochs that the first and the second writer claim
PATH = "broker-a/TopicTest/0"
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF)
FAILURES = (Fault.BEFORE, Fault.AFTER, Fault.HALF)


class StruckClient(ObjectClientWrapper):
    """A client whose requests fail as planned; it calls `before` ahead of each one.

    Half a delete removes every other key but keeps the first, such as a segment's first part.
    Half an upload leaves no object.
    """

    def __init__(self, inner: ObjectClient, faults: Faults) -> None:
        super().__init__(inner)
        self.faults = faults
        self.before: Callable[[str, str], None] = lambda operation, key: None

    def head(self, key: str) -> ObjectFacts:
        return self._struck("head", key, lambda: self.inner.head(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._struck("get", key, lambda: self.inner.get_range(key, start, length))

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        return self._struck(
            "put",
            key,
            lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent),
        )

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        data = b"".join(blocks)
        if not data:
            return None

        def put() -> ObjectFacts:
            return self.put(key, data, metadata=metadata, if_absent=if_absent)

        return attempt(settling(put, self.head, key, len(data), metadata))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        return iter(self._struck("list", prefix, lambda: [*self.inner.list(prefix, after=after)]))

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        def half() -> None:
            self.inner.delete_many(keys[1::2])

        first = keys[0] if keys else ""
        return self._struck("delete", first, lambda: self.inner.delete_many(keys), half)

    def _struck(
        self,
        operation: str,
        key: str,
        call: Callable[[], T],
        half: Callable[[], None] = lambda: None,
    ) -> T:
        self.before(operation, key)
        fault = self.faults.next()
        if fault in (Fault.HALF, Fault.CRASH_HALF):
            half()
        if fault in (Fault.AFTER, Fault.CRASH_AFTER):
            with suppress(TieredStoreError):  # an error reply, such as "not found", is lost too
                call()
        if fault in CRASHES:
            raise SimulatedCrash
        if fault is not None:
            raise BackendUnavailableError(key, operation, fault.value)
        return call()


class Bucket:
    """What outlives the processes; `clients` replaces the store in memory by another one."""

    def __init__(self, clients: Callable[[], ObjectClient] | None = None, **settings: Any) -> None:
        self.objects = MemoryObjects()
        self._clients = clients or (lambda: MemoryObjectClient(self.objects))
        self._settings = settings

    def process(
        self, faults: Faults | None = None, *, retries: int = 0, runtime: Runtime | None = None
    ) -> Process:
        client = StruckClient(self._clients(), faults or Faults())
        runtime = runtime or Runtime.inline()
        provider = ObjectProvider(
            client,
            CLUSTER,
            runtime,
            retry=RetryPolicy(retries_max=retries),
            **self._settings,
        )
        return Process(client, provider)


class Process:
    """One client and its provider."""

    def __init__(self, client: StruckClient, provider: ObjectProvider) -> None:
        self.client = client
        self.provider = provider
        self.open = provider.open

    @property
    def requests(self) -> dict[str, int]:
        inner = self.client.inner
        assert isinstance(inner, MemoryObjectClient)
        return {name: count for name, count in inner.requests.items() if count}

    def forget_requests(self) -> None:
        inner = self.client.inner
        assert isinstance(inner, MemoryObjectClient)
        inner.requests.clear()

    def sizes(self) -> dict[tuple[str, SegmentType, int], int]:
        """The size of each segment that a rebuild would find."""
        listed = list(self.provider.list())
        found = {(each.path, each.type, each.base): each.size for each in listed}
        assert len(found) == len(listed)
        return found
