"""The example moves a tier that Java wrote into a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.jobs.job_kit import copy_of_golden, in_bucket
from tests.s3.moto_server import moto_server
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.migrate_plan import snippet
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_tier_is_moved_and_its_printed_settings_open_it(tmp_path: Path) -> None:
    source = tmp_path / "java.toml"
    source.write_text(snippet(copy_of_golden(tmp_path / "java")))
    with moto_server() as (endpoint, _):
        config = in_bucket(tmp_path / "new", f"example-{uuid.uuid4().hex}", endpoint)
        create_bucket(ObjectStoreSettings.from_config(config))
        target = tmp_path / "bucket.toml"
        target.write_text(snippet(config))
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "examples/migrate_posix_to_s3.py")),
                *(str(source), str(target), "--cut-over"),
            ],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "to copy: 57 segments, 338.7 KiB" in done.stdout
        assert "requests: about" in done.stdout
        printed = tmp_path / "printed.toml"
        printed.write_text(done.stdout[done.stdout.index("[tieredstore]") :])
        settings = StoreConfig.from_file(printed).with_env(
            {"TIEREDSTORE_ACCESS_KEY": "testing", "TIEREDSTORE_SECRET_KEY": "testing"}
        )
        with TieredReader(settings) as reader:
            assert len(reader.queues()) == 9


def test_settings_that_are_not_there_are_named_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/migrate_posix_to_s3.py"), "a.conf", "b.toml"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "migrate_posix_to_s3: no such file: a.conf\n"
