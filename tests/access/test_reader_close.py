"""A reader lets go of a backend that never answers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.access.test_reader import golden, golden_config
from tieredstore.access.reader import TieredReader
from tieredstore.driver.provider import ProviderWrapper, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import StoreClosedError
from tieredstore.providers.posix import PosixProvider

__all__ = ["golden"]  # a fixture


class _HungSegment(SegmentWrapper):
    answers = threading.Event()

    def read(self, position: int, length: int) -> bytes:
        assert self.answers.wait(300)
        return self.inner.read(position, length)


class _HungProvider(ProviderWrapper):
    def wrap(self, segment: FileSegment) -> _HungSegment:
        return _HungSegment(segment)


def test_a_backend_that_never_answers_does_not_keep_a_reader_from_closing(golden: Path) -> None:
    config = golden_config(golden)
    with Runtime.inline() as inline:
        hung = _HungProvider(PosixProvider.from_config(config, inline), inline)
        reader = TieredReader(config, provider=hung)
        reader.load()
        key = reader.queues()[0]

        def ask() -> None:
            with suppress(StoreClosedError, RuntimeError):  # whichever part it had come to
                reader.get_message(*key, 0)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        try:
            started = time.monotonic()
            reader.close(timeout=0.2)
            assert time.monotonic() - started < 60
        finally:
            _HungSegment.answers.set()
            asking.join(60)
        assert not asking.is_alive()
