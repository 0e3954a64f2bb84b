"""The command `tieredstore`: its verbs and the one place where errors end.

What lives here: putting the families of verbs together, and `main`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import typer

from tieredstore.cli import (
    care,
    catalogue,
    cost,
    expire,
    export,
    find,
    local,
    look,
    migrate,
    read,
    reindex,
    report,
    try_out,
    verify,
    why,
)
from tieredstore.cli.failures import EXIT_CODES, CommandError, ExitCode, outcome
from tieredstore.cli.output import complain, finish_output, require_streams, silence_output

_EXAMPLE = "Example: tieredstore topics --config broker.conf"

app = typer.Typer(
    name="tieredstore",
    help=f"Look at, check, move and try out RocketMQ stores and their tiers.\n\n{_EXAMPLE}",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # boxes cost 0.15 s, and a pager or a log shows them badly
    pretty_exceptions_enable=False,
)
for verbs in (
    look.app,
    read.app,
    find.app,
    why.app,
    care.app,
    expire.app,
    cost.app,
    report.app,
    try_out.app,
    migrate.app,
    verify.app,
    export.app,
    reindex.app,
):
    app.add_typer(verbs)
app.add_typer(local.app, name="local")
app.add_typer(catalogue.app, name="metadata")


@app.callback()
def tieredstore(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks; works at any place."),
) -> None:
    """The option is for the help: `main` has taken it away already."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, debug = _without_debug(words)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show stops nothing; a closed stream is None here.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        require_streams()
        answer = app(args=words, prog_name="tieredstore", standalone_mode=False)
        finish_output()
        return ExitCode(answer or ExitCode.DONE)
    except Exception as error:  # noqa: BLE001 - the one place where all of them end
        code = _failed(error, debug=debug)
    try:
        finish_output()
    except CommandError as error:  # stdout cannot be written, which may be the error itself
        silence_output()
        return error.code if error.code is ExitCode.BROKEN_PIPE else code
    return code


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """What stands behind -- is no option."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    return options + words[end:], len(options) < end


def _failed(error: Exception, *, debug: bool) -> ExitCode:
    if debug:
        traceback.print_exception(error)
    # Typer's own errors are known by what they can do: where their class lives has changed.
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    if type(error).__name__ == "Abort":
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
