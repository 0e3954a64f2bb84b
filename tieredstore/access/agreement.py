"""Compares each queue of the broker's own store with the tier before the first put, and decides
where it continues.

A broker that lost its disk, or returned with an older copy of it, would give new messages the
offsets of messages in the tier:

    | the local queue | the tier | what is done |
    | --- | --- | --- |
    | is missing, or empty and behind | ends at T | it begins at T |
    | ends at L < T, its last message is the tier's, or nothing is left to compare | ends at T | \
it begins anew at T: below, the tier serves |
    | ends at L >= T, and has the tier's last message | ends at T | nothing |
    | has another message at an offset that both have | | a conflict: puts are refused |
    | is behind or was stopped, and the tier cannot be read | has an unknown end | \
puts are refused |
    | is missing | was adopted from another broker, as history | puts are refused |
| ends before segments of the tier | has an older catalogue, which does not name them | \
puts are refused |

One message is read from each side; if they differ, more are read to find the first difference. A
queue that is neither behind nor stopped, and that cannot be compared now, is left to the upload,
which compares it before it sends anything.

An operator decides a conflict, and the next load acts on it. Trust the tier: the local queue begins
anew after all offsets that either side has assigned. Trust the local store: the tier's queue is
deleted and uploaded again from the local store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tieredstore.access.log_mark import LogMark
from tieredstore.access.queue_upload import (
    TRUST_LOCAL,
    TRUST_TIER,
    disagreement_at,
    forget_trust,
    is_history,
    stop_queue,
    stopped_before,
    trusted_side,
)
from tieredstore.codec.names import queue_of
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import deletion_key, marks
from tieredstore.flat.fetched import FETCHED_MAX, FetchedMessages
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import ByteSource
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import QueueKey, SegmentType

log = log_of(__name__)

_LOGGED_MAX: Final = 100  # queues that are logged, one a line


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedQueue:
    """A queue that continues where the tier ends, because the local store had lost its end."""

    topic: str
    queue_id: int
    local_end: int | None
    """Where the queue ended in the local store; None if the store did not have the queue."""
    tier_end: int
    """Where the queue ends in the tier."""
    goes_on_at: int
    """The offset of the next message: the tier's end, or the local end if that is larger and an
    operator trusted the tier."""
    known_end: int | None = None
    """Where the queue once ended, as far as the local store still knows; None if it does not."""

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)

    @property
    def lost_count(self) -> int | None:
        """Messages that were acknowledged but are in neither store; None if unknown."""
        return None if self.known_end is None else max(0, self.known_end - self.tier_end)

    @property
    def is_trusted(self) -> bool:
        """Whether an operator trusted the tier and gave up a different local history."""
        return self.goes_on_at > self.tier_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The result of comparing a store with its tier.

    `refused` has, for each queue that takes no puts, the reason; it stays refused until an operator
    decides.
    """

    continued: Sequence[ContinuedQueue] = ()
    refused: Mapping[QueueKey, str] = field(default_factory=dict)
    forks: Mapping[QueueKey, int] = field(default_factory=dict)
    """For each refused queue with two histories, the first offset with different messages."""
    checked: frozenset[QueueKey] = frozenset()
    """Queues whose last common message is the same on both sides, or that have no message left to
    compare."""
    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    """New ends of the queues that lost messages: no consumer offset may be larger."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """For one queue: where it continues, or why it takes no puts; neither if nothing is wrong."""

    file: FlatMessageFile
    local_end: int | None
    goes_on_at: int | None = None
    refused: str | None = None
    fork: int | None = None  # the first offset with different messages
    is_checked: bool = False
    has_begun: bool = False  # an earlier load continued it there, and it has no new messages
    tier_end: int = 0
    is_given_up: bool = False  # the tier's copy is to be deleted


def agree(
    store: MessageStore,
    files: Sequence[FlatMessageFile],
    metadata: MetadataStore,
    mark: LogMark,
    topic_filter: TopicFilter,
    runtime: Runtime,
    give_up: Callable[[QueueKey], None],
    unnamed: Mapping[QueueKey, int],
) -> Agreement:
    """Compare every queue of the tier with the store, in parallel, and continue those that can be.

    `give_up` deletes the tier's copy of a queue; `unnamed` is the result of `unnamed_ends`. Store
    and tier are loaded, and nothing has been put or uploaded yet. Raises errors of either that
    concern more than one queue.
    """
    wanted = [
        file
        for file in files
        if not topic_filter.rejects(file.key.topic) and not is_history(file.path, metadata)
    ]
    verdicts: list[_Verdict] = []
    for first in range(0, len(wanted), FETCHED_MAX):
        some = wanted[first : first + FETCHED_MAX]
        source = _fetched(store, some)
        futures = [runtime.fetch.submit(_look, store, file, metadata, source) for file in some]
        found = [_with_unnamed(future.result(), unnamed) for future in futures]
        verdicts += [_decided(one, metadata) for one in found]
    refused = {one.file.key: one.refused for one in verdicts if one.refused is not None}
    for key in unnamed.keys() - {file.key for file in files}:
        if not topic_filter.rejects(key.topic) and unnamed[key] > (store.max_offset(*key) or 0):
            refused[key] = _why_unnamed(unnamed[key])
    behind = [one for one in verdicts if one.goes_on_at is not None]
    if behind:
        reason = _begin(store, behind, mark.below(files), newest_store_time(metadata))
        if reason is not None:
            refused |= {one.file.key: f"{_place(one)}, and {reason}" for one in behind}
            behind = []
    given_up = [one for one in verdicts if one.is_given_up]
    for one in given_up:
        log.warning("%s: the tier's messages are discarded for the local ones", one.file.path)
        give_up(one.file.key)
    for one in verdicts:
        if one.file.key not in refused:
            is_settled = one.is_given_up or one.has_begun or one.goes_on_at is not None
            forget_trust(one.file, metadata, also_stop=is_settled)
        elif one.fork is not None:
            stop_queue(one.file, refused[one.file.key], metadata)
    known = getattr(store, "lost_ends", {})
    continued = [_continued(one, known) for one in behind]
    checked = frozenset(one.file.key for one in verdicts if one.is_checked)
    _log(continued, refused)
    return Agreement(
        continued=tuple(continued),
        refused={**refused, **_histories(files, metadata)},
        forks={
            one.file.key: one.fork
            for one in verdicts
            if one.fork is not None and one.file.key in refused
        },
        checked=checked - refused.keys(),
        ends={
            **{queue.key: queue.goes_on_at for queue in continued},
            **{one.file.key: one.local_end or 0 for one in given_up},
        },
    )


def _histories(files: Sequence[FlatMessageFile], metadata: MetadataStore) -> dict[QueueKey, str]:
    """The adopted queues with their reasons. They take no puts: the next store would number them
    from 0 again.
    """
    adopted = (file for file in files if is_history(file.path, metadata))
    return {file.key: stopped_before(file, metadata) or "" for file in adopted}


def unnamed_ends(
    provider: SegmentProvider, metadata: MetadataStore, broker: str
) -> dict[QueueKey, int]:
    """The ends of queues of which the catalogue does not name all segments, or which it lacks.

    There are such queues if the catalogue is older than the tier. Segments marked for deletion do
    not count, nor does what the provider cannot list now.
    """
    going = marks(metadata)  # before the listing: bytes are deleted before their note
    ends: dict[QueueKey, int] = {}
    try:
        for found in provider.list(broker):
            if found.type is not SegmentType.CONSUME_QUEUE or found.size < UNIT_BYTES:
                continue
            key = queue_of(found.path)
            if key is None:
                continue
            if deletion_key(found.path, found.type, found.base) in going:
                continue
            is_named = metadata.segment(found.path, found.type, found.base) is not None
            if not is_named or metadata.queue(*key) is None:
                end = (found.base + found.size) // UNIT_BYTES
                ends[key] = max(end, ends.get(key, 0))
    except TieredStoreError as error:
        log.warning("whether the catalogue names all segments is not known: %s", error)
    return ends


def find_fork(store: MessageStore, file: FlatMessageFile, differs: int) -> int:
    """The first offset at which the two stores hold different messages; `differs` is one of them.

    A binary search: two histories that have parted never meet again. A gap of either counts as the
    message before it. A message that cannot be read counts as different.
    """
    low = max(store.min_offset(*file.key) or 0, file.queue.min_unit)

    def is_other(offset: int) -> bool:
        try:
            return disagreement_at(store, file, offset) is not None
        except StoreClosedError:
            raise
        except TieredStoreError:
            return True

    return min(low, differs) + bisect_left(range(min(low, differs), differs), True, key=is_other)


def why_forked(fork: int) -> str:
    return f"the local store and the tier hold different messages from number {fork} on"


def _with_unnamed(one: _Verdict, unnamed: Mapping[QueueKey, int]) -> _Verdict:
    end = unnamed.get(one.file.key, 0)
    if end <= (one.local_end or 0):
        return one
    if one.fork is not None:  # an operator decides, and no number up to there is free
        return replace(one, tier_end=max(end, one.tier_end))
    return replace(
        one,
        goes_on_at=None,
        refused=_why_unnamed(end),
        tier_end=max(end, one.tier_end),
        is_checked=False,
    )


def _why_unnamed(end: int) -> str:
    return (
        f"the tier has segments up to number {end} that its older catalogue does not name"
        ": `tieredstore rebuild` adds them, or says what must be moved away first"
    )


def _decided(one: _Verdict, metadata: MetadataStore) -> _Verdict:
    """Apply an operator's decision on a queue that takes no puts.

    The tier's copy is given up only if the local store still has another history: the decision was
    about the local store at that time, which may be lost since.
    """
    trusted = trusted_side(one.file.path, metadata) if one.refused is not None else None
    if trusted == TRUST_TIER:
        end = max(one.tier_end, one.local_end or 0)
        return replace(one, refused=None, goes_on_at=end)
    if trusted == TRUST_LOCAL and one.fork is not None:
        return replace(one, refused=None, is_given_up=True)
    return one


def _fetched(store: MessageStore, files: Sequence[FlatMessageFile]) -> FetchedMessages:
    """The tier's messages to compare, fetched together if the provider can; otherwise none."""
    fetched = FetchedMessages()
    provider = files[0].queue.provider
    if provider.reads_together and len(files) > 1:
        ends = [(file, min(store.max_offset(*file.key) or 0, file.commit_offset)) for file in files]
        lasts = [(file, file.queue.last_unit_to(end - 1)) for file, end in ends]
        fetched.fetch(
            provider,
            [
                (file, last)
                for file, last in lasts
                if last is not None and last >= (store.min_offset(*file.key) or 0)
            ],
        )
    return fetched


def _look(
    store: MessageStore, file: FlatMessageFile, metadata: MetadataStore, source: ByteSource
) -> _Verdict:
    local_end = store.max_offset(*file.key)
    minimum = store.min_offset(*file.key)
    if not file.is_started:
        return _Verdict(file, local_end)
    tier_end = file.commit_offset
    if file.problem is not None:  # bytes may be lost: the catalogue says how far they reached
        tier_end = max(tier_end, file.named_offset)
    is_behind = (local_end or 0) < tier_end
    must_be_known = is_behind or stopped_before(file, metadata) is not None  # maybe two histories
    if file.problem is not None:
        reason = f"the tier has messages up to {tier_end} at least, and cannot say where it ends"
        refused = f"{reason}: {file.problem}" if must_be_known else None
        return _Verdict(file, local_end, refused=refused, tier_end=tier_end)
    if local_end is None or (minimum == local_end and is_behind):
        return _Verdict(file, local_end, goes_on_at=tier_end if is_behind else None)
    if minimum == local_end == tier_end:
        return _Verdict(file, local_end, is_checked=True, has_begun=True, tier_end=tier_end)
    last = min(local_end, tier_end) - 1
    try:
        reason_or_none = disagreement_at(store, file, last, source)
    except StoreClosedError:
        raise
    except TieredStoreError as error:
        log.warning("%s: message %d cannot be compared: %s", file.path, last, error)
        refused = f"message {last} cannot be compared with the tier's: {error}"
        return _Verdict(
            file, local_end, refused=refused if must_be_known else None, tier_end=tier_end
        )
    if reason_or_none is not None:
        fork = find_fork(store, file, last)
        reason = why_forked(fork)
        return _Verdict(file, local_end, refused=reason, fork=fork, tier_end=tier_end)
    return _Verdict(file, local_end, goes_on_at=tier_end if is_behind else None, is_checked=True)


def newest_store_time(metadata: MetadataStore) -> int:
    """The latest store time in the catalogue; no message of the tier was stored later."""
    return max((row.end_timestamp or 0 for row in metadata.segments()), default=0)


def _begin(
    store: MessageStore, behind: Sequence[_Verdict], log_offset: int, store_timestamp: int
) -> str | None:
    """Continue these queues where the tier ends; return why not if they cannot."""
    begin: Callable[..., Any] | None = getattr(store, "begin_queues", None)
    if begin is None:
        return "the local store cannot begin a queue at a given offset: it has no begin_queues"
    try:
        begin(
            {one.file.key: one.goes_on_at for one in behind},
            log_offset=log_offset,
            store_timestamp=store_timestamp,
        )
    except StoreClosedError:
        raise
    except TieredStoreError as error:
        return f"the local store cannot continue there: {error}"
    return None


def _place(one: _Verdict) -> str:
    return f"the tier has messages up to {one.goes_on_at}, the local store up to {one.local_end}"


def _continued(one: _Verdict, known: Mapping[QueueKey, int]) -> ContinuedQueue:
    assert one.goes_on_at is not None
    return ContinuedQueue(
        topic=one.file.key.topic,
        queue_id=one.file.key.queue_id,
        local_end=one.local_end,
        tier_end=one.tier_end or one.goes_on_at,
        goes_on_at=one.goes_on_at,
        known_end=known.get(one.file.key),
    )


def _log(continued: Sequence[ContinuedQueue], refused: Mapping[QueueKey, str]) -> None:
    for queue in continued[:_LOGGED_MAX]:
        lost, end = queue.lost_count, queue.local_end
        log.warning(
            "%s/%d continues at %d, after what the tier has; the local store %s; %s",
            *(queue.topic, queue.queue_id, queue.goes_on_at),
            "does not have it" if end is None else f"ended at {end}",
            "nobody knows what was lost" if lost is None else f"{lost} messages are lost",
        )
    for key, reason in list(refused.items())[:_LOGGED_MAX]:
        log.error("%s/%d takes no messages: %s", *key, reason)
    unnamed = max(0, len(continued) - _LOGGED_MAX) + max(0, len(refused) - _LOGGED_MAX)
    if unnamed:
        log.warning("and %d more queues: health names them", unnamed)
