"""A forked child can neither use nor harm what its parent has opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house_rules import ROOT
from tieredstore.driver.one_process import LockOfOneProcess, OneProcess
from tieredstore.model.errors import OtherProcessError, StoreClosedError

SECONDS = 120


@pytest.mark.parametrize(
    "case", ["ASYNC_FLUSH", "SYNC_FLUSH", "tiered", "readers", "catalogue", "pool"]
)
def test_a_forked_child_is_refused_and_its_parent_goes_on(case: str, tmp_path: Path) -> None:
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'disk_with_room'}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.forked_stores", case, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore::DeprecationWarning"},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == []


def test_the_process_that_made_it_may_use_it() -> None:
    process = OneProcess("a store")
    process.require()
    assert process.is_this
    assert not process.is_left_by(SystemExit)
    with LockOfOneProcess(process):
        process.require()


def test_the_error_is_one_that_closed_stores_raise() -> None:
    error = OtherProcessError("/store", opened_by=7)
    assert isinstance(error, StoreClosedError)
    assert error.opened_by == 7
    assert "/store" in str(error)
