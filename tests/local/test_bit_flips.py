"""One flipped bit anywhere in a store that was shut down in order is never silently wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.local.bit_flips import Flips


@pytest.mark.slow
def test_no_flipped_bit_gives_a_wrong_answer_without_a_word(tmp_path: Path) -> None:
    check(tmp_path, seed=1, count=300)


@pytest.mark.torture
def test_nor_do_two_thousand_others(tmp_path: Path) -> None:
    check(tmp_path, seed=random.SystemRandom().randrange(1 << 30), count=2_000)


def check(root: Path, *, seed: int, count: int) -> None:
    flips = Flips(root)
    wrong = {flip: told for flip in flips.some(seed, count) if (told := flips.wrong(flip))}
    assert not wrong, f"seed {seed}: {len(wrong)} of {count}"
