"""How many files may be open at the same time."""

from __future__ import annotations

import resource

import pytest

from tieredstore.local.mapped_file import (
    OPEN_MAX_LEAST,
    OPEN_MAX_MOST,
    MappedFiles,
    open_files_max,
)


@pytest.mark.parametrize(
    ("allowed", "opened"),
    [
        (1_024, 256),
        (20_000, 5_000),
        (64, OPEN_MAX_LEAST),
        (1_000_000, OPEN_MAX_MOST),
        (resource.RLIM_INFINITY, OPEN_MAX_MOST),
    ],
)
def test_as_many_files_are_open_as_a_quarter_of_what_the_process_may_have(
    monkeypatch: pytest.MonkeyPatch, allowed: int, opened: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (allowed, allowed))
    assert open_files_max() == opened
    assert MappedFiles().open_max == opened
