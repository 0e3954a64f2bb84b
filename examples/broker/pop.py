"""Messages of a queue that are out at a group's consumers: until when, how often, and what is done.

A message that is given to a consumer is invisible to the others for a time. With its receipt handle
the consumer acknowledges it, or asks for another time; otherwise it comes again when the time is
over. The progress of a group is its first message that is not done.
"""

from __future__ import annotations

import heapq
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

OUT_MAX: Final = 4_096  # unfinished messages of one queue at one group
SPAN_MAX: Final = 65_536  # from the first unfinished message on: what a crash may repeat
RENEW_SECONDS: Final = 20.0
RENEW_SECONDS_MAX: Final = 3 * 3_600.0

_HANDLE: Final = re.compile(r"([0-9]{1,5})\.([0-9]{1,19})\.([0-9a-f]{32})")


@dataclass(slots=True)
class Flight:
    """One message that is out."""

    offset: int
    attempt: int  # how often it was given, this time included
    until: float  # invisible until then
    token: str  # unique to this delivery, and not guessable
    owner: str  # the client that keeps it as long as it lives; empty: nobody
    given_at: float


class PopQueue:
    """One group's place in one queue. Nothing here waits, and the time is an argument."""

    def __init__(self, next_offset: int, *, is_fifo: bool = False) -> None:
        """`is_fifo`: nothing more is given while any message is out."""
        self.next_offset = next_offset  # of the first message that was never given
        self._is_fifo = is_fifo
        self._out: OrderedDict[int, Flight] = OrderedDict()  # in the order of offsets
        self._times: list[tuple[float, int]] = []  # a heap; outdated items are skipped
        self._attempt_id = ""

    @property
    def committed(self) -> int:
        """All messages below this offset are done."""
        return next(iter(self._out), self.next_offset)

    @property
    def count(self) -> int:
        """How many messages are out."""
        return len(self._out)

    def room(self) -> int:
        """How many new messages may be given."""
        if (self._is_fifo and self._out) or self.next_offset - self.committed >= SPAN_MAX:
            return 0
        return OUT_MAX - len(self._out)

    def give(
        self,
        offsets: Sequence[int],
        next_offset: int,
        *,
        now: float,
        seconds: float,
        owner: str = "",
        attempt_id: str = "",
    ) -> list[Flight]:
        """Give messages that were read. Other offsets below `next_offset` were filtered out or do
        not exist, so they are done."""
        flights = []
        for offset in offsets:
            if not self.next_offset <= offset < next_offset:
                raise ValueError(f"{offset} is not from {self.next_offset} to {next_offset}")
            flight = Flight(offset, 1, now + seconds, _token(), owner, now)
            self._out[offset] = flight
            self.next_offset = offset + 1
            self._note(flight)
            flights.append(flight)
        # While messages are out the queue does not begin anew, or they would be given twice.
        self.next_offset = max(next_offset, self.next_offset if self._out else 0)
        self._attempt_id = attempt_id
        return flights

    def give_again(
        self,
        count: int,
        *,
        now: float,
        seconds: float,
        owner: str = "",
        attempt_id: str = "",
        is_alive: Callable[[str], bool] = lambda owner: False,  # noqa: ARG005
    ) -> list[Flight]:
        """Give messages again whose time is over, in the order of offsets, except those of a live
        owner. A queue in order gives all of them or none.

        A consumer that missed the answer of a queue in order asks again with the same `attempt_id`,
        and gets the same messages.
        """
        more = 1
        if not self._is_fifo:
            flights = self._over(count, now, is_alive)
        elif attempt_id and attempt_id == self._attempt_id:
            flights, more = list(self._out.values())[:count], 0
        else:
            over = [self._is_over(flight, now, is_alive) for flight in self._out.values()]
            flights = list(self._out.values())[:count] if all(over) else []
            self._attempt_id = attempt_id if flights else self._attempt_id
        for flight in flights:
            flight.attempt += more
            flight.owner = owner
            flight.given_at = now
            flight.token = _token()
            self._set(flight, now + seconds)
        return flights

    def find(self, offset: int, token: str) -> Flight | None:
        """The message whose last delivery has this token."""
        flight = self._out.get(offset)
        if flight is None or not secrets.compare_digest(flight.token, token):
            return None
        return flight

    def done(self, flight: Flight) -> None:
        self._out.pop(flight.offset, None)

    def change(self, flight: Flight, *, now: float, seconds: float) -> None:
        """Make it invisible for `seconds` from now, whether its owner lives or not; new token."""
        flight.owner = ""
        flight.token = _token()
        self._set(flight, now + seconds)

    def take_back(self, flight: Flight, *, now: float) -> None:
        """It never reached its consumer: the attempt does not count, and others see it at once."""
        if self._out.get(flight.offset) is flight:
            flight.attempt -= 1
            self.change(flight, now=now, seconds=0)

    def next_time(self) -> float | None:
        """When the next message may have to be given again."""
        if self._is_fifo:
            return max((flight.until for flight in self._out.values()), default=None)
        self._skip()
        return self._times[0][0] if self._times else None

    # -----------------------------------------------------------------------------------------

    def _is_over(self, flight: Flight, now: float, is_alive: Callable[[str], bool]) -> bool:
        """Whether it must be given again; if its owner is alive, this is asked again later."""
        if flight.until > now:
            return False
        is_young = now - flight.given_at < RENEW_SECONDS_MAX
        if not (flight.owner and is_young and is_alive(flight.owner)):
            return True
        self._set(flight, now + RENEW_SECONDS)
        return False

    def _over(self, count: int, now: float, is_alive: Callable[[str], bool]) -> list[Flight]:
        """Remove those whose time is over from the heap; returns them in the order of offsets."""
        found: dict[int, Flight] = {}
        while len(found) < count:
            self._skip()
            if not self._times or self._times[0][0] > now:
                break
            flight = self._out[heapq.heappop(self._times)[1]]
            if self._is_over(flight, now, is_alive):
                found[flight.offset] = flight
        return [found[offset] for offset in sorted(found)]

    def _skip(self) -> None:
        while self._times:
            until, offset = self._times[0]
            flight = self._out.get(offset)
            if flight is not None and flight.until == until:
                return
            heapq.heappop(self._times)

    def _set(self, flight: Flight, until: float) -> None:
        flight.until = until
        self._note(flight)

    def _note(self, flight: Flight) -> None:
        heapq.heappush(self._times, (flight.until, flight.offset))
        if len(self._times) > 2 * len(self._out) + 64:  # a client may change the time forever
            self._times = [(each.until, each.offset) for each in self._out.values()]
            heapq.heapify(self._times)


def handle_of(queue_id: int, flight: Flight) -> str:
    """The receipt handle of a delivery."""
    return f"{queue_id}.{flight.offset}.{flight.token}"


def read_handle(handle: str) -> tuple[int, int, str] | None:
    """Queue, offset and token of a receipt handle; None if it is invalid."""
    found = _HANDLE.fullmatch(handle)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


def _token() -> str:
    return secrets.token_hex(16)
