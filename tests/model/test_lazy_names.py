"""Only old names of modules lead to the modules, with a warning."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tieredstore.model.lazy_names import MOVED

# In its own process, as the names stay in sys.modules.
CHECK = """
import sys, warnings
from importlib import import_module
import tieredstore
old, new = sys.argv[1:]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    module = import_module(old)
assert module is import_module(new), module
assert module.__name__ == module.__spec__.name == new, module.__spec__
assert [str(one.message) for one in seen if "the old name goes" in str(one.message)] == [
    f"{old} is {new} now; the old name goes with the next release"
], seen
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tieredstore.driver.generations", "tieredstore.driver.provider"),
        ("tieredstore.metadata.changes", "tieredstore.metadata.journal"),
    ],
)
def test_an_old_name_is_the_module_itself_with_a_warning(old: str, new: str) -> None:
    assert MOVED[old] == new
    subprocess.run([sys.executable, "-c", CHECK, old, new], check=True)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_stands_for_a_module_that_is_there(old: str) -> None:
    assert import_module(MOVED[old]).__name__ == MOVED[old]


def test_a_name_that_never_was_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("tieredstore.driver.never")
