"""One flipped bit in any file of a tier is reported, or harmless, or in a documented field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.tier_flips import KINDS, TierFlips
from tests.roundlog.small import everything_small


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_tier_is_believed(tmp_path: Path, kind: str) -> None:
    check(tmp_path, kind, seed=1, count=20)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_tier_is_believed_of_many(tmp_path: Path, kind: str, seed: int) -> None:
    check(tmp_path, kind, seed=seed, count=1_000)


def check(root: Path, kind: str, *, seed: int, count: int) -> None:
    with everything_small():
        flips = TierFlips(root, kind)
        wrong = {flip: told for flip in flips.some(seed, count) if (told := flips.wrong(flip))}
    assert not wrong, f"seed {seed}: {len(wrong)} of {count}"
