"""The Java program that opens a store with RocketMQ's own classes, built and run.

It is in `java/`, with a Maven build. Maven fetches RocketMQ the first time: 5.3.3, or the version
that TIEREDSTORE_ROCKETMQ names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.interop.maven import JAVA, built

HERE = Path(__file__).parent / "java"
VERSION = os.environ.get("TIEREDSTORE_ROCKETMQ") or "5.3.3"


def verify(mode: str, *options: str, work: Path) -> list[dict[str, Any]]:
    """What Java says of a store, row by row; the last row is the summary."""
    out = work / "java-says.jsonl"
    _run("VerifyStore", mode, *options, "--tmp", str(work), "--out", str(out))
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def sql_filter_says(questions: list[dict[str, Any]], work: Path) -> list[dict[str, Any]]:
    """What Java says about each expression, and about each message's properties with it."""
    ask, out = work / "ask.jsonl", work / "java-says.jsonl"
    ask.write_text("".join(json.dumps(one) + "\n" for one in questions), encoding="utf-8")
    _run("SqlFilterSays", str(ask), str(out))
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def broker_tables(folder: Path, work: Path, *, change: bool = False) -> dict[str, Any]:
    """The consumer offsets and topics that Java reads; with `change` it then writes others."""
    out = work / "java-says.json"
    _run("BrokerTables", str(folder), str(out), *(["change"] if change else []))
    said: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return said


def _run(program: str, *arguments: str) -> None:
    classes = built(HERE, VERSION, "verify-store-1.0.jar")
    done = subprocess.run(
        [*JAVA, "-cp", classes, f"goldenverify.{program}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
