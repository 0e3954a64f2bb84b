"""Many messages of one put as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.messages import LOOPBACK, Message
from tieredstore.model.values import Host

T = TypeVar("T")
Numbers = int | Sequence[int] | npt.NDArray[np.integer]


class MessageColumns(Sequence[Message]):
    """A sequence of messages that creates a message only when it is accessed.

    * Each column has one value for all messages, or one for each. Bodies and property texts need
      one for each; without texts, no message has properties.
    * Columns are copied, but not the bodies in them. Nothing here changes afterwards.
    * A store that knows columns encodes them as they are; for other stores, and for plugins, it is
      a sequence of messages like any other.

    Raises InvalidArgumentError if a column and the bodies differ in length, or if a property text
    is neither text nor bytes.
    """

    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        queue_ids: Numbers,
        bodies: Sequence[bytes],
        properties_texts: Sequence[str | bytes] | None = None,
        flags: Numbers = 0,
        sys_flags: Numbers = 0,
        born_timestamps: Numbers = 0,
        born_hosts: Host | Sequence[Host] = LOOPBACK,
        store_hosts: Host | Sequence[Host] = LOOPBACK,
        reconsume_times: Numbers = 0,
        prepared_transaction_offsets: Numbers = 0,
    ) -> None:
        self.bodies = _all(bodies)
        count = len(self.bodies)
        texts: Sequence[str | bytes] = (b"",) * count
        self.properties_texts = _all(texts if properties_texts is None else properties_texts)
        self.topics = (topics,) * count if isinstance(topics, str) else _all(topics)
        self.queue_ids = _numbers(queue_ids, count)
        self.flags = _numbers(flags, count)
        self.sys_flags = _numbers(sys_flags, count)
        self.born_timestamps = _numbers(born_timestamps, count)
        self.born_hosts = _hosts(born_hosts, count)
        self.store_hosts = _hosts(store_hosts, count)
        self.reconsume_times = _numbers(reconsume_times, count)
        self.prepared_transaction_offsets = _numbers(prepared_transaction_offsets, count)
        for name, column in vars(self).items():
            if len(column) != count:
                raise InvalidArgumentError(f"{name}: {len(column)} for {count} bodies")
        if not all(isinstance(text, str | bytes) for text in self.properties_texts):
            raise InvalidArgumentError("properties_texts: want text or bytes for each")

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, place: int) -> Message: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Message]: ...

    def __getitem__(self, place: int | slice) -> Message | Sequence[Message]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        return Message(
            topic=self.topics[place],
            queue_id=self.queue_ids[place],
            body=self.bodies[place],
            properties_text=self.properties_texts[place],
            flag=self.flags[place],
            sys_flag=self.sys_flags[place],
            born_timestamp=self.born_timestamps[place],
            born_host=self.born_hosts[place],
            store_host=self.store_hosts[place],
            reconsume_times=self.reconsume_times[place],
            prepared_transaction_offset=self.prepared_transaction_offsets[place],
        )


def unchanging(messages: Sequence[Message]) -> tuple[Message, ...] | MessageColumns:
    """The same messages, unaffected by later changes to the caller's list.

    Raises InvalidArgumentError for a single message, and for anything else that is no sequence.
    """
    if isinstance(messages, tuple | MessageColumns):
        return messages
    if not isinstance(messages, Iterable):
        raise InvalidArgumentError(f"messages: want a sequence of Message, not {messages!r:.80}")
    return tuple(messages)


def _all(column: Iterable[T]) -> tuple[T, ...]:
    return tuple(column)


def _numbers(column: Numbers, count: int) -> tuple[int, ...]:
    if isinstance(column, np.ndarray):
        return tuple(column.tolist())
    return tuple(column) if isinstance(column, Sequence) else (column,) * count


def _hosts(column: Host | Sequence[Host], count: int) -> tuple[Host, ...]:
    return (column,) * count if isinstance(column, Host) else tuple(column)
