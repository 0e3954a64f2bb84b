"""Stops a script at each of its steps, and checks what is left after each stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

Life = TypeVar("Life")
STEPS_MAX = 20_000


def every_step(
    script: Callable[[int], Life],
    check: Callable[[Life, int], bool | None] | None = None,
    *,
    steps: Iterable[int] | None = None,
) -> int:
    """Stop the script once at each of its steps and check what is left; return the number of steps.

    `script(n)` runs until its step `n`, from 0, dies there and returns what outlives it. `check`
    gets that and the step, and returns False if the script did not reach the step, which ends the
    loop. Without `check`, the script returns this itself. `steps` are given if the script's steps
    were counted before, or are a sample of them; the script must reach each of these.
    """
    done = 0
    for step in count() if steps is None else steps:
        assert step < STEPS_MAX, "the script never comes to its end"
        try:
            left = script(step)
            struck = left if check is None else check(left, step)
        except BaseException as error:
            error.add_note(f"step {step}")
            raise
        if struck is False:
            assert steps is None, f"the script has no step {step}"
            break
        done += 1
    assert done > 0, "the script has no step"
    return done
