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
_WIDTH_MIN: Final = 40  # columns of a terminal
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # 2010 to 2099


class ExitCode(IntEnum):
    """The exit code for the shell."""

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
    """A command cannot go on, or could not do everything; one line says what to do."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(text)
        self.code = code


def outcome(error: Exception) -> tuple[str, ExitCode]:
    """The line and the exit code for an error."""
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
    """The text of an error. The system's own texts have a number, and name the file last."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no such file: {error.filename}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _code_of(error: Exception) -> ExitCode:
    """The exit code by the class of the error."""
    # Imported here, as errors are rare and help must be fast.
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
    """What to do next; empty if that is unknown."""
    from tieredstore.model import errors

    if isinstance(error, errors.SegmentError) and code is ExitCode.DAMAGE:
        return "restore it from a copy"
    if isinstance(error, errors.CatalogueLockedError):
        return _LOCKED
    if isinstance(error, errors.MetadataError) and code is ExitCode.DAMAGE:
        return "restore the catalogue, or name another with --catalogue-file"
    return ""


def require_streams() -> None:
    """Raise if stdout is closed, as the answer has nowhere to go.

    If 0, 1 or 2 were free, the next opened file would get that number, and prints would go into it:
    so free ones are taken. If stderr is closed, its lines are lost.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - it stays open to the end
    if sys.stdout is None:
        raise CommandError(
            "stdout is closed: for no output, send it to /dev/null", ExitCode.REFUSED
        )


def write_line(text: str) -> None:
    """Write a line to stdout. If the reader has gone, the command ends silently."""
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
    """Write one object, in ASCII so that the terminal's encoding does not matter."""
    write_line(json.dumps(row))


def write_row(row: Row, *lines: str, json: bool) -> None:
    """Write one row: an object for a program, or these lines for people."""
    if json:
        write_json(row)
        return
    for line in lines:
        for text in folded(printable(line)):
            write_line(text)


def terminal_width() -> int | None:
    """None if stdout is no terminal: then nothing is cut or folded."""
    try:
        if not sys.stdout.isatty():
            return None
    except ValueError:  # stdout is closed
        return None
    return max(_WIDTH_MIN, shutil.get_terminal_size().columns)


def folded(line: str, *, indent: int = 2) -> list[str]:
    """The line, folded at blanks to fit the terminal."""
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
    """Flush stdout. Raises as `write_line` does."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _unwritten(error) from error


def silence_output() -> None:
    """Discard what can no longer be written, even when Python exits."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout that is no file needs no silencing
        return


_is_quiet = False


def set_quiet(quiet: bool) -> None:
    """With `quiet`, write only results and errors from now on."""
    global _is_quiet
    _is_quiet = quiet


def is_quiet() -> bool:
    return _is_quiet


def note(text: str) -> None:
    """A line on stderr that is worth knowing, but no error."""
    if not _is_quiet:
        complain(f"note: {text}")


def hint(text: str) -> None:
    """A line on stdout about what to do next; it is not part of the result."""
    if not _is_quiet:
        write_line(text)


def complain(text: str) -> None:
    """A line on stderr; if it cannot be written, the exit code must be enough."""
    make_room(sys.stderr)
    with suppress(OSError):
        print(f"tieredstore: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text, which may be a stranger's, without what would move the cursor or colour the
    terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """The file that an option such as --out names: checked before the work, written after it.

    * `-`, and any name of the file that stdout is, means stdout.
    * A file is replaced whole; with `must_be_new`, an existing one is refused. A link is followed:
      the file that it names is replaced, and the link stays.
    * A FIFO that somebody reads, a terminal and /dev/null are written to. A directory and every
      other device are refused, as nothing may replace a node.
    """

    option: str
    name: str
    must_be_new: bool = False

    @property
    def is_stdout(self) -> bool:
        """Whether it is stdout: then nothing else may be written there."""
        if self.name == "-":
            return True
        try:
            return os.path.samestat(os.stat(self.name), os.fstat(sys.stdout.fileno()))
        except (OSError, ValueError):  # it does not exist yet, or stdout is no file
            return False

    def check(self, *, json: bool = False) -> None:
        """Raise what `write` would raise; `json`: whether rows go to stdout."""
        if not self.name:
            raise CommandError(f"{self.option}: the name of the file is empty", ExitCode.USAGE)
        if self.is_stdout:
            if json:
                text = f"{self._named} is stdout, and so is what --json prints: choose one"
                raise CommandError(text, ExitCode.USAGE)
            return
        mode, folder = self._mode(), os.path.dirname(self._path)
        if mode is None and not os.path.isdir(folder):
            raise CommandError(f"no such directory: {self._named}", ExitCode.NOT_THERE)
        if mode is None or stat.S_ISREG(mode):
            if mode is not None and self.must_be_new:
                raise CommandError(f"{self._named}: it is there already", ExitCode.REFUSED)
            if not os.access(folder, os.W_OK | os.X_OK):  # a file is replaced whole, there
                text = f"{self._named}: {folder} cannot be written to"
                raise CommandError(text, ExitCode.REFUSED)
        elif not (stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and self._is_harmless())):
            what = "a directory" if stat.S_ISDIR(mode) else "a device or a socket"
            raise CommandError(f"{self._named}: it is {what}, and no file", ExitCode.REFUSED)

    def write(self, data: bytes) -> None:
        """Write all of the data."""
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
        except OSError as error:
            if self.is_stdout or error.filename:
                raise
            # The system's own text names no file that is open already, such as on a full disk.
            text = f"{self._named}: {error.strerror}"
            raise CommandError(text, ExitCode.REFUSED) from error

    @property
    def _named(self) -> str:
        return printable(f"{self.option} {self.name}")

    @property
    def _path(self) -> str:
        return os.path.realpath(self.name)

    def _mode(self) -> int | None:
        """The mode of the file, links followed; None if it does not exist yet."""
        try:
            return os.stat(self.name).st_mode
        except FileNotFoundError:
            return None

    def _is_harmless(self) -> bool:
        """Whether it is a terminal or /dev/null: writing to these loses and changes nothing."""
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
        except OSError:  # such as a full disk: leave no half of a file
            Path(self._path).unlink(missing_ok=True)
            raise

    def _write_through(self, data: bytes) -> None:
        try:  # non-blocking, as a FIFO without a reader would block, maybe for ever
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
    """Epoch milliseconds, from digits alone or ISO 8601, which is UTC unless it says otherwise."""
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
    """ISO 8601 with a zone, as `parse_time` takes it: UTC, or this machine's zone."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
        if not utc:
            moment = moment.astimezone()
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(timestamp)
    step = "seconds" if in_seconds else "milliseconds"
    return moment.isoformat(timespec=step).replace("+00:00", "Z")


def shown_catalogue_time(timestamp: int, *, utc: bool = True) -> str:
    """In seconds. RocketMQ may take part of an IPv6 address for a time, so an implausible time is
    shown as a number, with a question mark."""
    if timestamp not in _PLAUSIBLE:
        return f"{timestamp}?"
    return shown_time(timestamp, utc=utc, in_seconds=True)
