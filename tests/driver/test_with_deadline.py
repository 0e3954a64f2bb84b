"""Calls that may never end."""

from __future__ import annotations

import threading

import pytest

from tieredstore.driver.runtime import Runtime, with_deadline


def test_a_call_that_does_not_end_is_left_behind() -> None:
    gate = threading.Event()
    with Runtime.threads() as runtime:
        future = with_deadline(runtime, "test", lambda: gate.wait(240), 0.05)
        assert not future.done()
        gate.set()
        assert future.result(240)


def test_what_a_call_returns_or_raises_is_in_the_future() -> None:
    for runtime in (Runtime.inline(), Runtime.threads()):
        assert with_deadline(runtime, "test", lambda: 7, 240).result(0) == 7
        with pytest.raises(ValueError, match="invalid literal"):
            with_deadline(runtime, "test", lambda: int("x"), 240).result(0)
        runtime.close()
