"""Finds objects that a broker's log does not name, and objects that it names but that are missing
or damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tieredstore.driver.object_client import ListedKey, Range
from tieredstore.driver.provider import LOADS, LOST_LOG, Appended, Leftover, may_be_loaded
from tieredstore.model.errors import MetadataError, SegmentNotFoundError
from tieredstore.model.findings import Finding
from tieredstore.roundlog.adopted import superseded
from tieredstore.roundlog.layout import ADOPTED, OLD_LAYOUT, epoch_of, number_of
from tieredstore.roundlog.log import BrokerLog, side_by_side
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.salvage import begun_by, may_be_lost
from tieredstore.roundlog.state import LogState
from tieredstore.roundlog.upkeep import GRACE_MS, STATES_KEPT

READ_TOGETHER: Final = 8
SPANS_MAX: Final = 48
ORPHAN, DEAD, STATE = "orphan", "released", "state"
KINDS: Final = frozenset((ORPHAN, DEAD, STATE))

_OF_A_LOST_LOG: Final = ("data/", f"{ADOPTED}/", f"{LOADS}/")


def leftovers(log: BrokerLog) -> list[Leftover]:
    """Objects from which nothing is read, and which no writer is about to name.

    An orphan was left by a crash before an entry named it, or was put again after it was deleted.
    A data object of the newest epoch is not yet an orphan: the next entry may name it. Nor is an
    object from which a lost log can be rebuilt.
    """
    listed = {
        each.key.removeprefix(log.prefix): each.size for each in log.calls.client.list(log.prefix)
    }
    # Read after the listing, so that the log names all that older epochs have named by then.
    state = log.settled() if log.is_writer else log.follow()
    found = []
    with log.guard:
        named = state.names()
        states = sorted(name for name in listed if name.startswith("state/"))[-STATES_KEPT:]
        oldest = number_of(states[0]) if len(states) == STATES_KEPT else None
        old = superseded(state, listed)
        is_lost = may_be_lost(state)
        for name, size in listed.items():
            kind = None if name in named else _kind(log, state, name, oldest or 0)
            if name in old:
                kind = ORPHAN
            if kind is ORPHAN and is_lost and name.startswith(_OF_A_LOST_LOG):
                kind = None
            if kind is not None:
                found.append(Leftover(kind=kind, name=log.key(name), size=size))
    return found


def _kind(log: BrokerLog, state: LogState, name: str, oldest: int) -> str | None:
    """The kind of leftover that an unused object is; None if it is none. `oldest` is the number of
    the oldest state that is kept."""
    number = number_of(name)
    if name.startswith("log/"):
        if number is None or number > oldest:
            return None  # readers that begin at a kept state may need it
        if name not in state.dead:
            return ORPHAN
    elif name.startswith("state/"):
        return STATE if number is not None and number < oldest else None
    elif name.startswith("data/") and (epoch := epoch_of(name)) is not None:
        if name not in state.dead:
            return ORPHAN if epoch < state.epoch else None
    elif name.startswith(f"{LOADS}/"):
        if name not in state.dead:
            return None if may_be_loaded(name, log.clock.now_ms()) else ORPHAN
    else:
        return None
    return DEAD if log.clock.now_ms() - state.dead[name] > GRACE_MS else None


def names_below(calls: ObjectCalls, prefix: str) -> Iterator[str]:
    """The names below a prefix, up to the next `/`. Takes one request for each, and one more."""
    after = ""
    while True:
        first = next(iter(calls.client.list(prefix, after=after)), None)
        if first is None:
            return
        name, slash, _ = first.key.removeprefix(prefix).partition("/")
        if slash:
            yield name
        after = f"{prefix}{name}0" if slash else first.key  # 0 comes right after the slash


def damage(log: BrokerLog) -> list[Finding]:
    """Entries and states that make no sense; objects that are missing or have the wrong size."""
    calls, layout = log.calls, log.layout
    found: list[Finding] = []
    sizes: dict[str, int] = {}
    for below in (log.key("data/"), log.key("load/"), layout.below(log.broker)):
        sizes |= {each.key: each.size for each in calls.client.list(below)}
    entries = [*calls.client.list(log.key("log/"))]
    sizes |= {each.key: each.size for each in entries}

    def check(listed: ListedKey) -> None:
        try:
            log.entry(listed)
        except SegmentNotFoundError:
            return  # released since
        except MetadataError as error:
            found.append(_damaged(listed.key, error))

    numbered = (each for each in entries if number_of(each.key.removeprefix(log.prefix)))
    side_by_side(log.pool, numbered, check, helpers=READ_TOGETHER - 1)
    found += _damaged_states(log)
    try:
        state = _newest(log)
    except MetadataError as error:
        return found or [_damaged(log.key("log/"), error)]
    if may_be_lost(state):
        found += _lost(log, begun_by(log, state.epoch), sizes)
    try:
        return [*found, *_wrong_objects(log, state, sizes)]
    except MetadataError as error:
        return [*found, _damaged(log.key("log/"), error)]


def _newest(log: BrokerLog) -> LogState:
    return log.settled() if log.is_writer else log.follow()


def _wrong_objects(log: BrokerLog, state: LogState, sizes: Mapping[str, int]) -> list[Finding]:
    """Objects that are missing or have the wrong size, and that the log still needs when it is read
    again after the listing."""
    wrong = {}
    for key, (size, is_whole) in _wanted(log, state).items():
        there = sizes.get(key)
        if there is None and (facts := log.calls.head(key)) is not None:
            there = facts.size  # put after the listing
        if there is None:
            wrong[key] = Finding.of_damage("missing", key, f"the log has {size} bytes in it")
        elif there < size or (is_whole and there != size):
            detail = f"it has {there} bytes, the log says {size}"
            wrong[key] = Finding.of_damage("size", key, detail)
    if not wrong:
        return []
    # An object that was merged meanwhile may have been released and deleted.
    wanted = _wanted(log, _newest(log))
    return [found for key, found in wrong.items() if key in wanted]


def appended(log: BrokerLog) -> list[Appended]:
    """The kept entries, in spans of equally many. Reads the times of only the entries at the ends
    of spans.

    Old entries go once three states replace them, so a busy log goes back only a few hours.
    """
    listed = [
        each
        for each in log.calls.client.list(log.key("log/"))
        if number_of(each.key.removeprefix(log.prefix))
    ]
    if not listed:
        return []
    step = -(-len(listed) // SPANS_MAX)
    marks = sorted({*range(0, len(listed), step), len(listed) - 1})
    times: dict[int, int] = {}

    def read(mark: int) -> None:
        try:
            times[mark] = log.entry(listed[mark]).time_ms
        except (SegmentNotFoundError, MetadataError):
            return  # released since, or damaged: an audit reports it

    side_by_side(log.pool, iter(marks), read, helpers=READ_TOGETHER - 1)
    return [
        Appended(
            begin_ms=times[before],
            end_ms=max(times[before], times[after]),
            entry_count=after - before,
            size=sum(each.size for each in listed[before + 1 : after + 1]),
        )
        for before, after in pairwise(sorted(times))
    ]


def _lost(log: BrokerLog, epoch: int, there: Iterable[str]) -> Iterator[Finding]:
    """Findings for objects of a lost log, if there is no log or it has begun anew; and for open
    segments of the previous layout."""
    beside = [*there, *(each.key for each in log.calls.listed(log.key(f"{ADOPTED}/")))]
    epochs = (epoch_of(key.removeprefix(log.prefix)) for key in beside)
    older = [each for each in epochs if each is not None and (not epoch or each < epoch)]
    if older:
        detail = f"of {len(older)} objects beside it: no entry is left that names them"
        yield Finding.of_damage(LOST_LOG, log.key("log/"), detail)
    if (part := log.old_part()) is not None:
        yield Finding.of_damage("old-layout", part, OLD_LAYOUT)


def _damaged_states(log: BrokerLog) -> Iterator[Finding]:
    for each in log.calls.client.list(log.key("state/")):
        if number_of(each.key.removeprefix(log.prefix)) is None:
            continue
        try:
            LogState.decoded(log.calls.ranges([Range(each.key, 0, each.size)])[0], each.key)
        except SegmentNotFoundError:
            continue
        except MetadataError as error:
            yield _damaged(each.key, error)


def _wanted(log: BrokerLog, state: LogState) -> Mapping[str, tuple[int, bool]]:
    """The size that each object must have, and whether exactly (otherwise at least)."""
    with log.guard:
        return _wanted_of(log, state)


def _wanted_of(log: BrokerLog, state: LogState) -> Mapping[str, tuple[int, bool]]:
    found: dict[str, tuple[int, bool]] = {}
    for chunk in state.chunks.values():
        alive = chunk.extents.taken(state.live_rows(chunk))
        ends = alive.offset + alive.length
        for number, name in enumerate(chunk.objects):
            of_object = ends[alive.object == number]
            if len(of_object):
                key = log.key(name)
                found[key] = max(found.get(key, (0, False))[0], int(of_object.max())), False
    for segment in state.segments.values():
        if segment.sealed is not None:
            found[log.key(segment.sealed.key)] = segment.sealed.size, True
    return found


def _damaged(key: str, error: MetadataError) -> Finding:
    return Finding.of_damage("log", key, str(error))


def remove(calls: ObjectCalls, leftovers: Sequence[Leftover]) -> None:
    names = [each.name for each in leftovers if each.kind in KINDS]
    if names:
        calls.delete(names)
