"""A broker without the packages for gRPC."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.example_kit import ROOT, environment


@pytest.mark.skipif(importlib.util.find_spec("rocketmq") is not None, reason="they are installed")
def test_it_says_what_it_wants_and_leaves_nothing_open(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "examples.broker"]
    done = subprocess.run(
        [*command, "--store", str(tmp_path), "--port", "0", "--grpc-port", "0"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("InvalidConfigError: gRPC: there is no rocketmq; want `pip")
    assert done.stderr.count("\n") == 1
