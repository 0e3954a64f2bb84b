"""What a command may end with: one line on stderr and an exit code.

What lives here: the codes, the errors of the command line itself, and which error means which code.

    | code | meaning                                                                     |
    | ---- | --------------------------------------------------------------------------- |
    |    0 | done                                                                        |
    |    1 | a bug: --debug shows where                                                  |
    |    2 | the command line or a setting is wrong                                      |
    |    3 | there is no such file, directory, catalogue, cluster, broker, topic, queue  |
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
    "Exit codes: 0 done; 1 a bug; 2 wrong command line or settings; 3 no such file, catalogue, "
    "broker, topic or queue; 4 damage: all that is sound was printed; 5 refused by the system, the "
    "backend, or another process that has it open."
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
    text = " ".join(str(error).split())
    if isinstance(error, CommandError):
        return text, error.code
    if isinstance(error, UnicodeEncodeError):
        said = ascii(error.object[error.start : error.end])
        return f"{said} cannot be written in {error.encoding}: {_LOCALE}", ExitCode.USAGE
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get(error.name or "")):
        return f"{error.name} is missing: pip install 'tieredstore[{extra}]'", ExitCode.USAGE
    code = _code_of(error)
    if code is ExitCode.BUG:
        return f"{type(error).__name__}: {text} (a bug: --debug shows where)", code
    advice = _advice_for(error, text, code)
    return f"{text}; {advice}" if advice else text, code


def _code_of(error: Exception) -> ExitCode:
    """By its class, the nearest one of these."""
    # Imported here: an error is rare, and help must be fast.
    from tieredstore.access.wiring import NoCatalogueError
    from tieredstore.local.reader import StoreNotFoundError
    from tieredstore.model import errors

    if isinstance(error, (errors.UnknownNameError, NoCatalogueError, StoreNotFoundError)):
        return ExitCode.NOT_THERE
    if isinstance(error, errors.InvalidConfigError):
        return ExitCode.USAGE
    if isinstance(error, errors.SegmentError):
        return ExitCode.DAMAGE
    if isinstance(error, errors.MetadataError):
        return ExitCode.DAMAGE if error.is_damage else ExitCode.REFUSED
    if isinstance(error, (errors.BackendError, OSError)):
        return ExitCode.REFUSED
    return ExitCode.BUG


def _advice_for(error: Exception, text: str, code: ExitCode) -> str:
    """What to do next, where that is known."""
    from tieredstore.model import errors

    if isinstance(error, errors.SegmentError) and code is ExitCode.DAMAGE:
        return "restore it from a copy"
    if isinstance(error, errors.CatalogueLockedError):
        return _LOCKED
    if isinstance(error, errors.MetadataError) and code is ExitCode.DAMAGE:
        return "restore the catalogue, or name another with --metadata"
    if isinstance(error, errors.BackendUnavailableError):
        return _FAILING if _REPLY_5XX.search(text) else _UNAVAILABLE
    return _advised(text) if code is ExitCode.REFUSED else ""


def advised(text: str) -> str:
    """What a backend refused, with what helps where that is known."""
    advice = _advised(text)
    return f"{text}; {advice}" if advice else text


def _advised(text: str) -> str:
    return next((advice for said, advice in _ADVICE if said in text), "")
