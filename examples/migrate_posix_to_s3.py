"""Copies a tier from a directory, such as Java's, into a bucket, and cuts over to it.

Run it beside the broker as often as you like. Then stop the broker, and run it with --cut-over: the
rest is copied, the target's catalogue is written, and its settings are printed.

    python examples/migrate_posix_to_s3.py broker.conf bucket.toml
    python examples/migrate_posix_to_s3.py broker.conf bucket.toml --cut-over

The same on a cluster, with the package shipped as a zip:

    spark-submit --py-files tieredstore.zip migrate_posix_to_s3.py broker.conf bucket.toml --spark
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tieredstore import TieredStoreError
from tieredstore.jobs.job import Engine, LocalEngine, Plan
from tieredstore.jobs.migrate import migrate
from tieredstore.model.config import StoreConfig


def main() -> int:
    parser = argparse.ArgumentParser(description="Move a tier into a bucket.")
    parser.add_argument("source", help="settings of the tier: broker.conf or .toml")
    parser.add_argument("target", help="settings of the bucket: .toml")
    parser.add_argument("--cut-over", action="store_true", help="the last run, without a broker")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done; change nothing"
    )
    parser.add_argument("--spark", action="store_true", help="on Spark instead of threads")
    options = parser.parse_args()

    try:
        report = migrate(
            StoreConfig.from_file(options.source),
            StoreConfig.from_file(options.target),
            engine=engine(spark=options.spark),
            cut_over=options.cut_over,
            dry_run=options.dry_run,
            on_plan=show,
        )
    except TieredStoreError as error:
        print(f"migrate_posix_to_s3: {error}", file=sys.stderr)
        return 1
    for line in () if options.dry_run else report.lines:
        print(line)
    for failure in report.failures:
        print(failure.text, file=sys.stderr)
    return int(report.exit_code)


def engine(*, spark: bool) -> Engine:
    if not spark:
        return LocalEngine(threads=8)
    from tieredstore.spark.engine import SparkEngine, spark_session

    return SparkEngine(spark_session("migrate a tier"))


def show(plan: Plan[Any]) -> None:
    for line in plan.lines:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
