"""A consumer's choice of messages by tags, as RocketMQ's clients write it: `A || B`, or `*`."""

from __future__ import annotations

from typing import Final

from tieredstore.codec.java import INT32_MIN, decode_utf8, trim
from tieredstore.codec.record import TAGS, peek_property_bytes, tags_code
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.property_text import value_in
from tieredstore.model.values import require_text

ALL: Final = "*"
_OR: Final = "||"
_LOW_BITS: Final = 0xFFFFFFFF


class TagsFilter:
    """A `MessageFilter` that accepts messages with one of the tags.

    A message has one tag: the whole of its property TAGS. A queue knows only the hash of the tag.
    If two tags have the same hash, a RocketMQ broker returns messages with either and leaves the
    rest to the client; this filter returns only the right ones.

    Raises InvalidArgumentError for an expression without a tag.
    """

    def __init__(self, expression: str) -> None:
        """An empty expression is `*`: all messages. A `*` beside tags is a tag, as in RocketMQ."""
        require_text("tags", expression)
        self.expression = expression
        self.tags = frozenset({trim(tag) for tag in expression.split(_OR)} - {""})
        self.takes_all = trim(expression) in ("", ALL)
        if not self.tags and not self.takes_all:
            raise InvalidArgumentError(f"tags: {expression!r:.80} has none; want A || B, or *")
        codes = sorted({tags_code(tag) for tag in self.tags})
        self.tags_codes = None if self.takes_all else tuple(codes)
        self._low_codes = frozenset(code & _LOW_BITS for code in codes)

    def matches_tags_code(self, tags_code: int) -> bool:
        is_hash = tags_code >= INT32_MIN
        return self.takes_all or not is_hash or tags_code & _LOW_BITS in self._low_codes

    def matches_record(self, record: bytes) -> bool:
        if self.takes_all:
            return True
        return value_in(decode_utf8(peek_property_bytes(record)), TAGS) in self.tags
