"""One broker's segments in an object store, as this process knows them.

What lives here: `BrokerParts`: the one listing of all parts, kept up to date by our own writes,
and the claim of the writer's epoch. What is done with a segment is in `object_segment`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping

from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.runtime import Clock
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.providers.object_calls import CHECKSUM, EPOCH, ObjectCalls
from tieredstore.providers.object_layout import Mark, ObjectLayout, mark_key, part_of, parts_below
from tieredstore.providers.object_parts import SealedObject, SegmentParts, segments_of
from tieredstore.providers.shared_looks import SharedLooks
from tieredstore.providers.writer_epoch import (
    Boundary,
    WriterEpoch,
    newest_boundary,
)

log = logging.getLogger(__name__)


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
    ) -> None:
        self.requests = requests
        self.boundary = Boundary()
        self.looks = SharedLooks(self._look)
        self._layout = layout
        self._broker = broker
        self._clock = clock
        self._listing_ms = listing_ms
        self._before_claim = before_claim  # raises where the store is not to be written to
        self._listed_at = 0.0
        self._segments: dict[str, SegmentParts] | None = None
        self._epoch: WriterEpoch | None = None
        self._beginning: WriterEpoch | None = None  # claimed, and its boundary does not hold yet
        self._gone: Mapping[str, int] = {}
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
        return table.get(key) or table.setdefault(key, SegmentParts(key))

    def known(self, key: str) -> SegmentParts | None:
        """What is known of a segment, without asking anybody."""
        return (self._segments or {}).get(key)

    def reloaded(self, key: str) -> SegmentParts:
        """The segment as the store has it now; the writer's own table is the truth already."""
        if self._epoch is not None:
            return self.segment(key)
        with self._guard:
            listed = self.requests.listed(parts_below(key) + "/")
            boundary = newest_boundary(self.requests, self._layout, self._broker)
            listing = segments_of(listed, boundary)
            segment = listing.segments.get(key) or SegmentParts(key)
            self.boundary = boundary
            if self._segments is not None and self._epoch is None:
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
            segment.sealed = None if facts is None else self.sealed_of(facts)
            # Somebody else may seal it later, but not while we are the writer.
            segment.absent_known = segment.sealed is None and self._epoch is not None

    def sealed_of(self, facts: ObjectFacts) -> SealedObject | None:
        """The sealed object, if it counts: what an older writer made late does not."""
        epoch = _number(facts.metadata.get(EPOCH), 10)
        if not self.boundary.counts_sealed(facts.key, epoch):
            return None
        checksum = _number(facts.metadata.get(CHECKSUM), 16)
        return SealedObject(size=facts.size, epoch=epoch, checksum=checksum)

    # Writing

    @property
    def is_writer(self) -> bool:
        return self._epoch is not None

    def claimed(self) -> int:
        """The number of our epoch, claimed if it has not been yet."""
        epoch = self._epoch
        if epoch is None:
            self._before_claim()
            with self._guard:
                epoch = self._epoch or self._claim()
        return epoch.number

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
        ends: dict[str, int] = {}
        over: list[str] = []
        for key, segment in table.items():
            if segment.marks:
                self.resolve(segment)
            if segment.sealed is not None:
                continue
            if segment.parts or segment.marks:
                ends[key] = segment.end
            if segment.parts:  # its sealing never came to an end: whatever lands late is fenced
                segment.strays += segment.marks
            else:
                over += [mark for mark in segment.marks if _is_older(mark, epoch.number)]
            segment.marks = ()
        gone = self._gone
        boundary = before
        if before.epoch < epoch.number:  # else it was published, and the reply was lost
            boundary = before.next(epoch.number, ends, gone, now_ms=self._clock.now_ms())
            epoch.publish(boundary)
        self.boundary, self._epoch = boundary, epoch
        if 0 < before.epoch < epoch.number:
            over.append(self._layout.boundary_key(self._broker, before.epoch))
        over += [mark_key(key, Mark.GONE, of) for key, of in gone.items() if of < epoch.number]
        self._tidy(over)
        return epoch

    def _load(self) -> dict[str, SegmentParts]:
        """The one listing, under the guard.

        The boundary is read after it: marks that are gone by then have become part of it.
        """
        prefix = parts_below(self._layout.below(self._broker))
        listed = self.requests.listed(prefix)
        boundary = newest_boundary(self.requests, self._layout, self._broker)
        listing = segments_of(listed, boundary)
        self.boundary, self._gone = boundary, listing.gone
        self._segments = table = dict(listing.segments)
        self._listed_at = self._clock.monotonic()
        return table

    def _look(self) -> None:
        if self._epoch is None:
            raise StoreClosedError(f"{self._broker}: nothing is claimed")
        self._epoch.look()

    def _is_old(self) -> bool:
        age_ms = (self._clock.monotonic() - self._listed_at) * 1000
        return self._epoch is None and age_ms >= self._listing_ms

    def _tidy(self, keys: Iterable[str]) -> None:
        """Marks and an older boundary, for all of which the new one stands."""
        try:
            self.requests.delete(list(keys))
        except TieredStoreError as error:
            log.info("%s: marks that are not needed any more stay: %s", self._broker, error)


def _is_older(mark: str, epoch: int) -> bool:
    name = part_of(mark)
    return name is not None and name.epoch < epoch


def _number(text: str | None, radix: int) -> int | None:
    try:
        return None if text is None else int(text, radix)
    except ValueError:
        return None
