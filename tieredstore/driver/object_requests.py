"""Retries and counts requests to an object store, and settles a put whose reply was lost."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from tieredstore.driver.metrics import (
    OBJECT_BILL,
    OBJECT_BYTES,
    OBJECT_REQUESTS,
    Labels,
    Metrics,
    NoMetrics,
)
from tieredstore.driver.object_client import (
    KEYS_PER_REQUEST,
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectExistsError,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.retry import Retry, RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)

Head = Callable[[str], ObjectFacts]


def own_object(
    head: Head, key: str, size: int, metadata: Mapping[str, str] | None
) -> ObjectFacts | None:
    """The object at `key` if it was put with this metadata; else None."""
    if not metadata:
        return None
    try:
        facts = head(key)
    except SegmentNotFoundError:
        return None
    same = all(facts.metadata.get(name) == value for name, value in metadata.items())
    return facts if same and facts.size == size else None


def refuse_existing_object(head: Head, key: str) -> None:
    """Check before the put, for a store without conditions. This guarantees nothing."""
    try:
        head(key)
    except SegmentNotFoundError:
        return
    raise ObjectExistsError(key)


def settling(
    put: Callable[[], ObjectFacts],
    head: Head,
    key: str,
    size: int,
    metadata: Mapping[str, str] | None,
) -> Callable[[], ObjectFacts]:
    """A put that can be called again while its outcome is unknown. A conflict may then be with our
    own earlier attempt.

    A refusal may then follow an attempt that succeeded: if that cannot be seen, the outcome stays
    unknown.
    """
    repeated = False

    def attempt() -> ObjectFacts:
        nonlocal repeated
        in_doubt, repeated = repeated, True
        try:
            return put()
        except (ObjectExistsError, BackendRefusedError) as error:
            # Even at the first try, a conflict may be with ourselves: HTTP libraries send a request
            # again when a kept connection breaks.
            taken = isinstance(error, ObjectExistsError)
            try:
                landed = own_object(head, key, size, metadata) if in_doubt or taken else None
            except BackendRefusedError as refused:
                raise BackendUnavailableError(key, refused.operation, refused.reason) from refused
            if landed is not None:
                return landed
            # This try was refused, but an earlier one may have succeeded.
            if in_doubt and isinstance(error, BackendRefusedError):
                raise BackendUnavailableError(key, error.operation, error.reason) from error
            raise

    return attempt


class RetryingClient(ObjectClientWrapper):
    """A client that retries transient failures, each request separately.

    * Of many ranges or deletes, only failed ones are repeated. A listing continues after the last
      key that it returned, so nothing is skipped or returned twice. A listing that goes in circles
      is refused.
    * If the reply to a put was lost and the retry finds an object, the client checks whether the
      object is its own: same size and same metadata, which must contain something unique. Without
      metadata it is a conflict.
    """

    def __init__(self, inner: ObjectClient, policy: RetryPolicy, runtime: Runtime) -> None:
        super().__init__(inner)
        self._retry = Retry(policy, runtime)

    def report_to(self, metrics: Metrics) -> None:
        """Report retries to these metrics from now on."""
        self._retry.report_to(metrics)

    def head(self, key: str) -> ObjectFacts:
        return self._retry(self.inner.head, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._retry(self.inner.get_range, key, start, length)

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        found: dict[int, bytes | TieredStoreError] = {}
        pending = list(range(len(ranges)))

        def attempt() -> None:
            wanted = [ranges[place] for place in pending]
            try:
                answers = self.inner.get_ranges(wanted)
            except BackendUnavailableError as error:
                found.update(dict.fromkeys(pending, error))
                raise
            found.update(zip(pending, answers, strict=True))
            pending[:] = [
                place for place in pending if isinstance(found[place], BackendUnavailableError)
            ]
            for place in pending[:1]:
                failure = found[place]
                assert isinstance(failure, BackendUnavailableError)
                raise failure

        self._all_retried(attempt)
        return [found[place] for place in range(len(ranges))]

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        def put() -> ObjectFacts:
            return self.inner.put(key, data, metadata=metadata, if_absent=if_absent)

        return self._put(put, key, data, metadata)

    def created(self, key: str, data: Buffer, *, metadata: Mapping[str, str]) -> bool:
        """Put a new object; returns whether one request was enough. Raises what `put` raises.

        After a retry, the first request may still be under way, and take effect long after the
        answer.
        """
        attempts = 0

        def put() -> ObjectFacts:
            nonlocal attempts
            attempts += 1
            return self.inner.put(key, data, metadata=metadata, if_absent=True)

        self._put(put, key, data, metadata)
        return attempts < 2

    def _put(
        self,
        put: Callable[[], ObjectFacts],
        key: str,
        data: Buffer,
        metadata: Mapping[str, str] | None,
    ) -> ObjectFacts:
        size = memoryview(data).nbytes
        return self._retry(settling(put, self.inner.head, key, size, metadata))

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        def retried(call: Callable[[], T], /) -> T:
            return attempt(lambda: self._retry(call))

        return self.inner.put_stream(
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=retried
        )

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        last = after
        pages: Iterator[ListedKey] | None = None

        def advance() -> ListedKey | None:
            nonlocal pages
            if pages is None:
                pages = iter(self.inner.list(prefix, after=last))
            try:
                return next(pages, None)
            except BackendUnavailableError:
                pages = None
                raise

        mark, listed, again = "", 0, 0
        while (found := self._retry(advance)) is not None:
            again = again + 1 if found.key == last else 0
            if again == KEYS_PER_REQUEST or (found.key == mark and not again):
                raise BackendRefusedError(
                    prefix, "list", "the same keys are listed again and again"
                )
            if again:  # some stores repeat a key where two pages meet
                continue
            listed += 1
            if not listed & (listed - 1):  # at each power of two, so that every circle is found
                mark = found.key
            last = found.key
            yield found

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        return self.deleted(keys)[0]

    def deleted(self, keys: Sequence[str]) -> tuple[Mapping[str, TieredStoreError], bool]:
        """Which keys failed and why, and whether no request had to be repeated.

        After a retry, the first request may still be under way, and take effect long after the
        answer.
        """
        failed: dict[str, TieredStoreError] = {}
        pending = list(keys)
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                errors = self.inner.delete_many(pending)
            except BackendUnavailableError as error:
                failed.update(dict.fromkeys(pending, error))
                raise
            failed.update(errors)
            for key in pending:
                if key not in errors:
                    failed.pop(key, None)
            unavailable = {
                key: error
                for key, error in errors.items()
                if isinstance(error, BackendUnavailableError)
            }
            pending[:] = list(unavailable)
            for failure in unavailable.values():
                raise failure

        self._all_retried(attempt)
        return failed, attempts < 2

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        return self._retry(self.inner.abandoned_uploads, prefix)

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._retry(self.inner.abort_upload, upload)

    def _all_retried(self, attempt: Callable[[], None]) -> None:
        """Retry until nothing is pending or the policy gives up; the results show what failed."""
        try:
            self._retry(attempt)
        except BackendUnavailableError:
            pass


P = ParamSpec("P")
T = TypeVar("T")

OPERATIONS: Final = ("put", "list", "get", "head", "delete")

_LABELS: Final = {
    (operation, success): {"operation": operation, "success": str(success).lower()}
    for operation in OPERATIONS
    for success in (True, False)
}
_OPERATION_LABELS: Final = {operation: {"operation": operation} for operation in OPERATIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Dollars for a thousand requests of each kind; defaults are S3's list prices."""

    put: float = 0.005
    list: float = 0.005
    get: float = 0.0004
    head: float = 0.0004
    delete: float = 0.0

    @classmethod
    def parse(cls, entries: Iterable[str]) -> PriceTable:
        """From entries such as `put=0.005`; other operations keep their list prices."""
        prices: dict[str, float] = {}
        for entry in entries:
            name, equals, text = (part.strip() for part in entry.partition("="))
            if name not in OPERATIONS or not equals:
                raise InvalidConfigError(
                    f"request_prices: {entry!r} is no <operation>=<dollars for 1000>; operations"
                    f" are {', '.join(OPERATIONS)}"
                )
            try:
                price = float(text)
            except ValueError:
                price = math.nan
            if not 0 <= price < math.inf:
                raise InvalidConfigError(f"request_prices: {text!r} is no price")
            prices[name] = price
        return cls(**prices)

    def of(self, operation: str) -> float:
        price: float = getattr(self, operation)
        return price


@dataclass(slots=True)
class RequestCounts:
    """Requests and bytes since the start; any thread may count and read."""

    requests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, operation: str, *, success: bool, requests: int = 1, size: int = 0) -> None:
        with self._guard:
            self.requests[operation] += requests
            if not success:
                self.failures[operation] += requests
            if size:
                self.bytes[operation] += size

    def snapshot(self) -> dict[str, int]:
        """How many requests of each kind were made, including failed ones."""
        with self._guard:
            return {operation: self.requests[operation] for operation in OPERATIONS}

    def bill(self, prices: PriceTable) -> float:
        """Dollars for all requests so far, including failed ones, as some of those cost too."""
        return sum(self.bills(prices).values())

    def bills(self, prices: PriceTable) -> dict[str, float]:
        """The same for each kind of request."""
        return {
            operation: count * prices.of(operation) / 1000
            for operation, count in self.snapshot().items()
        }


class CountedClient(ObjectClientWrapper):
    """A client that counts its requests; the retrying client wraps it.

    A call that takes several pages or batches counts as that many requests.
    """

    def __init__(
        self,
        inner: ObjectClient,
        *,
        prices: PriceTable | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(inner)
        self.prices = prices or PriceTable()
        self.counts = RequestCounts()
        self._metrics: Metrics = NoMetrics()
        if metrics is not None:
            self.report_to(metrics)

    def report_to(self, metrics: Metrics) -> None:
        """Report requests and the bill to these metrics from now on."""
        self._metrics = metrics
        metrics.observe(OBJECT_BILL, self._bills)

    def bill(self) -> float:
        """The estimated dollars for all requests so far."""
        return self.counts.bill(self.prices)

    def close(self) -> None:
        """Close the client, and log how many requests it has made."""
        super().close()
        asked = [f"{count} {kind}" for kind, count in self.counts.snapshot().items() if count]
        log.info("requests: %s; %.6f dollars", ", ".join(asked) or "none", self.bill())

    def _bills(self) -> Iterator[tuple[float, Labels]]:
        for operation, dollars in self.counts.bills(self.prices).items():
            yield dollars, _OPERATION_LABELS[operation]

    def head(self, key: str) -> ObjectFacts:
        return self._counted("head", self.inner.head, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if not length:
            return self.inner.get_range(key, start, length)
        data = self._counted("get", self.inner.get_range, key, start, length)
        self._count_bytes("get", len(data))
        return data

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        found = self.inner.get_ranges(ranges)
        sizes = [len(answer) for answer in found if isinstance(answer, bytes) and answer]
        failed = sum(isinstance(answer, TieredStoreError) for answer in found)
        self._count("get", success=True, requests=len(sizes))
        self._count("get", success=False, requests=failed)
        self._count_bytes("get", sum(sizes))
        return found

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        facts = self._counted(
            "put",
            self.inner.put,
            key,
            data,
            metadata=metadata,
            if_absent=if_absent,
        )
        self._count_bytes("put", facts.size)
        return facts

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        def counted(call: Callable[[], T], /) -> T:
            return attempt(lambda: self._counted("put", call))

        facts = self.inner.put_stream(
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=counted
        )
        if facts is not None:
            self._count_bytes("put", facts.size)
        return facts

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        listed = 0
        pages = iter(self.inner.list(prefix, after=after))
        while True:
            if listed % KEYS_PER_REQUEST:
                found = next(pages, None)
            else:  # the key after a full page costs the next request
                found = self._counted("list", next, pages, None)
            if found is None:
                if not listed % KEYS_PER_REQUEST and not self.capabilities.empty_page_once:
                    self._count("list", success=True)
                return
            listed += 1
            yield found

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        requests = math.ceil(len(keys) / KEYS_PER_REQUEST)
        errors = self.inner.delete_many(keys)
        self._count("delete", success=not errors, requests=requests)
        return errors

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        return self._counted("list", self.inner.abandoned_uploads, prefix)

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._counted("delete", self.inner.abort_upload, upload)

    def _counted(self, operation: str, call: Callable[P, T], /, *args: P.args, **kw: P.kwargs) -> T:
        success = False
        try:
            outcome = call(*args, **kw)
            success = True
            return outcome
        finally:
            self._count(operation, success=success)

    def _count(self, operation: str, *, success: bool, requests: int = 1) -> None:
        if requests:
            self.counts.count(operation, success=success, requests=requests)
            self._metrics.add(OBJECT_REQUESTS, requests, _LABELS[operation, success])

    def _count_bytes(self, operation: str, size: int) -> None:
        if size:
            self.counts.count(operation, success=True, requests=0, size=size)
            self._metrics.add(OBJECT_BYTES, size, _OPERATION_LABELS[operation])
