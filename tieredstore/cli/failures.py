"""What a command may end with: one line on stderr and an exit code.

What lives here: the codes, the errors of the command line itself, and which error means which code.

    | code | meaning                                                                     |
    | ---- | --------------------------------------------------------------------------- |
    |    0 | done                                                                        |
    |    1 | a bug: --debug shows where                                                  |
    |    2 | the command line or a setting is wrong                                      |
    |    3 | there is no such file, directory, topic or queue                            |
    |    4 | damage: everything sound was printed, and something is missing              |
    |    5 | the system or the backend refused (permissions, no such bucket, full disk)  |
    |  130 | interrupted                                                                 |
    |  141 | nobody reads the output any more                                            |
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What a shell sees."""

    DONE = 0
    BUG = 1
    USAGE = 2
    NOT_THERE = 3
    DAMAGE = 4
    REFUSED = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 a bug; 2 wrong command line or settings; 3 no such file, directory, "
    "topic or queue; 4 damage: all that is sound was printed; 5 refused by the system or the "
    "backend."
)


_EXTRAS: Final = {"pyarrow": "jobs", "pyspark": "spark"}  # that bring a module a verb may need


_KEYS: Final = (
    "its keys come from TIEREDSTORE_ACCESS_KEY and TIEREDSTORE_SECRET_KEY, the settings, or where "
    "AWS's tools have them"
)
_ADVICE: Final = (  # where an object store says this
    ("404 NoSuchBucket", "see its name (--bucket) and the address (--endpoint)"),
    (": 401 ", _KEYS),
    (": 403 ", _KEYS),
)
_LOCKED: Final = "stop the broker first, or wait until the other command has ended"
_LOCALE: Final = "file names and words are UTF-8 here; set a UTF-8 locale, or PYTHONUTF8=1"
_UNAVAILABLE: Final = "see that its address is right and that it runs, and try again"
_FAILING: Final = "the store was reached and fails at this request: its own log says why"
_REPLY_5XX: Final = re.compile(r": 5\d\d\b")


class CommandError(Exception):
    """A command cannot go on, or could not do all of it: one line that says what to do."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(text)
        self.code = code


def outcome(error: Exception) -> tuple[str, ExitCode]:
    """The one line and the code of an error."""
    # Imported here: an error is rare, and help must be fast.
    from tieredstore.access.catalogue_choice import NoCatalogueError
    from tieredstore.local.local_reader import StoreNotFoundError
    from tieredstore.model.errors import (
        BackendError,
        BackendUnavailableError,
        CatalogueLockedError,
        InvalidConfigError,
        MetadataError,
        SegmentError,
    )

    text = " ".join(str(error).split())
    if isinstance(error, CommandError):
        return text, error.code
    if isinstance(error, UnicodeEncodeError):
        said = ascii(error.object[error.start : error.end])
        return f"{said} cannot be written in {error.encoding}: {_LOCALE}", ExitCode.USAGE
    if isinstance(error, InvalidConfigError):
        return text, ExitCode.USAGE
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get(error.name or "")):
        return f"{error.name} is missing: pip install 'tieredstore[{extra}]'", ExitCode.USAGE
    if isinstance(error, StoreNotFoundError):
        return text, ExitCode.NOT_THERE
    if isinstance(error, SegmentError):
        return f"{text}; restore it from a copy", ExitCode.DAMAGE
    if isinstance(error, NoCatalogueError):
        return text, ExitCode.NOT_THERE
    if isinstance(error, CatalogueLockedError):
        return f"{text}; {_LOCKED}", ExitCode.REFUSED
    if isinstance(error, MetadataError) and error.is_damage:
        return f"{text}; restore the catalogue, or name another with --metadata", ExitCode.DAMAGE
    if isinstance(error, BackendUnavailableError):
        advice = _FAILING if _REPLY_5XX.search(text) else _UNAVAILABLE
        return f"{text}; {advice}", ExitCode.REFUSED
    if isinstance(error, (BackendError, MetadataError, OSError)):
        return advised(text), ExitCode.REFUSED
    return f"{type(error).__name__}: {text} (a bug: --debug shows where)", ExitCode.BUG


def advised(text: str) -> str:
    """What a backend refused, with what helps where that is known."""
    for said, advice in _ADVICE:
        if said in text:
            return f"{text}; {advice}"
    return text
