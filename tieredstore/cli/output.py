"""The output of a command: rows on stdout, one line on stderr if it fails, and an exit code.

Rows are written one by one, so that memory does not grow with the store.

    | code | meaning                                                                     |
    | ---- | --------------------------------------------------------------------------- |
    |    0 | done                                                                        |
    |    1 | a bug: --debug shows where                                                  |
    |    2 | the command line or a setting is wrong                                      |
    |    3 | there is no such file, directory, catalogue, cluster, broker, topic, queue  |
    |    4 | damage: everything sound was printed, and something is missing              |
    |    5 | the system or the backend refused (permissions, no such bucket, full disk)  |
    |  130 | interrupted                                                                 |
    |  141 | the reader of the output has gone                                           |
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from tieredstore.cli.progress import make_room

Row = dict[str, Any]

_LOCKED: Final = "stop the broker first, or wait until the other command has ended"
_LOCALE: Final = "file names and words are UTF-8 here; set a UTF-8 locale, or PYTHONUTF8=1"
_WIDTH_MIN: Final = 40  # of a terminal
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # 2010 to 2099


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


class CommandError(Exception):
    """A command cannot go on, or could not do all of it: one line that says what to do."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(text)
        self.code = code


def outcome(error: Exception) -> tuple[str, ExitCode]:
    """The one line and the code of an error."""
    text = " ".join(_said(error).split())
    if isinstance(error, CommandError):
        return text, error.code
    if isinstance(error, UnicodeEncodeError):
        said = ascii(error.object[error.start : error.end])
        return f"{said} cannot be written in {error.encoding}: {_LOCALE}", ExitCode.USAGE
    code = _code_of(error)
    if code is ExitCode.BUG:
        return f"{type(error).__name__}: {text} (a bug: --debug shows where)", code
    advice = _advice_for(error, code)
    return f"{text}; {advice}" if advice else text, code


def _said(error: Exception) -> str:
    """Its words. The system's own have a number, and the file behind what is wrong with it."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no such file: {error.filename}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


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


def _advice_for(error: Exception, code: ExitCode) -> str:
    """What to do next, where that is known."""
    from tieredstore.model import errors

    if isinstance(error, errors.SegmentError) and code is ExitCode.DAMAGE:
        return "restore it from a copy"
    if isinstance(error, errors.CatalogueLockedError):
        return _LOCKED
    if isinstance(error, errors.MetadataError) and code is ExitCode.DAMAGE:
        return "restore the catalogue, or name another with --catalogue-file"
    return ""


def require_streams() -> None:
    """Raise where stdout is closed: the answer could go nowhere.

    A number that is free would be given to the next file that is opened, and a print would go into
    it: so 0, 1 and 2 are taken. Where stderr is closed its lines go nowhere.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - it stays open to the end
    if sys.stdout is None:
        raise CommandError(
            "stdout is closed: for no output, send it to /dev/null", ExitCode.REFUSED
        )


def write_line(text: str) -> None:
    """One line to stdout. When nobody reads any more the command ends, and says nothing."""
    make_room(sys.stdout)
    try:
        print(text)
    except OSError as error:
        raise _unwritten(error) from error


def _unwritten(error: OSError) -> CommandError:
    if isinstance(error, BrokenPipeError):
        return CommandError("", ExitCode.BROKEN_PIPE)
    return CommandError(f"stdout: {error.strerror or error}", ExitCode.REFUSED)


def write_json(row: Row) -> None:
    """One object, pure ASCII: it comes out the same whatever the terminal speaks."""
    write_line(json.dumps(row))


def write_row(row: Row, *lines: str, json: bool) -> None:
    """One row: an object for a program, or these lines for people."""
    if json:
        write_json(row)
        return
    for line in lines:
        for text in folded(printable(line)):
            write_line(text)


def terminal_width() -> int | None:
    """None where stdout is no terminal: there nothing is cut, and a line is as long as it is."""
    try:
        if not sys.stdout.isatty():
            return None
    except ValueError:  # it is closed
        return None
    return max(_WIDTH_MIN, shutil.get_terminal_size().columns)


def folded(line: str, *, indent: int = 2) -> list[str]:
    """The line as a terminal has room for it, at blanks."""
    width = terminal_width()
    if width is None or len(line) <= width:
        return [line]
    import textwrap

    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def finish_output() -> None:
    """Send what is still held back. Raises as `write_line` does."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _unwritten(error) from error


def silence_output() -> None:
    """Let what cannot be written any more go nowhere, also when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout that is no file needs no silencing
        return


_is_quiet = False


def set_quiet(quiet: bool) -> None:
    """Whether only results and errors are said from now on."""
    global _is_quiet
    _is_quiet = quiet


def is_quiet() -> bool:
    return _is_quiet


def note(text: str) -> None:
    """A line on stderr, for what is worth knowing and no error."""
    if not _is_quiet:
        complain(f"note: {text}")


def hint(text: str) -> None:
    """A line on stdout about what to do next: it is no result."""
    if not _is_quiet:
        write_line(text)


def complain(text: str) -> None:
    """A line on stderr; where that cannot be written, the exit code has to do."""
    make_room(sys.stderr)
    with suppress(OSError):
        print(f"tieredstore: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text without what would move the cursor or colour the terminal: it is a stranger's."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """What an option such as --out names: made to be checked before the work, written after it.

    * `-`, and any name of what stdout is, is stdout.
    * A file is replaced whole; with `must_be_new` one that is there is refused. A link is followed:
      the file that it names is replaced, and the link stays.
    * A FIFO that somebody reads, a terminal and /dev/null are written to. A directory and every
      other device are refused: nothing takes the place of a node.
    """

    option: str
    name: str
    must_be_new: bool = False

    @property
    def is_stdout(self) -> bool:
        """Then nothing else may go there."""
        if self.name == "-":
            return True
        try:
            return os.path.samestat(os.stat(self.name), os.fstat(sys.stdout.fileno()))
        except (OSError, ValueError):  # not there yet, or a stdout that is no file
            return False

    def check(self, *, json: bool = False) -> None:
        """Raise what `write` would refuse; `json`: whether rows are going to stdout."""
        if self.is_stdout:
            if json:
                text = f"{self._named} is stdout, and so is what --json prints: choose one"
                raise CommandError(text, ExitCode.USAGE)
            return
        mode = self._mode()
        if mode is None:
            if not os.path.isdir(os.path.dirname(self._path)):
                raise CommandError(f"no such directory: {self._named}", ExitCode.NOT_THERE)
        elif stat.S_ISREG(mode):
            if self.must_be_new:
                raise CommandError(f"{self._named}: it is there already", ExitCode.REFUSED)
        elif not (stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and self._is_harmless())):
            what = "a directory" if stat.S_ISDIR(mode) else "a device or a socket"
            raise CommandError(f"{self._named}: it is {what}, and no file", ExitCode.REFUSED)

    def write(self, data: bytes) -> None:
        """All of it."""
        self.check()
        try:
            if self.is_stdout:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
            elif self._mode() is None or stat.S_ISREG(self._mode() or 0):
                self._write_file(data)
            else:
                self._write_through(data)
        except BrokenPipeError as error:
            raise _unwritten(error) from error

    @property
    def _named(self) -> str:
        return printable(f"{self.option} {self.name}")

    @property
    def _path(self) -> str:
        return os.path.realpath(self.name)

    def _mode(self) -> int | None:
        """Of what the name stands for, links followed; None where that is not there yet."""
        try:
            return os.stat(self.name).st_mode
        except FileNotFoundError:
            return None

    def _is_harmless(self) -> bool:
        """A terminal or /dev/null: both take bytes, and lose or change nothing."""
        if os.stat(self.name).st_rdev == os.stat(os.devnull).st_rdev:
            return True
        opened = os.open(self.name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.isatty(opened)
        finally:
            os.close(opened)

    def _write_file(self, data: bytes) -> None:
        from tieredstore.driver.durable import write_atomically

        if not self.must_be_new:
            write_atomically(self._path, [data])
            return
        try:
            with open(self._path, "xb") as opened:
                opened.write(data)
        except FileExistsError as error:
            text = f"{self._named}: it is there already"
            raise CommandError(text, ExitCode.REFUSED) from error
        except OSError:  # a full disk: no half of it is left
            Path(self._path).unlink(missing_ok=True)
            raise

    def _write_through(self, data: bytes) -> None:
        try:  # a FIFO without a reader would be waited for, maybe for ever
            opened = os.open(self._path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            text = f"{self._named}: nobody reads it; start its reader first"
            raise CommandError(text, ExitCode.REFUSED) from error
        with open(opened, "wb") as stream:
            os.set_blocking(opened, True)
            stream.write(data)


def parse_time(text: str) -> int:
    """Epoch milliseconds. Digits alone are just that; ISO 8601 is UTC unless it says otherwise."""
    words = text.strip()
    if words.isascii() and words.isdigit():
        if len(words) <= 19 and int(words) <= _INT64_MAX:
            return int(words)
        raise ValueError(f"{text!r:.40}: more than 63 bits are no time")
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise ValueError(
            f"{text!r:.40} is no time: give epoch milliseconds or ISO 8601 such as "
            "2026-11-20T10:45:32.778Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time = (moment - _EPOCH) // _MILLISECOND
    if time < 0:
        raise ValueError(f"{text!r:.40}: no message is older than 1970")
    return time


def shown_time(timestamp: int, *, utc: bool = True, in_seconds: bool = False) -> str:
    """ISO 8601 with its zone, as `parse_time` takes it: UTC, or that of this machine."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
        if not utc:
            moment = moment.astimezone()
    except (OverflowError, ValueError, OSError):  # no year of a calendar
        return str(timestamp)
    step = "seconds" if in_seconds else "milliseconds"
    return moment.isoformat(timespec=step).replace("+00:00", "Z")


def shown_catalogue_time(timestamp: int, *, utc: bool = True) -> str:
    """In seconds. RocketMQ takes part of an IPv6 address for a time: what cannot be one is shown
    as it is."""
    if timestamp not in _PLAUSIBLE:
        return f"{timestamp}?"
    return shown_time(timestamp, utc=utc, in_seconds=True)
