"""Where catalogues are published in an object store: one small object for each generation.

What lives here: what a generation's object is called. What is in it, and which are kept, is for
the catalogue to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.driver.generations import (
    Generations,
    GenerationTakenError,
    ListedGeneration,
    generation_name,
    generation_of,
)
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.providers.object_folder import ObjectFolder


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
