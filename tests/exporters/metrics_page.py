"""The tables of docs/metrics.md, made from the metrics' declarations.

python -m tests.exporters.metrics_page     writes them into the page
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tieredstore.driver.metrics import OUR_METRICS, ROCKETMQ_METRICS, Metric

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
TABLES: Final[dict[str, tuple[Metric, ...]]] = {
    "metrics of RocketMQ": ROCKETMQ_METRICS,
    "metrics of ours": OUR_METRICS,
}


def with_tables(text: str) -> str:
    """The page with new tables."""
    for name, metrics in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of the {name} -->"
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        assert mark, f"{end} is missing"
        text = f"{before}{begin}\n\n{table(metrics)}\n\n{end}{after}"
    return text


def table(metrics: Iterable[Metric]) -> str:
    rows = ["| metric | kind | unit | labels | what it means |", "| --- | --- | --- | --- | --- |"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        cells = (f"`{metric.name}`", metric.kind.value, metric.unit, labels, metric.meaning)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
