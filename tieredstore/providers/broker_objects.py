"""One broker's segments in an object store, as this process knows them."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tieredstore.driver.object_client import ListedKey, ObjectFacts, Range
from tieredstore.driver.runtime import Clock
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.providers.object_calls import CHECKSUM, EPOCH, ObjectCalls
from tieredstore.providers.object_layout import (
    Mark,
    ObjectLayout,
    PartName,
    mark_key,
    part_of,
    parts_below,
)
from tieredstore.providers.writer_epoch import (
    LIVES,
    Boundary,
    Found,
    WriterEpoch,
    WriterStalledError,
    newest_boundary,
)

log = log_of(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """One commit's bytes; `checksum` is None until somebody asks for it."""

    key: str
    position: int
    size: int
    epoch: int
    checksum: int | None = None

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedObject:
    size: int
    epoch: int | None
    checksum: int | None


class SegmentParts:
    """One segment as a process knows it: parts without a gap from 0, or one sealed object.

    `parts` is replaced, never changed: who reads holds a tuple of its own. The rest is changed
    under `guard`, which whoever writes, seals or deletes holds for as long as that takes.
    """

    __slots__ = (
        "absent_known",
        "delete_wanted",
        "deleting",
        "doubtful_at",
        "gone",
        "guard",
        "in_doubt",
        "key",
        "key_in_doubt",
        "marks",
        "parts",
        "seal_begun",
        "sealed",
        "sealed_marks",
        "strays",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.guard = threading.RLock()
        self.parts: tuple[Part, ...] = ()
        self.marks: tuple[str, ...] = ()  # that a sealed object may be there
        self.strays: tuple[str, ...] = ()  # parts that do not count
        self.sealed_marks: tuple[str, ...] = ()  # that it is sealed, whatever parts there are
        self.gone = 0  # nothing of an older epoch counts
        self.seal_begun = False  # by this process, which writes no more then
        self.sealed: SealedObject | None = None
        self.absent_known = False  # that there is no sealed object
        self.doubtful_at: int | None = None  # where a put of ours may have landed
        self.delete_wanted = False
        self.deleting: str | None = None  # our note that we delete it, while that is there
        # Whether a request of ours may land at any later time: any; one for the sealed object.
        self.in_doubt = False
        self.key_in_doubt = False

    @property
    def end(self) -> int:
        """Of the parts."""
        parts = self.parts
        return parts[-1].end if parts else 0

    @property
    def may_be_sealed(self) -> bool:
        """Whether only the store knows if there is a sealed object."""
        if self.sealed is not None or self.absent_known:
            return False
        return not self.parts or bool(self.marks)

    def keys(self) -> list[str]:
        """All that lies below the parts of this segment, the first part and marks last."""
        parts = (part.key for part in reversed(self.parts))
        return [*self.strays, *parts, *self.marks, *self.sealed_marks]

    def take(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)

    def doom(self) -> None:
        """Nothing of it counts, and what is there goes when it is deleted or sealed again."""
        self.strays += tuple(part.key for part in self.parts)
        self.take(())
        self.marks = ()

    def forget(self) -> None:
        """There is nothing any more."""
        self.take(())
        self.marks = self.strays = self.sealed_marks = ()
        self.sealed = None
        self.seal_begun = False
        self.doubtful_at = None
        self.absent_known = True


def ranges_of(parts: Sequence[Part], position: int, length: int) -> list[tuple[Part, Range]]:
    """Which bytes of which parts."""
    found = []
    number = bisect_right(parts, position, key=lambda part: part.end)
    end = position + length
    while position < end:
        part = parts[number]
        count = min(end, part.end) - position
        found.append((part, Range(part.key, position - part.position, count)))
        position += count
        number += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies below the parts of many segments."""

    segments: Mapping[str, SegmentParts]
    gone: Mapping[str, int]  # deletions that the next boundary takes over: key to epoch
    deleting: Mapping[str, int]  # deletes that may be under way: key to the newest epoch that did


def sealed_of(facts: ObjectFacts, boundary: Boundary, gone: int) -> SealedObject | None:
    """The sealed object, if it counts: what an older writer made late does not."""
    epoch = _number(facts.metadata.get(EPOCH), 10)
    if epoch is not None and epoch < gone:
        return None
    if not boundary.counts_sealed(facts.key, epoch):
        return None
    checksum = _number(facts.metadata.get(CHECKSUM), 16)
    return SealedObject(size=facts.size, epoch=epoch, checksum=checksum)


def segments_of(listed: Iterable[ListedKey], boundary: Boundary) -> Listing:
    """The segments of a listing, each with the parts that count.

    At one position the highest epoch counts: what an older writer put there came too late.
    """
    found: dict[str, list[tuple[PartName, ListedKey]]] = {}
    for each in listed:
        name = part_of(each.key)
        if name is not None:
            found.setdefault(name.segment_key, []).append((name, each))
    segments: dict[str, SegmentParts] = {}
    gone: dict[str, int] = {}
    deleting: dict[str, int] = {}
    for key, names in found.items():
        for name, _ in names:
            if name.mark is Mark.GONE:
                gone[key] = max(gone.get(key, 0), name.epoch)
            elif name.mark is Mark.DELETING:
                deleting[key] = max(deleting.get(key, 0), name.epoch)
        segments[key] = _segment(key, names, boundary, gone.get(key, 0))
    return Listing(segments=segments, gone=gone, deleting=deleting)


def _segment(
    key: str, names: list[tuple[PartName, ListedKey]], boundary: Boundary, gone: int
) -> SegmentParts:
    segment = SegmentParts(key)
    segment.gone = gone
    # One of an epoch before the boundary came late: what was open then is open still. So did one
    # of what was deleted.
    first = max(boundary.epoch, gone)
    sealed = [n for n, _ in names if n.mark is Mark.SEALED and n.epoch >= first]
    if sealed:
        gone = max(gone, max(name.epoch for name in sealed) + 1)
    best: dict[int, Part] = {}
    for name, listed in names:
        end = name.position + listed.size
        if name.mark is not Mark.PART or name.epoch < gone or not listed.size:
            continue
        known = best.get(name.position)
        newer = known is None or known.epoch < name.epoch
        if newer and boundary.counts_part(key, end, name.epoch):
            best[name.position] = Part(listed.key, name.position, listed.size, name.epoch)
    chain: list[Part] = []
    end = 0
    while (part := best.get(end)) is not None:
        chain.append(part)
        end = part.end
    segment.take(chain)
    counted = {part.key for part in chain}
    marks = [listed.key for name, listed in names if name.mark is Mark.SEALING]
    segment.marks = tuple(marks)
    segment.sealed_marks = tuple(
        listed.key for name, listed in names if name.mark is Mark.SEALED and name in sealed
    )
    segment.strays = tuple(
        listed.key for name, listed in names if name.mark is Mark.PART and listed.key not in counted
    )
    return segment


def _number(text: str | None, radix: int) -> int | None:
    try:
        return None if text is None else int(text, radix)
    except ValueError:
        return None


class SharedLooks:
    """Whoever joins is told the outcome of a look that began after it joined.

    * One look at a time: those who join meanwhile share the next one.
    * While many are expected, a look waits until at least as many have joined as are still to
      come: a round of many writes costs few looks, and a slow write delays nobody for long.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._guard = threading.Lock()
        self._waiting: list[Future[None]] = []
        self._expected = 0
        self._looking = False

    def now(self) -> None:
        """Wait for a look that begins after this call. Raises what the look raises."""
        future = self.join()
        self.run(at_once=True)
        future.result()

    def expect(self, count: int) -> None:
        """So many more will join; a negative number for those that will not after all."""
        with self._guard:
            self._expected += count

    def join(self, *, expected: bool = False) -> Future[None]:
        """Done when a look has ended that `run` begins from now on."""
        future: Future[None] = Future()
        with self._guard:
            self._expected -= expected
            self._waiting.append(future)
        return future

    def run(self, *, at_once: bool = False) -> None:
        """Look, until nobody waits or more are to be waited for; `at_once` waits for no more."""
        while True:
            with self._guard:
                waiting = len(self._waiting)
                if self._looking or not waiting or (waiting < self._expected and not at_once):
                    return
                taken, self._waiting = self._waiting, []
                self._looking = True
            try:
                self._tell(taken)
            finally:
                with self._guard:
                    self._looking = False

    def _tell(self, taken: list[Future[None]]) -> None:
        try:
            self._look()
        except BaseException as error:  # noqa: BLE001 - whoever joined gets it
            for future in taken:
                future.set_exception(error)
        else:
            for future in taken:
                future.set_result(None)


class BrokerParts:
    """The table of segments.

    * Nothing is listed before the first call that needs it, and then once for all segments. A
      process that only reads lists again when it is asked for a size and the listing is old, or
      for bytes that it does not know. The writer never lists again: it is the only one.
    * The epoch is claimed by the first call that changes something. From then on only this
      process's own requests change the table.
    """

    def __init__(
        self,
        requests: ObjectCalls,
        layout: ObjectLayout,
        broker: str,
        clock: Clock,
        *,
        listing_ms: int,
        before_claim: Callable[[], None] = lambda: None,
        joins: bool = False,
    ) -> None:
        self.requests = requests
        self.boundary = Boundary()
        self.looks = SharedLooks(self.look)
        self._layout = layout
        self._broker = broker
        self.clock = clock
        self._listing_ms = listing_ms
        self._before_claim = before_claim  # raises where the store is not to be written to
        self._joins = joins  # shares the epoch that there is, and claims none
        self._listed_at = 0.0
        self._segments: dict[str, SegmentParts] | None = None
        self._epoch: WriterEpoch | None = None
        self._beginning: WriterEpoch | None = None  # claimed, and its boundary does not hold yet
        self._gone: dict[str, int] = {}
        self._deleting: Mapping[str, int] = {}
        self._guard = threading.Lock()  # of listing and claiming: those who come meanwhile wait

    # What there is

    def segment(self, key: str, *, recent: bool = False) -> SegmentParts:
        """What is known of a segment; `recent` is for those who want to see others' writes."""
        table = self._segments
        if table is None or (recent and self._is_old()):
            with self._guard:
                table = self._segments
                if table is None or (recent and self._is_old()):
                    table = self._load()
        return table.get(key) or table.setdefault(key, self._anew(key))

    def known(self, key: str) -> SegmentParts | None:
        """What is known of a segment, without asking anybody."""
        return (self._segments or {}).get(key)

    def reloaded(self, key: str) -> SegmentParts:
        """The segment as the store has it now; the writer's own table is the truth already.

        But for a sealed object that an older writer's delete may have taken: its parts are kept.
        And a writer that was overtaken only reads.
        """
        if self._is_writer_still():
            segment = self.segment(key)
            if segment.sealed is not None and segment.parts:
                facts = self.requests.head(key)
                segment.sealed = None if facts is None else self.sealed_of(facts, segment.gone)
            return segment
        with self._guard:
            listed = self.requests.listed(parts_below(key) + "/")
            boundary = newest_boundary(self.requests, self._layout, self._broker)
            listing = segments_of(listed, boundary)
            segment = listing.segments.get(key) or SegmentParts(key)  # with no mark either
            self.boundary = boundary
            if self._segments is not None and not self.is_writer:
                self._segments[key] = segment
        self.resolve(segment)
        return segment

    def refresh(self) -> None:
        """The listing is too old for whoever asks for a size; the writer's own never is."""
        self._listed_at = -math.inf

    def resolve(self, segment: SegmentParts) -> None:
        """Find out whether there is a sealed object, where that is not known: one request."""
        if segment.may_be_sealed:
            facts = self.requests.head(segment.key)
            segment.sealed = None if facts is None else self.sealed_of(facts, segment.gone)
            # Somebody else may seal it later, but not while we are the writer.
            segment.absent_known = segment.sealed is None and self.is_writer

    def sealed_of(self, facts: ObjectFacts, gone: int = 0) -> SealedObject | None:
        """The sealed object, if it counts: what an older writer made late does not."""
        return sealed_of(facts, self.boundary, gone)

    def keeps_parts(self, segment: SegmentParts) -> bool:
        """Whether the sealed object alone is not enough: a delete of its key may be under way."""
        may_go = segment.key_in_doubt or _is_reused(segment.gone)
        return may_go or segment.key in self.boundary.unsafe

    def is_fenced(self, segment: SegmentParts) -> bool:
        """Whether something that was made for the name before may land, and must not count."""
        return segment.gone > 0 or self.boundary.is_fenced(segment.key)

    # Writing

    @property
    def is_writer(self) -> bool:
        """As far as is known: a look that finds a newer claim ends it."""
        return self._epoch is not None and not self._epoch.is_stalled

    def claimed(self) -> int:
        """The number of our epoch, claimed if it has not been yet."""
        epoch = self._epoch
        if epoch is None:
            self._before_claim()
            with self._guard:
                epoch = self._epoch or (self._join() if self._joins else self._claim())
        epoch.check()
        return epoch.number

    def epoch_of(self, segment: SegmentParts) -> int:
        """What its next objects are named by: our epoch, or the number of a later life in it."""
        epoch = self.claimed()
        return max(epoch, segment.gone) if segment.gone // LIVES == epoch // LIVES else epoch

    def begin_life(self, segment: SegmentParts, life: int) -> None:
        """Nothing of it with a lower number counts any more; a mark says so."""
        segment.gone = self._gone[segment.key] = life

    def forget(self, segment: SegmentParts) -> None:
        """It was deleted, and nothing of it is left to be done."""
        table = self._segments
        if table is not None and segment.deleting is None and table.get(segment.key) is segment:
            del table[segment.key]

    def _anew(self, key: str) -> SegmentParts:
        segment = SegmentParts(key)
        segment.gone = self._gone.get(key, 0)
        return segment

    def _claim(self) -> WriterEpoch:
        """Claim, list, and make the boundary hold. A crash in between only uses up a number.

        After a failure it goes on with the same number: who was overtaken claims no other.
        """
        if self._beginning is None:
            self._beginning = WriterEpoch.claim(self.requests, self._layout, self._broker)
        epoch = self._beginning
        table = self._load()
        epoch.look()
        before = self.boundary
        found, over = self._found(table, before, epoch.number)
        boundary = before
        if before.epoch < epoch.number:  # else it was published, and the reply was lost
            boundary = before.next(epoch.number, found, now_ms=self.clock.now_ms())
            epoch.publish(boundary)
        self.boundary, self._epoch = boundary, epoch
        if 0 < before.epoch < epoch.number:
            over.append(self._layout.boundary_key(self._broker, before.epoch))
        for mark, notes in ((Mark.GONE, self._gone), (Mark.DELETING, self._deleting)):
            over += [mark_key(key, mark, of) for key, of in notes.items() if of < epoch.number]
        self._tidy(over)
        return epoch

    def _found(
        self, table: Mapping[str, SegmentParts], before: Boundary, epoch: int
    ) -> tuple[Found, list[str]]:
        """What the new boundary is made of, and the marks that it stands for."""
        # A note of an epoch before that one came late: its writer saw that, and deleted nothing.
        # One of an older life of its name came late too.
        doomed = {
            key: of
            for key, of in self._deleting.items()
            if of >= before.epoch and self._gone.get(key, 0) <= of
        }
        ends: dict[str, int] = {}
        kept: dict[str, int] = {}
        unsafe = [*doomed, *(key for key, of in self._gone.items() if _is_reused(of))]
        over: list[str] = []
        for key, segment in table.items():
            if key in doomed:
                over += segment.marks
                segment.doom()
            elif segment.sealed_marks:  # from now on no part of it counts anyway
                over += [*segment.sealed_marks, *segment.marks]
                segment.sealed_marks = segment.marks = ()
            elif self._is_sealed(segment):
                if segment.end == _sealed_bytes(segment) and self.is_fenced(segment):
                    kept[key] = segment.end  # both are there, since a delete may be under way
            elif segment.parts or segment.marks:
                ends[key] = segment.end
                if segment.marks and self.is_fenced(segment):
                    unsafe.append(key)  # it may clear a late object out of its way
                if segment.parts:  # its sealing never came to an end: what lands late is fenced
                    segment.strays += segment.marks
                else:
                    over += [mark for mark in segment.marks if _is_older(mark, epoch)]
                segment.marks = ()
        unsafe += [key for key in kept if key not in before.unsafe]
        gone = {**self._gone, **{key: of + 1 for key, of in doomed.items()}}
        return Found(ends=ends, kept=kept, gone=gone, unsafe=unsafe), over

    def _is_sealed(self, segment: SegmentParts) -> bool:
        """Only where a mark says that it may be is the store asked."""
        if segment.marks:
            self.resolve(segment)
        return segment.sealed is not None

    def _join(self) -> WriterEpoch:
        """Write in the epoch that there is: all that counts now goes on counting."""
        epoch = WriterEpoch.join(self.requests, self._layout, self._broker)
        self._load()
        epoch.look()
        self._epoch = epoch
        return epoch

    def _load(self) -> dict[str, SegmentParts]:
        """The one listing, under the guard.

        The boundary is read after it: marks that are gone by then have become part of it.
        """
        prefix = parts_below(self._layout.below(self._broker))
        listed = self.requests.listed(prefix)
        boundary = newest_boundary(self.requests, self._layout, self._broker)
        listing = segments_of(listed, boundary)
        self.boundary = boundary
        self._gone, self._deleting = dict(listing.gone), listing.deleting
        self._segments = table = dict(listing.segments)
        self._listed_at = self.clock.monotonic()
        return table

    def look(self) -> None:
        """A look of one's own: for who may be called when a shared one is told of."""
        if self._epoch is None:
            raise StoreClosedError(f"{self._broker}: nothing is claimed")
        self._epoch.look()

    def _is_old(self) -> bool:
        age_ms = (self.clock.monotonic() - self._listed_at) * 1000
        return not self.is_writer and age_ms >= self._listing_ms

    def _is_writer_still(self) -> bool:
        try:
            self.look()
        except (StoreClosedError, WriterStalledError):
            return False
        return True

    def _tidy(self, keys: Iterable[str]) -> None:
        """Marks and an older boundary, for all of which the new one stands."""
        try:
            self.requests.delete(list(keys))
        except TieredStoreError as error:
            log.info("%s: marks that are not needed any more stay: %s", self._broker, error)


def _is_reused(gone: int) -> bool:
    """Whether the name has another life within a claim: a delete of the one before may land."""
    return gone % LIVES != 0


def _is_older(mark: str, epoch: int) -> bool:
    name = part_of(mark)
    return name is not None and name.epoch < epoch


def _sealed_bytes(segment: SegmentParts) -> int:
    return 0 if segment.sealed is None else segment.sealed.size
