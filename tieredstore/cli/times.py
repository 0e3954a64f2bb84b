"""Times as people and programs write them.

What lives here: reading epoch milliseconds and ISO 8601, and showing a time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1


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


def shown_time(timestamp: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
