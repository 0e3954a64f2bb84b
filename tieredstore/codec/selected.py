"""The message that a read returns: a record decoded on first use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.model.messages import SelectedMessage

_SETTERS: Final[Mapping[str, Any]] = vars(SelectedMessage)
_SET_QUEUE_OFFSET: Final = _SETTERS["queue_offset"].__set__
_SET_LOG_OFFSET: Final = _SETTERS["log_offset"].__set__
_SET_TAGS_CODE: Final = _SETTERS["tags_code"].__set__
_SET_RECORD: Final = _SETTERS["record"].__set__


class SelectedRecord(SelectedMessage):
    """A message as every store here returns it. Creating one only sets its four fields."""

    __slots__ = ("_message",)  # unset until needed; not part of equality, copies and pickles
    _message: StoredMessage

    @property
    def body(self) -> bytes:
        return self._decoded().body

    @property
    def properties(self) -> Mapping[str, str]:
        return self._decoded().properties

    @property
    def tags(self) -> str | None:
        return self._decoded().tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self._decoded().keys

    @property
    def store_timestamp(self) -> int:
        return self._decoded().store_timestamp

    def _decoded(self) -> StoredMessage:
        try:
            return self._message
        except AttributeError:
            message = decode_message(self.record)
            object.__setattr__(self, "_message", message)
            return message


def selected_records(
    *,
    queue_offsets: Iterable[int],
    log_offsets: Iterable[int],
    tags_codes: Iterable[int],
    records: Sequence[bytes],
) -> list[SelectedMessage]:
    """Many messages at once. The loops run in C, field by field: calling the constructor for each
    message would take longer than everything else in a read of many."""
    messages: list[SelectedMessage] = list(
        map(object.__new__, repeat(SelectedRecord, len(records)))
    )
    fields = (
        (_SET_QUEUE_OFFSET, queue_offsets),
        (_SET_LOG_OFFSET, log_offsets),
        (_SET_TAGS_CODE, tags_codes),
        (_SET_RECORD, records),
    )
    for set_field, values in fields:
        deque(map(set_field, messages, values), maxlen=0)
    return messages
