"""Makes the pictures of the documents: the report in a browser, and what verbs say on a terminal.

    python docs/pictures/make.py [FOLDER]

Into this folder, or another. Needs chromium, which CHROMIUM may name, and `tieredstore` in PATH.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tieredstore.access.cost import Load, monthly_cost
from tieredstore.access.survey import DrawnSegment, QueuePicture, TierPicture
from tieredstore.cli.report_page import page
from tieredstore.driver.provider import Appended
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey

NOW = 1_795_910_400_000  # 2026-11-29 00:00 UTC
HOUR = 3_600_000
KEPT_HOURS = 72
MESSAGE_BYTES = 1_100
_SETTINGS: Final = """\
[tieredstore]
broker_name = "broker-a"
provider = "posix"
path = "tier"
store_path = "store"
"""
_FONT_FACE: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # a font from elsewhere
TOPICS = {"orders": 16, "payments": 12, "shipments": 8, "invoices": 8, "audit-trail": 4}


def example() -> TierPicture:
    """Three days of a shop, with the troubles that there are."""
    dice = random.Random(7)
    queues = [
        _with_trouble(_queue(QueueKey(topic, number), dice, 3e9 / (2 + 3 * rank)))
        for rank, (topic, count) in enumerate(TOPICS.items())
        for number in range(count)
    ]
    config = StoreConfig(broker_name="broker-a", provider="s3", bucket="shop-tier")
    stored = sum(queue.log_bytes for queue in queues)
    messages = stored / MESSAGE_BYTES
    load = Load(
        queue_count=len(queues),
        messages_per_second=messages / (KEPT_HOURS * 3600),
        message_bytes=MESSAGE_BYTES,
        stored_bytes=float(stored),
    )
    return TierPicture(
        broker_name="broker-a",
        cluster_name="shop",
        place="s3, shop-tier",
        taken_at=NOW,
        queues=tuple(queues),
        index_files=tuple(
            DrawnSegment(
                base_offset=file * 420_000_000,
                size=420_000_000,
                begin_timestamp=NOW - (KEPT_HOURS - 12 * file) * HOUR,
                end_timestamp=NOW - (KEPT_HOURS - 12 * (file + 1)) * HOUR,
            )
            for file in range(5)
        ),
        reserve_hours=dict.fromkeys(TOPICS, KEPT_HOURS),
        load=load,
        cost=monthly_cost(load, config),
        appended=tuple(_spans(dice)),
        entry_dollars=0.0054 / 1000,
    )


def _queue(key: QueueKey, dice: random.Random, size: float) -> QueuePicture:
    """Twelve segments of six hours; nights are quiet."""
    segments, base = [], 0
    for step in range(12):
        begin = NOW - KEPT_HOURS * HOUR + step * 6 * HOUR
        day = (0.25, 1.0, 1.3, 0.6)[step % 4]
        length = int(size / 12 * day * dice.uniform(0.85, 1.15))
        segments.append(
            DrawnSegment(
                base_offset=base,
                size=length,
                begin_timestamp=begin,
                end_timestamp=begin + 6 * HOUR - 1,
            )
        )
        base += length
    count = base // MESSAGE_BYTES
    first = dice.randrange(2_000_000)
    end = first + count
    return QueuePicture(
        key=key,
        min_offset=first,
        max_offset=end,
        indexed_offset=end - count // 9,
        local_offset=end + dice.randrange(900),
        queue_bytes=20 * count,
        segments=tuple(segments),
    )


def _with_trouble(queue: QueuePicture) -> QueuePicture:
    if queue.key == QueueKey("orders", 3):
        held = queue.segments[:7]
        end = (queue.min_offset or 0) + sum(each.size for each in held) // MESSAGE_BYTES
        return replace(
            queue,
            segments=held,
            max_offset=end,
            indexed_offset=end,
            stopped=f"the broker's own store holds other messages from offset {end:,} on",
        )
    if queue.key == QueueKey("payments", 7):
        return replace(queue, lost_count=1_204)
    if queue.key == QueueKey("invoices", 0):
        return replace(queue, local_offset=queue.max_offset + 88_310)
    return queue


def _spans(dice: random.Random) -> Iterator[Appended]:
    """Nine hours of the log, a quarter of an hour each."""
    for step in range(36):
        begin = NOW - (36 - step) * HOUR // 4
        count = 22 + dice.randrange(6) + (14 if 20 <= step < 26 else 0)
        yield Appended(
            begin_ms=begin,
            end_ms=begin + HOUR // 4,
            entry_count=count,
            size=int(count * 5e6 * dice.uniform(0.8, 1.2)),
        )


def screenshot(html: Path, target: Path, *, width: int, height: int) -> None:
    """What a browser shows of a page."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium",
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}",
                f"--window-size={width},{height}",
                f"--screenshot={target}",
                html.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def terminal(target: Path, at: Path, commands: Sequence[Sequence[str]], *, columns: int) -> None:
    """What these commands say in a folder, as a picture of a terminal."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for words in commands:
        console.print(Text("$ " + " ".join(words), style="bold green"))
        console.print(Text(_said(at, *words, columns=columns).rstrip() + "\n"))
    drawn = console.export_svg(title="tieredstore", unique_id="terminal")
    target.write_text(_FONT_FACE.sub("", drawn), encoding="utf-8")


def draw_terminal(target: Path) -> None:
    """Of a small tier that is made for it."""
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        for topic, key, count in (("Orders", "order-17", 4_000), ("Payments", "pay-3", 900)):
            for queue in range(2):
                put = ("put", topic, "--store-path", "store", "--queue", str(queue), "--key", key)
                many = ("--body", "x" * 600, "--repeat", str(count + 37 * queue))
                _said(at, "tieredstore", *put, *many)
        at.joinpath("tier.toml").write_text(_SETTINGS, encoding="utf-8")
        named = ("--config", "tier.toml")
        _said(at, "tieredstore", "offload", "--seal", *named)
        shown = (("topics",), ("queues",), ("why", "Orders", "0", "17"))
        terminal(target, at, [("tieredstore", *words, *named) for words in shown], columns=110)


def draw_report(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        html = Path(scratch, "report.html")
        html.write_text(page(example()), encoding="utf-8")
        screenshot(html, target, width=1040, height=1300)


def _said(at: Path, *words: str, columns: int = 80) -> str:
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(
        words, cwd=at, capture_output=True, text=True, check=True, env=environment
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    draw_terminal(folder / "terminal.svg")
    draw_report(folder / "report.png")
    for name in ("terminal.svg", "report.png"):
        print(f"{name}: {(folder / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
