"""Requests that are unanswered and land at any later time. No tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.providers.object_kit import Process
from tieredstore.driver.object_client import ObjectExistsError, ObjectFacts
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError


class Net:
    """Requests whose keys match are unanswered and on their way until `land`."""

    def __init__(self, process: Process, matches: Callable[[str, str], bool]) -> None:
        self.matches = matches
        self._puts: list[tuple[str, bytes, Mapping[str, str]]] = []
        self._deletes: list[list[str]] = []
        self._client = process.client
        self._put, self._delete = process.client.put, process.client.delete_many
        process.client.put = self._hold_put  # type: ignore[method-assign]
        process.client.delete_many = self._hold_delete  # type: ignore[method-assign]

    def _hold_put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        if self.matches("put", key):
            self._puts.append((key, bytes(data), metadata or {}))
            raise BackendUnavailableError(key, "put", "no answer")
        return self._put(key, data, metadata=metadata, if_absent=if_absent)

    def _hold_delete(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        if self.matches("delete", keys[0]):
            self._deletes.append(list(keys))
            raise BackendUnavailableError(keys[0], "delete", "no answer")
        return self._delete(keys)

    def release(self) -> None:
        """From now on requests are answered."""
        self.matches = lambda operation, key: False

    def land(self) -> None:
        assert self._puts or self._deletes
        for key, data, metadata in self._puts:
            try:
                self._put(key, data, metadata=metadata)
            except ObjectExistsError:
                continue
        for keys in self._deletes:
            self._delete(keys)


def once(matches: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    found: list[str] = []

    def is_first(operation: str, key: str) -> bool:
        if found or not matches(operation, key):
            return False
        found.append(key)
        return True

    return is_first
