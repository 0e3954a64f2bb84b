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
from tieredstore.cli.failures import EXIT_CODES, ExitCode, outcome
from tieredstore.cli.output import finish_output, silence_output

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
        if hasattr(stream, "reconfigure"):  # a name that the terminal cannot show stops nothing
            stream.reconfigure(errors="backslashreplace")
    try:
        answer = app(args=words, prog_name="tieredstore", standalone_mode=False)
        code = ExitCode(answer) if answer else finish_output()
    except Exception as error:  # noqa: BLE001 - the one place where all of them end
        code = _failed(error, debug=debug)
        if finish_output() is not ExitCode.DONE:
            code = ExitCode.BROKEN_PIPE
    if code is ExitCode.BROKEN_PIPE:
        silence_output()
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
        _complain(f"{text} (see {command} --help)")
        return ExitCode.USAGE
    text, code = outcome(error)
    if code is not ExitCode.BROKEN_PIPE:
        _complain(text)
    return code


def _complain(text: str) -> None:
    print(f"tieredstore: {text}", file=sys.stderr)
