"""Messages of the log as dispatchers get them: a sequence that is stored as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, overload

from tieredstore.model.messages import DispatchRequest


class Arrived(NamedTuple):
    """Messages of one queue that are next to each other in a batch."""

    topic: str
    queue_id: int
    end_offset: int
    message_count: int
    record_bytes: int


class DispatchColumns(Sequence[DispatchRequest]):
    """A request for each message; all are made when the first one is accessed.

    Most dispatchers only want to know which queues have new messages: see `arrived`.
    `keys` returns the keys of all messages.
    """

    def __init__(
        self,
        *,
        topics: Sequence[str],
        queue_ids: Sequence[int],
        queue_offsets: Sequence[int],
        log_offsets: Sequence[int],
        sizes: Sequence[int],
        tags_codes: Sequence[int],
        store_timestamps: Sequence[int],
        sys_flags: Sequence[int],
        unique_keys: Sequence[str | None],
        keys: Callable[[], Sequence[tuple[str, ...]]],
    ) -> None:
        self._topics = topics
        self._queue_ids = queue_ids
        self._queue_offsets = queue_offsets
        self._sizes = sizes
        self._others = log_offsets, tags_codes, store_timestamps, sys_flags, unique_keys
        self._keys = keys

    def __len__(self) -> int:
        return len(self._topics)

    @overload
    def __getitem__(self, place: int) -> DispatchRequest: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[DispatchRequest]: ...

    def __getitem__(self, place: int | slice) -> DispatchRequest | Sequence[DispatchRequest]:
        return self._made[place]

    def __iter__(self) -> Iterator[DispatchRequest]:
        return iter(self._made)

    def arrived(self) -> Iterator[Arrived]:
        """Which queues got messages, and how many."""
        count, topics, ids = len(self._topics), self._topics, self._queue_ids
        if count and topics.count(topics[0]) == ids.count(ids[0]) == count:  # a producer's batch
            yield Arrived(topics[0], ids[0], self._queue_offsets[-1] + 1, count, sum(self._sizes))
            return
        start = 0
        for (topic, queue_id), group in groupby(zip(self._topics, self._queue_ids, strict=True)):
            end = start + len(list(group))
            size = sum(self._sizes[start:end])
            yield Arrived(topic, queue_id, self._queue_offsets[end - 1] + 1, end - start, size)
            start = end

    @cached_property
    def _made(self) -> list[DispatchRequest]:
        columns = self._topics, self._queue_ids, self._queue_offsets, self._sizes, self._keys()
        return [
            DispatchRequest(
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                log_offset=log_offset,
                size=size,
                tags_code=tags_code,
                store_timestamp=time,
                sys_flag=sys_flag,
                unique_key=unique_key,
                keys=keys,
            )
            for (topic, queue_id, queue_offset, size, keys), (
                log_offset,
                tags_code,
                time,
                sys_flag,
                unique_key,
            ) in zip(zip(*columns, strict=True), zip(*self._others, strict=True), strict=True)
        ]


def arrived(requests: Sequence[DispatchRequest]) -> Iterator[Arrived]:
    """Which queues got messages, in the order of the log; a queue may occur several times."""
    if isinstance(requests, DispatchColumns):
        yield from requests.arrived()
        return
    for (topic, queue_id), group in groupby(requests, lambda one: (one.topic, one.queue_id)):
        together = list(group)
        size = sum(one.size for one in together)
        yield Arrived(topic, queue_id, together[-1].queue_offset + 1, len(together), size)
