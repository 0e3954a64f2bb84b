"""Takes sealed objects that no entry names into a log: those of a tier that was copied into a
bucket, at RocketMQ's keys, or those of a tier whose log is lost, including those of its loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from tieredstore.driver.object_client import ListedKey
from tieredstore.driver.provider import TakenIn
from tieredstore.roundlog import salvage
from tieredstore.roundlog.adopted import told_of
from tieredstore.roundlog.draft import Draft
from tieredstore.roundlog.entry import Sealed, SegmentKey
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState

TAKEN_TOGETHER: Final = 1_000  # by one entry


def sealed_objects(
    calls: ObjectCalls, layout: ObjectLayout, broker: str
) -> Iterator[tuple[SegmentKey, ListedKey]]:
    """All objects of a broker that have a segment's key and are not empty."""
    for listed in calls.client.list(layout.below(broker)):
        name = layout.segment_of(listed.key)
        if name is not None and listed.size:
            yield (name.path, name.type, name.base), listed


def untaken(log: BrokerLog) -> list[tuple[SegmentKey, ListedKey]]:
    """Sealed objects that the log names neither as segments nor as recently deleted.

    They are listed before the log is read, so that the log names any that is sealed meanwhile.
    """
    found = [*sealed_objects(log.calls, log.layout, log.broker)]
    state = log.settled() if log.is_writer else log.follow()
    with log.guard:
        return [
            (key, listed)
            for key, listed in found
            if key not in state.numbers
            and listed.key not in state.dead
            and listed.key not in state.rested
        ]


def take_in(log: BrokerLog) -> TakenIn:
    """Make the log name them, and what can be found of a lost log. Only the writer may call it."""
    log.claim()
    salvage.begin(log)
    told = salvage.adopted(log)
    count = size = 0
    found = [(key, Sealed(0, listed.key, listed.size, None)) for key, listed in untaken(log)]
    found += told.segments.items()
    for start in range(0, len(found), TAKEN_TOGETHER):
        drafts = [Draft(taken=[each]) for each in found[start : start + TAKEN_TOGETHER]]
        log.append(drafts)
        taken = [sealed for draft in drafts if draft.error is None for _, sealed in draft.taken]
        count += len(taken)  # without segments that have been begun meanwhile
        size += sum(sealed.size for sealed in taken)
    salvaged = salvage.finish(log, told)
    untold = salvage.untold(log)
    done = TakenIn(
        segment_count=count + salvaged.segment_count,
        size=size + salvaged.size,
        losses=tuple(salvaged.losses or untold),
    )
    # The note is the log's own, whatever catalogue the rebuild writes.
    return replace(done, told=partial(salvage.forget_untold, log)) if untold else done


def into(state: LogState, calls: ObjectCalls, layout: ObjectLayout, broker: str) -> None:
    """Add all sealed objects to a state in memory, for a reader of a bucket without a log."""
    for key, listed in sealed_objects(calls, layout, broker):
        state.take_in(key, listed.key, listed.size)
    for key, sealed in told_of(calls, layout.rounds(broker)).segments.items():
        if key not in state.numbers:
            state.take_in(key, sealed.key, sealed.size)
