"""How a segment goes away, and its name becomes free again.

What lives here: `delete`, step by step, each of which may be the last before a crash or a stall:

    1  a note says that this epoch deletes the segment
    2  a look: whoever claims a newer epoch from now on sees the note, and takes the segment for
       gone, though the delete may land much later
    3  parts, marks and the sealed object are deleted
    4  a mark keeps away what older epochs may still send, where they had the segment
    5  the note goes

Where a request of ours may still be under way, the mark of step 4 keeps away all that was there
before, and the name has another life: its next parts have the number behind the one of these.
"""

from __future__ import annotations

from tieredstore.model.errors import BackendUnavailableError
from tieredstore.providers.broker_parts import BrokerParts
from tieredstore.providers.in_doubt import carefully, put_note
from tieredstore.providers.object_layout import Mark, mark_key, part_of, parts_below
from tieredstore.providers.object_parts import SegmentParts
from tieredstore.providers.writer_epoch import LIVES

_NOTES = (Mark.GONE, Mark.DELETING)


def delete(broker: BrokerParts, segment: SegmentParts) -> None:
    """All five steps; under the guard of the segment. Done again, each finds what it did."""
    life = broker.epoch_of(segment)
    note = mark_key(segment.key, Mark.DELETING, life)
    segment.deleting = note  # before it is known that it landed: a write has to end this first
    carefully(segment, lambda: put_note(broker.requests, note))
    broker.look()
    keys = segment.keys()
    if segment.doubtful_at is not None:
        keys = _listed(broker, segment.key)
    carefully(
        segment,
        lambda: broker.requests.delete([*keys, segment.key]),
        sealed_key=True,
    )
    segment.forget()
    over = [note]
    if segment.in_doubt:
        _begin_life(broker, segment, life + 1)
        over.append(mark_key(segment.key, Mark.GONE, life))
    elif broker.is_fenced(segment):
        put_note(broker.requests, mark_key(segment.key, Mark.GONE, life))
    if not broker.requests.delete(over) and not segment.in_doubt:
        _begin_life(broker, segment, life + 1)  # else a late one takes the note of a later deletion
    segment.deleting = None
    segment.in_doubt = segment.key_in_doubt = False


def end_deletion(broker: BrokerParts, segment: SegmentParts) -> None:
    """Before the name is used again: end what was begun."""
    if segment.deleting is not None:
        delete(broker, segment)


def _begin_life(broker: BrokerParts, segment: SegmentParts, life: int) -> None:
    """From now on only what has this number counts below the name."""
    if life % LIVES == 0:
        raise BackendUnavailableError(
            segment.key, "delete", f"{LIVES - 1} times it was not answered; restart the broker"
        )
    put_note(broker.requests, mark_key(segment.key, Mark.GONE, life))
    broker.begin_life(segment, life)


def _listed(broker: BrokerParts, key: str) -> list[str]:
    """What is there of a segment of which a put may have landed."""
    found = []
    for listed in broker.requests.listed(parts_below(key) + "/"):
        name = part_of(listed.key)
        if name is None or name.mark not in _NOTES:
            found.append(listed.key)
    return found
