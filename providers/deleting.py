"""How a segment goes away, and its name becomes free again.

What lives here: `delete`, step by step, each of which may be the last before a crash or a stall:

    1  a note says that this epoch deletes the segment
    2  a look: whoever claims a newer epoch from now on sees the note, and takes the segment for
       gone, though the delete may land much later
    3  parts, marks and the sealed object are deleted
    4  a mark keeps away what older epochs may still send, where they had the segment
    5  the note goes

Where a request of ours may still be under way, another mark keeps away what it may bring, the note
stays, and the name is not used again for a while.
"""

from __future__ import annotations

from tieredstore.model.errors import BackendUnavailableError
from tieredstore.providers.broker_parts import BrokerParts
from tieredstore.providers.in_doubt import carefully, is_quiet, put_note
from tieredstore.providers.object_layout import Mark, mark_key, part_of, parts_below
from tieredstore.providers.object_parts import SegmentParts

_NOTES = (Mark.GONE, Mark.DELETING)


def delete(broker: BrokerParts, segment: SegmentParts) -> None:
    """All five steps; under the guard of the segment. Done again, each finds what it did."""
    epoch, clock = broker.claimed(), broker.clock
    note = mark_key(segment.key, Mark.DELETING, epoch)
    segment.deleting = note  # before it is known that it landed: a write has to end this first
    carefully(clock, segment, lambda: put_note(broker.requests, note))
    broker.look()
    keys = segment.keys()
    if segment.doubtful_at is not None:
        keys = _listed(broker, segment.key)
    carefully(
        clock,
        segment,
        lambda: broker.requests.delete([*keys, segment.key]),
        sealed_key=True,
    )
    segment.forget()
    if broker.boundary.is_fenced(segment.key):
        put_note(broker.requests, mark_key(segment.key, Mark.GONE, epoch))
    if is_quiet(clock, segment.quiet_until):
        _end(broker, segment)
    else:
        put_note(broker.requests, mark_key(segment.key, Mark.GONE, epoch + 1))


def end_deletion(broker: BrokerParts, segment: SegmentParts) -> None:
    """Before the name is used again: end what was begun. BackendUnavailableError: not yet."""
    if segment.deleting is None:
        return
    if segment.keys() or is_quiet(broker.clock, segment.quiet_until):
        delete(broker, segment)
    if segment.deleting is not None:
        raise BackendUnavailableError(
            segment.key, "write", "a request for what was there before may still be under way"
        )


def _end(broker: BrokerParts, segment: SegmentParts) -> None:
    assert segment.deleting is not None
    waited = mark_key(segment.key, Mark.GONE, broker.claimed() + 1)
    broker.requests.delete([waited, segment.deleting])
    segment.deleting = segment.quiet_until = segment.key_quiet_until = None


def _listed(broker: BrokerParts, key: str) -> list[str]:
    """What is there of a segment of which a put may have landed."""
    found = []
    for listed in broker.requests.listed(parts_below(key) + "/"):
        name = part_of(listed.key)
        if name is None or name.mark not in _NOTES:
            found.append(listed.key)
    return found
