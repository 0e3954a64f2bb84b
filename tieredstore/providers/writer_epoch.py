"""Who may write a broker's segments: epochs, claimed one after the other, and their
boundaries.

A writer claims the next number with a put that only one can win. Then it lists all parts, and
writes how far each open segment went. From then on nothing that an older writer adds counts: not
a part at or behind that end, not a sealed object of a segment that was open. The older writer
learns of it from a look that began after its put had landed: what it acknowledged was there
before the claim, and so before the listing.

Claims are multiples of `LIVES`. The numbers behind one are for names that are used again within
it, while requests for what was there before may still land: see `deleting`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError
from tieredstore.providers.object_calls import ObjectCalls
from tieredstore.providers.object_layout import ObjectLayout

_REMEMBERED_MS: Final = 30 * 24 * 3_600_000  # no request of a stalled writer is under way longer
_CLAIMS_MAX: Final = 1_000  # so many others may come first
LIVES: Final = 1_000  # of one name in one claim


class WriterStalledError(BackendRefusedError):
    """Another writer has taken over: nothing that this one writes counts any more."""

    def __init__(self, path: str, operation: str, epoch: int) -> None:
        super().__init__(path, operation, f"another writer has taken over, in epoch {epoch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """From which epoch on something counts, and since when that is so."""

    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a new epoch found: how far open segments went, sealed ones that keep their parts,
    which were deleted by which epoch, and whose sealed objects may still be deleted late."""

    ends: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    unsafe: Iterable[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What an epoch found when it began; the keys are those of sealed segments.

    * `ends`: how far the parts of each segment went that was not sealed, or keeps them.
    * `sealed_from`: sealed objects of older epochs do not count. Kept from older boundaries.
    * `gone`: nothing at all of older epochs counts: deleted since. Kept from older boundaries.
    * `unsafe`: an older writer's delete of the sealed object may be under way, and since when.
      Kept from older boundaries. Such a segment keeps its parts when it is sealed.
    """

    epoch: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    sealed_from: Mapping[str, Fence] = field(default_factory=dict)
    gone: Mapping[str, Fence] = field(default_factory=dict)
    unsafe: Mapping[str, int] = field(default_factory=dict)

    def counts_part(self, key: str, end: int, epoch: int) -> bool:
        """Whether a part of this epoch that ends here is one of the segment's."""
        gone = self.gone.get(key)
        if gone is not None and epoch < gone.epoch:
            return False
        return epoch >= self.epoch or end <= self.ends.get(key, 0)

    def counts_sealed(self, key: str, epoch: int | None) -> bool:
        """Whether a sealed object of this epoch is the segment. None: it came from elsewhere."""
        if epoch is None:
            return key not in self.unsafe
        fences = (self.sealed_from.get(key), self.gone.get(key))
        return all(fence is None or epoch >= fence.epoch for fence in fences)

    def is_fenced(self, key: str) -> bool:
        """Whether something of this segment that an older writer makes late must not count."""
        return key in self.ends or key in self.sealed_from or key in self.gone

    def next(self, epoch: int, found: Found, *, now_ms: int) -> Boundary:
        """The boundary of a new epoch that found this."""
        oldest = now_ms - _REMEMBERED_MS
        sealed_from = {k: each for k, each in self.sealed_from.items() if each.since_ms > oldest}
        sealed_from.update({key: Fence(epoch=epoch, since_ms=now_ms) for key in found.ends})
        gone_by_now = {k: each for k, each in self.gone.items() if each.since_ms > oldest}
        for key, of in found.gone.items():
            known = gone_by_now.get(key)
            if known is None or known.epoch <= of:
                gone_by_now[key] = Fence(epoch=of, since_ms=now_ms)
        unsafe_by_now = {key: since for key, since in self.unsafe.items() if since > oldest}
        unsafe_by_now.update(dict.fromkeys(found.unsafe, now_ms))
        return Boundary(
            epoch=epoch,
            ends={**found.ends, **found.kept},
            sealed_from=sealed_from,
            gone=gone_by_now,
            unsafe=unsafe_by_now,
        )

    def encode(self) -> bytes:
        def rows(fences: Mapping[str, Fence]) -> dict[str, list[int]]:
            return {key: [fence.epoch, fence.since_ms] for key, fence in fences.items()}

        text = {
            "epoch": self.epoch,
            "ends": dict(self.ends),
            "sealed_from": rows(self.sealed_from),
            "gone": rows(self.gone),
            "unsafe": dict(self.unsafe),
        }
        return json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, key: str) -> Boundary:
        def fences(rows: Mapping[str, list[int]]) -> dict[str, Fence]:
            return {
                name: Fence(epoch=int(epoch), since_ms=int(since))
                for name, (epoch, since) in rows.items()
            }

        try:
            text = json.loads(data)
            return cls(
                epoch=int(text["epoch"]),
                ends={name: int(end) for name, end in text["ends"].items()},
                sealed_from=fences(text["sealed_from"]),
                gone=fences(text["gone"]),
                unsafe={name: int(since) for name, since in text.get("unsafe", {}).items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SegmentCorruptError(key, "no boundary of an epoch", position=0) from error


def newest_epochs(requests: ObjectCalls, layout: ObjectLayout, broker: str) -> tuple[int, int]:
    """The highest epoch that is claimed, and the highest that has a boundary; 0 for none."""
    claimed, bounded = 0, 0
    for listed in requests.listed(layout.epochs(broker)):
        name = layout.epoch_of(listed.key)
        if name is None or name.broker != broker:
            continue
        if name.is_boundary:
            bounded = max(bounded, name.epoch)
        else:
            claimed = max(claimed, name.epoch)
    return claimed, bounded


def newest_boundary(requests: ObjectCalls, layout: ObjectLayout, broker: str) -> Boundary:
    """The boundary that holds now; an empty one where nobody has claimed anything yet."""
    _, epoch = newest_epochs(requests, layout, broker)
    if not epoch:
        return Boundary()
    key = layout.boundary_key(broker, epoch)
    data = requests.get(key)
    if data is None:  # a newer one is there by now
        return newest_boundary(requests, layout, broker)
    return Boundary.decode(data, key)


class WriterEpoch:
    """One claim. Sticky: once a look has found a newer claim, every further one fails at once."""

    def __init__(
        self, requests: ObjectCalls, layout: ObjectLayout, broker: str, number: int
    ) -> None:
        self.number = number
        self._requests = requests
        self._layout = layout
        self._broker = broker
        self._is_stalled = False

    @classmethod
    def claim(cls, requests: ObjectCalls, layout: ObjectLayout, broker: str) -> WriterEpoch:
        """The next free number. Raises what the store raises."""
        claimed, bounded = newest_epochs(requests, layout, broker)
        number = max(claimed, bounded)
        for _ in range(_CLAIMS_MAX):
            number = _behind(number)
            try:
                requests.put(layout.claim_key(broker, number), b"")
                return cls(requests, layout, broker, number)
            except ObjectExistsError:
                continue  # somebody else was quicker
        raise BackendRefusedError(layout.epochs(broker), "claim", "others are always quicker")

    @classmethod
    def join(cls, requests: ObjectCalls, layout: ObjectLayout, broker: str) -> WriterEpoch:
        """The newest one that there is, shared: nobody is taken over from. 0 before the first.

        For processes that write different segments while no broker runs: one that starts claims
        the next, and then their looks fail as an older writer's do.
        """
        return cls(requests, layout, broker, max(newest_epochs(requests, layout, broker)))

    @property
    def is_stalled(self) -> bool:
        """Whether a look has found a newer claim."""
        return self._is_stalled

    def check(self) -> None:
        """WriterStalledError where a look has found a newer claim."""
        if self._is_stalled:
            raise WriterStalledError(self._broker, "write", _behind(self.number))

    def look(self) -> None:
        """WriterStalledError where somebody has claimed a newer epoch by now: one request."""
        key = self._layout.claim_key(self._broker, _behind(self.number))
        self._is_stalled = self._is_stalled or self._requests.head(key) is not None
        self.check()

    def publish(self, boundary: Boundary) -> None:
        """Make the boundary of this epoch hold, and older ones history."""
        key = self._layout.boundary_key(self._broker, self.number)
        self._requests.put(key, boundary.encode())


def _behind(number: int) -> int:
    """The claim that follows."""
    return (number // LIVES + 1) * LIVES
