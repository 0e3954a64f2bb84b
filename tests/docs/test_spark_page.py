"""The Spark code of docs/spark.md runs on a real Spark over a real tier."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.cli_kit import Command
from tests.docs.pages import blocks, page
from tests.spark.conftest import short_lived_java, spark
from tests.spark.spark_kit import drop_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["short_lived_java", "spark"]  # fixtures


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_what_the_page_of_spark_shows_runs(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page("spark.md").replace("/data/", f"{tmp_path}/")
    for block in blocks(text):
        if block.language == "toml":
            Path(block.words[0]).write_text(block.text, encoding="utf-8")
    command = Command(capsys)
    store = ("--store-path", tmp_path / "store", "--body", "x")
    assert command.run("put", "Orders", *store, "--key", "order-1", "--repeat", 9).code == 0
    assert command.run("put", "Orders", *store, "--key", "order-2").code == 0
    assert command.run("offload", "--config", tmp_path / "tier.toml", "--seal").code == 0
    shown = [block.text for block in blocks(text) if block.words == ["spark"]]
    capsys.readouterr()
    try:
        exec("\n".join(shown), {})  # as one script, top to bottom
    finally:
        drop_tables(spark)
    said = [line for line in capsys.readouterr().out.splitlines() if line and line[0] not in "|+"]
    told = next(block.text for block in blocks(text) if block.language == "json")
    assert said[:-2] == ["10", "[9]", "['Orders']", "10"]
    assert ast.literal_eval(said[-2]) == json.loads(told)
    assert said[-1] == "1"
