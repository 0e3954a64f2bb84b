"""What a read returns: a record that is decoded when somebody looks into it."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.model.messages import SelectedMessage


class SelectedRecord(SelectedMessage):
    """A message as every store here returns it. To make one costs no more than its four fields."""

    __slots__ = ("_message",)  # empty until it is needed; no part of equality, copies and pickles
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
