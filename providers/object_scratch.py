"""What is on its way into a tier in an object store: one object for each staged one.

What lives here: keys and the few requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError, Range
from tieredstore.driver.scratch import STAGED, Scratch, StagedObject, check_name
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError
from tieredstore.providers.object_calls import ObjectCalls

_ONE_PUT_BYTES: Final = 16 << 20  # what is longer is sent in pieces


class ObjectScratch(Scratch):
    """Below `.staged/` of the tier's own bucket and prefix.

    `before_put` raises where the store is not to be written to.
    """

    def __init__(
        self,
        requests: ObjectCalls,
        directory: str,
        broker: str,
        *,
        before_put: Callable[[], None] = lambda: None,
    ) -> None:
        self._requests = requests
        self._prefix = f"{STAGED}/{directory}/{broker}/"
        self._before_put = before_put

    def describe(self) -> str:
        return self._prefix

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        key = self._prefix + check_name(name)
        self._before_put()
        counted = _Counted(blocks)
        head = counted.head(_ONE_PUT_BYTES)
        try:
            if counted.is_done:
                self._requests.put(key, b"".join(head))
            else:
                self._requests.put_stream(key, chain(head, counted), metadata={})
        except ObjectExistsError:
            facts = self._requests.head(key)
            if facts is None:
                raise BackendRefusedError(key, "stage", "it was deleted meanwhile") from None
            return facts.size
        return counted.bytes

    def read(self, name: str, position: int, length: int) -> bytes:
        key = self._prefix + check_name(name)
        data = self._requests.ranges([Range(key, position, length)])[0]
        if len(data) != length:
            raise OffsetOutOfRangeError(key, offset=length, minimum=0, maximum=len(data))
        return data

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        below = f"{self._prefix}{folder}/" if folder else self._prefix
        return [
            StagedObject(each.key.removeprefix(self._prefix), each.size)
            for each in self._requests.listed(below)
        ]

    def delete(self, names: Sequence[str]) -> None:
        keys = [self._prefix + check_name(name) for name in names]
        if keys:
            self._requests.delete(keys)


class _Counted:
    """A stream whose beginning can be taken off, and that knows how long it is so far."""

    def __init__(self, blocks: Iterable[Buffer]) -> None:
        self._blocks = iter(blocks)
        self.bytes = 0
        self.is_done = False

    def head(self, bytes_max: int) -> list[Buffer]:
        """All of it, or the first blocks that are more than so many bytes together."""
        taken: list[Buffer] = []
        for block in self:
            taken.append(block)
            if self.bytes > bytes_max:
                return taken
        self.is_done = True
        return taken

    def __iter__(self) -> Iterator[Buffer]:
        for block in self._blocks:
            self.bytes += memoryview(block).nbytes
            yield block
