"""What a topic may be called: one rule for the local store, the tier and every provider."""

from __future__ import annotations

import re
from typing import Final

NAME_BYTES_MAX: Final = 255  # of one part of a path, in every file system that matters

_APART: Final = re.compile(r"[/\\\0]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# S3 lists keys as XML, which cannot hold the first of these, nor the last two; obstore refuses the
# first. None of them is in a name that a broker of RocketMQ lets a topic have.
_UNLISTED: Final = re.compile("[\x01-\x1f\x7f-\x9f\ufffe\uffff]")


def why_no_topic(name: object) -> str | None:
    """Why no message may have this topic; None where it may.

    * One part of a path: no `/`, `\\` or NUL, neither empty nor `.` nor `..`, valid Unicode of at
      most 255 bytes in UTF-8.
    * No control character, nor U+FFFE or U+FFFF: an object store could not list it.

    Everything else is a topic, blanks, dots at the end and `%RETRY%group` too. Topics that differ
    by case are two.
    """
    if not isinstance(name, str):
        return f"it is {type(name).__name__}, and no text"
    found = _UNLISTED.search(name)
    if found is not None:
        return f"it holds U+{ord(found[0]):04X}, which no object store lists"
    return why_no_directory(name)


def why_no_directory(name: str) -> str | None:
    """Why the name is not that of one directory, here or elsewhere; None where it is."""
    if name in ("", ".", ".."):
        return f"{name!r} cannot name a directory"
    found = _APART.search(name)
    if found is not None:
        return f"it holds {found[0]!r}, which parts names in some store"
    if _SURROGATE.search(name):
        return "it is no valid Unicode"
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        return f"{size} bytes are more than {NAME_BYTES_MAX}"
    return None
