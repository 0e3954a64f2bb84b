"""The properties of a message as one text, as they are sent and stored.

    name 0x01 value 0x02, repeated; UTF-8; nothing is escaped; the last 0x02 may be missing

An entry counts only if its name and its value are not empty. The last of equal names wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"


def split_property_text(text: str) -> dict[str, str]:
    """The properties by name. Never raises: like Java, it skips incomplete entries."""
    properties = {}
    for entry in text.split(VALUE_END):
        name, _, value = entry.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def value_in(text: str, name: str) -> str | None:
    """`split_property_text(text).get(name)`, without splitting the other entries."""
    mark = f"{VALUE_END}{name}{NAME_END}"
    start = text.rfind(mark)
    if start >= 0:
        start += len(mark)
    elif text.startswith(mark[1:]):
        start = len(mark) - 1
    else:
        return None
    end = text.find(VALUE_END, start)
    value = text[start:] if end < 0 else text[start:end]
    return value or split_property_text(text).get(name)  # an empty value does not count


class TextProperties(Mapping[str, str]):
    """The properties in a text, which is split when one of them is first accessed."""

    __slots__ = ("_found", "_text")

    def __init__(self, text: str | bytes) -> None:
        self._text = text
        self._found: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._found is None:
            text = self._text
            self._found = split_property_text(
                text if isinstance(text, str) else str(text, "utf-8", "replace")
            )
        return self._found

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())
