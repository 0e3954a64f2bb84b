"""Small objects beside a tier in a bucket: published catalogues and staged objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from tieredstore.driver.object_client import ListedKey, ObjectExistsError, Range
from tieredstore.driver.provider import (
    Generations,
    GenerationTakenError,
    ListedGeneration,
    Scratch,
    StagedObject,
    check_staged_name,
    generation_name,
    generation_of,
)
from tieredstore.driver.segment import Buffer, CountedBlocks
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError
from tieredstore.providers.object_calls import ObjectCalls


class ObjectFolder:
    """Objects that are made once and never changed; whoever comes second gets ObjectExistsError.

    `before_put` raises where this process is not to write.
    """

    def __init__(
        self,
        requests: ObjectCalls,
        prefix: str,
        *,
        before_put: Callable[[], None] = lambda: None,
    ) -> None:
        self._requests = requests
        self._before_put = before_put
        self.prefix = prefix

    def listed(self, below: str = "") -> Iterator[ListedKey]:
        """All whose names begin so; the keys are the names."""
        for each in self._requests.listed(self.prefix + below):
            yield ListedKey(each.key.removeprefix(self.prefix), each.size)

    def read(self, name: str, start: int, length: int) -> bytes:
        return self._requests.ranges([Range(self.key(name), start, length)])[0]

    def size(self, name: str) -> int | None:
        facts = self._requests.head(self.key(name))
        return None if facts is None else facts.size

    def put(self, name: str, data: bytes) -> None:
        self._before_put()
        self._requests.put(self.key(name), data)

    def put_stream(self, name: str, blocks: Iterable[Buffer]) -> None:
        self._before_put()
        self._requests.put_stream(self.key(name), blocks, metadata={})

    def delete(self, names: Sequence[str]) -> None:
        if names:
            self._requests.delete([self.key(name) for name in names])

    def key(self, name: str) -> str:
        return self.prefix + name


class ObjectGenerations(Generations):
    """Below `.catalog/` of the tier's own bucket and prefix.

    The create-only put is all that is asked of a store, as it is for parts.
    """

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder

    def describe(self) -> str:
        return self._folder.prefix

    def listed(self) -> Sequence[ListedGeneration]:
        found = []
        for each in self._folder.listed():
            number = generation_of(each.key)
            if number is not None:
                found.append(ListedGeneration(number, each.size))
        return found

    def read(self, listed: ListedGeneration) -> bytes:
        return self._folder.read(generation_name(listed.number), 0, listed.size)

    def create(self, number: int, data: bytes) -> None:
        name = generation_name(number)
        try:
            self._folder.put(name, data)
        except ObjectExistsError as error:
            raise GenerationTakenError(self._folder.key(name)) from error

    def delete(self, numbers: Sequence[int]) -> None:
        self._folder.delete([generation_name(number) for number in numbers])


_ONE_PUT_BYTES: Final = 16 << 20  # what is longer is sent in pieces


class ObjectScratch(Scratch):
    """Below `.staged/` of the tier's own bucket and prefix."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder

    def describe(self) -> str:
        return self._folder.prefix

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        check_staged_name(name)
        counted = CountedBlocks(blocks)
        beginning, is_all = _beginning(counted)
        try:
            if is_all:
                self._folder.put(name, b"".join(beginning))
            else:
                self._folder.put_stream(name, chain(beginning, counted))
        except ObjectExistsError:
            size = self._folder.size(name)
            if size is None:
                key = self._folder.key(name)
                raise BackendRefusedError(key, "stage", "it was deleted meanwhile") from None
            return size
        return counted.bytes

    def read(self, name: str, position: int, length: int) -> bytes:
        data = self._folder.read(check_staged_name(name), position, length)
        if len(data) != length:
            key = self._folder.key(name)
            raise OffsetOutOfRangeError(key, offset=length, minimum=0, maximum=len(data))
        return data

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        below = f"{folder}/" if folder else ""
        return [StagedObject(each.key, each.size) for each in self._folder.listed(below)]

    def delete(self, names: Sequence[str]) -> None:
        self._folder.delete([check_staged_name(name) for name in names])


def _beginning(blocks: CountedBlocks) -> tuple[list[Buffer], bool]:
    """The blocks up to the first that makes them too much for one put; whether these are all."""
    taken: list[Buffer] = []
    for block in blocks:
        taken.append(block)
        if blocks.bytes > _ONE_PUT_BYTES:
            return taken, False
    return taken, True
