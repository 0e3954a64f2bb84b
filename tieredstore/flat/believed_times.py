"""Which times can be those of a message.

What lives here: `is_believed`. What is done where a time cannot be is in `segment_times`.
"""

from __future__ import annotations

from typing import Final

FIRST_BELIEVED_MS: Final = 1_262_304_000_000  # 2010-01-01
AHEAD_BELIEVED_MS: Final = 24 * 3_600_000


def is_believed(time: int | None, now_ms: int) -> bool:
    return time is not None and FIRST_BELIEVED_MS <= time <= now_ms + AHEAD_BELIEVED_MS
