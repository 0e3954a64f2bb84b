"""What became of a batch of puts, made into results only when somebody looks.

What lives here: `PutResults`, a sequence of `PutResult`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from tieredstore.codec.message_id import encode_offset_id
from tieredstore.local.log.commit_log import AppendedRun
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.values import PutStatus


class PutResults(Sequence[PutResult]):
    """One result for each message, in the order they were given.

    `refused` holds the results of those that were not stored, by their place; the others follow
    each other in `appended`. The messages are a tuple: a list would be the caller's.
    """

    def __init__(
        self,
        messages: tuple[Message, ...],
        refused: Mapping[int, PutResult],
        queue_offsets: Sequence[int],
        appended: AppendedRun | None,
        status: PutStatus,
    ) -> None:
        self._messages = messages
        self._refused = refused
        self._queue_offsets = queue_offsets
        self._appended = appended
        self._status = status
        self._rows: dict[int, int] | None = None  # place to row, where some were refused

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def all_ok(self) -> bool:
        return not self._refused and self._status is PutStatus.PUT_OK

    @overload
    def __getitem__(self, place: int) -> PutResult: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[PutResult]: ...

    def __getitem__(self, place: int | slice) -> PutResult | Sequence[PutResult]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        refused = self._refused.get(place)
        return self._stored(place) if refused is None else refused

    def _stored(self, place: int) -> PutResult:
        assert self._appended is not None
        row = self._row(place)
        log_offset = self._appended.log_offsets[row]
        return PutResult(
            status=self._status,
            queue_offset=self._queue_offsets[row],
            log_offset=log_offset,
            size=self._appended.sizes[row],
            store_timestamp=self._appended.store_timestamp,
            message_id=encode_offset_id(self._messages[place].store_host, log_offset=log_offset),
        )

    def _row(self, place: int) -> int:
        if not self._refused:
            return place
        if self._rows is None:
            stored = [at for at in range(len(self)) if at not in self._refused]
            self._rows = {at: row for row, at in enumerate(stored)}
        return self._rows[place]
