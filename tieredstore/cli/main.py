"""The command `tieredstore`: its verbs, and the one place where errors end."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tieredstore.cli.output import (
    EXIT_CODES,
    CommandError,
    ExitCode,
    complain,
    finish_output,
    is_quiet,
    note,
    outcome,
    printable,
    require_streams,
    set_quiet,
    silence_output,
    write_line,
)
from tieredstore.cli.progress import Asked, asked

# Names of verbs in the previous release, and their new names.
RENAMED_VERBS: Final = {"metadata": "catalogue"}
# Options that may stand anywhere.
_ANYWHERE: Final = {
    "--debug": "debug",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
}
_EXAMPLE: Final = "Example: tieredstore topics --config broker.conf"

# The verbs by purpose: the module of each, and its line in the list of verbs.
_GROUPS: Final = {
    "Look": {
        "topics": ("look", "Topics: sizes, queues, reserve hours."),
        "queues": ("look", "Queues: offsets, sizes, times."),
        "segments": ("look", "Segments in the catalogue."),
        "ls": ("look", "Segments in the backend."),
        "cat": ("look", "Messages of a topic, oldest first."),
        "query": ("look", "Messages by key, newest first."),
        "offset": ("look", "The queue offset of a time."),
        "why": ("look", "Where is this message, or why is it not there?"),
        "groups": ("look", "Consumer groups, and how far behind each is."),
        "report": ("report", "One HTML page about the whole tier."),
        "cost": ("report", "Requests and storage in a month, in dollars."),
        "local": ("local", "Look at the directory of a local store."),
        "catalogue": ("care", "Show, publish or change the catalogue of a tier."),
    },
    "Check": {
        "verify": ("jobs", "Read everything: is every message whole and found?"),
        "audit": ("care", "What is missing, damaged or left over."),
        "certify": ("care", "Can this backend be trusted with a tier?"),
    },
    "Repair": {
        "resume": ("care", "Let a stopped queue continue, if it can."),
        "rebuild": ("care", "Restore a lost catalogue from the bytes."),
        "reindex": ("jobs", "Rebuild the key index from the commit logs."),
        "expire": ("care", "Delete segments older than their topic is kept."),
        "recover": ("recover", "Prepare an empty machine for its tier."),
    },
    "Move": {
        "migrate": ("jobs", "Copy a tier to another backend, then switch over."),
        "export": ("jobs", "Messages as Parquet, by topic and day."),
        "offload": ("try_out", "Copy a local store to its tier."),
    },
    "Try": {
        "put": ("try_out", "Put messages into a local store."),
        "create-bucket": ("care", "Make the bucket of a tier."),
    },
}
VERBS: Final = {name: verb for group in _GROUPS.values() for name, verb in group.items()}


class _Commands(Mapping[str, Any]):
    """The verbs by name; a module is imported when one of its verbs is looked up."""

    def __getitem__(self, name: str) -> Any:
        module, short_help = VERBS[name]
        app = import_module(f"tieredstore.cli.{module}").app
        command = typer.main.get_group(app).commands[name]
        command.short_help = short_help
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Verbs(TyperGroup):
    """The group of all verbs. Its own help imports none of them, as it must be fast."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        new = RENAMED_VERBS.get(cmd_name)
        if new is not None:
            note(f"{cmd_name} is now {new}")
        return super().get_command(ctx, new or cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for title, verbs in _GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), said) for name, (_, said) in verbs.items()]
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Verbs,
    name="tieredstore",
    help="Look at, check, move and try out RocketMQ stores and their tiers. --debug, --quiet and "
    f"--verbose work at any place.\n\n{_EXAMPLE}",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # boxes cost 0.15 s, and a pager or a log shows them badly
    pretty_exceptions_enable=False,
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from tieredstore import __version__

        write_line(f"tieredstore {__version__}")
        raise typer.Exit


@app.callback()
def tieredstore(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Only results and errors."),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Log each step to stderr, and the requests at the end."
    ),
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_say_version, is_eager=True
    ),
) -> None:
    """The options are only for the help: `main` has already removed them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. An error is one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, found = _taken(words)
    set_quiet("quiet" in found)
    debug = "debug" in found
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not stop a command. A closed stream is None.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        require_streams()
        quiet = is_quiet() or _wants_rows_alone(words)
        log = _log_shown() if "verbose" in found else nullcontext()
        with log, asked(words, quiet=quiet) as command:
            answer = app(args=words, prog_name="tieredstore", standalone_mode=False)
        finish_output()
        code = ExitCode(answer or ExitCode.DONE)
        if code is ExitCode.INTERRUPTED:
            complain(command.interrupted)
        return code
    except KeyboardInterrupt:
        complain(Asked(words=words).interrupted)
        return ExitCode.INTERRUPTED
    except SystemExit as error:
        # Typer ends this way if the reader of a help has gone.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        silence_output()
        return ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the one place where all errors end
        code = _failed(error, words, debug=debug)
    try:
        finish_output()
    except CommandError as error:  # stdout cannot be written, which may be the error itself
        silence_output()
        return error.code if error.code is ExitCode.BROKEN_PIPE else code
    return code


def _taken(words: list[str]) -> tuple[list[str], set[str]]:
    """The words without the options that may stand anywhere, and these options. Words after -- are
    no options."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word not in _ANYWHERE]
    return options + words[end:], {_ANYWHERE[word] for word in words[:end] if word in _ANYWHERE}


@contextmanager
def _log_shown() -> Iterator[None]:
    """The library's log from INFO on, as lines on stderr."""
    log = logging.getLogger("tieredstore")
    shown, level = _LogLines(logging.INFO), log.level
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(shown)


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        where = record.name.removeprefix("tieredstore.")
        complain(printable(f"{record.levelname.lower()}: {where}: {record.getMessage()}"))


def _wants_rows_alone(words: list[str]) -> bool:
    """Whether a program reads the output, and nobody sees stderr."""
    end = words.index("--") if "--" in words else len(words)
    return "--json" in words[:end] and not sys.stderr.isatty()


def _failed(error: Exception, words: Sequence[str], *, debug: bool) -> ExitCode:
    if debug:
        traceback.print_exception(error)
    # Typer's own errors are recognised by their names and methods, as their classes have moved.
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    if type(error).__name__ == "Abort":
        complain(Asked(words=words).interrupted)
        return ExitCode.INTERRUPTED
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tieredstore"
        text = " ".join(error.format_message().split()).rstrip(".")
        complain(f"{text} (see {command} --help)")
        return ExitCode.USAGE
    text, code = outcome(error)
    if code is not ExitCode.BROKEN_PIPE:
        complain(text)
    return code
