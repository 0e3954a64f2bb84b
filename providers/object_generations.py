"""Where catalogues are published in an object store: one small object for each generation.

What lives here: keys and the few requests. What is in an object, and which are kept, is for the
catalogue to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tieredstore.driver.generations import (
    CATALOGUES,
    Generations,
    GenerationTakenError,
    ListedGeneration,
    generation_name,
    generation_of,
)
from tieredstore.driver.object_client import ObjectExistsError, Range
from tieredstore.providers.object_calls import ObjectCalls


class ObjectGenerations(Generations):
    """Below `.catalog/` of the tier's own bucket and prefix.

    The create-only put is all that is asked of a store, as it is for parts. `before_put` raises
    where this process is not to write.
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
        self._prefix = f"{CATALOGUES}/{directory}/{broker}/"
        self._before_put = before_put

    def describe(self) -> str:
        return self._prefix

    def listed(self) -> Sequence[ListedGeneration]:
        found = []
        for each in self._requests.listed(self._prefix):
            number = generation_of(each.key.removeprefix(self._prefix))
            if number is not None:
                found.append(ListedGeneration(number, each.size))
        return found

    def read(self, listed: ListedGeneration) -> bytes:
        return self._requests.ranges([Range(self._key(listed.number), 0, listed.size)])[0]

    def create(self, number: int, data: bytes) -> None:
        self._before_put()
        key = self._key(number)
        try:
            self._requests.put(key, data)
        except ObjectExistsError as error:
            raise GenerationTakenError(key) from error

    def delete(self, numbers: Sequence[int]) -> None:
        self._requests.delete([self._key(number) for number in numbers])

    def _key(self, number: int) -> str:
        return self._prefix + generation_name(number)
