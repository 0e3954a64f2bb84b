"""Times as people and programs write them.

What lives here: reading epoch milliseconds and ISO 8601, as an option too, and showing a time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # 2010 to 2099

TIME_HELP: Final = "epoch milliseconds or ISO 8601 (UTC unless it says otherwise)"


def parse_time(text: str) -> int:
    """Epoch milliseconds. Digits alone are just that; ISO 8601 is UTC unless it says otherwise."""
    words = text.strip()
    if words.isascii() and words.isdigit():
        if len(words) <= 19 and int(words) <= _INT64_MAX:
            return int(words)
        raise ValueError(f"{text!r:.40}: more than 63 bits are no time")
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise ValueError(
            f"{text!r:.40} is no time: give epoch milliseconds or ISO 8601 such as "
            "2026-11-20T10:45:32.778Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time = (moment - _EPOCH) // _MILLISECOND
    if time < 0:
        raise ValueError(f"{text!r:.40}: no message is older than 1970")
    return time


def time_option(text: str) -> int:
    """The parser of an option or argument."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def shown_time(timestamp: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_catalogue_time(timestamp: int | None) -> str:
    """RocketMQ takes part of an IPv6 address for a time: what cannot be one is shown as it is."""
    if timestamp is None:
        return "-"
    return shown_time(timestamp) if timestamp in _PLAUSIBLE else f"{timestamp}?"
