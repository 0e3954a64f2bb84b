"""Text from outside on one line: in errors, and in the log."""

from __future__ import annotations

import logging
from typing import Self


def printable(text: str) -> str:
    """The same text, with an escape in place of each character that is not to be seen."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def log_of(name: str) -> logging.Logger:
    """The logger of this name. What it writes is printable, whatever the arguments hold.

    Of an error a record has the text alone: handlers may keep records for as long as they like, and
    an error reaches all that was on the stack, the bytes of a failed upload among it.
    """
    found = logging.getLogger(name)
    found.addFilter(_to_printable)  # the same function is added once
    return found


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _to_printable(record: logging.LogRecord) -> bool:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        return True  # the handler says what is wrong with it
    if not text.isprintable():
        record.msg, record.args = printable(text), ()
    elif isinstance(record.args, tuple):
        record.args = tuple(map(_without_error, record.args))
    return True


class _ErrorText(str):
    """What was an error, in both of its forms."""

    __slots__ = ("_shown",)

    _shown: str

    def __new__(cls, error: BaseException) -> Self:
        made = super().__new__(cls, error)
        made._shown = repr(error)
        return made

    def __repr__(self) -> str:
        return self._shown


def _without_error(argument: object) -> object:
    return _ErrorText(argument) if isinstance(argument, BaseException) else argument
