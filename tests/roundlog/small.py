"""A log in a bucket with small limits: what takes hours happens within a few requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from tieredstore.driver.segment import Buffer
from tieredstore.roundlog import draft, upkeep
from tieredstore.roundlog import log as log_module
from tieredstore.roundlog.entry import Entry

_decoded = Entry.decoded


@contextmanager
def everything_small() -> Iterator[None]:
    """Data objects, merges, states and releases within a few dozen requests. An entry is decoded
    only once, however many read it."""

    @cache
    def known(data: bytes, name: str, object_bytes: int | None) -> Entry:
        return _decoded(data, name, object_bytes=object_bytes)

    def once(data: Buffer, name: str, *, object_bytes: int | None = None) -> Entry:
        return known(bytes(data), name, object_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 150)
        patch.setattr(log_module, "MET_SINGLY", 2)
        patch.setattr(log_module, "LISTED_MAX", 2)
        patch.setattr(draft, "PIECE_BYTES_MAX", 120)
        patch.setattr(draft, "DATA_BYTES_MAX", 120)
        patch.setattr(upkeep, "ROUNDS_MERGED", 3)
        patch.setattr(upkeep, "CHUNKS_MERGED", 2)
        patch.setattr(upkeep, "STATE_EVERY", 3)
        patch.setattr(upkeep, "STATES_KEPT", 2)
        patch.setattr(Entry, "decoded", once)
        yield
