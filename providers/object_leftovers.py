"""What a tier in an object store pays for and does not use.

What lives here: finding abandoned uploads and parts that will never count, and removing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.driver.object_client import AbandonedUpload
from tieredstore.driver.provider import Leftover
from tieredstore.providers.object_calls import ObjectCalls
from tieredstore.providers.object_layout import ObjectLayout, part_of, parts_below
from tieredstore.providers.object_parts import segments_of
from tieredstore.providers.writer_epoch import newest_boundary

UPLOAD: Final = "abandoned-upload"
PART: Final = "stray-part"


def leftovers(requests: ObjectCalls, layout: ObjectLayout, prefix: str) -> list[Leftover]:
    """Parts only of epochs that are over: no later boundary lets them count again."""
    below = layout.below(prefix)
    found = [
        Leftover(kind=UPLOAD, name=upload.key, id=upload.upload_id)
        for upload in requests.client.abandoned_uploads(below)
    ]
    # The listing before the boundary: what a newer one fences is then fenced here too.
    listed = requests.listed(parts_below(below))
    sizes = {each.key: each.size for each in listed}
    by_broker: dict[str, list[int]] = {}
    for number, each in enumerate(listed):
        name = part_of(each.key)
        segment = None if name is None else layout.segment_of(name.segment_key)
        if segment is not None:
            by_broker.setdefault(segment.broker, []).append(number)
    for broker, numbers in by_broker.items():
        boundary = newest_boundary(requests, layout, broker)
        for parts in segments_of((listed[n] for n in numbers), boundary).segments.values():
            for key in parts.strays:
                name = part_of(key)
                if name is not None and name.epoch < boundary.epoch:
                    found.append(Leftover(kind=PART, name=key, size=sizes[key]))
    return found


def remove(requests: ObjectCalls, leftovers: Sequence[Leftover]) -> None:
    for each in leftovers:
        if each.kind == UPLOAD:
            requests.client.abort_upload(AbandonedUpload(each.name, each.id))
    parts = [each.name for each in leftovers if each.kind == PART]
    if parts:
        requests.delete(parts)
