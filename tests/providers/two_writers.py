"""Two writers of one segment: the older one stalls, and the newer one takes over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.providers.object_kit import PATH, SECOND, Bucket, Process
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import FencedError, SegmentNotFoundError
from tieredstore.model.values import SegmentType

LOG = SegmentType.COMMIT_LOG


def stalls(
    process: Process, when: Callable[[str, str], bool], meanwhile: Callable[[], None]
) -> None:
    """Run all of `meanwhile` before the first request that matches `when`."""
    done = False

    def before(operation: str, key: str) -> None:
        nonlocal done
        if not done and when(operation, key):
            done = True
            meanwhile()

    process.client.before = before


def an_entry(operation: str, key: str) -> bool:
    return operation == "put" and "/log/" in key


def a_look(operation: str, key: str) -> bool:
    return operation == "head" and "/epoch/" in key


def a_sealed_object(operation: str, key: str) -> bool:
    return operation == "put" and not key.startswith(".")


def content(segment: FileSegment) -> bytes | None:
    try:
        return segment.read(0, segment.size())
    except SegmentNotFoundError:
        return None


class Two:
    """An older writer with 10 bytes in a segment, and a newer one that has not begun yet."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.begin()

    def begin(self) -> None:
        self.old, self.new = self.bucket.process(), self.bucket.process()
        self.old.open(PATH, LOG, 0).write(0, b"0123456789")

    def stalled(self, meanwhile: Callable[[Process], None]) -> None:
        """The older one sends an entry, and the newer one takes over before that lands."""
        stalls(self.old, an_entry, lambda: meanwhile(self.new))
        with pytest.raises(FencedError, match=f"fenced by epoch {SECOND}"):
            self.old.open(PATH, LOG, 0).write(10, b"late and long")

    def counts(self, expected: bytes | None) -> None:
        """Check what the newer writer, a reader, a rebuild and a third writer's seal find."""
        for process in (self.new, self.bucket.process()):
            assert content(process.open(PATH, LOG, 0)) == expected
            size = process.sizes().get((PATH, LOG, 0))
            assert size == (None if expected is None else len(expected))
        third = self.bucket.process()
        third.provider.claim("broker-a")
        segment = third.open(PATH, LOG, 0)
        segment.seal()
        assert content(segment) == expected
        assert content(self.bucket.process().open(PATH, LOG, 0)) == expected
