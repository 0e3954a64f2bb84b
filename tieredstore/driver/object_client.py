"""The contract of an object store's client: the few requests that a tier needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, TypeVar

from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentError,
    TieredStoreError,
)

T = TypeVar("T")

KEYS_PER_REQUEST: Final = 1_000  # in a page of a listing and in a batch delete
UPLOAD_PART_BYTES: Final = 16 << 20  # a longer stream is uploaded in parts of this size


class ObjectExistsError(SegmentError):
    """A put that was to create an object found one: the key is taken.

    It may be our own earlier attempt, whose reply was lost: check before calling it a conflict.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key, "there is such an object already")


class KeysExpiredError(BackendRefusedError):
    """The keys have expired, or the clock is wrong: this says nothing about the store."""


class OtherBytesError(BackendUnavailableError):
    """The reply to a read is not the bytes that were asked for, as from a store that ignores
    ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What a store says about an object; `etag` identifies its bytes, `metadata` is ours."""

    key: str
    size: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedKey:
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Range:
    key: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    """A multipart upload that was never completed: it costs money and is in no listing."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCapabilities:
    """Exact guarantees of a store; its client makes up for missing ones as well as it can.

    * `create_only`: one of several racing writers wins, whichever processes they are in.
    * `metadata`: metadata that was put with an object is returned.
    * `atomic_put`: nobody sees half an object.
    * `paged_uploads`: a large stream is uploaded in parts.
    * `empty_page_once`: a page without keys is one request of a listing, and not two.
    """

    create_only: bool = True
    metadata: bool = True
    atomic_put: bool = True
    paged_uploads: bool = True
    empty_page_once: bool = True


class Attempt(Protocol):
    """Carries out one request of many, perhaps more than once."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def once(call: Callable[[], T], /) -> T:
    return call()


def check_object_range(key: str, start: int, length: int) -> None:
    """Refuse a range that no object can have."""
    if start < 0 or length < 0:
        raise OffsetOutOfRangeError(
            f"{length} bytes of {key}", offset=start, minimum=0, maximum=max(0, start)
        )


def beyond_end(key: str, start: int, length: int, size: int) -> OffsetOutOfRangeError:
    """The error for a range that is not wholly within `size` bytes."""
    return OffsetOutOfRangeError(
        f"{length} bytes of {key}", offset=start, minimum=0, maximum=max(0, size - length)
    )


class ObjectClient(ABC):
    """One bucket and prefix; keys are relative to it, `/`-separated, without a leading slash.

    * Any thread may call anything at any time. The first call in a process makes the connection,
      so a client also works after a fork.
    * One call is one request if the store has such a request, and a bounded number otherwise. Only
      the layer above retries.
    * Every read has the requested length, or is an error. A listing is complete, however long.
    * `close` is idempotent; afterwards everything else raises StoreClosedError.

    Raises: SegmentNotFoundError for an absent object, OffsetOutOfRangeError for a range beyond its
    end, ObjectExistsError, BackendUnavailableError (the outcome of a put is unknown),
    BackendRefusedError, StoreClosedError.
    """

    @property
    def capabilities(self) -> ObjectCapabilities:
        """What the store guarantees, given its kind and its settings."""
        return ObjectCapabilities()

    def describe(self) -> str:
        """Which client this is, and of which store: one line for logs, without secrets."""
        return type(self).__name__

    @abstractmethod
    def head(self, key: str) -> ObjectFacts:
        """Facts about the object; SegmentNotFoundError if it does not exist."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly these bytes: one request, none for a length of 0."""

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        """Each range or its error, in order; read in parallel if the client can."""
        found: list[bytes | TieredStoreError] = []
        for wanted in ranges:
            try:
                found.append(self.get_range(wanted.key, wanted.start, wanted.length))
            except TieredStoreError as error:
                found.append(error)
        return found

    @abstractmethod
    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        """Put a whole object in one request; durable on return.

        With `if_absent`, ObjectExistsError if there is one already; without, it replaces what is
        there.
        """

    @abstractmethod
    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        """Put an object from a stream, in bounded memory, whole or not at all.

        Each request of the upload goes through `attempt`: a stream cannot be read twice, so the
        layer that retries hands in how. Parts can be repeated; if the reply to the last request was
        lost, looking for `metadata` settles it, which should hold something that no other writer
        has.

        A failed upload is aborted; after a crash, `abandoned_uploads` lists it. For a stream
        without bytes: None, and no object. Errors of the stream are passed on.
        """

    @abstractmethod
    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        """Every key that begins with `prefix` and sorts after `after`, in order, page by page."""

    @abstractmethod
    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        """Delete them, as many per request as it takes; returns those that failed, and why.

        A key that does not exist is no error.
        """

    @abstractmethod
    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        """Multipart uploads under way or left behind; empty if the store has no such thing."""

    @abstractmethod
    def abort_upload(self, upload: AbandonedUpload) -> None:
        """Throw an upload away; idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Release connections; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ObjectClientWrapper(ObjectClient):
    """Forwards everything to `inner`."""

    def __init__(self, inner: ObjectClient) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> ObjectCapabilities:
        return self.inner.capabilities

    def describe(self) -> str:
        return self.inner.describe()

    def head(self, key: str) -> ObjectFacts:
        return self.inner.head(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.get_range(key, start, length)

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return self.inner.get_ranges(ranges)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        return self.inner.put(key, data, metadata=metadata, if_absent=if_absent)

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
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=attempt
        )

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        return self.inner.list(prefix, after=after)

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        return self.inner.delete_many(keys)

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        return self.inner.abandoned_uploads(prefix)

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self.inner.abort_upload(upload)

    def close(self) -> None:
        self.inner.close()
