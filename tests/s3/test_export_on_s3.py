"""Plain Parquet in a bucket has each message once, whatever ended a run that wrote there."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from tests.jobs.job_kit import run_inline
from tests.jobs.written_tier import WrittenTier, posix_config
from tests.s3.test_export_tables_on_s3 import options_of
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.export_parquet import exported_files
from tieredstore.jobs.job import JobState


def test_a_run_interrupted_while_it_writes_its_record_hinders_no_other(
    s3_endpoint: str, bucket: str, tmp_path: Path
) -> None:
    options = options_of(s3_endpoint)
    tier = WrittenTier(config=posix_config(tmp_path))
    job = ExportJob(config=tier.config, target=f"s3://{bucket}/lake", target_options=options)
    files = pafs.S3FileSystem(
        endpoint_override=s3_endpoint.partition("://")[2],
        scheme="http",
        region=options.region,
        access_key=options.access_key,
        secret_key=options.secret_key,
    )

    def offsets() -> list[int]:
        paths = [path.removeprefix("s3://") for path in exported_files(job.target, options)]
        tables = [pq.read_table(path, filesystem=files, partitioning=None) for path in paths]
        return sorted(offset for each in tables for offset in each["queue_offset"].to_pylist())

    tier.add("Orders", 0, 5)
    assert run_inline(job).state is JobState.DONE
    with (
        pytest.raises(KeyboardInterrupt),  # and Arrow completes the upload nevertheless
        files.open_output_stream(f"{bucket}/lake/commit=00000002/_commit.json"),
    ):
        raise KeyboardInterrupt
    assert offsets() == list(range(5))
    tier.add("Orders", 0, 3)
    assert run_inline(job).state is JobState.DONE
    assert offsets() == list(range(8))
