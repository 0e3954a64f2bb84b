"""Delta and Iceberg tables in a bucket hold each range once, even after two exports at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa

from tests.jobs.lake_kit import SCHEMA, at_once, committed, in_order, rows, staged
from tieredstore.jobs.export_delta import DeltaTarget
from tieredstore.jobs.export_iceberg import Catalog, IcebergTarget
from tieredstore.jobs.export_target import ExportTarget, TargetOptions


def options_of(endpoint: str) -> TargetOptions:
    return TargetOptions(
        endpoint=endpoint, region="us-east-1", access_key="testing", secret_key="testing"
    )


def test_a_delta_table_in_a_bucket(s3_endpoint: str, bucket: str) -> None:
    options = options_of(s3_endpoint)
    schema = pa.schema([field for field in SCHEMA if field.name != "topic"])
    target = ExportTarget(f"s3://{bucket}/lake/messages", options)
    tables = [DeltaTarget(target, options, schema) for _ in range(2)]
    tables[0].make()
    works = [
        partial(
            committed,
            table,
            staged(target, "orders", 0, 10, without=["topic"], mark=str(number)),
            run=f"run-{number}",
        )
        for number, table in enumerate(tables)
    ]
    assert sum(len(added) for added, _ in at_once(*works)) == 1
    given = {
        "aws_endpoint_url": s3_endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": "testing",
        "aws_secret_access_key": "testing",
        "aws_region": "us-east-1",
    }
    found = deltalake.DeltaTable(target.url, storage_options=given)
    assert in_order(found.to_pyarrow_table()) == in_order(rows("orders", 0, 0, 10))
    assert found.version() == 1


def test_an_iceberg_table_in_a_bucket(s3_endpoint: str, bucket: str, tmp_path: Path) -> None:
    places = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket}/lake",
    }
    catalog = Catalog(name="test", properties=places)
    table = IcebergTarget("lake.messages", catalog, options_of(s3_endpoint), SCHEMA)
    try:
        table.make()
        range_ = staged(table.target, "orders", 0, 10)
        assert committed(table, range_, run="one")[0] == [range_]
        assert committed(table, range_, run="two")[0] == []
    finally:
        table.close()
