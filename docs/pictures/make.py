"""Makes the pictures of the documents: the report in a browser, and what verbs say on a terminal.

    python docs/pictures/make.py [FOLDER]

Into this folder, or another. Needs chromium (CHROMIUM may name it) for the report alone. Times are
those of a clock that stands still, so a second run draws the same.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

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
TOPICS = {"orders": 16, "payments": 12, "shipments": 8, "invoices": 8, "audit-trail": 4}


def example(*, with_trouble: bool, seed: int = 7) -> TierPicture:
    """Three days of a shop, with the troubles that there are, or without any."""
    dice = random.Random(seed)
    queues = [
        _queue(QueueKey(topic, number), dice, 3e9 / (2 + 3 * rank))
        for rank, (topic, count) in enumerate(TOPICS.items())
        for number in range(count)
    ]
    if with_trouble:
        queues = [_with_trouble(queue) for queue in queues]
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
    from dataclasses import replace

    if queue.key == QueueKey("orders", 3):
        return replace(
            queue,
            segments=queue.segments[:7],
            local_offset=queue.max_offset + 412_877,
            stopped="the broker's own store holds other messages from offset 1,482,003 on",
        )
    if queue.key == QueueKey("payments", 7):
        return replace(queue, lost_count=1_204)
    if queue.key == QueueKey("payments", 1):
        path = "broker-a/payments/1/COMMIT_LOG/0: it has 61,440 bytes, the log says 268,435,456"
        return replace(queue, min_offset=None, problem=path)
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


def screenshot(html: Path, target: Path, *words: str, width: int = 1120, height: int) -> None:
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
                *words,
                html.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def terminal(target: Path, commands: Sequence[Sequence[str]], *, columns: int = 110) -> None:
    """What these commands say, as a picture of a terminal."""
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for words in commands:
        console.print(Text("$ " + " ".join(words), style="bold green"))
        said = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": str(columns)},
        ).stdout
        console.print(Text(said.rstrip() + "\n"))
    target.write_text(console.export_svg(title="tieredstore"), encoding="utf-8")


def draw_reports(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name, with_trouble in (("report", True), ("report-calm", False)):
            html = Path(scratch, f"{name}.html")
            html.write_text(page(example(with_trouble=with_trouble)), encoding="utf-8")
            screenshot(html, folder / f"{name}.png", height=1500 if with_trouble else 1100)


def draw_terminal(folder: Path) -> None:
    """Of a small tier that is made for it, in a folder of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            for topic, keys, count in (("Orders", "order-17", 4_000), ("Payments", "pay-3", 900)):
                for queue in range(2):
                    subprocess.run(
                        [
                            *("tieredstore", "put", topic, "--store-path", "store"),
                            *("--queue", str(queue), "--body", "x" * 600, "--key", keys),
                            *("--repeat", str(count + 37 * queue)),
                        ],
                        check=True,
                        capture_output=True,
                    )
            Path("tier.toml").write_text(
                '[tieredstore]\nbroker_name = "broker-a"\nprovider = "posix"\npath = "tier"\n'
                'store_path = "store"\n'
            )
            offload = ["tieredstore", "offload", "--config", "tier.toml", "--seal"]
            subprocess.run(offload, check=True, capture_output=True)
            named = ["--config", "tier.toml"]
            terminal(
                before / folder / "terminal.svg",
                [
                    ["tieredstore", "topics", *named],
                    ["tieredstore", "queues", *named],
                    ["tieredstore", "why", "Orders", "0", "17", *named],
                ],
            )
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    draw_terminal(folder)
    draw_reports(folder)
    for path in sorted([*folder.glob("*.png"), *folder.glob("*.svg")]):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
