"""Where messages wait: for a delay level in that level's queue, for a moment in several in turn.

RocketMQ keeps what waits in its own topic, with a queue for each level. A message for a moment
waits for the longest level that ends before it, then for the next, and so on: it is delivered at
its moment, or later by at most the shortest level and one look of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from examples.broker.commands import INT64_MAX, Code, RefusedError
from examples.broker.storage import moved
from examples.broker.tables import SCHEDULE
from tieredstore import Message
from tieredstore.codec.message import StoredMessage
from tieredstore.codec.record import DELAY_LEVEL
from tieredstore.local.config import DelayLevels

AHEAD_MS_MAX: Final = 3 * 24 * 3_600_000

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
_DELAYS_MS: Final = {"TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1_000}


class Schedule:
    """Moves messages that must wait to where they wait, and back."""

    def __init__(self, levels: DelayLevels, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._ms = [
            levels.delay_ms(SCHEDULE, {DELAY_LEVEL: str(level)}) or 0
            for level in range(1, levels.count + 1)
        ]

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self._ms)

    def delay_ms(self, level: int) -> int | None:
        """How long a level lasts; None for one that the setting does not have."""
        return self._ms[level - 1] if level <= self.levels else None

    def place(self, message: Message) -> Message:
        """The message as it is stored now. Raises RefusedError for an invalid time."""
        level = _number(message.properties.get(DELAY_LEVEL, "0"), INT64_MAX, "the delay level")
        if not level:
            message, level = self._for_a_moment(message)
        if not level:
            return message
        level = min(level, self.levels)
        properties = {
            **message.properties,
            DELAY_LEVEL: str(level),
            REAL_TOPIC: message.topic,
            REAL_QUEUE: str(message.queue_id),
        }
        return replace(
            message,
            topic=SCHEDULE,
            queue_id=level - 1,
            properties=properties,
            properties_text=None,
        )

    def after(self, stored: StoredMessage) -> Message | None:
        """The message after its level's time; None if it does not name its destination."""
        properties = dict(stored.properties)
        topic, queue = properties.pop(REAL_TOPIC, ""), properties.pop(REAL_QUEUE, "")
        if not topic or not (queue.isascii() and queue.isdigit()):
            return None
        properties.pop(DELAY_LEVEL, None)
        message = moved(stored, topic, int(queue), properties)
        try:
            return self.place(message)
        except RefusedError:  # it was accepted, and has waited long enough
            return message

    def once_more(self, message: Message) -> Message:
        """The message as it waits for the longest level, whatever it waited for before."""
        longest = max(range(self.levels), key=self._ms.__getitem__) + 1
        properties = {**message.properties, DELAY_LEVEL: str(longest)}
        return self.place(replace(message, properties=properties, properties_text=None))

    def _for_a_moment(self, message: Message) -> tuple[Message, int]:
        """The message with its moment, and the level that it waits for first."""
        properties, now = message.properties, self._clock_ms()
        deliver_ms = _number(properties.get(DELIVER_MS, "0"), INT64_MAX, "the delivery time")
        for name, unit in _DELAYS_MS.items():
            if name in properties:
                deliver_ms = now + unit * _number(properties[name], AHEAD_MS_MAX, "the delay")
                kept = {key: text for key, text in properties.items() if key not in _DELAYS_MS}
                kept[DELIVER_MS] = str(deliver_ms)
                message = replace(message, properties=kept, properties_text=None)
                break
        rest_ms = deliver_ms - now
        if rest_ms <= 0:
            return message, 0
        if rest_ms > AHEAD_MS_MAX:
            raise RefusedError(
                Code.MESSAGE_ILLEGAL, f"{rest_ms} ms are more than {AHEAD_MS_MAX} to wait"
            )
        fits = [level for level, ms in enumerate(self._ms, 1) if ms <= rest_ms]
        return message, max(fits, key=lambda level: self._ms[level - 1], default=1)


def _number(text: str, maximum: int, what: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
    if number is None or number > maximum:
        raise RefusedError(Code.MESSAGE_ILLEGAL, f"{what} {text!r:.20} is none")
    return number
