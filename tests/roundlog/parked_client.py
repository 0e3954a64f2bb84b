"""A client of a bucket whose requests each get a verdict from somebody else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from tieredstore.driver.object_client import (
    Attempt,
    KeysExpiredError,
    ListedKey,
    ObjectClientWrapper,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError

GO: Final = "answered"
LOST: Final = "reply lost"
IN_VAIN: Final = "never sent"
REFUSED: Final = "refused"
LATE: Final = "under way"
TWICE: Final = "landed, and once more later"
LAST: Final = "landed, and the process ends"


class ParkedClient(ObjectClientWrapper):
    """Each request waits for a verdict. A request that changes nothing is never late."""

    count = 0

    @abstractmethod
    def _verdict(self, request: str, *, changes: bool) -> str:
        """What happens to the request; the process may end here."""

    @abstractmethod
    def _lands_later(self, request: str, call: Callable[[], Any]) -> None:
        """The request stays in flight; `call` lands it later."""

    @abstractmethod
    def _ends(self) -> NoReturn:
        """The process ends here."""

    def _request(self, name: str, call: Callable[[], Any], *, changes: bool = False) -> Any:
        self.count += 1
        verdict = self._verdict(name, changes=changes)
        if not changes and verdict in (LATE, TWICE, LAST):
            verdict = GO
        if verdict in (LATE, TWICE):
            self._lands_later(name, call)
        if verdict in (LOST, LAST):
            with suppress(TieredStoreError):
                call()
        if verdict == LAST:
            self._ends()
        if verdict == REFUSED:
            raise KeysExpiredError(name, "request", verdict)
        if verdict in (LOST, IN_VAIN, LATE):
            raise BackendUnavailableError(name, "request", verdict)
        return call()

    def head(self, key: str) -> ObjectFacts:
        found: ObjectFacts = self._request(f"HEAD {key}", lambda: self.inner.head(key))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = self._request(f"GET {key}", lambda: self.inner.get_range(key, start, length))
        return found

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        found: list[bytes | TieredStoreError] = []
        for each in ranges:
            try:
                found.append(self.get_range(each.key, each.start, each.length))
            except TieredStoreError as error:
                found.append(error)
        return found

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        assert if_absent
        held = bytes(data)
        call = lambda: self.inner.put(key, held, metadata=metadata)  # noqa: E731
        found: ObjectFacts = self._request(f"PUT {key}", call, changes=True)
        return found

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        data = b"".join(bytes(block) for block in blocks)
        return self.put(key, data, metadata=metadata) if data else None

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        found: list[ListedKey] = self._request(
            f"LIST {prefix}", lambda: list(self.inner.list(prefix, after=after))
        )
        return iter(found)

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        names = list(keys)
        call = lambda: self.inner.delete_many(names)  # noqa: E731
        found: Mapping[str, TieredStoreError] = self._request(
            f"DELETE {' '.join(names)}", call, changes=True
        )
        return found
