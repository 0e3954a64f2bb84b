"""The progress of a stream: the offsets that Spark keeps in its checkpoint.

As long as there are not many queues, they are JSON that a person can read:

    {"<topic>": {"<queue id>": next queue offset, "topic_id": number of the topic in the catalogue}}

A catalogue never gives the number of a topic twice, so another number means another topic of the
same name. Checkpoints of older versions have no numbers.

Spark writes all of them at each batch, and keeps those of a hundred batches. Beyond
QUEUES_SHOWN_MAX queues they are packed: {"packed": "<base 85 of LZMA2>"} of these parts, each after
its length. Numbers are unsigned integers of seven bits a byte, least first:

    | part      | what                                                                          |
    | --------- | ----------------------------------------------------------------------------- |
    | topics    | names in order, one a line                                                    |
    | numbers   | for each topic: its number + 1, or 0 if it is not known                       |
    | queues    | for each topic: how many queues it has, and then for each of them: its id     |
    |           | minus the one before it                                                       |
    | planes    | for each queue: its offset minus that of the queue before it in its topic, as |
    |           | 64-bit zigzag numbers; first the lowest bytes of all of them, and so on       |
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import INT64_MAX, QueueKey

QUEUES_SHOWN_MAX: Final = 500
PACKED_BYTES_MAX: Final = 256 << 20
"""The limit for unpacked offsets, so that a damaged checkpoint cannot take all memory."""
_TOPIC_ID: Final = "topic_id"
_PACKED: Final = "packed"
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0}]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The next queue offset of each queue, and the number of each topic if known."""

    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)

    def made_again(self, now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Topics whose number has changed: the number they had and the one they have now."""
        return {
            topic: (number, now[topic])
            for topic, number in sorted(self.topic_ids.items())
            if topic in now and now[topic] != number
        }

    def without(self, topics: Collection[str]) -> StreamOffsets:
        return StreamOffsets(
            offsets={key: at for key, at in self.offsets.items() if key.topic not in topics},
            topic_ids={name: at for name, at in self.topic_ids.items() if name not in topics},
        )


def to_json(offsets: StreamOffsets) -> dict[str, Any]:
    if len(offsets.offsets) > QUEUES_SHOWN_MAX:
        return {_PACKED: base64.b85encode(_packed(offsets)).decode("ascii")}
    made: dict[str, Any] = {}
    for topic, queues in _by_topic(offsets).items():
        made[topic] = {str(queue_id): offset for queue_id, offset in queues.items()}
        if topic in offsets.topic_ids:
            made[topic][_TOPIC_ID] = offsets.topic_ids[topic]
    return made


def from_json(document: object) -> StreamOffsets:
    """InvalidConfigError for offsets that are not ours, such as another source's checkpoint."""
    offsets: dict[QueueKey, int] = {}
    topic_ids: dict[str, int] = {}
    if not isinstance(document, dict):
        raise _no_offset(document)
    if isinstance(document.get(_PACKED), str):
        try:
            return _unpacked(base64.b85decode(document[_PACKED]))
        except (ValueError, IndexError, EOFError, lzma.LZMAError) as error:
            raise _no_offset(document) from error
    for topic, queues in document.items():
        if not isinstance(queues, dict):
            raise _no_offset(document)
        for name, number in queues.items():
            if type(number) is not int:
                raise _no_offset(document)
            if name == _TOPIC_ID:
                topic_ids[topic] = number
            elif name.isascii() and name.isdigit():
                offsets[QueueKey(topic, int(name))] = number
            else:
                raise _no_offset(document)
    return StreamOffsets(offsets=offsets, topic_ids=topic_ids)


def _no_offset(document: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"checkpoint: {str(document)[:60]!r} is no offset of a tieredstore stream"
    )


def _by_topic(offsets: StreamOffsets) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for key, offset in sorted(offsets.offsets.items()):
        found.setdefault(key.topic, {})[key.queue_id] = offset
    return found


# Packed


def _packed(offsets: StreamOffsets) -> bytes:
    by_topic = _by_topic(offsets)
    queue_ids: list[int] = []
    steps: list[int] = []
    for queues in by_topic.values():
        queue_ids.append(len(queues))
        before_id = before = 0
        for queue_id, offset in queues.items():
            queue_ids.append(queue_id - before_id)
            steps.append(offset - before)
            before_id, before = queue_id, offset
    differences = np.array(steps, np.int64)
    folded = ((differences << 1) ^ (differences >> 63)).astype(np.uint64)
    planes = [((folded >> np.uint64(shift)) & np.uint64(255)) for shift in range(0, 64, 8)]
    parts = (
        "\n".join(by_topic).encode("utf-8", "surrogatepass"),
        _varints(offsets.topic_ids.get(topic, -1) + 1 for topic in by_topic),
        _varints(queue_ids),
        b"".join(plane.astype(np.uint8).tobytes() for plane in planes),
    )
    data = b"".join(_varints([len(part)]) + part for part in parts)
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=_FILTERS)


def _unpacked(packed: bytes) -> StreamOffsets:
    pull = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS)
    data = pull.decompress(packed, max_length=PACKED_BYTES_MAX)
    if not pull.eof and not pull.needs_input:
        raise ValueError("it is too long")
    parts = []
    at = 0
    for _ in range(4):
        length, at = _varint(data, at)
        parts.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError("its parts do not add up")
    names = parts[0].decode("utf-8", "surrogatepass").split("\n") if parts[0] else []
    numbers, held = _numbers(parts[1]), _numbers(parts[2])
    keys: list[QueueKey] = []
    for name in names:
        queue_id = 0
        for _ in range(next(held)):
            queue_id += next(held)
            keys.append(QueueKey(name, queue_id))
    topic_ids = {name: number - 1 for name in names if (number := next(numbers))}
    return StreamOffsets(
        offsets=dict(zip(keys, _offsets(keys, parts[3]), strict=True)), topic_ids=topic_ids
    )


def _offsets(keys: list[QueueKey], planes: bytes) -> list[int]:
    data = np.frombuffer(planes, np.uint8)
    if len(data) != 8 * len(keys):
        raise ValueError("there are not as many offsets as queues")
    shifts = np.arange(0, 64, 8, dtype=np.uint64)[:, None]
    folded = np.bitwise_or.reduce(data.reshape(8, -1).astype(np.uint64) << shifts, axis=0)
    steps = (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(np.int64)
    found: list[int] = []
    topic, offset = None, 0
    for key, step in zip(keys, steps.tolist(), strict=True):
        offset = step if key.topic != topic else offset + step
        if not 0 <= offset <= INT64_MAX:
            raise ValueError("an offset is out of range")
        topic = key.topic
        found.append(offset)
    return found


def _varints(numbers: Iterable[int]) -> bytes:
    made = bytearray()
    for number in numbers:
        left = number
        while left > 127:
            made.append(left & 127 | 128)
            left >>= 7
        made.append(left)
    return bytes(made)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("a number is too long")


def _numbers(data: bytes) -> Iterator[int]:
    """All numbers, and then an error: only a damaged text needs more of them than there are."""
    at = 0
    while at < len(data):
        number, at = _varint(data, at)
        yield number
    raise ValueError("numbers are missing")
