"""What must be true, in plain lists: who put what, where it was acknowledged, what may be gone.

It is told before and after each call, since others may run in between. So it knows of each message
whether it *must* be there during a whole read, may be there, or must not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.messages import GetResult, PutResult, QueryResult, SelectedMessage
from tieredstore.model.values import INT64_MAX, Boundary, QueueKey
from tieredstore.testing.message_store_contract import check_page

SENT: Final = "sent"  # nobody knows yet whether it was stored
STORED: Final = "stored"
DOUBTFUL: Final = "doubtful"  # it was stored, and a power cut may have taken it
GONE: Final = "gone"  # it never existed, or was deleted: it must not be seen
HIDDEN: Final = "hidden"  # not to be seen either: its history is not read until somebody decides

# Fields of a record or unit that no checksum covers; docs/durability.md says what a flip does.
TIMES: Final = frozenset({"store time", "system flag"})  # the flag tells how long hosts are
PLACES: Final = frozenset({"topic", "queue id"})
NUMBER: Final = "queue offset"
TAGS: Final = frozenset({"unit tags", "properties"})
UNREADABLE: Final = frozenset({"topic", "properties", "system flag"})  # including their lengths
KEYS: Final = TIMES | {"properties", "not indexed"}


def decoded(record: bytes) -> StoredMessage:
    """A served record must be valid: answers do not report damage beside a record."""
    try:
        return decode_message(record)
    except TieredStoreError as error:
        raise AssertionError(f"served, but {error}") from error


@dataclass
class Put:
    """A message that a producer sent once."""

    name: str
    queue: QueueKey
    keys: tuple[str, ...]
    tag: str
    begun: int  # the generation of its topic
    state: str = SENT
    offset: int | None = None
    log_offset: int | None = None
    store_ms: int = 0
    is_on_disk: bool = False  # the put waited for that


@dataclass(frozen=True)
class Question:
    """A query by key in a topic."""

    key: str
    count_max: int = 64
    begin: int = 0
    end: int = INT64_MAX

    @classmethod
    def about(cls, put: Put, dice: Random) -> Question:
        """A query for one of its keys, often within a window of time."""
        key, count_max = dice.choice(put.keys), dice.choice([1, 2, 64, 64])
        if dice.random() < 0.5:
            return cls(key, count_max)
        width = dice.choice([0, 1, 1_500, 60_000])
        begin = put.store_ms - dice.choice([0, width])
        return cls(key, count_max, max(0, begin), begin + width)

    @property
    def limits(self) -> dict[str, int]:
        return {"count_max": self.count_max, "begin": self.begin, "end": self.end}


@dataclass
class Consumed:
    """What one group has committed of one queue, and from where on one of it is surely there."""

    offsets: list[int | None] = field(default_factory=lambda: [None])
    on_disk_from: int = 0
    in_tier_from: int = 0


@dataclass
class Model:
    """`kept_ms`: what is younger may not expire."""

    kept_ms: int
    puts: dict[str, Put] = field(default_factory=dict)
    queues: dict[QueueKey, dict[int, Put]] = field(default_factory=dict)
    committed: dict[QueueKey, int] = field(default_factory=dict)
    deletions: dict[str, int] = field(default_factory=dict)  # begun and ended, of each topic
    consumed: dict[tuple[str, QueueKey], Consumed] = field(default_factory=dict)
    newest_ms: int = 0
    acknowledged: int = 0
    hit: Callable[[Put], Collection[str]] = lambda put: ()
    """The fields of a message in which a bit has flipped."""
    may_be_lost: Callable[[Put], bool] = lambda put: False
    """Whether it was hit where there was no other copy, or lies where nobody keeps it."""
    closed: set[QueueKey] = field(default_factory=set)  # they take no puts: which history is right?
    murky: set[QueueKey] = field(default_factory=set)
    """Two histories, maybe, and the tier could not be asked: reads may see either."""

    # Puts

    def send(self, put: Put) -> None:
        self.puts[put.name] = put

    def acknowledge(self, put: Put, result: PutResult) -> None:
        self.acknowledged += 1
        assert put.queue not in self.closed, f"{put} was taken, and its queue is two histories"
        if self.is_of_another_topic(put):
            return  # deleted or recreated meanwhile: it may be in either topic
        assert put.state != GONE, f"{put} was given up"
        assert put.offset in (None, result.queue_offset), f"{put} was seen elsewhere: {result}"
        put.state, put.log_offset = STORED, result.log_offset
        put.store_ms = result.store_timestamp
        self._place(put, result.queue_offset)

    def _place(self, put: Put, offset: int) -> None:
        queue = self.queues.setdefault(put.queue, {})
        other = queue.get(offset, put)
        assert other is put, f"{put.name} and {other} are both {offset} of {put.queue}"
        assert put.offset in (None, offset), f"{put} is {offset} as well"
        put.offset = offset
        queue[offset] = put

    def is_of_another_topic(self, put: Put) -> bool:
        """Whether its topic was being deleted at any time since it was sent."""
        return put.begun % 2 == 1 or put.begun != self.deletions.get(put.queue.topic, 0)

    # What is there

    def required(self, queue: QueueKey) -> set[int]:
        """Offsets of messages that are stored, and too young to expire."""
        if self.deletions.get(queue.topic, 0) % 2 or queue in self.murky:
            return set()
        border = self.newest_ms - self.kept_ms
        return {
            offset
            for offset, put in self.queues.get(queue, {}).items()
            if put.state == STORED and put.store_ms > border and not self.may_be_lost(put)
        }

    def end(self, queue: QueueKey) -> int:
        """One more than the last offset that is known to be stored."""
        puts = self.queues.get(queue, {}).items()
        known = (n for n, put in puts if put.state == STORED and not self.may_be_lost(put))
        return max(known, default=-1) + 1

    def first_unknown(self, queue: QueueKey) -> int:
        """The first offset whose message is not known for sure."""
        known = self.queues.get(queue, {})
        sure = (n for n in count() if n not in known or known[n].state != STORED)
        return next(sure)

    def tag_at(self, queue: QueueKey, offset: int) -> str | None:
        put = self.queues.get(queue, {}).get(offset)
        return None if put is None else put.tag

    # What was seen

    def saw(
        self, one: SelectedMessage, queue: QueueKey, *, deletions: int, is_by_key: bool = False
    ) -> Put:
        """A message was read: it must have been put, and belong to this place."""
        there = self.queues.get(queue, {}).get(one.queue_offset)
        if there is not None and UNREADABLE.intersection(self.hit(there)):
            return there  # a reader sees for itself if it makes no sense
        message = decoded(one.record)
        put = self.puts.get(message.body.decode(errors="replace").split("|")[0])
        assert put is not None, f"{queue}/{one.queue_offset}: nobody has put {message.body!r}"
        where, hit = QueueKey(message.topic, message.queue_id), self.hit(put)
        is_hit = bool(PLACES.intersection(hit))  # then it may be the first of another queue
        is_there = (put.queue == queue or (is_hit and is_by_key)) and (where == queue or is_hit)
        assert is_there, f"{put} was read from {queue}, its record says {where}"
        assert message.queue_offset == one.queue_offset, f"{put}: {message.queue_offset}"
        if self.deletions.get(queue.topic, 0) != deletions:
            return put  # the topic was recreated meanwhile
        if queue in self.murky:
            return put
        assert put.state not in {GONE, HIDDEN}, f"{put} was read at {one.queue_offset}"
        if deletions % 2 == 0 and put.begun == deletions and not (is_by_key and NUMBER in hit):
            self._place(put, one.queue_offset)
        return put

    def is_of(self, name: str, queue: QueueKey) -> bool:
        """Whether a row of this queue may be that message."""
        put = self.puts[name]
        return put.queue == queue or bool(PLACES.intersection(self.hit(put)))

    def check_shown(self, name: str, queue: QueueKey, at: int, deletions: int) -> None:
        """A row of this queue must be of a message that was put there."""
        assert self.is_of(name, queue), f"{self.puts[name]} was read at {at} of {queue}"

    def check_page(
        self,
        queue: QueueKey,
        page: GetResult,
        offset: int,
        before: Collection[int],
        deletions: int,
        tag: str | None,
    ) -> None:
        is_same = self.deletions.get(queue.topic, 0) == deletions and deletions % 2 == 0
        for one in page.messages:
            put = self.saw(one, queue, deletions=deletions)
            is_wanted = tag in (None, put.tag) or TAGS.intersection(self.hit(put))
            assert is_wanted, f"{put} has not got tag {tag}"
        there = self.required(queue) & set(before) if is_same else set()
        if tag is not None:
            there -= {at for at in there if TAGS.intersection(self.hit(self.queues[queue][at]))}
        check_page(
            page,
            offset,
            there=there,
            wanted=lambda at: (
                tag is None or self.tag_at(queue, at) in (tag, None)
                if at in there
                else at in {one.queue_offset for one in page.messages}
            ),
        )
        passed = [at for at in there if offset <= at < page.next_offset]
        found = {one.queue_offset for one in page.messages}
        lacks = [at for at in passed if at not in found and tag in (None, self.tag_at(queue, at))]
        assert not lacks, (
            f"{queue}: {page.status} from {offset} to {page.next_offset} lacks {lacks}"
        )

    def check_answer(
        self,
        topic: str,
        question: Question,
        answer: QueryResult,
        before: Iterable[Put],
        deletions: int,
    ) -> None:
        """`before`: the messages that had the key before; a complete answer must have them all."""
        key, begin, end = question.key, question.begin, question.end
        found = []
        for one in answer.messages:
            message = decoded(one.record)
            queue = QueueKey(message.topic, message.queue_id)
            assert message.topic == topic
            put = self.saw(one, queue, deletions=deletions, is_by_key=True)
            has_key = key in put.keys or "properties" in self.hit(put)
            assert has_key, f"{put} has not got {key}"
            assert begin <= message.store_timestamp <= end, f"{put} is not of {question}"
            is_twice = put in found and not PLACES.intersection(self.hit(put))
            assert not is_twice, f"{put} is there twice"
            found.append(put)
        times = [decoded(one.record).store_timestamp for one in answer.messages]
        assert times == sorted(times, reverse=True), f"{question}: not the newest first: {times}"
        assert len(found) <= question.count_max, f"{question}: {len(found)} messages"
        if not answer.complete or self.deletions.get(topic, 0) != deletions or deletions % 2:
            return
        if any(TIMES.intersection(self.hit(put)) for put in found):
            return  # a wrong time may have displaced another message
        since = times[-1] + 1 if len(found) == question.count_max else begin  # older ones may lack
        lacks = [
            put
            for put in before
            if put not in found
            and max(begin, since) <= put.store_ms <= end
            and put.offset is not None
            and put.offset in self.required(put.queue)
            and self.queues[put.queue][put.offset] is put
            and not KEYS.intersection(self.hit(put))
        ]
        assert not lacks, f"complete, but lacks of {question}: {lacks}"

    def having(self, topic: str, key: str) -> list[Put]:
        return [
            put
            for put in self.puts.values()
            if put.queue.topic == topic and put.state == STORED and key in put.keys
        ]

    def check_time(
        self,
        queue: QueueKey,
        asked_ms: int,
        boundary: Boundary,
        found: int | None,
        before: Collection[int],
        deletions: int,
        *,
        end: int,
    ) -> None:
        """LOWER: no message at or after the time is below the found offset. The found message is
        not earlier, unless the queue ends there, at `end` or later: messages without a unit are not
        in it yet. UPPER: the last message in the queue of exactly this time; if there is none, no
        later message is below the found offset.
        """
        if self.deletions.get(queue.topic, 0) != deletions or deletions % 2:
            return
        there = self.required(queue) & set(before)
        puts = [self.queues[queue][at] for at in sorted(there)]
        if any(TIMES.intersection(self.hit(put)) for put in puts):
            return
        if boundary is Boundary.LOWER:
            wanted = [put.offset for put in puts if put.store_ms >= asked_ms]
            if wanted and wanted[0] is not None:
                assert found is not None, f"{queue}: nothing at {asked_ms}, but {wanted[0]}"
                assert found <= wanted[0], f"{queue}: {found} for {asked_ms}, not {wanted[0]}"
            if found in there and found < end and wanted:
                assert self.queues[queue][found].store_ms >= asked_ms, (found, wanted)
            return
        puts = [put for put in puts if put.offset is not None and put.offset < end]
        then = [put.offset for put in puts if put.store_ms == asked_ms]
        behind = [put.offset for put in puts if put.store_ms > asked_ms]
        if then and then[-1] is not None:
            assert found is not None, f"{queue}: nothing at {asked_ms}, but {then}"
            assert found >= then[-1], f"{queue}: {found} for {asked_ms}, not {then[-1]}"
            if found in there and found < end:
                assert self.queues[queue][found].store_ms == asked_ms, (found, then)
        elif behind and behind[0] is not None and found is not None:
            assert found <= behind[0], f"{queue}: {found} for {asked_ms}, not {behind[0]}"

    def saw_committed(self, queue: QueueKey, committed: int | None, deletions: int) -> None:
        if committed is None or self.deletions.get(queue.topic, 0) != deletions or deletions % 2:
            return
        known = self.committed.get(queue, 0)
        assert committed >= known, f"{queue}: committed went back from {known} to {committed}"
        self.committed[queue] = committed

    # What groups have consumed

    def consume(
        self, group: str, queue: QueueKey, offset: int | None, *, is_sure: bool = True
    ) -> None:
        """Not `is_sure`: a former broker committed it, and it may have reached the tier."""
        each = self.consumed.setdefault((group, queue), Consumed())
        each.offsets.insert(len(each.offsets) if is_sure else each.on_disk_from, offset)

    def consumed_counts(self) -> dict[tuple[str, QueueKey], int]:
        return {place: len(each.offsets) for place, each in self.consumed.items()}

    def kept(self, counts: Mapping[tuple[str, QueueKey], int]) -> None:
        """The offsets committed by then are now on disk and in the tier."""
        for place, number in counts.items():
            each = self.consumed[place]
            each.in_tier_from = max(each.in_tier_from, number - 1)
            each.on_disk_from = max(each.on_disk_from, number - 1)

    def lose_tables(self, *, also_copies: bool = False) -> None:
        """On another machine or an empty disk a group has one of the copies in the tier."""
        for each in self.consumed.values():
            each.on_disk_from = 0 if also_copies else each.in_tier_from

    def opened_at(
        self,
        group: str,
        queue: QueueKey,
        found: int | None,
        end: int | None,
        *,
        is_hit: bool = False,
    ) -> None:
        """A group must have one of its last offsets, or the end of a queue that became shorter."""
        each = self.consumed[group, queue]
        known = each.offsets[each.on_disk_from :]
        is_cut = any(one is not None and one > (end or 0) for one in known)
        assert is_hit or found in known or (is_cut and found == (end or 0)), (
            f"{group} is at {found} of {queue}, not at {known}"
        )
        self.consume(group, queue, found)
        each.on_disk_from = len(each.offsets) - 1

    # Deaths

    def lose_power(self, sure_below: int | None) -> None:
        """Messages from this offset of the local log on may be gone; None: none is."""
        if sure_below is None:
            return
        for put in self.puts.values():
            if put.state == STORED and not put.is_on_disk and (put.log_offset or 0) >= sure_below:
                put.state = DOUBTFUL

    def fork(self) -> None:
        """Another machine continues with what is in the tier; beyond what was reported as
        committed, nobody knows what that is."""
        self.lose_tables()
        self.doubt_uncommitted(self.puts.values())

    def doubt_uncommitted(self, puts: Iterable[Put]) -> None:
        for put in puts:
            known = self.committed.get(put.queue, 0)
            if put.state == STORED and (put.offset is None or put.offset >= known):
                put.state = DOUBTFUL

    def doubt_expired(self) -> None:
        """Nothing is left that says how far a queue went whose messages have all expired."""
        border = self.newest_ms - self.kept_ms
        for queue, known in self.queues.items():
            expired = [put for put in known.values() if put.store_ms <= border]
            if len(expired) == len(known):
                self.forget_end(queue)
            for put in expired:
                put.state = DOUBTFUL

    def forget_end(self, queue: QueueKey) -> None:
        """All messages of a queue have expired, and its end is where the broker's disk has it."""
        self.committed.pop(queue, None)
        for put in self.queues.get(queue, {}).values():
            put.state = DOUBTFUL

    def settle(self, queue: QueueKey, end: int, seen: dict[int, str]) -> None:
        """A store was opened in which the queue has the messages `seen`, by offset, up to `end`."""
        if queue in self.murky:
            return
        known = self.queues.setdefault(queue, {})
        for offset, put in sorted(known.items()):
            if put.state == STORED and not self.may_be_lost(put):
                assert offset < end, f"{put} is lost: {queue} ends at {end}"
            elif offset >= end or seen.get(offset, put.name) != put.name:
                put.state, put.offset = GONE, None
                del known[offset]
        for offset, name in seen.items():
            put = self.puts[name]
            assert put.state != GONE, f"{put} has come back"
            put.state = STORED
            self._place(put, offset)

    def forget_sent(self) -> None:
        """Puts in flight when the process died, and not found afterwards, never appear."""
        for put in self.puts.values():
            if put.state == SENT:
                self.never_came(put)

    def never_came(self, put: Put, *, may_have_expired: bool = False) -> None:
        """It is not there and will not appear. If somebody has read it, or it is a load's that is
        old by now, it may have expired, and a reader may still have an older picture."""
        was_read = put.offset is not None
        may_have_expired |= 0 < put.store_ms <= self.newest_ms - self.kept_ms
        put.state = DOUBTFUL if was_read or may_have_expired else GONE

    # Deletions

    def begin_deletion(self, topic: str) -> None:
        if self.deletions.get(topic, 0) % 2 == 0:
            self.deletions[topic] = self.deletions.get(topic, 0) + 1

    def end_deletion(self, topic: str) -> None:
        self.deletions[topic] += 1
        for queue in [each for each in self.queues if each.topic == topic]:
            for put in self.queues.pop(queue).values():
                put.state = GONE
        for queue in [each for each in self.committed if each.topic == topic]:
            del self.committed[queue]
