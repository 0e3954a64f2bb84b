"""Parts of a segment becoming one object, and segments going away.

How the parts of a segment become one object.

    1  a mark says that a sealed object may be there
    2  a look: whoever claims a newer epoch from now on sees the mark, and fences what lands late
    3  the parts are read in order and put as one object, where there is none yet
    4  another look: the object counts
    5  the parts are deleted, and then the mark

Up to step 4 the parts count, from then on the object. Done again, each step finds what it did.
Where a delete of the object's key may still be under way, step 5 is left out: should that land, the
parts count again, and are sealed again.

How a segment goes away, and its name becomes free again.

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

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError, Range
from tieredstore.driver.segment import Buffer, CountedBlocks
from tieredstore.model.errors import (
    BackendUnavailableError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.providers.broker_objects import BrokerParts, Part, SealedObject, SegmentParts
from tieredstore.providers.object_calls import CHECKSUM, EPOCH, ObjectCalls, crc32c, joined
from tieredstore.providers.object_layout import Mark, mark_key, part_key, part_of, parts_below
from tieredstore.providers.writer_epoch import LIVES


def carefully(segment: SegmentParts, call: Callable[[], bool], *, sealed_key: bool = False) -> None:
    """Send what changes something of this segment; `call` says whether it was sent only once.

    `sealed_key` is for what deletes the sealed object.
    """
    sent_once = False
    try:
        sent_once = call()
    except SegmentNotFoundError:  # the source of a stream has gone: nothing was sent
        sent_once = True
        raise
    finally:
        if not sent_once:
            segment.in_doubt = True
            segment.key_in_doubt |= sealed_key


def put_note(requests: ObjectCalls, key: str) -> bool:
    """Put an object without bytes, where there is none yet; whether that was sent only once."""
    try:
        return requests.put(key, b"")
    except ObjectExistsError:
        return True  # it was noted before


_BATCH_BYTES: Final = 8 << 20  # of parts read at a time; twice as much is in memory at most


def seal(broker: BrokerParts, segment: SegmentParts) -> None:
    """Make the parts one object; under the guard of the segment, with its epoch claimed."""
    epoch = broker.epoch_of(segment)
    if segment.sealed is None:
        put_mark(broker, segment)
        try:
            segment.take([_with_checksum(part, broker.requests) for part in segment.parts])
            sealed = _put_object(broker, segment, epoch) or _put_object(broker, segment, epoch)
        except (SegmentNotFoundError, SegmentCorruptError):
            broker.looks.now()  # a newer writer may have sealed or deleted it
            raise
        if sealed is None:
            raise BackendUnavailableError(segment.key, "seal", "late objects are in the way")
        broker.looks.now()
        segment.sealed = sealed
    else:
        broker.looks.now()  # what lies there may have come too late to count for a newer writer
    if not broker.keeps_parts(segment):
        remove_parts(broker, segment)


def create(broker: BrokerParts, segment: SegmentParts, blocks: CountedBlocks) -> None:
    """A sealed segment from a stream, under the guard of the segment: step 3 without parts.

    Where its key is not safe, the stream becomes one part, and that is sealed.
    """
    requests, epoch = broker.requests, broker.epoch_of(segment)
    put_mark(broker, segment)
    is_safe = not broker.keeps_parts(segment)
    part = part_key(segment.key, 0, epoch)
    key = segment.key if is_safe else part
    if not is_safe:
        segment.doubtful_at = 0  # until it is known to count
    made = False

    def put() -> bool:
        nonlocal made
        made = requests.put_stream(key, blocks, metadata={EPOCH: str(epoch)})
        return True

    try:
        carefully(segment, put)
    except ObjectExistsError as error:
        found = remove_late_object(broker, segment) if is_safe else None
        if found is None:
            raise BackendUnavailableError(segment.key, "create", str(error)) from error
        raise PositionMismatchError(segment.key, expected=0, actual=found.size) from error
    broker.looks.now()
    if made and not is_safe:
        segment.doubtful_at = None
        segment.take([Part(part, 0, blocks.bytes, epoch)])
        seal(broker, segment)
        return
    if made:
        segment.sealed = SealedObject(size=blocks.bytes, epoch=epoch, checksum=None)
    remove_parts(broker, segment)


def put_mark(broker: BrokerParts, segment: SegmentParts) -> None:
    """Steps 1 and 2."""
    mark = mark_key(segment.key, Mark.SEALING, broker.epoch_of(segment))
    if mark not in segment.marks:
        put_note(broker.requests, mark)
        segment.marks += (mark,)
    segment.absent_known = False  # from now on only the store knows
    broker.looks.now()
    if broker.is_fenced(segment):
        remove_late_object(broker, segment)


def remove_late_object(broker: BrokerParts, segment: SegmentParts) -> SealedObject | None:
    """Clear the way of an older writer's object that came too late; the one that counts."""
    facts = broker.requests.head(segment.key)
    if facts is None:
        return None
    found = broker.sealed_of(facts, segment.gone)
    if found is None:
        carefully(segment, lambda: broker.requests.delete([segment.key]), sealed_key=True)
    return found


def remove_parts(broker: BrokerParts, segment: SegmentParts) -> None:
    """Step 5. The mark goes last: while it is there, the sealed object is looked for.

    Where a part may still come, of ours or of an older writer, another mark stays: alone, such a
    part would hide the object.
    """
    may_come = broker.is_fenced(segment) or segment.in_doubt
    if may_come and segment.sealed is not None and not segment.sealed_marks:
        mark = mark_key(segment.key, Mark.SEALED, broker.epoch_of(segment))
        carefully(segment, lambda: put_note(broker.requests, mark))
        segment.sealed_marks = (mark,)
    keys = [*segment.strays, *(part.key for part in segment.parts)]
    carefully(segment, lambda: broker.requests.delete(keys))
    segment.take(())
    segment.strays = ()
    broker.requests.delete(segment.marks)
    segment.marks = ()


def _put_object(broker: BrokerParts, segment: SegmentParts, epoch: int) -> SealedObject | None:
    """Step 3; the object that lies there afterwards. None where a late one had to be removed.

    Each request is tried again by itself, so the whole is not: a store that is away is asked as
    often as the policy says, and no more.
    """
    requests, parts = broker.requests, segment.parts
    segment.seal_begun = True  # the object may land at any time from now on
    checksum = 0
    for part in parts:
        assert part.checksum is not None
        checksum = joined(checksum, part.checksum, part.size)
    mine = SealedObject(size=segment.end, epoch=epoch, checksum=checksum)
    metadata = {EPOCH: str(epoch), CHECKSUM: f"{checksum:08x}"}
    try:
        carefully(
            segment,
            lambda: requests.put_stream(segment.key, _blocks(requests, segment), metadata=metadata),
        )
        return mine
    except ObjectExistsError:
        found = remove_late_object(broker, segment)
    if found is None:
        return None
    theirs = found.checksum
    if found.size == mine.size and theirs is None:
        theirs = _checksum_of(requests, found.size, segment.key)
    if (found.size, theirs) != (mine.size, mine.checksum):
        raise SegmentCorruptError(segment.key, "another object lies in its place", position=0)
    return found


def _blocks(requests: ObjectCalls, segment: SegmentParts) -> Iterator[Buffer]:
    """All bytes in order, a few parts at a time, each compared with its checksum."""
    running: dict[str, int] = {}
    for batch in _batches(segment.parts):
        if segment.delete_wanted:
            raise SegmentNotFoundError(segment.key)
        pieces = requests.ranges([wanted for _, wanted in batch])
        for (part, wanted), piece in zip(batch, pieces, strict=True):
            checksum = joined(running.pop(part.key, 0), crc32c(piece), len(piece))
            if wanted.start + wanted.length < part.size:
                running[part.key] = checksum
            elif checksum != part.checksum:
                raise SegmentCorruptError(
                    part.key, "its checksum is another", position=part.position
                )
        yield from pieces


def _batches(parts: Iterable[Part]) -> Iterator[list[tuple[Part, Range]]]:
    """Ranges that together are no longer than a batch; a long part is several."""
    batch: list[tuple[Part, Range]] = []
    batch_bytes = 0
    for part in parts:
        for start in range(0, part.size, _BATCH_BYTES):
            length = min(_BATCH_BYTES, part.size - start)
            if batch_bytes + length > _BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch.append((part, Range(part.key, start, length)))
            batch_bytes += length
    if batch:
        yield batch


def _with_checksum(part: Part, requests: ObjectCalls) -> Part:
    """What its writer said of it; what lies there now where that was lost."""
    if part.checksum is not None:
        return part
    facts = requests.head(part.key)
    if facts is None:
        raise SegmentCorruptError(part.key, "the part is gone", position=part.position)
    text = facts.metadata.get(CHECKSUM)
    checksum = _checksum_of(requests, part.size, part.key) if text is None else int(text, 16)
    return Part(part.key, part.position, part.size, part.epoch, checksum)


def _checksum_of(requests: ObjectCalls, size: int, key: str) -> int:
    checksum = 0
    for start in range(0, size, _BATCH_BYTES):
        length = min(_BATCH_BYTES, size - start)
        (piece,) = requests.ranges([Range(key, start, length)])
        checksum = joined(checksum, crc32c(piece), length)
    return checksum


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
