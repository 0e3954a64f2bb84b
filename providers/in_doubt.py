"""Requests of which nobody knows when they land: unanswered, or sent more than once.

What lives here: `carefully`, which remembers them, and notes, objects whose key says all. There is
no time after which such a request cannot land any more, so nothing here waits: what it may bring
does not count, or its name is not used again. Those of a writer that was overtaken are another
matter: `writer_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.providers.object_calls import ObjectCalls
from tieredstore.providers.object_parts import SegmentParts


def carefully(segment: SegmentParts, call: Callable[[], bool], *, sealed_key: bool = False) -> None:
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
            segment.in_doubt = True
            segment.key_in_doubt |= sealed_key


def put_note(requests: ObjectCalls, key: str) -> bool:
    """Put an object without bytes, where there is none yet; whether that was sent only once."""
    try:
        return requests.put(key, b"")
    except ObjectExistsError:
        return True  # it was noted before
