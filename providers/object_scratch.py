"""What is on its way into a tier in an object store: one object for each staged one.

What lives here: which of them go in one request, and what an error means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.scratch import Scratch, StagedObject, check_name
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError
from tieredstore.providers.object_folder import ObjectFolder

_ONE_PUT_BYTES: Final = 16 << 20  # what is longer is sent in pieces


class ObjectScratch(Scratch):
    """Below `.staged/` of the tier's own bucket and prefix."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder

    def describe(self) -> str:
        return self._folder.prefix

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        check_name(name)
        counted = _Counted(blocks)
        head = counted.head(_ONE_PUT_BYTES)
        try:
            if counted.is_done:
                self._folder.put(name, b"".join(head))
            else:
                self._folder.put_stream(name, chain(head, counted))
        except ObjectExistsError:
            size = self._folder.size(name)
            if size is None:
                key = self._folder.key(name)
                raise BackendRefusedError(key, "stage", "it was deleted meanwhile") from None
            return size
        return counted.bytes

    def read(self, name: str, position: int, length: int) -> bytes:
        data = self._folder.read(check_name(name), position, length)
        if len(data) != length:
            key = self._folder.key(name)
            raise OffsetOutOfRangeError(key, offset=length, minimum=0, maximum=len(data))
        return data

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        below = f"{folder}/" if folder else ""
        return [StagedObject(each.key, each.size) for each in self._folder.listed(below)]

    def delete(self, names: Sequence[str]) -> None:
        self._folder.delete([check_name(name) for name in names])


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
