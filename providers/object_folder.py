"""What lies below one prefix of a tier's bucket, beside its segments, under names of its own.

What lives here: keys and the few requests. What the names are, and what the objects mean, is for
`object_generations` and `object_scratch` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tieredstore.driver.object_client import ListedKey, Range
from tieredstore.driver.segment import Buffer
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
