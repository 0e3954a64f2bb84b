"""Do the tier and the broker's store hold the same queue? Asked before the first upload.

What lives here: comparing the tier's last message with the local one of the same number, and the
note that keeps a queue stopped where they differ. After a power cut the local store may have lost
messages that the tier has, and have given their numbers to others since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tieredstore.codec.record_fields import LOG_OFFSET_POSITION
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import DeleteNote, MetadataStore, PutNote
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import read_run
from tieredstore.model.config import MIB
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError

STOPPED_QUEUE: Final = "stopped-queue"
_HISTORY: Final = "history of broker "
_BEHIND_LOG_OFFSET: Final = LOG_OFFSET_POSITION + 8
_COMPARED_COUNT: Final = 1024
_COMPARED_BYTES: Final = 4 * MIB


def disagreement(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why the local queue is not the one that was tiered; None where nothing speaks against it.

    Reads one message on either side. Says nothing where one of them no longer has it.
    """
    topic, queue_id = file.key
    last = file.commit_offset - 1
    if last < (store.min_offset(topic, queue_id) or 0) or not file.queue.units_in_a_row(last):
        return None
    local = store.read_range(topic, queue_id, last, count_max=1, bytes_max=1)
    tiered = read_run(file, last, count_max=1, bytes_max=1)
    if not len(local) or not len(tiered):
        return None
    if _without_log_offset(local.record(0)) == _without_log_offset(tiered.record(0)):
        return None
    return f"message {last} is another one in the local store than in the tier"


def contradiction(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why messages that the catalogue did not name are not those of the local store.

    None where they are, as far as the local store still has them. What it does not have yet is not
    ours: it would be uploaded, or found to be there, when it comes.
    """
    topic, queue_id = file.key
    at = file.unconfirmed_from or 0
    maximum = store.max_offset(topic, queue_id) or 0
    if file.commit_offset > maximum:
        return f"the local store ends at {maximum}"
    while True:
        at = file.queue.first_unit_from(max(at, store.min_offset(topic, queue_id) or 0))
        if at >= file.commit_offset:
            return None
        local = store.read_range(
            topic, queue_id, at, count_max=_COMPARED_COUNT, bytes_max=_COMPARED_BYTES
        )
        if not len(local):
            if (store.min_offset(topic, queue_id) or 0) > at:
                continue  # deleted just now
            return f"the local store has no message {at}"
        try:
            tiered = read_run(file, at, count_max=len(local), bytes_max=_COMPARED_BYTES)
        except (SegmentError, OffsetOutOfRangeError) as error:
            return f"message {at} cannot be read: {error}"
        for row in range(min(len(local), len(tiered))):
            if _without_log_offset(local.record(row)) != _without_log_offset(tiered.record(row)):
                return f"message {at + row} is another one in the local store"
        at += max(1, min(len(local), len(tiered)))


def is_ahead(file: FlatMessageFile, local_max: int) -> str:
    return f"the tier has messages up to {file.append_offset}, the local store up to {local_max}"


def stop_queue(file: FlatMessageFile, reason: str, metadata: MetadataStore) -> None:
    """Upload nothing more to this queue, also after a restart."""
    file.problem = file.problem or reason
    metadata.apply([PutNote(STOPPED_QUEUE, file.path, {"reason": reason})])


def ask_to_resume(path: str, metadata: MetadataStore) -> bool:
    """Have a stopped queue compared at the next start of the broker; False for one that is not."""
    note = metadata.note(STOPPED_QUEUE, path)
    if note is None:
        return False
    reason = note.get("reason") if isinstance(note, dict) else None
    metadata.apply([PutNote(STOPPED_QUEUE, path, {"reason": reason or "stopped", "resume": True})])
    return True


def is_asked_to_resume(path: str, metadata: MetadataStore) -> bool:
    note = metadata.note(STOPPED_QUEUE, path)
    return isinstance(note, dict) and note.get("resume") is True


def difference(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why a queue that was stopped must stay so; None where the tier can go on."""
    maximum = store.max_offset(*file.key)
    if maximum is None:
        return "the local store has no such queue"
    if file.append_offset > maximum:
        return is_ahead(file, maximum)
    return disagreement(store, file)


def stopped_before(file: FlatMessageFile, metadata: MetadataStore) -> str | None:
    """Why the queue was stopped, in this life or in an earlier one."""
    note = metadata.note(STOPPED_QUEUE, file.path)
    if isinstance(note, dict):
        return str(note.get("reason", "stopped"))
    return None


def history_note(path: str, broker: str) -> PutNote:
    """A queue that was taken over from another broker's tier: it is read, and takes nothing."""
    reason = f"{_HISTORY}{broker}: it can be read, nothing is added"
    return PutNote(STOPPED_QUEUE, path, {"reason": reason})


def is_history(path: str, metadata: MetadataStore) -> bool:
    """Whether it was adopted, and no broker has found anything wrong with it since."""
    note = metadata.note(STOPPED_QUEUE, path)
    return isinstance(note, dict) and str(note.get("reason", "")).startswith(_HISTORY)


def forget_stop(file: FlatMessageFile, metadata: MetadataStore) -> None:
    forget_stops([file.path], metadata)


def forget_stops(paths: Iterable[str], metadata: MetadataStore) -> None:
    notes = [path for path in paths if metadata.note(STOPPED_QUEUE, path) is not None]
    if notes:
        metadata.apply([DeleteNote(STOPPED_QUEUE, path) for path in notes])


def _without_log_offset(record: memoryview) -> tuple[bytes, bytes]:
    return bytes(record[:LOG_OFFSET_POSITION]), bytes(record[_BEHIND_LOG_OFFSET:])
