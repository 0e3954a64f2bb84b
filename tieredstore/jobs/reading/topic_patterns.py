"""Topics named by patterns, as the command line does: `orders-*`.

What lives here: `TopicPatterns`. An exact name is a pattern too: none of its characters is special.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from typing import Final

from tieredstore.model.errors import UnknownNameError

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """Any of these; all topics where there is none."""

    patterns: tuple[str, ...] = ()

    def match(self, topic: str) -> bool:
        return not self.patterns or any(fnmatchcase(topic, each) for each in self.patterns)

    @property
    def expression(self) -> str | None:
        """The same as one regular expression."""
        return "|".join(translate(each) for each in self.patterns) or None

    def refuse_unknown(self, topics: Iterable[str]) -> None:
        """UnknownNameError for a pattern that matches none of them."""
        known = sorted(set(topics))
        for pattern in self.patterns:
            if not any(fnmatchcase(topic, pattern) for topic in known):
                some = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
                raise UnknownNameError(f"no topic is called {pattern!r}; there are: {some}")
