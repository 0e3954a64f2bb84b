"""The contract of a provider, which opens, lists and writes segments; base classes for wrappers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import PositionMismatchError, SegmentNotFoundError
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentType

if TYPE_CHECKING:
    from tieredstore.driver.metrics import Metrics
    from tieredstore.driver.shelf import Generations, Scratch
    from tieredstore.model.config import StoreConfig


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment that lies in the backend, whether the catalogue knows it or not."""

    path: str
    type: SegmentType
    base: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentWrite:
    segment: FileSegment
    position: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class WritePair:
    """One queue's share of a round: its log bytes, then the queue units that name them."""

    log: SegmentWrite | None
    queue: SegmentWrite | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What lies in a backend, is part of no segment and only costs; `kind` is one word."""

    kind: str
    name: str
    size: int = 0
    id: str = ""  # where the name alone does not say which


class SegmentProvider(ABC):
    """Opens segments of one backend, and moves many at a time.

    Third parties implement `open` and `list`; the rest has defaults over the runtime's two pools.

    * Any thread may call anything at any time. Nothing touches the backend before the first call
      that needs it: clients are made lazily, per process.
    * A failure of one read or pair never touches another.
    * `close` is idempotent, waits for nothing and leaves the segments it opened to their owners.
    * A provider that repeats failed requests itself says so in `retries_itself`: it gets no wrapper
      that retries, and its own `write_many` is used.

    Raises: what FileSegment raises; InvalidConfigError from `from_config`.
    """

    retries_itself: bool = False

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        """Build it from the settings, without I/O."""
        raise NotImplementedError(f"{cls.__name__} cannot be built from settings")

    @abstractmethod
    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        """A handle on one segment, existing or not. BackendRefusedError for an unsafe name."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        """Every segment whose queue path is `prefix` or lies below it, lazily and in no order.

        What has no segment's name is passed over. A prefix ends at a `/`: `broker/a` names neither
        `broker/ab` nor `broker/a-1`.
        """

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """Write a round; one future a pair, done as its pair is done.

        Within a pair the log is durable before the queue is written. A failed log write leaves
        the queue untouched.
        """
        return [self._runtime.dispatch.submit(_write_pair, pair) for pair in pairs]

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """A whole segment from a stream of blocks, in bounded memory; returns its size.

        Whole or not at all: after an error there is no such segment, and none from an empty
        stream. One that has bytes already raises PositionMismatchError and stays as it is. What
        the stream raises comes through. This default removes what it wrote when
        it fails, but cannot after a crash: a provider that can do better overrides it.
        """
        refuse_existing(segment)
        position = 0
        try:
            for block in blocks:
                segment.write(position, block)
                position += memoryview(block).nbytes
        except BaseException:
            segment.delete()
            raise
        return position

    def refresh(self) -> None:  # noqa: B027 - most providers remember nothing
        """Sizes asked from now on are those of now: for a reader whose catalogue is newer.

        Makes no request. Only what others write may have been remembered.
        """

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        """What broken uploads and stalled writers left below `prefix`, as in `list`.

        Beside a live writer it may show an upload that is under way.
        """
        return ()

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:  # noqa: B027 - has none
        """Delete what `leftovers` showed. The caller holds the catalogue's lock."""

    def generations(self, broker: str) -> Generations | None:
        """Where this broker's catalogue is published; None where nobody could read it."""
        return None

    def scratch(self, broker: str) -> Scratch | None:
        """Where jobs stage what is to become part of the tier; None where there is no such place.

        What lies there is among the `leftovers` too.
        """
        return None

    def places(self) -> Sequence[tuple[str, str]] | None:
        """Cluster and broker of each tier that lies at this root, by name.

        For an error that says what is there instead. None where a provider cannot say.
        """
        return None

    def probe(self) -> Sequence[Finding]:
        """Can this backend be trusted? Writes, reads, lists and deletes a segment of its own."""
        return _probe(self)

    def report_to(self, metrics: Metrics) -> None:  # noqa: B027 - most requests are measured outside
        """Where what only the provider sees is measured. Called before the first request."""

    def close(self) -> None:  # noqa: B027 - a provider with nothing to release needs no close
        """Release clients; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def refuse_existing(segment: FileSegment) -> None:
    """PositionMismatchError where the segment has bytes already."""
    try:
        size = segment.size()
    except SegmentNotFoundError:
        return
    if size:
        raise PositionMismatchError(segment.path, expected=0, actual=size)


def _write_pair(pair: WritePair) -> None:
    for write in (pair.log, pair.queue):
        if write is not None:
            write.segment.write(write.position, write.data)


PROBE_PATH = "tieredstore-probe/rmq_sys_PROBE/0"


def _probe(provider: SegmentProvider) -> list[Finding]:
    findings: list[Finding] = []

    def note(check: str, passed: bool, detail: str = "") -> None:
        findings.append(Finding.of_check(check, passed, detail))

    with provider.open(PROBE_PATH, SegmentType.COMMIT_LOG, 0) as segment:
        segment.delete()
        try:
            segment.write(0, b"probe")
            segment.write(5, b"-tail")
            note("append", segment.size() == 10)
            note("range", segment.read(3, 4) == b"be-t")
            try:
                segment.write(5, b"other")
                note("position", False, "a write in the middle was accepted")
            except PositionMismatchError as error:
                note("position", error.actual == 10, str(error))
            listed = [found.size for found in provider.list(PROBE_PATH)]
            note("listing", listed == [10], f"listed sizes {listed}")
        finally:
            segment.delete()
        try:
            segment.size()
            note("delete", False, "the segment is still there")
        except SegmentNotFoundError:
            note("delete", True)
    return findings


class SegmentWrapper(FileSegment):
    """Forwards everything to `inner`."""

    def __init__(self, inner: FileSegment) -> None:
        super().__init__(inner.queue_path, inner.type, inner.base)
        self.inner = inner

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def is_full(self) -> bool:
        return self.inner.is_full

    @property
    def wants_seal(self) -> bool:
        return self.inner.wants_seal

    def size(self) -> int:
        return self.inner.size()

    def read(self, position: int, length: int) -> bytes:
        return self.inner.read(position, length)

    def write(self, position: int, data: Buffer) -> None:
        self.inner.write(position, data)

    def seal(self) -> None:
        self.inner.seal()

    def delete(self) -> None:
        self.inner.delete()

    def close(self) -> None:
        self.inner.close()


class ProviderWrapper(SegmentProvider):
    """Wraps what `inner` opens and forwards the rest.

    `write_many` keeps its default here, which goes through the wrapped segments.
    """

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.inner = inner
        self.retries_itself = inner.retries_itself

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return SegmentWrapper(segment)

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        return self.wrap(self.inner.open(path, type, base))

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        return self.inner.list(prefix)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """By the inner provider, which may know a better way than write after write."""
        inner = segment.inner if isinstance(segment, SegmentWrapper) else segment
        return self.inner.create(inner, blocks)

    def refresh(self) -> None:
        self.inner.refresh()

    def report_to(self, metrics: Metrics) -> None:
        self.inner.report_to(metrics)

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        return self.inner.leftovers(prefix)

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:
        self.inner.remove_leftovers(leftovers)

    def generations(self, broker: str) -> Generations | None:
        return self.inner.generations(broker)

    def scratch(self, broker: str) -> Scratch | None:
        return self.inner.scratch(broker)

    def places(self) -> Sequence[tuple[str, str]] | None:
        return self.inner.places()

    def probe(self) -> Sequence[Finding]:
        return self.inner.probe()

    def close(self) -> None:
        self.inner.close()
