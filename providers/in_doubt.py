"""Requests of which nobody knows when they land: unanswered, or sent more than once.

What lives here: `carefully`, which remembers them for as long as one can be under way, and notes,
objects whose key says all. A name below which a request may still land is not used for something
else meanwhile. Those of a writer that was
overtaken are another matter: `writer_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.runtime import Clock
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.providers.object_calls import ObjectCalls
from tieredstore.providers.object_parts import SegmentParts

# No request of a process that goes on living is under way for longer.
UNDER_WAY_SECONDS: Final = 600.0


def carefully(
    clock: Clock, segment: SegmentParts, call: Callable[[], bool], *, sealed_key: bool = False
) -> None:
    """Send what changes something of this segment; `call` says whether it was sent only once.

    `sealed_key` is for what deletes the sealed object.
    """
    sent_once = False
    try:
        sent_once = call()
    except SegmentNotFoundError:  # the source of a stream has gone: nothing was sent
        sent_once = True
        raise
    finally:
        if not sent_once:
            segment.quiet_until = clock.monotonic() + UNDER_WAY_SECONDS
            if sealed_key:
                segment.key_quiet_until = segment.quiet_until


def put_note(requests: ObjectCalls, key: str) -> bool:
    """Put an object without bytes, where there is none yet; whether that was sent only once."""
    try:
        return requests.put(key, b"")
    except ObjectExistsError:
        return True  # it was noted before


def is_quiet(clock: Clock, until: float | None) -> bool:
    """Whether nothing can be under way any more."""
    return until is None or clock.monotonic() >= until
