"""The delays of delayed messages: a queue stores their delivery time where others have a hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.codec.properties import DELAY_LEVEL, TAGS, tags_code
from tieredstore.model.errors import InvalidConfigError

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_MS_MAX: Final = 100 * 365 * 86_400_000  # a delivery time has to fit its 8 bytes
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 18


class DelayLevels:
    """Level 1 is the first of the texts in the setting, `1s 5s 10s`; a higher one than the last
    counts as the last."""

    def __init__(self, text: str) -> None:
        self._delays_ms: list[int] = []
        for word in text.split():
            number, unit = word[:-1], word[-1:]
            if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
                raise InvalidConfigError(f"message_delay_levels: {word!r} is no delay such as 10s")
            if len(number) > _DIGITS_MAX or int(number) * _UNITS_MS[unit] > DELAY_MS_MAX:
                raise InvalidConfigError(
                    f"message_delay_levels: {word!r:.40} is more than a hundred years"
                )
            self._delays_ms.append(int(number) * _UNITS_MS[unit])

    def delay_ms(self, topic: str, properties: Mapping[str, str]) -> int | None:
        """How long this message waits; None if it does not. ValueError if its level is no number.

        Only messages of the schedule topic wait. RocketMQ takes 1000 ms where it has no levels.
        """
        text = properties.get(DELAY_LEVEL) if topic == SCHEDULE_TOPIC else None
        if not text:
            return None
        digits = text[1:] if text[0] in "+-" else text
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"property DELAY: {text!r:.40} is no number")
        level = min(int(text), max(1, len(self._delays_ms)))
        if level <= 0:
            return None
        return self._delays_ms[level - 1] if self._delays_ms else 1_000

    def tags_code(self, topic: str, properties: Mapping[str, str], store_timestamp: int) -> int:
        """What a consume queue stores for a message that is in the log."""
        try:
            delay = self.delay_ms(topic, properties)
        except ValueError:  # written by another: a log is never refused for it
            delay = None
        return tags_code(properties.get(TAGS)) if delay is None else store_timestamp + delay
