"""Two histories of a queue: a broker continues with an older disk, or for a while without its tier.
Queues that only loads fill have one, and so have adopted ones: nothing of them is on the disk.

When a life has loaded both stores, all they have of each queue is read. This shows what the load
did to either, where they differ, and which messages a read may see until an operator has decided;
it is compared with what was known of both before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.acts import QUEUES, a_message, a_put, written_tier
from tests.simulation.adoptions import OLD
from tests.simulation.loads import LOADED
from tests.simulation.model import DOUBTFUL, GONE, HIDDEN, SENT, STORED, Model, Put, decoded
from tests.simulation.moves import FORMER
from tieredstore.access.audit import AuditKind
from tieredstore.access.queue_upload import (
    STOPPED_QUEUE,
    TRUST_LOCAL,
    TRUST_TIER,
    ask_to_resume,
    trust,
)
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import queue_path
from tieredstore.driver.message_store import ReadRequest
from tieredstore.local.store import LocalMessageStore, LocalStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.findings import Finding
from tieredstore.model.messages import GetResult, SelectedMessage
from tieredstore.model.values import INT64_MAX, QueueKey
from tieredstore.testing.disk import ForgetfulDisk

if TYPE_CHECKING:
    from tests.simulation.machines import Machine
    from tests.simulation.world import Client, Life, World

HISTORIES: Final = "histories"
SIDES: Final = (TRUST_TIER, TRUST_LOCAL, None)  # None: compare once more
KEPT_HOURS: Final = 1_000_000  # no file of the local store expires
COPIES_MAX: Final = 3
PAGE: Final = 32
TIERED: Final = (*LOADED, *OLD)  # queues that only the tier has


@dataclass
class Side:
    """What a store may have of a queue, and the offsets that it is known to have."""

    puts: dict[int, Put] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)

    def copy(self) -> Side:
        return Side(dict(self.puts), set(self.sure))

    def __str__(self) -> str:
        return ",".join(f"{at}:{put.name}" for at, put in sorted(self.puts.items()))


@dataclass
class Copy:
    """The broker's disk as it was between two lives; puts without an answer may be in it too."""

    folder: Path
    local: dict[QueueKey, Side]
    unheard: list[Put]


@dataclass
class Elsewhere(Model):
    """What is true now for those who see only the tier; a turn counts like a deletion."""

    sure: dict[QueueKey, set[int]] = field(default_factory=dict)
    unclear_from: dict[QueueKey, int] = field(default_factory=dict)
    """From there on the tier may have what no put has returned yet."""
    past: dict[str, int] = field(default_factory=dict)
    is_late: bool = False
    """A new picture may be old: a published catalogue may, and one who read when the tier moved may
    still see the former place."""

    def required(self, queue: QueueKey) -> set[int]:
        if queue not in self.sure:
            return super().required(queue)
        if self.deletions.get(queue.topic, 0) % 2:
            return set()
        border, puts = self.newest_ms - self.kept_ms, self.queues[queue]
        return {at for at in self.sure[queue] if puts[at].store_ms > border}

    def having(self, topic: str, key: str) -> list[Put]:
        queues = [queue for queue in self.queues if queue.topic == topic]
        puts = [self.queues[queue][at] for queue in queues for at in self.required(queue)]
        return [put for put in puts if key in put.keys]

    def saw(
        self, one: SelectedMessage, queue: QueueKey, *, deletions: int, is_by_key: bool = False
    ) -> Put:
        if queue not in self.sure:
            return super().saw(one, queue, deletions=deletions, is_by_key=is_by_key)
        message = decoded(one.record)
        where = QueueKey(message.topic, message.queue_id), message.queue_offset
        assert where == (queue, one.queue_offset), f"{queue}/{one.queue_offset} shows {where}"
        name = message.body.decode().split("|")[0]
        self.check_shown(name, queue, one.queue_offset, deletions)
        return self.puts[name]

    def check_shown(self, name: str, queue: QueueKey, at: int, deletions: int) -> None:
        """The tier must have had it there at some moment since the picture."""
        if queue not in self.sure:
            super().check_shown(name, queue, at, deletions)
            return
        put, there = self.puts[name], self.queues[queue].get(at)
        assert put.queue == queue, f"{put} was read from {queue}"
        was = self.past.get(name, -1) >= (0 if self.is_late else deletions)
        is_open = at not in self.sure[queue] and (queue in self.murky or put.state == SENT)
        may_be = is_open and at >= self.unclear_from[queue] and put.offset in (None, at)
        assert there is put or was or may_be, f"{put} was read at {at}, the tier has {there}"


def differing(some: Side, others: Side) -> list[int]:
    """The offsets at which the sides have different messages."""
    both = some.puts.keys() & others.puts.keys()
    return sorted(at for at in both if some.puts[at] is not others.puts[at])


class Histories:
    """What is known of the two sides of each queue. Between two lives this is what the last life
    that had loaded them left, and what has happened to them since."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = Random(f"{world.plan.seed} histories")
        self.is_on = HISTORIES in world.plan.clients
        keeps_local = self.dice.random() < 0.5
        self.keeps_local = self.is_on and keeps_local and not world.is_out_of_room
        self.local = {queue: Side() for queue in QUEUES}
        self.tier = {queue: Side() for queue in QUEUES}
        self.either: dict[QueueKey, dict[int, Put]] = {}
        """What must be on one side at least, where nothing has befallen either."""
        self.decided: dict[QueueKey, set[str | None]] = {queue: {None} for queue in QUEUES}
        self.forks: dict[QueueKey, int] = {}
        self.stopped: set[QueueKey] = set()  # or perhaps stopped
        self.ever_stopped: set[QueueKey] = set()  # an older picture of the tier still says so
        self.local_ends: dict[QueueKey, int] = {}  # when the life began
        self.tier_ends: dict[QueueKey, int] = {}  # perhaps with a gap after its last message
        self.kept_from: dict[QueueKey, int] = {}  # resumed in this life: uploaded again
        self.emptied: set[QueueKey] = set()
        """Deleted or given up in this life: the bucket may still have segments of before."""
        self.joined: set[QueueKey] = set()
        """They went on where two histories were known, or what differs had expired on the disk:
        behind it both have the same, and their last message says nothing any more of an older disk.
        """
        self.turns = dict.fromkeys((queue.topic for queue in (*QUEUES, *TIERED)), 0)
        """How often the tier's side of a queue was to be given up, and was; like deletions."""
        self.given_up: set[str] = set()  # paths of queues that perhaps were, ever
        self.past: dict[str, int] = {}
        """Messages that the tier had once: until which turn an older picture may show them."""
        self.is_fresh = False  # a life has loaded both since the last look between two lives
        self.copies: list[Copy] = []
        self.parts: LocalStore | None = None  # of a broker that runs without its tier
        self.is_settled = False  # everything is decided

    def elsewhere(self) -> Elsewhere:
        model, sides = self.world.model, {queue: self._grown_tier(queue) for queue in QUEUES}
        tiered = {queue: model.queues.setdefault(queue, {}) for queue in TIERED}
        unclear = {queue: self.tier_ends.get(queue, 0) for queue in QUEUES}
        for queue in self.forks:
            unclear[queue] = INT64_MAX
        for queue in model.murky:
            unclear[queue] = 0
        return Elsewhere(
            kept_ms=model.kept_ms,
            newest_ms=model.newest_ms,
            puts=model.puts,
            murky=model.murky,
            deletions={topic: self._turn(topic) for topic in self.turns},
            queues=tiered | {queue: side.puts for queue, side in sides.items()},
            sure={queue: side.sure for queue, side in sides.items()},
            unclear_from=unclear,
            past=self.past,
            is_late=self.world.is_posix or self.world.place != FORMER,
        )

    def _turn(self, topic: str) -> int:
        """How often something began and ended that the tier's messages of a topic may not outlive:
        odd while it lasts."""
        counts = self.turns[topic], self.world.model.deletions.get(topic, 0)
        return 2 * sum(n // 2 for n in counts) + any(n % 2 for n in counts)

    def is_going(self, queue: QueueKey) -> bool:
        """Whether its topic is being deleted; if that stopped half way, the next life goes on."""
        return self.world.model.deletions.get(queue.topic, 0) % 2 == 1

    def begin_deletion(self, topic: str) -> None:
        """Whatever was known of the queues of a topic ends. If it stops half way, local messages
        may still follow those that the tier gave up."""
        for queue in (each for each in QUEUES if each.topic == topic):
            for put in (*self._grown_tier(queue).puts.values(), *self._grown_local(queue).values()):
                self.past[put.name] = self._turn(topic)
            self.forks.pop(queue, None)
            self.world.model.closed.discard(queue)

    def end_deletion(self, topic: str) -> None:
        for queue in (each for each in QUEUES if each.topic == topic):
            for put in (*self._grown_tier(queue).puts.values(), *self._grown_local(queue).values()):
                self.past[put.name] = self._turn(topic) - 1
            for put in {**self.local[queue].puts, **self.tier[queue].puts}.values():
                put.state = GONE
            self.local[queue], self.tier[queue] = Side(), Side()
            self.local_ends[queue] = self.tier_ends[queue] = 0
            self.decided[queue] = {None}
            for known in (self.either, self.forks, self.kept_from):
                known.pop(queue, None)
            for some in (self.stopped, self.joined, self.world.model.murky):
                some.discard(queue)
            self.emptied.add(queue)

    # A life that has loaded both stores

    def opened(self, life: Life) -> None:
        """Compare both stores before the life starts to put, upload or delete."""
        if not self.is_on:
            return
        self._take_stock()  # nothing was done since the last life, if it was still to be taken
        seen = {
            queue: (self._local_of(life, queue), self._tier_of(life, queue))
            for queue in QUEUES
            if not self.is_going(queue)
        }
        self.kept_from.clear()
        self.emptied.clear()
        self.world.saw_time()
        for queue, (local, tier) in seen.items():
            self._compare(life, queue, local, tier)
        self._end_turns()
        assert not (self.is_settled and self.stopped), f"stopped, and decided: {self.stopped}"
        self.is_fresh = True

    def _end_turns(self) -> None:
        for topic, turn in self.turns.items():
            if not any(TRUST_LOCAL in self.decided[each] for each in QUEUES if each.topic == topic):
                self.turns[topic] = turn + turn % 2

    def _local_of(self, life: Life, queue: QueueKey) -> dict[int, Put]:
        first, end = life.local.min_offset(*queue), life.local.max_offset(*queue)
        return self._read(life, partial(life.local.get_message, *queue), first, end)

    def _tier_of(self, life: Life, queue: QueueKey) -> dict[int, Put] | None:
        """What the tier has of a queue; None if it cannot say."""
        tier, forks = life.store._loaded().tier, life.store.agreement.forks
        file = tier.files.get(queue)
        if file is not None and file.problem is not None and queue not in forks:
            return None

        def get(offset: int, count_max: int) -> GetResult:
            request = ReadRequest(*queue, offset, count_max, 1 << 20)
            return tier.fetcher.get_message(request)

        end = tier.fetcher.commit_offset(*queue)
        return self._read(life, get, tier.fetcher.min_offset(*queue), end)

    def _read(
        self, life: Life, get: Callable[..., GetResult], first: int | None, end: int | None
    ) -> dict[int, Put]:
        found: dict[int, Put] = {}
        at = first or 0
        while at < (end or 0):
            try:
                page = get(at, count_max=PAGE)
            except self.world.expected:
                life.runtime.clock.sleep(1)
                continue
            for one in page.messages:
                body = decode_message(one.record).body.decode()
                found[one.queue_offset] = self.world.model.puts[body.split("|")[0]]
            if page.next_offset <= at:
                break
            at = page.next_offset
        return found

    def _compare(
        self, life: Life, queue: QueueKey, local: dict[int, Put], tier: dict[int, Put] | None
    ) -> None:
        agreement = life.store.agreement
        is_refused, fork = queue in agreement.refused, agreement.forks.get(queue)
        is_known = tier is not None
        mine, theirs = Side(local, {*local}), Side(tier or {}, {*(tier or {})})
        differs = differing(mine, theirs)
        self.world.scheduler.note(
            f"{queue.topic}/{queue.queue_id} has {mine}, the tier {theirs if is_known else '?'},"
            f" fork {fork}, refused {is_refused}, decided {self.decided[queue]}"
        )
        for put in (*local.values(), *theirs.puts.values()):
            assert put.state != GONE, f"{put} has come back"
        end = self.tier_ends[queue] = life.store.committed_offset(*queue) or 0
        if is_known:
            self._remember(queue, theirs)
            self._check_kept(queue, mine, theirs, end)
            self._check_said(queue, differs, fork)
            if TRUST_LOCAL in self.decided[queue]:
                self.emptied.add(queue)  # segments that were given up may be there still
        is_murky = not is_known or (bool(differs) and fork is None)
        is_told = not is_murky or self.may_be_away or queue in self.joined
        assert is_told, f"{queue}: it differs at {differs}, nothing says so"
        given = [at for at in self.local[queue].sure if self.local[queue].puts[at].state == STORED]
        last = max([end - 1 if not (is_refused or is_murky) else -1, *given])
        if self.world.has_expired and self._may_differ(queue):
            self.stopped.add(queue)  # perhaps by a load that died before what differs expired
        self.local_ends[queue] = life.local.max_offset(*queue) or 0
        assert self.local_ends[queue] > last, f"{queue} gives out {last} again"
        self._place(queue, mine, theirs, fork, is_murky=is_murky, is_known=is_known)
        is_decided = self.decided[queue] != {None}
        is_unseen = bool(local) and fork is None and not differs  # the rest may have expired
        if not is_refused and (is_decided or is_unseen) and differing(self.local[queue], theirs):
            self.joined.add(queue)
        self.local[queue] = mine
        if is_known:
            self.tier[queue] = theirs
        self.either.pop(queue, None)
        if not is_refused:
            self.decided[queue] = {None}
        self._note(life, queue, fork, is_refused=is_refused, is_murky=is_murky)

    def _check_kept(self, queue: QueueKey, mine: Side, theirs: Side, end: int) -> None:
        """A load may give up one side if they differ and this was decided, or the local side if it
        ends before the tier and none of its messages is known to differ."""
        model = self.world.model
        border = model.newest_ms - model.kept_ms
        local, tier, decided = self.local[queue], self.tier[queue], self.decided[queue]
        young = [at for at in tier.sure if tier.puts[at].store_ms > border]
        lacks_tier = [at for at in young if theirs.puts.get(at) is not tier.puts[at]]
        stored = [at for at in local.sure if local.puts[at].state == STORED]
        lacks_local = [at for at in stored if mine.puts.get(at) is not local.puts[at]]
        conflict = differing(local, tier)
        assert not (lacks_tier and lacks_local), f"{queue}: lost {lacks_local} and {lacks_tier}"
        if lacks_tier:
            is_right = TRUST_LOCAL in decided and self._may_differ(queue)
            assert is_right, f"{queue}: the tier has lost {lacks_tier}, {decided}"
        if lacks_local and TRUST_TIER not in decided and queue not in self.joined:
            sure = [
                at
                for at in conflict
                if at in stored and theirs.puts.get(at) is tier.puts[at]  # otherwise it has expired
            ]
            assert not sure, f"{queue}: the local {lacks_local} were given up, it differs at {sure}"
        if lacks_local:
            beyond = [at for at in lacks_local if at >= end]
            assert not beyond or TRUST_TIER in decided, f"{queue}: local {beyond} are lost"
        held = {*map(id, mine.puts.values()), *map(id, theirs.puts.values())}
        lost = [
            put
            for put in self.either.get(queue, {}).values()
            if put.store_ms > border and put.state == STORED and id(put) not in held
        ]
        assert not lost, f"{queue}: {lost} are lost"

    def _remember(self, queue: QueueKey, theirs: Side) -> None:
        """What the tier has given up, or what has expired, may still be in an older picture."""
        model, turn = self.world.model, self._turn(queue.topic)
        border = model.newest_ms - model.kept_ms
        for at, put in self._grown_tier(queue).puts.items():
            if theirs.puts.get(at) is not put and (turn % 2 or put.store_ms <= border):
                self.past[put.name] = turn

    def _may_differ(self, queue: QueueKey) -> bool:
        """Whether the sides may differ, perhaps by a message without an answer."""
        puts = self.world.model.puts.values()
        is_open = any(put.state == SENT and put.queue == queue for put in puts)
        return is_open or bool(differing(self.local[queue], self.tier[queue]))

    def _check_said(self, queue: QueueKey, differs: list[int], fork: int | None) -> None:
        if fork is None:
            return  # what cannot be compared now is compared later
        assert differs, f"{queue}: nothing differs, but {fork} is said to"
        is_first = fork == differs[0] or (fork < differs[0] and self.may_be_away)
        assert is_first, f"{queue}: it differs at {differs}, not first at {fork}"
        is_left = None in self.decided[queue] or self.may_be_away
        assert is_left, f"{queue}: {self.decided[queue]} was decided, and it is two histories still"

    def _place(
        self,
        queue: QueueKey,
        mine: Side,
        theirs: Side,
        fork: int | None,
        *,
        is_murky: bool,
        is_known: bool,
    ) -> None:
        """Tell the model what reads see: local messages, and below the fork also the tier's."""
        model = self.world.model
        below = {at: put for at, put in theirs.puts.items() if fork is None or at < fork}
        view = {**({} if is_murky else below), **mine.puts}
        shown_at = {id(put): at for at, put in view.items()}
        hidden_at = {id(put): at for at, put in theirs.puts.items()}
        for put in model.puts.values():
            if put.queue != queue or put.state == GONE:
                continue
            if id(put) in shown_at:
                put.state, put.offset = STORED, shown_at[id(put)]
            elif id(put) in hidden_at:
                put.state, put.offset = HIDDEN, hidden_at[id(put)]
            elif is_known:
                if put.state == SENT:  # the tier may have had it until it expired
                    self.past[put.name] = self._turn(queue.topic)
                put.state, put.offset = GONE, None
        model.queues[queue] = view

    def _note(
        self,
        life: Life,
        queue: QueueKey,
        fork: int | None,
        *,
        is_refused: bool,
        is_murky: bool,
    ) -> None:
        model, tier = self.world.model, life.store._loaded().tier
        is_stopped = is_refused or (is_murky and queue not in self.joined)
        if is_stopped:
            self.stopped.add(queue)
            self.ever_stopped.add(queue)
        path = queue_path(life.store.config.broker_name, *queue)
        is_there = tier.metadata.queue(*queue) is not None  # a queue made anew loses the note
        if is_there and tier.metadata.note(STOPPED_QUEUE, path) is not None:
            assert queue in self.stopped, f"{queue} was stopped for nothing"
        elif not is_stopped:
            self.stopped.discard(queue)
        self.forks.pop(queue, None)
        if fork is not None:
            self.forks[queue] = fork
        (model.closed.add if is_refused else model.closed.discard)(queue)
        (model.murky.add if is_murky else model.murky.discard)(queue)
        committed = tier.fetcher.commit_offset(*queue) or 0
        if committed < model.committed.get(queue, 0) and not is_murky:
            model.committed.pop(queue, None)  # the tier was given up; anything else was found above

    @property
    def may_be_away(self) -> bool:
        """Whether a tier may exist that cannot be reached."""
        return bool(self.world.expected)

    def may_go(self, put: Put) -> bool:
        """Whether local retention may delete the only copy: of a stopped queue, or of a message
        from an older disk that is in a gap of the tier."""
        queue, at, theirs = put.queue, put.offset, self.tier.get(put.queue)
        if self.keeps_local or at is None or theirs is None or theirs.puts.get(at) is put:
            return False
        is_in_gap = at < self.tier_ends.get(queue, 0)
        is_kept = queue not in self.stopped or at >= self.kept_from.get(queue, at + 1)
        return is_in_gap or not is_kept

    def is_in_gap(self, topic: str) -> bool:
        """Whether the disk has messages in a gap of the tier: if the tier alone is asked for keys,
        its answers are not complete."""
        return any(
            at < self.tier_ends.get(queue, 0) and at not in self.tier[queue].puts
            for queue in QUEUES
            if queue.topic == topic
            for at in self.local[queue].puts
        )

    def excuses(self, finding: Finding, queues: Collection[QueueKey] | None = None) -> bool:
        """Whether the finding says that a queue is stopped which may be stopped."""
        if queues is None:  # a load in progress may report it before its life has
            queues = self.ever_stopped | {each for each in QUEUES if self._may_differ(each)}
        paths = {queue_path(self.world.broker, *queue) for queue in queues}
        return finding.kind == AuditKind.STOPPED and finding.where in paths

    # Between two lives

    def look_after(self, machine: Machine) -> None:
        """What happens to the disk, and what an operator does about it."""
        if not self.is_on or self.world.is_taken_over:
            return
        if not self._take_stock():
            return
        store, dice = machine.folder / "store", self.dice
        if store.exists() and len(self.copies) < COPIES_MAX and dice.random() < 0.7:
            self._copy(store)
        draw = dice.random() if self.world.may_recover(machine) else 1
        if self.copies and draw < 0.5:
            self._restore(machine, dice.choice(self.copies))
        elif draw < 0.6:
            self._lose(machine)
        if dice.random() < (0.8 if draw < 0.6 else 0.2):
            self._do(machine, "a broker without its tier", self._go_without)
        for queue in QUEUES:
            if self.is_going(queue):
                continue
            if dice.random() < (0.7 if queue in self.stopped else 0.05):
                self.decide(machine, queue, dice.choice(SIDES))

    def decide(self, machine: Machine, queue: QueueKey, side: str | None) -> None:
        self._do(machine, f"resume {queue} {side}", partial(self._resume, queue, side))

    def settle_all(self, machine: Machine) -> None:
        """After all faults: decide every queue, so that none is stopped any more."""
        self._take_stock()
        for queue in sorted(each for each in self.stopped if not self.is_going(each)):
            self.decide(machine, queue, self.dice.choice([TRUST_TIER, TRUST_LOCAL]))
        self.is_settled = True

    def _take_stock(self) -> bool:
        """Update both sides of each queue after a life; False if none has loaded them."""
        if not self.is_fresh:
            return False
        model = self.world.model
        for queue in QUEUES:
            known, mine = model.queues.get(queue, {}), self._grown_local(queue)
            sure = {at for at, put in mine.items() if put.state == STORED and self.keeps_local}
            if queue not in self.forks and queue not in model.murky:
                self.either[queue] = {
                    at: put
                    for at, put in known.items()
                    if put.state == STORED and not model.may_be_lost(put)
                }
            self.tier[queue] = self._grown_tier(queue)  # may have more, and need not
            if self.is_going(queue):
                mine, sure = {**mine, **self.local[queue].puts}, set()
            self.local[queue] = Side(mine, sure)
        self.is_fresh = False
        return True

    def _grown_local(self, queue: QueueKey) -> dict[int, Put]:
        known, local = self.world.model.queues.get(queue, {}), self.local[queue]
        end = self.local_ends.get(queue, 0)
        return {at: put for at, put in known.items() if at in local.puts or at >= end}

    def _grown_tier(self, queue: QueueKey) -> Side:
        """What the tier may have by now, if the life has uploaded it."""
        model, tier = self.world.model, self.tier[queue]
        if not self.is_fresh:
            return tier
        if queue in self.forks or queue in model.murky:
            is_open = queue in self.kept_from or queue in model.murky
            taken = self._grown_local(queue) if is_open else {}
            return Side({**taken, **tier.puts}, tier.sure)
        border = model.committed.get(queue, 0)
        if queue not in self.emptied:
            border = max(border, self.world.durable_end(queue))
        known, begin = model.queues.get(queue, {}), self.tier_ends[queue]
        held = {at: put for at, put in known.items() if at >= begin or tier.puts.get(at) is put}
        return Side(held, {at for at, put in held.items() if at < border and not self.may_go(put)})

    def _copy(self, store: Path) -> None:
        folder = self.world.folder / f"copy{len(self.copies)}"
        shutil.copytree(store, folder)
        puts = self.world.model.puts.values()
        unheard = [put for put in puts if put.state == SENT and put.queue in QUEUES]
        local = {queue: side.copy() for queue, side in self.local.items()}
        self.copies.append(Copy(folder, local, unheard))
        self.world.scheduler.note(f"the disk is copied to {folder.name}")

    def _restore(self, machine: Machine, copy: Copy) -> None:
        self.world.scheduler.note(f"{copy.folder.name} of the disk is restored")
        store = machine.folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(copy.folder, store)
        for queue, side in copy.local.items():
            self.local[queue] = side.copy()
            if self.is_going(queue):
                continue
            for at, put in side.puts.items():
                put.state = STORED if at in side.sure else DOUBTFUL
                put.begun = self.world.model.deletions.get(queue.topic, 0)  # it is back
        for put in copy.unheard:
            if not self.is_going(put.queue):
                put.state, put.begun = SENT, self.world.model.deletions.get(put.queue.topic, 0)
        if self.world.is_posix:  # `recover` would take that catalogue for the right one
            name = Path(self.world.tier_config(machine).catalogue_path).name
            for path in (store / "config").glob(f"{name}*"):
                path.unlink()
        self._go_on(machine, also_copies=True)

    def _lose(self, machine: Machine) -> None:
        self.world.scheduler.note("the disk is lost")
        shutil.rmtree(machine.folder / "store", ignore_errors=True)
        self.local = {queue: Side() for queue in QUEUES}
        self._go_on(machine, also_copies=self.world.is_posix)

    def move_away(self) -> None:
        """Another machine is the broker now: its disk is empty, and a copy of the former one's may
        come later."""
        self._take_stock()
        self.local = {queue: Side() for queue in QUEUES}
        self.either.clear()
        self.world.has_lost_disk = True
        self.world.sure_below = None
        self.world.loads.lose_notes(of_tier=False)
        self.world.model.lose_tables()

    def _go_on(self, machine: Machine, *, also_copies: bool) -> None:
        world = self.world
        self.either.clear()
        world.has_lost_disk = True
        if world.is_posix:  # the published catalogue may be older
            loaded = (put for put in world.model.puts.values() if put.queue in LOADED)
            world.model.doubt_uncommitted(loaded)
            self.stopped |= self.ever_stopped
            self.decided = {queue: {None} for queue in QUEUES}
            # Until `recover` has ended, readers on this host see a catalogue that is empty.
            self.turns = {topic: turn | 1 for topic, turn in self.turns.items()}
        world.sure_below = None
        world.loads.lose_notes(of_tier=world.is_posix)
        machine.disk = ForgetfulDisk(machine.folder)
        world.model.lose_tables(also_copies=also_copies)
        world.recover(machine)
        if world.is_posix:
            self._end_turns()

    def _do(self, machine: Machine, what: str, call: Callable[[StoreConfig], object]) -> None:
        """Run a call in a process that may be killed, like a broker."""
        scheduler = self.world.scheduler
        process = self.world.care_for(machine, what, call, expected=(StoreClosedError,))
        if not process.is_dead:  # its remaining threads end with it
            self.world.sure_below = self.flushed_offset()
            scheduler.kill(process, machine.free_locks)
            scheduler.wait(lambda: not any(each.process is process for each in scheduler.actors))
        self.parts = None

    def _go_without(self, config: StoreConfig) -> None:
        """Put messages into the local store alone, which compares nothing."""
        world, dice = self.world, self.dice
        runtime = world.runtime_here()
        store = LocalMessageStore(world.local_config(world.machine), runtime)
        if not self.keeps_local:  # it may delete anything
            self.either.clear()
        store.load()
        store.start()
        parts = self.parts = store._parts
        assert parts is not None
        for _ in range(dice.choice([1, 2, 5])):
            put = a_put(world, dice, dice.choice(QUEUES))
            result = store.put_message(a_message(put, dice.choice([0, 100, 900])))
            if not result.stored:
                continue
            put.state, put.offset = STORED, result.queue_offset
            put.log_offset, put.store_ms = result.log_offset, result.store_timestamp
            side = self.local[put.queue]
            side.puts[result.queue_offset] = put
            if self.keeps_local:
                side.sure.add(result.queue_offset)
            runtime.clock.sleep(dice.choice([0.01, 1, 30]))
        store.shutdown()
        if parts.log.flushed_offset >= parts.log.max_offset:
            self.parts = world.sure_below = None

    def flushed_offset(self) -> int | None:
        """That of the broker without its tier, or else of the last one with it."""
        return self.world.sure_below if self.parts is None else self.parts.log.flushed_offset

    def _resume(self, queue: QueueKey, side: str | None, config: StoreConfig) -> None:
        """What the command does while the broker is stopped."""
        runtime = self.world.runtime_here()
        path = queue_path(config.broker_name, *queue)
        with written_tier(config, runtime) as opened:
            if opened is None:
                return
            _, catalogue, publisher = opened
            if catalogue.queue(*queue) is None:
                return
            if publisher is not None:
                publisher.check()
            ask_to_resume(path, catalogue)
            if side is not None:
                self.decided[queue] |= {side}
                if side == TRUST_LOCAL:
                    self.turns[queue.topic] |= 1
                    self.given_up.add(path)
                trust(path, side, catalogue)
                self.decided[queue] = {side}
            if publisher is not None:
                publisher.publish()

    # In a running broker

    def resumed(self, life: Life, queue: QueueKey) -> None:
        """From now on local retention again keeps messages until the tier has them, but those in
        the files that one look of it may delete. If there were two histories, a reader may still be
        reading expired messages of one."""
        self.kept_from[queue] = self._first_sure(life, queue)
        if queue in self.forks:
            self.joined.add(queue)
            self.world.model.murky.add(queue)
            self.world.model.closed.discard(queue)

    def _first_sure(self, life: Life, queue: QueueKey) -> int:
        """The first message that a look of local retention which is under way does not delete."""
        assert life.parts is not None
        files = life.parts.log.queue.files
        if not files:
            return 0
        config = self.world.local_config(life.machine)
        left = files[min(config.delete_count_max, len(files) - 1)].start_offset
        at, end = life.local.min_offset(*queue) or 0, life.local.max_offset(*queue) or 0
        while at < end:
            run = life.local.read_range(*queue, at, count_max=1, bytes_max=1 << 20)
            if len(run) and run.log_offsets[0] >= left:
                return run.first_offset
            at = max(at, run.first_offset) + 1
        return end


def ask_again(client: Client, life: Life) -> None:
    """An operator lets a running broker compare a queue once more."""
    world, dice = client.world, client.dice
    histories = world.histories
    life.runtime.clock.sleep(dice.choice([0.02, 1, 30]))
    if dice.random() < 0.4:
        life.is_ending = True  # the disk changes only between two lives
        return
    queue = dice.choice(QUEUES)
    try:
        reason = life.store.resume_queue(*queue)
    except SegmentCorruptError as error:  # a deletion that stopped half way leaves units alone
        if not histories.is_going(queue):
            raise
        reason = str(error)
    life.saw()
    world.scheduler.note(f"{queue} is resumed: {reason}")
    if reason is None:
        is_two = queue in histories.forks and histories.keeps_local
        assert not is_two, f"{queue} goes on, and is two histories from {histories.forks[queue]} on"
        histories.resumed(life, queue)
