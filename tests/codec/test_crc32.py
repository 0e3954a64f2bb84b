"""Every library computes the same checksum of a body."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from tieredstore.codec import checks


@given(data=st.binary(max_size=20_000), start=st.integers(0, 8))
def test_the_quick_one_says_what_zlib_says(data: bytes, start: int) -> None:
    for view in (data, bytearray(data), memoryview(data)[start:]):
        assert isal_zlib.crc32(view) == zlib.crc32(view)


def test_a_long_body_has_the_same_checksum_too() -> None:
    data = bytes(range(256)) * 40_000
    assert isal_zlib.crc32(data) == zlib.crc32(data) == 0xA1A7BC18


def test_the_quick_one_is_taken_where_it_is_installed_and_else_zlibs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checks.crc32 is isal_zlib.crc32
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "isal.isal_zlib", None)
        without = importlib.reload(checks)
        assert without.crc32 is zlib.crc32
    assert importlib.reload(checks).crc32 is isal_zlib.crc32
