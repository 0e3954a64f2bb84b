"""The contract of a provider, which opens, lists and writes segments; base classes for wrappers.

Small named objects lie next to the segments: published catalogues, and files that jobs stage before
they become part of a tier.

    .catalog/<h8>_<cluster>/<broker>/<generation, 20 digits>.json
    .staged/<h8>_<cluster>/<broker>/<name>
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final, Self

from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    MetadataError,
    PositionMismatchError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType

if TYPE_CHECKING:
    from tieredstore.driver.metadata import Change, MetadataStore
    from tieredstore.driver.metrics import Metrics
    from tieredstore.model.config import StoreConfig


PROBE_PATH = "tieredstore-probe/rmq_sys_PROBE/0"
CATALOGUES: Final = ".catalog"
STAGED: Final = ".staged"
LOADS: Final = "load"
"""The folder in which loads stage. Loads hold no lock, so only age makes its files leftovers."""
LOADED: Final = "load"
"""Notes of loads that have an id: when they were committed, and how many messages."""
STREAMED: Final = "stream"
"""Notes of streams: their last batch, and when it was committed."""
LOAD_RUN: Final = "load-run"
"""Notes of commits, which a commit that is tried again looks for: when they were made."""
LOAD_MS_MAX: Final = 24 * 3_600_000
"""A load ends within this time after its first task ended; what it staged before is dead."""
LEFTOVER_KIND: Final = "staged"
"""The kind of a leftover of a job that did not end."""
LOST_LOG: Final = "lost-log"
"""The kind of the damage that a bucket has objects of a log that is not there."""

_BLOCK_BYTES: Final = 8 << 20
_GENERATION_NAME: Final = re.compile(r"([0-9]{20})\.json")
_PART: Final = r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}"
_STAGED_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,7}}")
_LOADED_NAME: Final = re.compile(rf"{LOADS}/{_PART}/([0-9]{{13}})[.].+")


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment in the backend, whether or not the catalogue knows it."""

    path: str
    type: SegmentType
    base: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A staged object of `staged_segments`, and the segment that it becomes. `crc` is CRC-32C."""

    path: str
    type: SegmentType
    base: int
    name: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class SegmentWrite:
    segment: FileSegment
    position: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """One range of one segment, for `read_together`."""

    path: str
    type: SegmentType
    base: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class WritePair:
    """One queue's share of a round: its log bytes, then the queue units that point to them.

    `rows` are the catalogue's rows for both segments, valid once the bytes are durable: a provider
    that keeps the catalogue with the bytes commits both together, others leave the rows to the
    caller.
    """

    log: SegmentWrite | None
    queue: SegmentWrite | None
    rows: tuple[SegmentRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Another writer has taken over: the newer epoch, and when this one found out."""

    epoch: int
    since_ms: int

    def describe(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"fenced by epoch {self.epoch} since {since}"


def _nothing_to_note() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenIn:
    """The segments that a provider has taken in, and those that it knows to be lost.

    Call `told` once the rebuild has reported the losses: until then they are told again.
    """

    segment_count: int = 0
    size: int = 0
    losses: tuple[str, ...] = ()
    told: Callable[[], None] = _nothing_to_note


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What a provider with a log has appended between two times: entries, each costing a PUT and a
    HEAD, and their bytes."""

    begin_ms: int
    end_ms: int
    entry_count: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSizes:
    """How a provider packs the rounds that queues share; its requests are estimated from this.

    A round of up to `inline_bytes` is one request; a larger one takes one more for each
    `data_bytes`. `rounds_merged` rounds, or as many as have `merged_bytes`, become one object;
    `chunks_merged` of these are merged again, and so on, as long as a segment has less than
    `range_bytes` in each.
    """

    inline_bytes: int
    data_bytes: int
    recent_bytes: int  # of recent rounds, which need not be read back
    rounds_merged: int
    merged_bytes: int
    chunks_merged: int
    range_bytes: int  # of one read
    one_put_bytes: int  # a longer sealed segment is uploaded in parts
    part_bytes: int
    state_every: int  # entries
    grace_ms: int  # between two deletions of dead objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Data in a backend that is part of no segment and only costs money; `kind` is one word."""

    kind: str
    name: str
    size: int = 0
    id: str = ""  # if the name alone does not identify it


class SegmentProvider(ABC):
    """Opens segments of one backend, and reads and writes many at a time.

    Third parties implement `open` and `list`; the rest has defaults that use the runtime's two
    pools.

    * Any thread may call anything at any time. Nothing touches the backend before the first call
      that needs it: clients are made lazily, per process.
    * A failure of one read or pair never affects another.
    * `close` is idempotent, waits for nothing and leaves the segments it opened to their owners.
    * A provider that retries failed requests itself sets `retries_itself`: it gets no wrapper that
      retries, and its own `write_many` is used.

    Raises: what FileSegment raises; InvalidConfigError from `from_config`.
    """

    retries_itself: bool = False
    shares_rounds: bool = False  # a round costs the same, however many queues are in it
    ends_with_process: bool = False  # a catalogue in a file outlives its bytes
    reads_together: bool = False  # bytes of many segments lie side by side, see `read_together`
    round_sizes: ClassVar[RoundSizes | None] = None  # given by a provider that shares rounds

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        """Build it from the settings, without I/O."""
        raise NotImplementedError(f"{cls.__name__} cannot be built from settings")

    @abstractmethod
    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        """A handle on one segment, which need not exist. BackendRefusedError for an unsafe name."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        """Every segment whose queue path is `prefix` or lies below it, lazily and in no order.

        Other names are skipped. A prefix ends at a `/`: `broker/a` includes neither `broker/ab` nor
        `broker/a-1`.
        """

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        """Each range or its error, in order. All of them are in memory at once, so the caller asks
        for no more than it can hold.

        A provider that sets `reads_together` needs fewer requests than reads. This default makes
        one read after another.
        """
        return [self._read(read) for read in reads]

    def reading_order(self, segments: Sequence[SegmentRecord]) -> Sequence[int]:
        """A number for each segment: segments with close numbers lie side by side.

        Reading them together in this order takes the fewest requests. All numbers are equal if
        each segment is an object or a file of its own.
        """
        return [0] * len(segments)

    def _read(self, read: SegmentRead) -> bytes | TieredStoreError:
        try:
            with self.open(read.path, read.type, read.base) as segment:
                return segment.read(read.position, read.length)
        except TieredStoreError as error:
            return error

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """Write a round. Returns one future per pair, done when the pair is written.

        Within a pair the log is durable before the queue is written. A failed log write leaves
        the queue untouched.
        """
        return [self._runtime.dispatch.submit(_write_pair, pair) for pair in pairs]

    def seal_many(self, segments: Sequence[FileSegment]) -> Sequence[TieredStoreError | None]:
        """Seal segments that nobody writes to any more. Returns for each its error, or None.

        This default seals one after another, and stops when the backend cannot be reached or
        another writer has taken over: the remaining segments get that error too.
        """
        errors: list[TieredStoreError | None] = []
        ending: TieredStoreError | None = None
        for segment in segments:
            error = ending or _seal(segment)
            if isinstance(error, (BackendUnavailableError, FencedError)):
                ending = error
            errors.append(error)
        return errors

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """Create a whole segment from a stream of blocks, in bounded memory; returns its size.

        All or nothing: after an error, or for an empty stream, there is no such segment. If the
        segment has bytes already, PositionMismatchError is raised and it stays as it is. Errors of
        the stream are passed on. This default removes what it wrote when it fails, but cannot do
        so after a crash: a provider that can do better overrides it.
        """
        refuse_existing(segment)
        position = tried = 0
        try:
            for block in blocks:
                tried = position + memoryview(block).nbytes
                segment.write(position, block)
                position = tried
        except BaseException as error:
            # What is there although none of it can be ours is another task's: it stays.
            if position or (tried and not isinstance(error, PositionMismatchError)):
                segment.delete()
            raise
        return position

    def staged_segments(self, broker: str) -> Scratch | None:
        """Where objects are staged for `adopt`, which makes them segments. A listing of it shows
        what was not adopted."""
        return self.scratch(broker)

    def adopt(self, broker: str, adoptions: Sequence[Adoption], changes: Sequence[Change]) -> bool:
        """Make each of these staged objects the segment that its adoption names.

        True if the catalogue lies with the bytes: then its changes are made in the same step, all
        or nothing. Else False: the segments are durable, each whole, and the changes are left to
        the caller, who has announced the segments before and deletes them after a failure.
        A segment that has bytes already raises PositionMismatchError and stays as it is. A call
        without adoptions completes an earlier call that was cut off.
        """
        scratch = self.staged_segments(broker)
        if scratch is None:
            raise BackendRefusedError(broker, "adopt", "nothing can be staged here")
        for each in adoptions:
            with self.open(each.path, each.type, each.base) as segment:
                self.create(segment, staged_blocks(scratch, each))
        return False

    def claim(self, broker: str) -> None:  # noqa: B027 - most backends have no epochs
        """Become the writer of this broker's tier and fence the previous one.

        Call it before reading anything that will be written to. Idempotent. Raises FencedError if
        this process was the writer and another one has taken over.
        """

    def fence(self, broker: str) -> Fence | None:
        """The fence, once another writer is known to have taken over; makes no request."""
        return None

    def catalogue(self, broker: str, *, read_only: bool) -> MetadataStore | None:
        """The catalogue that this provider keeps with the bytes; None if it keeps none.

        With `read_only`, also None if nothing was ever written. A writer must call `claim` first.
        """
        return None

    def only_read(self) -> None:  # noqa: B027 - most have nothing to spare
        """Promise that nothing will be written through this provider. Then it need not make bytes
        durable before it counts them."""

    def catch_up(self, rows: Sequence[SegmentRecord]) -> None:  # noqa: B027 - most remember nothing
        """Look again if what this provider remembers of one broker's tier is older than these rows:
        a topic may have been made again since, with segments of the same names."""

    def tend(self, broker: str) -> bool:
        """Do one bounded step of background work; returns whether more is left.

        For the writer. If it is never called, nothing is lost; the tier only costs more.
        """
        return False

    def untaken(self, broker: str) -> Sequence[ListedSegment]:
        """Segments in the backend that the provider's own records do not name."""
        return ()

    def take_in(self, broker: str) -> TakenIn:
        """Record the `untaken` segments, and what else can be found. For the writer, in a
        rebuild."""
        return TakenIn()

    def damage(self, broker: str) -> Sequence[Finding]:
        """What is damaged or missing among the provider's own records, for an audit."""
        return ()

    def appended(self, broker: str) -> Sequence[Appended]:
        """What was appended, from old to new, as far back as the log is kept: a few dozen spans.

        Empty if this provider keeps no log. Takes as many requests as there are spans.
        """
        return ()

    def refresh(self) -> None:  # noqa: B027 - most providers remember nothing
        """Forget remembered sizes, for a reader whose catalogue has become newer.

        Makes no request. Only sizes of what others write may be remembered.
        """

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        """What broken uploads and stalled writers left below `prefix`, as in `list`.

        While a writer is at work, it may also show an upload that is under way.
        """
        return ()

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:  # noqa: B027 - has none
        """Delete what `leftovers` showed. The caller holds the catalogue's lock."""

    def generations(self, broker: str) -> Generations | None:
        """Where this broker's catalogue is published; None if nobody could read it there."""
        return None

    def scratch(self, broker: str) -> Scratch | None:
        """Where jobs stage what is to become part of the tier; None if there is no such place.

        The objects there are also among the `leftovers`.
        """
        return None

    def places(self) -> Sequence[tuple[str, str]] | None:
        """Cluster and broker of each tier at this root, by name; None if a provider cannot tell.

        For errors, which say what is there instead.
        """
        return None

    def probe(self) -> Sequence[Finding]:
        """Test whether this backend can be trusted: write, read, list and delete a segment of its
        own."""
        return _probe(self)

    def report_to(self, metrics: Metrics) -> None:  # noqa: B027 - most requests are measured outside
        """Report to these metrics what only the provider sees. Called before the first request."""

    def close(self) -> None:  # noqa: B027 - a provider with nothing to release needs no close
        """Release clients; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class GenerationTakenError(MetadataError):
    """Another writer has published this generation, and it stays unchanged."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another writer has published this generation")

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ListedGeneration:
    number: int
    size: int


class Generations(ABC):
    """Numbered objects of one broker: each is written once, whole, and never changed.

    * Creating a number is a compare-and-swap: one of several callers wins. A caller that knows n
      as the newest and creates n + 1 has replaced n, and no other caller has.
    * Any thread may call anything. Nothing touches the backend before a call that needs it.

    Raises: BackendUnavailableError (the outcome of a creation is unknown), BackendRefusedError.
    """

    @abstractmethod
    def describe(self) -> str:
        """Where they lie: one line for people, without secrets."""

    @abstractmethod
    def listed(self) -> Sequence[ListedGeneration]:
        """All generations, by ascending number; other names are skipped."""

    @abstractmethod
    def read(self, listed: ListedGeneration) -> bytes:
        """Its bytes, exactly as many as were listed; SegmentNotFoundError if it is gone by now."""

    @abstractmethod
    def create(self, number: int, data: bytes) -> None:
        """Create it, whole or not at all; durable on return. GenerationTakenError if it exists."""

    @abstractmethod
    def delete(self, numbers: Sequence[int]) -> None:
        """Delete them; a number that does not exist is no error."""


@dataclass(frozen=True, slots=True)
class StagedObject:
    name: str
    size: int


class Scratch(ABC):
    """Objects of one broker next to its tier, each written once and whole.

    * Neither RocketMQ nor a listing of segments takes them for segments, and they need no writer's
      epoch: any number of processes may put at the same time.
    * A name consists of ASCII letters, digits, `.`, `_` and `-`, in parts separated by `/`.
    * Any thread may call anything. Nothing touches the backend before a call that needs it.

    Raises: SegmentNotFoundError, OffsetOutOfRangeError, BackendUnavailableError,
    BackendRefusedError.
    """

    @abstractmethod
    def describe(self) -> str:
        """Where they lie: one line for people, without secrets."""

    @abstractmethod
    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        """Store an object from a stream, durable and whole on return; returns its size, at least
        one byte.

        Whoever puts a name twice must put the same bytes: one of the two objects stays.
        """

    @abstractmethod
    def read(self, name: str, position: int, length: int) -> bytes:
        """Exactly `length` bytes or an error."""

    @abstractmethod
    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        """All objects whose names begin with `<folder>/`, or all objects; in no order."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete them; a name that does not exist is no error."""


def refuse_existing(segment: FileSegment) -> None:
    """PositionMismatchError if the segment has bytes already."""
    try:
        size = segment.size()
    except SegmentNotFoundError:
        return
    if size:
        raise PositionMismatchError(segment.path, expected=0, actual=size)


def generation_name(number: int) -> str:
    return f"{number:020d}.json"


def generation_of(name: str) -> int | None:
    """The number of a generation with this name; None for any other name."""
    found = _GENERATION_NAME.fullmatch(name)
    number = 0 if found is None else int(found[1])
    return number if 0 < number <= INT64_MAX else None


def check_staged_name(name: str) -> str:
    if _STAGED_NAME.fullmatch(name) is None:
        raise BackendRefusedError(name, "stage", "this is no name of a staged object")
    return name


def staged_blocks(scratch: Scratch, adoption: Adoption) -> Iterator[Buffer]:
    for start in range(0, adoption.size, _BLOCK_BYTES):
        yield scratch.read(adoption.name, start, min(_BLOCK_BYTES, adoption.size - start))


def may_be_loaded(name: str, now_ms: int) -> bool:
    """Whether the load that staged this may still be under way; the name says when it did."""
    found = _LOADED_NAME.fullmatch(name)
    return found is not None and now_ms < int(found[1]) + LOAD_MS_MAX


def staged_leftovers(
    prefix: str, scratch: Callable[[str], Scratch], *, now_ms: int
) -> list[Leftover]:
    """What jobs staged for this broker but never used or removed; empty for a longer prefix."""
    if not prefix or "/" in prefix:
        return []
    found = scratch(prefix).listed()
    return [
        Leftover(kind=LEFTOVER_KIND, name=staged.name, size=staged.size, id=prefix)
        for staged in found
        if not may_be_loaded(staged.name, now_ms)
    ]


def remove_staged(leftovers: Sequence[Leftover], scratch: Callable[[str], Scratch]) -> None:
    """Delete those leftovers that were staged."""
    for leftover in leftovers:
        if leftover.kind == LEFTOVER_KIND:
            scratch(leftover.id).delete([leftover.name])


def _seal(segment: FileSegment) -> TieredStoreError | None:
    try:
        segment.seal()
    except TieredStoreError as error:
        return error
    return None


def _write_pair(pair: WritePair) -> None:
    for write in (pair.log, pair.queue):
        if write is not None:
            write.segment.write(write.position, write.data)


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

    def cut(self, size: int) -> None:
        self.inner.cut(size)

    def close(self) -> None:
        self.inner.close()


class ProviderWrapper(SegmentProvider):
    """Wraps the segments that `inner` opens and forwards the rest.

    `write_many` keeps its default here, which goes through the wrapped segments.
    """

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.inner = inner
        self.retries_itself = inner.retries_itself
        self.shares_rounds = inner.shares_rounds
        self.ends_with_process = inner.ends_with_process
        self.reads_together = inner.reads_together

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return SegmentWrapper(segment)

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        return self.wrap(self.inner.open(path, type, base))

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        return self.inner.list(prefix)

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        """In the inner provider's own way if it has one, which bypasses wrapped segments."""
        return (
            self.inner.read_together(reads) if self.reads_together else super().read_together(reads)
        )

    def reading_order(self, segments: Sequence[SegmentRecord]) -> Sequence[int]:
        return self.inner.reading_order(segments)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """By the inner provider, which may have a better way than write after write."""
        inner = segment.inner if isinstance(segment, SegmentWrapper) else segment
        return self.inner.create(inner, blocks)

    def claim(self, broker: str) -> None:
        self.inner.claim(broker)

    def fence(self, broker: str) -> Fence | None:
        return self.inner.fence(broker)

    def catalogue(self, broker: str, *, read_only: bool) -> MetadataStore | None:
        return self.inner.catalogue(broker, read_only=read_only)

    def only_read(self) -> None:
        self.inner.only_read()

    def catch_up(self, rows: Sequence[SegmentRecord]) -> None:
        self.inner.catch_up(rows)

    def tend(self, broker: str) -> bool:
        return self.inner.tend(broker)

    def untaken(self, broker: str) -> Sequence[ListedSegment]:
        return self.inner.untaken(broker)

    def take_in(self, broker: str) -> TakenIn:
        return self.inner.take_in(broker)

    def damage(self, broker: str) -> Sequence[Finding]:
        return self.inner.damage(broker)

    def appended(self, broker: str) -> Sequence[Appended]:
        return self.inner.appended(broker)

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

    def staged_segments(self, broker: str) -> Scratch | None:
        return self.inner.staged_segments(broker)

    def adopt(self, broker: str, adoptions: Sequence[Adoption], changes: Sequence[Change]) -> bool:
        return self.inner.adopt(broker, adoptions, changes)

    def places(self) -> Sequence[tuple[str, str]] | None:
        return self.inner.places()

    def probe(self) -> Sequence[Finding]:
        return self.inner.probe()

    def close(self) -> None:
        self.inner.close()
