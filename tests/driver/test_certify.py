"""A store that does not keep its word fails the check made for that."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tieredstore.driver.certify import Certificate, certify
from tieredstore.driver.object_client import (
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
    OtherBytesError,
    Range,
)
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    OffsetOutOfRangeError,
    TieredStoreError,
)
from tieredstore.providers.fsspec import FsspecClient


def new_store() -> ObjectClient:
    return FsspecClient(f"memory://{uuid.uuid4().hex}")


class IgnoresConditions(ObjectClientWrapper):
    def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
        return self.inner.put(key, data, metadata=options.get("metadata"), if_absent=False)


class IgnoresThemAtTheEndOfUploads(ObjectClientWrapper):
    """Like some stores, honours conditions only for an object in one request."""

    def put_stream(self, key: str, blocks: Iterable[Buffer], **options: Any) -> ObjectFacts | None:
        return self.inner.put_stream(key, blocks, **{**options, "if_absent": False})


class HasNoIfMatch(ObjectClientWrapper):
    """Creates only if the key is free, but replaces without a condition."""

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        return self.inner.put(key, data, metadata=metadata, if_absent=if_absent)


class MixesRacersUp(ObjectClientWrapper):
    """States another length than it sends, which no client accepts as an answer."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if "/race-" in key:
            raise OtherBytesError(key, "get", "2 bytes came instead of 3")
        return self.inner.get_range(key, start, length)


class IgnoresRanges(ObjectClientWrapper):
    """Sends the whole object, which no client accepts."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise OtherBytesError(key, "get", f"no range came instead of {length} bytes")

    def get_ranges(self, ranges: Sequence[Range]) -> list[bytes | TieredStoreError]:
        return [OtherBytesError(ranges[0].key, "get", "9 bytes came")] * len(ranges)


class LosesMetadata(ObjectClientWrapper):
    def head(self, key: str) -> ObjectFacts:
        facts = self.inner.head(key)
        return ObjectFacts(key=key, size=facts.size, etag=facts.etag)


class CutsRanges(ObjectClientWrapper):
    """Returns a zero as the last byte, and no bytes for a range beyond the end."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return self.inner.get_range(key, start, length)[:-1] + b"\0"
        except OffsetOutOfRangeError:
            return b""

    def get_ranges(self, ranges: Sequence[Range]) -> list[bytes | TieredStoreError]:
        return [self.get_range(each.key, each.start, each.length) for each in ranges]


class ListsOnePage(ObjectClientWrapper):
    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        for number, found in enumerate(self.inner.list(prefix, after=after)):
            if number < 1_000:
                yield found


class ListsNothing(ObjectClientWrapper):
    """Like a store whose listing knows only of objects that have been there for a while."""

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        yield from ()


class DeletesNothing(ObjectClientWrapper):
    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        return {}


class FailsToDeleteOne(ObjectClientWrapper):
    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        if any("/page/" in key for key in keys):
            return {keys[0]: BackendRefusedError(keys[0], "delete", "denied")}
        return self.inner.delete_many(keys)


def test_a_store_that_keeps_its_word_passes_and_nothing_is_left() -> None:
    store = new_store()
    certificate = certify(store)
    assert certificate.passed
    assert len(certificate.findings) == 10
    assert "10 checks passed" in certificate.summary()
    assert list(store.list()) == []


def test_a_store_without_if_match_passes() -> None:
    assert certify(HasNoIfMatch(new_store()), page_keys=3).passed


@pytest.mark.parametrize(
    ("liar", "checks"),
    [
        (IgnoresConditions, {"create-only", "create-only-race"}),
        (IgnoresThemAtTheEndOfUploads, {"create-only-parts"}),
        (MixesRacersUp, {"create-only-race"}),
        (IgnoresRanges, {"read-after-write", "odd-keys", "ranges", "range-beyond-end"}),
        (LosesMetadata, {"metadata"}),
        (CutsRanges, {"read-after-write", "odd-keys", "ranges", "range-beyond-end"}),
        (ListsOnePage, {"listing"}),
        (ListsNothing, {"read-after-write", "odd-keys", "listing"}),
        (DeletesNothing, {"delete"}),
        (FailsToDeleteOne, {"delete"}),
    ],
)
def test_a_store_that_lies_is_named_with_what_it_did(
    liar: type[ObjectClientWrapper], checks: set[str]
) -> None:
    certificate = certify(liar(new_store()))
    assert not certificate.passed
    assert checks <= {finding.kind for finding in certificate.failures}
    for check in checks:
        assert check in certificate.summary()
    if liar not in (CutsRanges, IgnoresRanges):  # these fail wherever anything is read
        assert {finding.kind for finding in certificate.failures} - checks <= {"delete"}


def test_a_certificate_is_kept_as_text() -> None:
    certificate = certify(LosesMetadata(new_store()), page_keys=3)
    assert Certificate.from_json(certificate.to_json()) == certificate
    for text in ("", "[]", "{}", '{"client": 1, "findings": 2}', "null"):
        with pytest.raises(ValueError):
            Certificate.from_json(text)


def test_a_failing_network_is_no_verdict() -> None:
    class Unreachable(ObjectClientWrapper):
        def head(self, key: str) -> ObjectFacts:
            raise BackendUnavailableError(key, "head", "no route")

    store = new_store()
    with pytest.raises(BackendUnavailableError):
        certify(Unreachable(store))
    assert list(store.list()) == []
