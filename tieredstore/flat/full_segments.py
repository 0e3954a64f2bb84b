"""Segments behind which a file has gone on: are they still there?

What lives here: `gone_from`, a part of what is done when a queue is opened. How long the last
segments are is in `recovery`.
"""

from __future__ import annotations

from itertools import pairwise

from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile


def gone_from(file: FlatMessageFile) -> list[str]:
    """What is missing of the full segments of a queue; nothing of those that were seen before.

    One listing, and none where nothing is new. Only what a listing does not have is asked for by
    itself: it may be older than its writer.
    """
    new = [
        (part, _unseen(part.catalogued(), file.seen_to.get(part.type, 0)))
        for part in (file.queue, file.log)
    ]
    if not any(segments for _, segments in new):
        return []
    listed = file.log.provider.list(file.path)
    sizes = {(each.type, each.base): each.size for each in listed}
    lost = []
    for part, segments in new:
        for each, following in segments:
            wanted = min(each.end, following.base) - each.base
            there = sizes.get((part.type, each.base), 0)
            if there < wanted:
                there = each.backend_bytes()
            if there < wanted:
                gone = f"{wanted - there} bytes that were committed are gone"
                lost.append(f"{each.segment.path}: {gone}")
        if segments and not lost:
            file.seen_to[part.type] = segments[-1][1].base
    return lost


def _unseen(
    segments: tuple[FlatSegment, ...], seen_to: int
) -> list[tuple[FlatSegment, FlatSegment]]:
    """Each with the next one. Those that end before the next begins are asked for anyway."""
    return [
        (each, following)
        for each, following in pairwise(segments)
        if each.base >= seen_to and each.end >= following.base
    ]
