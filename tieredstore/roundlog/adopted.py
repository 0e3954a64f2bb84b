"""Keeps a second copy, next to the log, of what loads have added to a tier. If the log is lost, the
segments themselves do not say where they belong, nor whether they were ever committed.

An object of `adopted/` is an entry's frame. It names the segments of one commit, and the notes that
prevent the same load from being made twice. It is put after the commit and before the commit is
reported, so everything that it names was committed. The commit announces it in a note, so that if
a writer dies between the two, the next load first puts the object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import msgspec

from tieredstore.driver.metadata import PutNote
from tieredstore.driver.object_client import ObjectExistsError, Range
from tieredstore.driver.provider import LOADS
from tieredstore.metadata.tables import describe
from tieredstore.model.errors import MetadataError
from tieredstore.roundlog.entry import Begun, Entry, Sealed, SegmentKey, Whole, no_change
from tieredstore.roundlog.layout import ADOPTED
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState

READ_TOGETHER: Final = 8
_NAME: Final = re.compile(rf"{ADOPTED}/([0-9]{{10}})-([0-9]{{20}})-.+")


class _Announced(msgspec.Struct, array_like=True):
    """`first` is the lowest number that a segment of the commit can have."""

    name: str
    first: Whole
    notes: list[tuple[str, str, Any]]


describe(_Announced)


@dataclass(slots=True)
class Told:
    """What all objects of `adopted/` say, and which of them cannot be read."""

    segments: dict[SegmentKey, Sealed] = field(default_factory=dict)
    notes: list[PutNote] = field(default_factory=list)  # the newest last
    keys: list[str] = field(default_factory=list)  # of the objects that could be read
    losses: list[str] = field(default_factory=list)


def announcement(log: BrokerLog, notes: Iterable[PutNote], *, first: int | None = None) -> PutNote:
    """The note for a commit's entry. All adopted segments with numbers from `first` on belong to
    the commit."""
    state = log.settled()
    with log.guard:
        first = state.next_number if first is None else first
        name = f"{ADOPTED}/{state.epoch:010d}-{first:020d}-{log.calls.nonce()}"
    return PutNote(ADOPTED, log.broker, [name, first, [list(astuple(each)) for each in notes]])


def settle(log: BrokerLog) -> None:
    """Put the object that the newest commit of a load has announced, unless it exists."""
    state = log.settled()
    with log.guard:
        noted = state.tables.notes.get(ADOPTED, {}).get(log.broker)
        if noted is None:
            return
        with no_change(log.prefix):
            announced = msgspec.json.decode(noted, type=_Announced)
        data = _table(state, announced).encoded()
    try:
        log.calls.put(log.key(announced.name), data)
    except ObjectExistsError:
        pass


def _table(state: LogState, announced: _Announced) -> Entry:
    found = [
        (Begun(each.number, *each.key), each.sealed)
        for number, each in state.segments.items()
        if number >= announced.first and each.sealed is not None and is_adopted(each.sealed)
    ]
    return Entry(
        sequence=state.sequence,
        epoch=state.epoch,
        nonce=announced.name,
        time_ms=state.time_ms,
        begun=tuple(begun for begun, _ in found),
        sealed=tuple(sealed for _, sealed in found),
        changes=tuple(PutNote(*note) for note in announced.notes),
    )


def is_adopted(sealed: Sealed) -> bool:
    return sealed.key.startswith(f"{LOADS}/")


def told_of(calls: ObjectCalls, prefix: str) -> Told:
    """What the `adopted/` objects below a log's prefix say, without segments whose objects were
    deleted or have another size than stated."""
    found = Told()
    tables = calls.listed(f"{prefix}{ADOPTED}/")
    if not tables:
        return found
    sizes = {each.key.removeprefix(prefix): each.size for each in calls.listed(f"{prefix}{LOADS}/")}
    for start in range(0, len(tables), READ_TOGETHER):
        some = tables[start : start + READ_TOGETHER]
        wanted = [Range(each.key, 0, each.size) for each in some]
        for listed, data in zip(some, calls.ranges(wanted), strict=True):
            try:
                entry = Entry.decoded(data, listed.key, object_bytes=listed.size)
            except MetadataError as error:
                found.losses.append(f"the segments of a load are not known: {error}")
                continue
            keys = {begun.number: begun.key for begun in entry.begun}
            for sealed in entry.sealed:
                if sealed.number in keys and sizes.get(sealed.key) == sealed.size:
                    found.segments[keys[sealed.number]] = sealed
            found.keys.append(listed.key)
            found.notes += [each for each in entry.changes if isinstance(each, PutNote)]
    return found


def superseded(state: LogState, names: Iterable[str]) -> set[str]:
    """Which of these names are of `adopted/` objects whose segments are all gone: every adopted
    segment that exists came with a later commit."""
    numbers = [
        each.number
        for each in state.segments.values()
        if each.sealed is not None and is_adopted(each.sealed)
    ]
    lowest = min(numbers, default=state.next_number)
    places = {name: (int(at[1]), int(at[2])) for name in names if (at := _NAME.fullmatch(name))}
    last = max((place for place in places.values() if place[1] <= lowest), default=(0, 0))
    return {name for name, place in places.items() if place < last}
