"""Was that us? What settles a put whose reply was lost.

What lives here: the one rule, for whoever tries puts again, and the look that stands for a
condition where a store has none. An object is our own if it has the size and all the metadata of
our put, which must hold something that no other writer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tieredstore.driver.object_client import ObjectExistsError, ObjectFacts
from tieredstore.model.errors import (
    BackendRefusedError,
    SegmentNotFoundError,
)

Head = Callable[[str], ObjectFacts]


def own_object(
    head: Head, key: str, size: int, metadata: Mapping[str, str] | None
) -> ObjectFacts | None:
    """The object at `key` if it is the one that was put with this metadata; else None."""
    if not metadata:
        return None
    try:
        facts = head(key)
    except SegmentNotFoundError:
        return None
    same = all(facts.metadata.get(name) == value for name, value in metadata.items())
    return facts if same and facts.size == size else None


def refuse_conflict(head: Head, key: str, if_match: str | None) -> None:
    """Where a store has no conditions: a look before the put, which promises nothing."""
    try:
        there: str | None = head(key).etag
    except SegmentNotFoundError:
        there = None
    if there != if_match:
        raise ObjectExistsError(key)


def settling(
    put: Callable[[], ObjectFacts],
    head: Head,
    key: str,
    size: int,
    metadata: Mapping[str, str] | None,
) -> Callable[[], ObjectFacts]:
    """A put to be called again while its outcome is unknown: a conflict may be ourselves.

    An upload that is refused then may be one that was completed.
    """
    repeated = False

    def attempt() -> ObjectFacts:
        nonlocal repeated
        in_doubt, repeated = repeated, True
        try:
            return put()
        except (ObjectExistsError, BackendRefusedError) as error:
            # A conflict may be our own at the first try too: HTTP libraries send a request again
            # by themselves when a kept connection breaks.
            look = in_doubt or isinstance(error, ObjectExistsError)
            landed = own_object(head, key, size, metadata) if look else None
            if landed is None:
                raise
            return landed

    return attempt
