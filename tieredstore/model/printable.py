"""Text from outside on one line: in errors, and in the log."""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    """The same text, with an escape in place of each character that is not to be seen."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def log_of(name: str) -> logging.Logger:
    """The logger of this name. What it writes is printable, whatever the arguments hold."""
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
    return True
