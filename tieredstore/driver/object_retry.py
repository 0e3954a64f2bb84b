"""Trying an object store's requests again: the one layer that does.

What lives here: `RetryingClient`. Policy and machinery are those of segments, in `retry.py`; a call
that succeeds at once costs nothing more than a clock's reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tieredstore.driver.lost_reply import settling
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.object_client import (
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.object_wrapper import ObjectClientWrapper
from tieredstore.driver.retry import Retry, RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendUnavailableError,
    TieredStoreError,
)


class RetryingClient(ObjectClientWrapper):
    """A client whose transient failures are tried again, each request for itself.

    * Of many ranges or deletes only those that failed are repeated; a listing goes on behind the
      last key it gave, so nothing is skipped or given twice.
    * A put whose reply was lost, and that then meets an object, looks whether it is its own: same
      size and same metadata, which must hold something unique. Without metadata it is a conflict.
    """

    def __init__(self, inner: ObjectClient, policy: RetryPolicy, runtime: Runtime) -> None:
        super().__init__(inner)
        self._retry = Retry(policy, runtime)

    def report_to(self, metrics: Metrics) -> None:
        """Have retries shown from now on."""
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
        if_match: str | None = None,
    ) -> ObjectFacts:
        def put() -> ObjectFacts:
            return self.inner.put(
                key, data, metadata=metadata, if_absent=if_absent, if_match=if_match
            )

        return self._put(put, key, data, metadata)

    def created(self, key: str, data: Buffer, *, metadata: Mapping[str, str]) -> bool:
        """Put a new object; whether it had to be asked for only once. What it raises is `put`'s.

        A put that was sent again may land long after its answer: the first one is under way.
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
        return self.inner.put_stream(
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=self._retry
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

        while (found := self._retry(advance)) is not None:
            last = found.key
            yield found

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        return self.deleted(keys)[0]

    def deleted(self, keys: Sequence[str]) -> tuple[Mapping[str, TieredStoreError], bool]:
        """What failed and why, and whether nothing had to be asked for a second time.

        A delete that was sent again may land long after its answer: the first one is under way.
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
        """Until nothing is pending or the policy gives up: what is left shows in the results."""
        try:
            self._retry(attempt)
        except BackendUnavailableError:
            pass
