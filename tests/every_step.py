"""One script, stopped at each of its steps, and looked at after each."""

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
    """How many steps the script has; each has stopped it once, and `check` saw what was left.

    `script(n)` runs until its step `n`, from 0, dies there and returns what outlives it; `check`
    gets that and the step, and returns whether the script came as far as that step. The first one
    to which it does not come ends this. `steps` are those of a script whose steps were counted, or
    a sample of them. Without `check` the script says itself whether it came to the step.
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
