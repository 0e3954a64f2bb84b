"""A broker's log in a bucket: claimed, appended to and followed.

claim     PUT epoch n + 1, read state and tail, PUT an entry "epoch n + 1 begins"
append    PUT the next sequence, HEAD the next epoch's claim: absent means acknowledged
follow    LIST the tail, GET each entry's beginning, fold

Behind an entry's key come the keys of later entries, then those of states, so one listing shows
both. An entry that a state replaces may have been deleted, and then put again by a request that
arrives days late. So a reader that lags behind the newest state continues from that state, and
believes no entry before it.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tieredstore.driver.metadata import Change
from tieredstore.driver.object_client import ListedKey, ObjectExistsError, Range
from tieredstore.driver.provider import Fence
from tieredstore.driver.runtime import Pool, Runtime
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of
from tieredstore.roundlog.draft import DataObject, Draft, Placed, compose, place
from tieredstore.roundlog.entry import Entry
from tieredstore.roundlog.frames import NeedMore
from tieredstore.roundlog.layout import (
    OLD_CLAIMS,
    OLD_LAYOUT,
    OLD_PARTS,
    ObjectLayout,
    epoch_name,
    epoch_of,
    log_name,
    number_of,
    open_part,
    state_name,
)
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.recent import RECENT_BYTES_MAX, RecentObjects
from tieredstore.roundlog.state import LogState

log = log_of(__name__)

T = TypeVar("T")
_NOTHING: Final = object()
_CLAIM_GONE: Final = (
    "this writer's claim is gone: the log is lost; stop the broker, then restore it or `rebuild`"
)

INLINE_BYTES_MAX: Final = 8 << 20  # payload of an entry: a larger one goes into data objects
TOGETHER_BYTES_MAX: Final = 64 << 20  # payload of the callers that share an entry
BEGINNING_BYTES: Final = 1 << 20  # read of an entry first: nearly always all but its payload
SIDE_BY_SIDE: Final = 8  # entries read, or small objects written, at a time
UNDER_WAY_MAX: Final = 2  # data objects written at a time: 64 MiB
MEETINGS_MAX: Final = 1_000  # entries of other writers that may take our sequence first
MET_SINGLY: Final = 8  # of them, before all that follow are listed and read together
RELOADS_MAX: Final = 5  # of the state, while another process deletes the entries before it
LISTED_SECONDS_MAX: Final = 300  # a listing is believed this long: dead entries are kept longer
CLAIMS_MAX: Final = 1_000
LISTED_MAX: Final = 500  # claims, and objects of loads, that are listed to find the newest claim


@dataclass(slots=True, eq=False)
class _Ticket:
    """One caller's drafts. If `is_alone`, their entry must have no other caller's."""

    drafts: Sequence[Draft]
    is_alone: bool = False
    is_done: bool = False
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Sent:
    """An entry that may have landed, and the number of staged changes in it."""

    entry: Entry
    data: bytes
    staged: int


class BrokerLog:
    """The log of one broker, in one process.

    * Before `claim` the log is only read: `follow` takes in what its writer has appended since.
    * After `claim` this process is the only writer, and its state is the truth until another
      overtakes it. Then `fence` is set, and every append raises FencedError without a request.
    * One entry is under way at a time. Appends that arrive meanwhile share the next one.
    * An entry with an unknown outcome is settled before anything else is appended: the log puts the
      same entry again, unless it is there already.
    * `guard` protects the state. It is held briefly, never during I/O.

    Raises: BackendUnavailableError (the outcome of an append is unknown), BackendRefusedError,
    FencedError, MetadataError for a damaged log.
    """

    def __init__(
        self,
        calls: ObjectCalls,
        layout: ObjectLayout,
        broker: str,
        runtime: Runtime,
        *,
        before_write: Callable[[], None] = lambda: None,
        taken_in: Callable[[LogState], None] = lambda _: None,
        listing_ms: int = 1_000,
        recent_bytes: int = RECENT_BYTES_MAX,
        joins: bool = False,
    ) -> None:
        self.calls = calls
        self.layout = layout
        self.broker = broker
        self.prefix = layout.rounds(broker)
        self.clock = runtime.clock
        self.recent = RecentObjects(calls, bytes_max=recent_bytes)
        self.pool: Pool = runtime.fetch
        self.guard = threading.RLock()
        self.staged: list[Change] = []  # already in the state's tables, not yet in an entry
        self.fence: Fence | None = None
        self._before_write = before_write  # raises if the store must not be written to
        self._taken_in = taken_in  # adds the objects of a bucket without a log
        self._listing_ms = listing_ms
        self._joins = joins  # shares the current epoch with other writers
        self._state: LogState | None = None
        self._listed_at = 0.0
        self._last_read: ListedKey | None = None  # the entry that was folded last, as listed
        self._expiries = 0
        self._claimed: int | None = None  # our epoch, once its claim has been put
        self._epoch: int | None = None  # our epoch, once it has begun
        self._doubt: _Sent | None = None
        self._waiting: deque[_Ticket] = deque()
        self._turn = threading.RLock()  # held to send, claim or follow
        self._is_sending = False  # an entry's first put is under way: not in doubt yet
        self._was_refused = False  # the last append was: its bucket may have been deleted
        self._names = itertools.count()
        self._id = uuid.uuid4().hex[:16]

    # The state

    @property
    def is_writer(self) -> bool:
        """Whether this process has claimed an epoch. A fenced process is still a writer: it reads
        what it knew, and nothing that its successor wrote."""
        return self._epoch is not None

    @property
    def epoch(self) -> int | None:
        """The epoch of this process, once it has begun."""
        return self._epoch

    @property
    def known(self) -> LogState | None:
        """The state as last read, without a request; None if it was never read. Hold `guard` to
        look at it."""
        return self._state

    @property
    def in_doubt(self) -> bool:
        """Whether an append has failed, and its entry may have landed or may land later."""
        return not self._is_sending and self._doubt is not None

    @property
    def doubtful(self) -> Sequence[Change]:
        """The changes of the entry that is in doubt, which may take effect later."""
        doubt = self._doubt
        return () if doubt is None or self._is_sending else doubt.entry.changes

    def state(self, *, recent: bool = False) -> LogState:
        """The state as last read; with `recent`, read again if others may have written since.

        Hold `guard` to look at it.
        """
        state = self._state
        if state is None or (recent and self._is_old()):
            with self._turn:
                state = self._state
                if state is None or (recent and self._is_old()):
                    state = self.follow()
        return state

    def settled(self) -> LogState:
        """The recent state, once no entry of ours is in doubt. FencedError if we are fenced."""
        self._check()
        if self.in_doubt:
            with self._turn:
                self._settle()
        return self.state(recent=True)

    def expire(self) -> None:
        """Read again before the next recent state; the only writer need not read. A read that is
        under way does not count, as it may have listed before."""
        self._expiries += 1
        self._listed_at = float("-inf")

    def follow(self) -> LogState:
        """Read what others have appended since. The only writer reads nothing."""
        with self._turn:
            known = self._state
            if known is not None and self._knows_all:
                return known
            self._check()
            expiries = self._expiries
            # A state without a sequence is not from a log: drop it once there is a log.
            try:
                state = self._caught_up(known if known is not None and known.sequence else None)
            except BaseException as error:
                if not isinstance(error, Exception) and not self.is_writer:
                    with self.guard:
                        self._state = None  # it may have a part of an entry
                raise
            if not state.sequence and not self.is_writer:  # a writer's entries follow the log alone
                state = LogState()
                self._taken_in(state)
            self._believe(state)
            if self._expiries != expiries:
                self._listed_at = float("-inf")
            return state

    def _believe(self, state: LogState) -> None:
        with self.guard:
            if self.staged:  # newer than what was read
                state.tables.apply(self.staged)
            if self._doubt is not None and self._doubt.entry.sequence <= state.sequence:
                self._doubt = None  # a newer state replaces what has its sequence: ours, or not
            self._state, self._listed_at = state, self.clock.monotonic()

    def key(self, name: str) -> str:
        """The key of an object that the log names."""
        return (
            self.prefix + name
            if name.startswith(("log/", "data/", "load/", "adopted/", "state/", "epoch/"))
            else name
        )

    # Being the writer

    def claim(self) -> int:
        """Become the writer and fence the previous one. Idempotent.

        After a failure the next call uses the same epoch: an overtaken writer gets no other.
        """
        with self._turn:
            self._check()
            if self._epoch is None:
                self._before_write()
                if self._joins:
                    self._join()
                else:
                    self._begin()
            assert self._epoch is not None
            return self._epoch

    def _begin(self) -> None:
        if self._claimed is None:
            newest, state = self._looked()
            if not newest:
                self._refuse_old_layout()
                newest = self._newest_of_lost_claims()
            self._claimed = self._claimed_after(newest)
        else:
            state = self._newest_state()
        state = self._caught_up(state)
        if not state.sequence:
            state = self._looked_again(self._claimed)
        self._refuse_newer(state)
        self._believe(state)
        self._epoch = self._claimed
        self._put_beginning()

    def _put_beginning(self) -> None:
        """Append an empty entry, so that the log begins before anything that it may name is put."""
        try:
            self._append([_Ticket([Draft()])], looks=False)
        except BaseException:
            self._epoch = self._doubt = None  # the next try reads what became of the entry
            raise

    def _join(self) -> None:
        state = self._caught_up(None)
        newest = self._newest_claim(state.epoch)
        if not newest:
            self._refuse_old_layout()
            following = self._newest_of_lost_claims() + 1
            newest = self._newest_claim(0)  # a process that has joined meanwhile may have put data
            if not newest:
                self._put_claim(following)  # if it exists, another process that joins has put it
                newest = following
        if not state.sequence:
            state = self._looked_again(newest)
            if state.sequence:
                newest = self._newest_claim(max(newest, state.epoch))
        self._believe(state)
        self._claimed = self._epoch = newest
        if not state.sequence:
            self._put_beginning()

    def _looked_again(self, claimed: int) -> LogState:
        """The state of a log that seems to be empty, which listings may say that do not show what
        is there: the first entries could have been deleted, and ours would be read by nobody. So
        one listing must show the claim, and no more of the log than what is read then."""
        own = self.key(epoch_name(claimed))
        listed = iter(self.calls.client.list(self.prefix, after=self.key(epoch_name(claimed - 1))))
        first = next(listed, None)
        if first is None or first.key != own:
            raise BackendUnavailableError(own, "claim", "it is there, and listings lack it")
        of_log = self.key("log/"), self.key("state/")
        if not any(self._number_of(each) and each.key.startswith(of_log) for each in listed):
            return LogState()
        state = self._caught_up(None)
        if not state.sequence:
            raise BackendUnavailableError(self.prefix, "claim", "listings lack what others show")
        return state

    def _looked(self) -> tuple[int, LogState]:
        """The newest epoch, 0 if there is none, and the newest state: both from one listing, unless
        there are many claims, or many objects of loads between them and the states."""
        claimed, newest = 0, None
        for count, each in enumerate(self.calls.client.list(self.prefix, after=self.key("epoch/"))):
            number = self._number_of(each)
            if number is not None and each.key.startswith(self.key("epoch/")):
                claimed = number
            elif number is not None and each.key.startswith(self.key("state/")):
                newest = each
            if count == LISTED_MAX and each.key < self.key("log/"):
                state = self._newest_state()
                return self._newest_claim(max(claimed, state.epoch)), state
        try:
            state = LogState() if newest is None else self._state_of(newest)
        except SegmentNotFoundError:
            state = self._newest_state()  # it was deleted: there is a newer one
        return max(claimed, state.epoch), state

    def _claimed_after(self, epoch: int) -> int:
        """Claim the first free number after this one: nearly always the next."""
        if self._put_claim(epoch + 1):
            return epoch + 1
        newest = self._newest_claim(epoch + 1)
        for number in range(newest + 1, newest + 1 + CLAIMS_MAX):
            if self._put_claim(number):
                return number
        raise BackendRefusedError(self.key("epoch/"), "claim", "other writers keep claiming it")

    def _newest_claim(self, known: int) -> int:
        after = self.key(epoch_name(known)) if known else ""
        listed = self.calls.client.list(self.key("epoch/"), after=after)
        found = (number_of(each.key.removeprefix(self.prefix)) for each in listed)
        return max((number for number in found if number is not None), default=known)

    def _newest_of_lost_claims(self) -> int:
        """The newest epoch of any object, for a bucket without a claim; 0 in an empty one. The log
        of these objects is lost, and only those of earlier epochs than ours are taken for it."""
        names = (each.key.removeprefix(self.prefix) for each in self.calls.client.list(self.prefix))
        return max((epoch for epoch in map(epoch_of, names) if epoch is not None), default=0)

    def _put_claim(self, epoch: int) -> bool:
        try:
            self.calls.put(self.key(epoch_name(epoch)), self._id.encode())
        except ObjectExistsError:
            return False
        return True

    def _refuse_old_layout(self) -> None:
        """A log cannot take in open segments of the previous layout."""
        found = self.old_part()
        if found is not None:
            raise BackendRefusedError(found, "claim", OLD_LAYOUT)

    def old_part(self) -> str | None:
        """A key of an open segment of the previous layout."""
        below, listed = self.layout.below(self.broker), self.calls.client.list
        parts = [each.key for each in listed(OLD_PARTS + below)]
        if not parts:
            return None
        return open_part(parts, (each.key for each in listed(OLD_CLAIMS + below)))

    def _refuse_newer(self, state: LogState) -> None:
        if self._claimed is not None and state.epoch > self._claimed:
            self._fenced_by(state.epoch)
            self._check()

    # Appending

    def append(self, drafts: Sequence[Draft], *, alone: bool = False) -> None:
        """On return the drafts are durable and acknowledged, except those that have an `error`.

        An exception applies to all of them: BackendUnavailableError if their fate is unknown.
        """
        ticket = _Ticket(drafts, alone)
        self._waiting.append(ticket)
        with self._turn:
            while not ticket.is_done:
                self._append_waiting()
        if ticket.failure is not None:
            raise ticket.failure

    def data_name(self) -> str:
        """A name for a data object that no other object ever has."""
        return f"data/{self.claim():010d}-{self._id}-{os.getpid()}-{next(self._names)}"

    def put_data(self, objects: Sequence[DataObject]) -> list[str]:
        """Write data objects in parallel; return their names, which no entry contains yet."""
        names = [self.data_name() for _ in objects]
        helpers = min(UNDER_WAY_MAX, len(objects)) - 1
        side_by_side(self.pool, zip(names, objects, strict=True), self._put_one, helpers=helpers)
        return names

    def _put_one(self, named: tuple[str, DataObject]) -> None:
        name, data = named
        encoded = data.encoded()
        self.calls.put(self.key(name), encoded)
        self.recent.add(self.key(name), encoded)

    def _append_waiting(self) -> None:
        """Append those tickets that have waited longest, in one entry."""
        tickets = self._together()
        try:
            self.claim()
            if self._was_refused and not self._joins:
                self._check_claim()
            self._append(tickets)
            self._was_refused = False
        except BaseException as error:
            self._was_refused = self._was_refused or isinstance(error, BackendRefusedError)
            is_ours = not isinstance(error, Exception)  # an interrupt is not for the other threads
            for ticket in tickets:
                ticket.failure = self._interrupted() if is_ours else error
            if is_ours:
                raise
        finally:
            for ticket in tickets:
                ticket.is_done = True

    def _interrupted(self) -> BackendUnavailableError:
        reason = "the thread that sent the entry was interrupted"
        return BackendUnavailableError(self.key("log/"), "append", reason)

    def _together(self) -> list[_Ticket]:
        tickets = [self._waiting.popleft()]
        total = _bytes_of(tickets[0])
        while self._waiting and not tickets[0].is_alone:
            following = self._waiting[0]
            total += _bytes_of(following)
            if following.is_alone or total > TOGETHER_BYTES_MAX:
                break
            tickets.append(self._waiting.popleft())
        return tickets

    def _append(self, tickets: Sequence[_Ticket], *, looks: bool = True) -> None:
        """Append one entry for all tickets, after any that others have put first."""
        self._check()
        self._settle()
        drafts = [draft for ticket in tickets for draft in ticket.drafts]
        placed = place(drafts, inline_bytes_max=INLINE_BYTES_MAX)
        objects = self.put_data(placed.objects) if placed.objects else []
        self._follow_others()
        for count in range(1, MEETINGS_MAX + 1):
            sent = self._composed(drafts, placed, objects)
            if sent is None or self._send(sent, looks=looks):
                return
            if count % MET_SINGLY == 0:  # there may be thousands, and each takes four requests
                self._look()
                self._believe(self._caught_up(self._state))
        raise BackendUnavailableError(self.key("log/"), "append", "other writers keep appending")

    def _composed(
        self, drafts: Sequence[Draft], placed: Placed, objects: Sequence[str]
    ) -> _Sent | None:
        """The entry to send; None if it would contain nothing."""
        assert self._state is not None
        assert self._epoch is not None
        with self.guard:
            staged = list(self.staged)
            entry = compose(
                self._state,
                drafts,
                placed,
                objects,
                staged,
                epoch=self._epoch,
                nonce=f"{self._id}-{os.getpid()}-{next(self._names)}",
                time_ms=self.clock.now_ms(),
                path_of=lambda key: self.layout.segment_key(*key),
            )
        if all(draft.error is not None for draft in drafts) and not staged:
            return None
        data = entry.encoded(placed.inline)
        return _Sent(entry.placed_at(len(data)), data, len(staged))

    def _send(self, sent: _Sent, *, looks: bool = True) -> bool:
        """Put the entry; False if another writer's took its sequence, which is then folded."""
        was_in_doubt = self._doubt is not None
        self._doubt, self._is_sending = sent, not was_in_doubt
        try:
            return self._sent(sent, looks=looks, was_in_doubt=was_in_doubt)
        finally:
            self._is_sending = False

    def _sent(self, sent: _Sent, *, looks: bool, was_in_doubt: bool) -> bool:
        entry = sent.entry
        key = self.key(log_name(entry.sequence))
        try:
            self.calls.put(key, sent.data)
        except BackendRefusedError:
            if not was_in_doubt:
                self._doubt = None  # nothing was written
            raise
        except ObjectExistsError:
            found = self._standing(key)
            if found.nonce != entry.nonce:
                self._meet(found)
                self._doubt = None
                return False
        if looks:
            self._look()
        self._fold(entry, sent.staged)
        self._doubt = None
        if entry.payload_bytes:
            self.recent.add(key, sent.data)
        return True

    def _settle(self) -> None:
        """Send again an entry whose outcome is unknown."""
        if self._doubt is not None:
            self._check()
            self._follow_others()
        if self._doubt is not None:
            self._send(self._doubt)

    def _follow_others(self) -> None:
        """Before an entry is put: a sequence that others have used, and whose entry was deleted
        since, would seem to be free."""
        if self._joins and self._is_stale(self._listed_at):
            self.follow()

    def check_writer(self) -> None:
        """Raise FencedError if this process was the writer and no longer is. This asks the bucket;
        call it when objects are missing."""
        if self.is_writer:
            self._check()
            self._look()

    def _check_claim(self) -> None:
        """Raise MetadataError if our claim is gone. Nobody deletes claims, so then the bucket was
        emptied, or deleted and made again: our next entry would follow on none that is there."""
        assert self._epoch is not None
        key = self.key(epoch_name(self._epoch))
        try:
            self.calls.ranges([Range(key, 0, 1)])  # a HEAD does not tell that the bucket is missing
        except SegmentNotFoundError as error:
            raise MetadataError(self.prefix, _CLAIM_GONE) from error

    def _look(self) -> None:
        """Raise FencedError if somebody has claimed the epoch after ours."""
        assert self._epoch is not None
        if self.calls.head(self.key(epoch_name(self._epoch + 1))) is not None:
            self._fenced_by(self._epoch + 1)
            self._check()

    def _meet(self, found: Entry) -> None:
        """Fold another writer's entry that took our sequence. It can be believed only if nobody has
        claimed the epoch after ours: otherwise the true entry may have been deleted, and this one
        put by a request that arrived days late."""
        self._refuse_overtaken(found.epoch)
        self._look()
        self._fold(found, 0)

    def _fold(self, entry: Entry, staged: int) -> None:
        assert self._state is not None
        with self.guard:
            self._state.fold(entry)
            del self.staged[:staged]
            if self.staged:  # newer than what was folded
                self._state.tables.apply(self.staged)
            if entry.merged:
                self.recent.keep_only(self._is_used)

    def _is_used(self, key: str) -> bool:
        assert self._state is not None
        return self._state.is_used(key.removeprefix(self.prefix))

    def _fenced_by(self, epoch: int) -> None:
        if self.fence is None:
            self.fence = Fence(epoch, self.clock.now_ms())
            log.error(
                "%s: fenced by epoch %d: another writer has taken over, this one writes nothing"
                " more",
                self.broker,
                epoch,
            )

    def _check(self) -> None:
        if self.fence is not None:
            raise FencedError(self.prefix, "append", epoch=self.fence.epoch)

    # Reading

    @property
    def _knows_all(self) -> bool:
        """Whether there is nothing to read: we are the only writer, or fenced, and then must not
        read what our successor wrote."""
        return self.fence is not None or (self.is_writer and not self._joins)

    def _is_old(self) -> bool:
        if self._knows_all:
            return False
        return (self.clock.monotonic() - self._listed_at) * 1000 >= self._listing_ms

    def _newest_state(self) -> LogState:
        """The newest state that can be read; an empty one if there is none."""
        for _ in range(RELOADS_MAX):
            newest: ListedKey | None = None
            for each in self.calls.listed(self.key("state/")):
                if self._number_of(each) is not None:
                    newest = each  # states are listed in order
            if newest is None:
                return LogState()
            try:
                return self._state_of(newest)
            except SegmentNotFoundError:
                continue  # it was deleted: there is a newer one
        raise BackendUnavailableError(self.key("state/"), "read", "its states keep changing")

    def _state_of(self, listed: ListedKey) -> LogState:
        data = self.calls.ranges([Range(listed.key, 0, listed.size)])[0]
        state = LogState.decoded(data, listed.key)
        if state.sequence != self._number_of(listed):
            raise MetadataError(listed.key, f"it is the state of entry {state.sequence}")
        return state

    def _number_of(self, listed: ListedKey) -> int | None:
        return number_of(listed.key.removeprefix(self.prefix))

    def _caught_up(self, state: LogState | None) -> LogState:
        """The state with all later entries folded. Begins at the newest state in the bucket if
        `state` is None, too old, or of a log that another one has replaced since: that one began
        later. MetadataError if entries that the state has are gone."""
        known, known_ms = (0, 0) if state is None else (state.sequence, state.time_ms)
        if state is None:
            state = self._newest_state()
        missing, reloads = 0, 0
        while reloads < RELOADS_MAX:
            try:
                state, is_all = self._catch_up(state, doubts=bool(known and not reloads))
            except _GapError as gap:
                missing, reloads = gap.missing, reloads + 1
                state, self._last_read = self._newest_state(), None
                self._refuse_overtaken(state.epoch)
            else:
                if not is_all:
                    continue
                if state.sequence < known and (self.is_writer or state.time_ms < known_ms):
                    # What comes to its key later is another entry, though of the same size.
                    self._last_read = ListedKey(self.key(log_name(known)), -1)
                    reason = f"it had {known} entries and has {state.sequence}: the others are lost"
                    raise MetadataError(self.prefix, reason)
                return state
        raise MetadataError(self.key(log_name(missing)), "is missing")

    def _catch_up(self, state: LogState, *, doubts: bool) -> tuple[LogState, bool]:
        """Fold the entries after this state, or after a newer one if one is listed. Returns the
        state, and whether all were folded. Raises _GapError if an object it needs is gone, or the
        log that the state is of: then neither its last entry is there nor a state that replaces it.
        So does, for a reader that `doubts` the state, an entry that does not follow on it.
        """
        listed_at = self.clock.monotonic()
        listed, newest = self._listed(state.sequence)
        if state.sequence and self._is_gone(state, listed[:1], newest):
            raise _GapError(state.sequence)
        if newest is not None and newest.key > self.key(state_name(state.sequence)):
            try:
                state = self._state_of(newest)
            except SegmentNotFoundError as error:
                raise _GapError(state.sequence + 1) from error
            self._refuse_overtaken(state.epoch)
        listed = [(number, each) for number, each in listed if number > state.sequence]
        for expected, (number, _) in enumerate(listed, state.sequence + 1):
            if number != expected:
                raise _GapError(expected)
        for start in range(0, len(listed), SIDE_BY_SIDE):
            some = [each for _, each in listed[start : start + SIDE_BY_SIDE]]
            try:
                found = list(self._entries(some, state))
            except MetadataError:
                if not self._is_stale(listed_at):
                    raise
                found = []
            if self._is_stale(listed_at):
                if not start:
                    raise BackendUnavailableError(self.prefix, "read", "it takes minutes")
                return state, False
            for entry in found:
                self._refuse_overtaken(entry.epoch)
                with self.guard:
                    self._fold_read(state, entry, doubts=doubts and not self.is_writer)
                    self._settle_with(entry)
            self._last_read = some[-1]
        return state, True

    def _is_gone(
        self,
        state: LogState,
        first: Sequence[tuple[int, ListedKey]],
        newest: ListedKey | None,
    ) -> bool:
        """Whether the log that this state is of is gone: its last entry has another size, or is
        not there, nor a state that replaces it. The entry of another log may have the same size."""
        if not first or first[0][0] != state.sequence:
            return newest is None
        found, read = first[0][1], self._last_read
        return read is not None and read.key == found.key and read.size != found.size

    def _fold_read(self, state: LogState, entry: Entry, *, doubts: bool) -> None:
        try:
            counts = state.fold(entry)
        except MetadataError as error:
            if doubts:
                raise _GapError(entry.sequence) from error
            raise
        if doubts and not counts:
            raise _GapError(entry.sequence)

    def _settle_with(self, entry: Entry) -> None:
        """If our entry in doubt has this sequence, this says what became of it."""
        sent = self._doubt
        if sent is not None and sent.entry.sequence == entry.sequence:
            if sent.entry.nonce == entry.nonce:
                del self.staged[: sent.staged]
            self._doubt = None

    def _is_stale(self, listed_at: float) -> bool:
        """Whether an entry that was listed, or came right after, may have been deleted since, and
        another put in its place by a process that slept."""
        return self.clock.monotonic() - listed_at > LISTED_SECONDS_MAX

    def _listed(self, sequence: int) -> tuple[list[tuple[int, ListedKey]], ListedKey | None]:
        """The entries from this sequence on, with their numbers, and the newest state of them."""
        after = self.key(log_name(sequence - 1) if sequence else "log/")
        entries: list[tuple[int, ListedKey]] = []
        newest: ListedKey | None = None
        for each in self.calls.client.list(self.prefix, after=after):
            number = self._number_of(each)
            if number is None:
                continue
            if each.key.startswith(self.key("log/")):
                entries.append((number, each))
            elif number >= sequence:
                newest = each
        return entries, newest

    def _refuse_overtaken(self, epoch: int) -> None:
        """Raise FencedError for an epoch after ours: a writer reads nothing of its successor."""
        if self._epoch is not None and epoch > self._epoch:
            self._fenced_by(epoch)
            self._check()

    def _entries(self, listed: Sequence[ListedKey], state: LogState) -> Iterator[Entry]:
        wanted = [Range(each.key, 0, min(each.size, BEGINNING_BYTES)) for each in listed]
        try:
            found = self._beginnings(wanted)
        except SegmentNotFoundError as error:
            raise _GapError(state.sequence + 1) from error
        for each, data in zip(listed, found, strict=True):
            yield self._decoded(each, data)

    def entry(self, listed: ListedKey) -> Entry:
        """A listed entry without its payload. MetadataError if it is damaged."""
        wanted = Range(listed.key, 0, min(listed.size, BEGINNING_BYTES))
        return self._decoded(listed, self._beginnings([wanted])[0])

    def _beginnings(self, wanted: Sequence[Range]) -> list[bytes]:
        """The first bytes of entries. One that is shorter than listed is damaged, or was replaced
        meanwhile."""
        try:
            return self.calls.ranges(wanted)
        except OffsetOutOfRangeError as error:
            raise MetadataError(self.prefix, f"an entry is cut short: {error}") from error

    def _decoded(self, listed: ListedKey, data: bytes) -> Entry:
        try:
            entry = Entry.decoded(data, listed.key, object_bytes=listed.size)
        except NeedMore as more:
            needed = more.bytes
        else:
            return self._named(listed, entry)
        data = self._beginnings([Range(listed.key, 0, needed)])[0]
        return self._named(listed, Entry.decoded(data, listed.key, object_bytes=listed.size))

    def _named(self, listed: ListedKey, entry: Entry) -> Entry:
        if entry.sequence != self._number_of(listed):
            raise MetadataError(listed.key, f"it is entry {entry.sequence}")
        return entry

    def _standing(self, key: str) -> Entry:
        """The entry that already has this key."""
        facts = self.calls.head(key)
        try:
            if facts is not None:
                return self.entry(ListedKey(key, facts.size))
        except SegmentNotFoundError:
            pass
        except MetadataError:
            self._look()  # a newer writer may have deleted it, and it was put again since `head`
            raise
        raise BackendUnavailableError(key, "append", "an entry has disappeared")


class _GapError(Exception):
    """An entry is missing: a newer state than ours replaces it."""

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing


def side_by_side(
    pool: Pool, work: Iterator[T], call: Callable[[T], object], *, helpers: int
) -> None:
    """Do all the work in the caller's thread and `helpers` threads of the pool.

    The caller waits for no thread that has not begun, as its own may be one of the pool's. Raises
    the first error once all calls that had begun have ended.
    """
    guard = threading.Lock()
    errors: list[BaseException] = []

    def step() -> None:
        while not errors:
            with guard:
                item = next(work, _NOTHING)
            if item is _NOTHING:
                return
            try:
                call(item)  # type: ignore[arg-type]
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                errors.append(error)

    futures = [pool.submit(step) for _ in range(helpers)]
    step()
    for future in futures:
        if not future.cancel():
            future.result()
    if errors:
        raise errors[0]


def _bytes_of(ticket: _Ticket) -> int:
    return sum(draft.payload_bytes for draft in ticket.drafts)
