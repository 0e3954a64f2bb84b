"""Which messages Java puts the empty key for: it splits KEYS at each space and drops the last."""

from __future__ import annotations

import pytest

from tieredstore.codec.columns import keys_of_texts
from tieredstore.jobs.verify_slice import _with_empty_key


@pytest.mark.parametrize(
    ("keys", "has_empty"),
    [
        ("a", False),
        ("a b", False),
        ("a ", False),
        ("a   ", False),
        (" ", False),
        (" a", True),
        ("a  b", True),
        ("a  b  ", True),
        ("  ", False),
    ],
)
def test_an_empty_piece_counts_but_at_the_end(keys: str, has_empty: bool) -> None:
    texts = [b"KEYS\x01x y\x02", f"TAGS\x01  \x02KEYS\x01{keys}\x02".encode()]
    gaps = keys_of_texts(texts, prefix="T#").gaps
    assert _with_empty_key(texts, gaps).tolist() == ([1] if has_empty else [])
