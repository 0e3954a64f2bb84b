"""Figures of the report in words: times, spans of time, sizes, and what nobody knows.

What lives here: pure functions.
"""

from __future__ import annotations

from typing import Final

from tieredstore.cli.times import shown_time

HOUR_MS: Final = 3_600_000
UNKNOWN: Final = "?"


def number_text(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def moment_text(timestamp: int | None) -> str:
    """To the second: nobody looks for a millisecond in a picture."""
    if timestamp is None:
        return UNKNOWN
    return shown_time(timestamp).partition(".")[0].replace("T", " ")


def age_text(timestamp: int | None, now_ms: int) -> str:
    return UNKNOWN if timestamp is None else span_text(max(0, now_ms - timestamp))


def span_text(span_ms: int) -> str:
    if span_ms < 2 * HOUR_MS:
        return f"{span_ms / 60_000:,.0f} min"
    if span_ms < 48 * HOUR_MS:
        return f"{span_ms / HOUR_MS:,.1f} h"
    return f"{span_ms / (24 * HOUR_MS):,.1f} days"


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
