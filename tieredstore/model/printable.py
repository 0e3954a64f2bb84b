"""Text from outside, put on one line for errors and the log."""

from __future__ import annotations

import logging
from typing import Self


def printable(text: str) -> str:
    """The same text, with an escape in place of each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def log_of(name: str) -> logging.Logger:
    """The logger of this name. What it writes is printable, whatever the arguments contain.

    A record keeps only the text of an error: handlers may keep records as long as they like, and an
    error refers to all that was on the stack, such as the bytes of a failed upload.
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
        return True  # the handler reports what is wrong with the record
    if not text.isprintable():
        record.msg, record.args = printable(text), ()
    elif isinstance(record.args, tuple):
        record.args = tuple(map(_without_error, record.args))
    return True


class _ErrorText(str):
    """Replaces an error, with its text and its repr."""

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
