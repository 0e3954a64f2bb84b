"""`every_step` misses no step, and refuses a script without steps."""

from __future__ import annotations

import pytest

from tests.every_step import STEPS_MAX, every_step


def test_each_step_is_looked_at_and_the_first_that_does_not_strike_ends_it() -> None:
    seen: list[tuple[str, int]] = []

    def check(left: str, step: int) -> bool:
        seen.append((left, step))
        return step < 3

    assert every_step(lambda step: f"life {step}", check) == 3
    assert seen == [(f"life {step}", step) for step in range(4)]


@pytest.mark.parametrize("steps", [None, range(0)])
def test_a_script_without_a_step_proves_nothing(steps: range | None) -> None:
    with pytest.raises(AssertionError, match="no step"):
        every_step(lambda step: False, steps=steps)


def test_a_script_that_was_counted_has_all_its_steps() -> None:
    assert every_step(lambda step: step < 5, steps=range(0, 5, 2)) == 3
    with pytest.raises(AssertionError, match="no step 5"):
        every_step(lambda step: step < 5, steps=range(6))


def test_a_script_without_an_end_is_noticed() -> None:
    with pytest.raises(AssertionError, match="never comes to its end"):
        every_step(lambda step: True, steps=range(STEPS_MAX + 1))


def test_an_error_names_its_step() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        every_step(lambda step: 1 // (2 - step) < 9)
    assert caught.value.__notes__ == ["step 2"]
