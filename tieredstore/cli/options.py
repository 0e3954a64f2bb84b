"""The options of verbs: which tier or local store, and which of its topics and queues.

A bundle is a dataclass of options that several verbs take: a new option is one more field. The
fields for a tier, except the first two, have the names of settings.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand

from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    note,
    parse_time,
    printable,
    shown_time,
)
from tieredstore.model.amounts import shown_size

if TYPE_CHECKING:  # help must be fast
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.values import QueueKey

Verb = Callable[..., None]

HOW_TO_NAME: Final = "--config FILE, or --provider posix --path ROOT --catalogue-file FILE"
DEFAULT_FILE: Final = "tieredstore.toml"  # in the folder where the command is run
TIME_HELP: Final = "epoch milliseconds or ISO 8601 (UTC unless it says otherwise)"

# Names of options in the previous release, and their new names: a verb that has the new one but not
# the old one takes both. A new name in capitals is an argument.
RENAMED: Final = (
    ("--metadata", "--catalogue-file"),
    ("--to-metadata", "--to-catalogue-file"),
    ("--to", "--to-config"),
    ("--output", "--out"),
    ("--begin", "--from"),
    ("--end", "--until"),
    ("--from", "--from-offset"),
    ("--count", "--max"),
    ("--count", "--repeat"),
    ("--body", "--with-body"),
    ("--topic", "TOPIC"),
)

_TOPICS_NAMED_MAX: Final = 5
_QUEUES_NAMED_MAX: Final = 10


def option(said: str, help: str | None = None, **settings: Any) -> Any:
    """An option as its help shows it: `--name`, or `--name VALUE`."""
    name, _, metavar = said.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=help, **settings)


def argument(metavar: str, help: str | None = None, **settings: Any) -> Any:
    """An argument as its help shows it."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def time_option(text: str) -> int:
    """Parses a time, for an option or argument."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Json = Annotated[bool, option("--json", "JSON, one object a line, and nothing else.")]
Topic = Annotated[str, argument("TOPIC")]
Queue = Annotated[int, argument("QUEUE", min=0)]
Key = Annotated[str, argument("KEY", "A key or the unique key.")]
Time = Annotated[int, argument("TIME", TIME_HELP, parser=time_option)]
AnyTopic = Annotated[str | None, argument("[TOPIC]", "Of this topic only.")]
OneQueue = Annotated[int | None, option("--queue", "The number of the queue.", min=0)]
From = Annotated[
    int | None, option("--from TIME", f"Stored at or after TIME: {TIME_HELP}.", parser=time_option)
]
FromOffset = Annotated[
    int | None, option("--from-offset", "Begin at this queue offset, in each queue.", min=0)
]
Until = Annotated[
    int | None, option("--until TIME", "Stored at or before TIME.", parser=time_option)
]
CountMax = Annotated[int | None, option("--max", "Maximum number of messages.", min=0)]
FoundMax = Annotated[int, option("--max", "Maximum number of messages.", min=1)]
DryRun = Annotated[bool, option("--dry-run", "Show what would be done; change nothing.")]
Out = Annotated[str | None, option("--out FILE", "Write to this file. -: stdout.")]
Body = Annotated[bool, option("--with-body", "With the body; base64 in JSON.")]
Csv = Annotated[bool, option("--csv", "CSV with the fields of --json and their names.")]
Upper = Annotated[bool, option("--upper", "The last message at TIME, not the first.")]
Plain = Annotated[bool, option("--plain", "With the body, decompressed.")]
Topics = Annotated[
    list[str] | None, option("--topic PATTERN", "Only these topics, such as 'orders-*'.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How an answer is shown."""

    json: Json = False
    exact_bytes: Annotated[bool, option("--bytes", "Sizes in bytes, not in MiB.")] = False
    utc: Annotated[bool, option("--utc", "Times in UTC, not in this machine's zone.")] = False

    def time(self, timestamp: int) -> str:
        return shown_time(timestamp, utc=self.utc)

    def size(self, size: int) -> str:
        return shown_size(size, exact=self.exact_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShown(Shown):
    """How a table is shown."""

    csv: Csv = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Names a tier. All but the first two have the names of settings; None if not given."""

    config: Annotated[
        Path | None, option("--config FILE", "The settings: a .toml, or a broker.conf.")
    ] = None
    tier_name: Annotated[
        str | None, option("--tier NAME", "The tier [tier.NAME] of that file.")
    ] = None
    provider: Annotated[
        str | None, option("--provider NAME", "Without --config: the backend, such as posix.")
    ] = None
    path: Annotated[str | None, option("--path ROOT", "Root directory, for posix.")] = None
    bucket: Annotated[str | None, option("--bucket NAME", "Bucket, for s3.")] = None
    prefix: Annotated[
        str | None, option("--prefix FOLDER", "Folder of the bucket that holds the tier.")
    ] = None
    endpoint: Annotated[
        str | None, option("--endpoint URL", "Address of the object store; default: AWS.")
    ] = None
    region: Annotated[
        str | None, option("--region NAME", "Its region; default: from the AWS chain.")
    ] = None
    metadata_path: Annotated[
        str | None, option("--catalogue-file FILE", "The catalogue: tieredStoreMetadata.json.")
    ] = None
    catalogue: Annotated[
        str | None,
        option(
            "--catalogue WHICH",
            "file, published or rebuild (in memory); default: file, else published.",
        ),
    ] = None
    store_path: Annotated[
        str | None,
        option("--store-path DIR", "The broker's local store; its config/ has the catalogue."),
    ] = None
    cluster_name: Annotated[
        str | None, option("--cluster NAME", "Its cluster; default: DefaultCluster.")
    ] = None
    broker_name: Annotated[
        str | None, option("--broker NAME", "Its broker; default: the name of this host.")
    ] = None
    index_slot_count: Annotated[
        int | None, option("--index-slots", "Hash slots of an index file.", min=1)
    ] = None
    index_item_count: Annotated[
        int | None, option("--index-items", "Items of an index file.", min=1)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """The sizes of a local store's files, if they are neither RocketMQ's nor recorded with it."""

    commit_log_file_bytes: Annotated[
        int | None, option("--commit-log-file-bytes", "mappedFileSizeCommitLog", min=1)
    ] = None
    queue_file_bytes: Annotated[
        int | None, option("--queue-file-bytes", "mappedFileSizeConsumeQueue", min=1)
    ] = None
    index_slot_count: Annotated[
        int | None, option("--index-slots", "Hash slots of an index file.", min=1)
    ] = None
    index_item_count: Annotated[
        int | None, option("--index-items", "Items of an index file.", min=1)
    ] = None
    config: Annotated[
        Path | None, option("--config FILE", "The settings: a .toml, or a broker.conf.")
    ] = None


class _Command(TyperCommand):
    """Also takes names of the previous release, with a note that gives the new ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name for known in self.params for name in known.opts}
        metavars = {(known.metavar or "").strip("[]") for known in self.params}
        renamed = {
            old: new
            for old, new in RENAMED
            if old not in names and new in (names if new.startswith("-") else metavars)
        }
        return list(super().parse_args(ctx, _in_new_names(args, renamed)))


def _in_new_names(args: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """The words with new names for old ones, up to --."""
    words: list[str] = []
    coming = list(args)
    while coming:
        word = coming.pop(0)
        if word == "--":
            return [*words, word, *coming]
        name, equals, value = word.partition("=")
        new = renamed.get(name)
        if new is None:
            words.append(word)
        elif new.startswith("-"):
            note(f"{name} is now {new}")
            words.append(f"{new}{equals}{value}")
        else:
            note(f"{name} is now the argument {new}")
            words += [value] if equals else []
    return words


def verb(app: typer.Typer, example: str, short_help: str | None = None) -> Callable[[Verb], Verb]:
    """Make a function a verb of `app`, with an example below its help.

    A parameter whose type is a bundle stands for the options of the bundle.
    """

    def registered(function: Verb) -> Verb:
        command = app.command(
            cls=_Command, short_help=short_help, epilog=f"Example: tieredstore {example}"
        )
        command(_with_options(function))
        return function

    return registered


def _with_options(function: Verb) -> Verb:
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        name, hint = parameter.name, hints[parameter.name]
        if not is_dataclass(hint):
            parameters.append(_parameter(name, hint, parameter.default))
            continue
        bundles[name] = hint
        types = get_type_hints(hint, include_extras=True)
        parameters += [
            _parameter(field.name, types[field.name], field.default) for field in fields(hint)
        ]

    @wraps(function)
    def with_options(**words: Any) -> None:
        for name, bundle in bundles.items():
            made = bundle(**{field.name: words.pop(field.name) for field in fields(bundle)})
            words[name] = _completed(made) if isinstance(made, TierOptions) else made
        function(**words)

    # Typer reads these instead of the signature of the function.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {known.name: known.annotation for known in parameters}
    return with_options


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _completed(tier: TierOptions) -> TierOptions:
    """Take options that were not given from the environment, and find the settings file.

    `--provider` without a file names a tier completely: then no other file counts, as it may be
    about another tier.
    """
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.settings import CONFIG_VARIABLE, TIER_VARIABLE, from_env, settings_of

    known = {
        name: spec
        for name, spec in settings_of(StoreConfig).items()
        if getattr(tier, name, "") is None
    }
    prefix = StoreConfig.ENV_PREFIX
    variables = [f"{prefix}{name.upper()}" for name in known]
    said = {name: os.environ[name] for name in variables if os.environ.get(name)}
    found = from_env(known, said, prefix)
    if tier.provider is None or tier.config is not None or tier.tier_name is not None:
        named = os.environ.get(CONFIG_VARIABLE)
        here = Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None
        found["config"] = tier.config or (Path(named) if named else here)
        # If the command names the file, only the command may name the tier in it.
        variable = os.environ.get(TIER_VARIABLE) if tier.config is None else None
        found["tier_name"] = tier.tier_name or variable or None
    return replace(tier, **found)


def given(bundle: TierOptions | SizeOptions) -> dict[str, Any]:
    """The settings that were given, by name; the file and the tier in it are no settings."""
    words = {field.name: getattr(bundle, field.name) for field in fields(bundle)}
    others = ("config", "tier_name")
    return {name: word for name, word in words.items() if word is not None and name not in others}


def config_of(tier: TierOptions) -> StoreConfig:
    """The settings of the named tier; options override those of a file.

    Keys of an object store that neither gives come from the environment, so that a file need hold
    no secret.
    """
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.printable import log_of

    if tier.config is not None:
        require_file(tier.config)
        config = replace(StoreConfig.from_file(tier.config, tier=tier.tier_name), **given(tier))
        where = f"{tier.config}: "
    elif tier.tier_name is not None:
        text = f"--tier {tier.tier_name}: no file says what it is; name it with --config FILE"
        raise CommandError(printable(text), ExitCode.USAGE)
    elif tier.provider is not None:
        config = StoreConfig(**given(tier))
        where = ""
    else:
        raise CommandError(f"which tier? Name it with {HOW_TO_NAME}", ExitCode.USAGE)
    if config.provider == "memory":
        raise CommandError(
            f"{where}a tier in memory is gone with its process; name another with {HOW_TO_NAME}",
            ExitCode.USAGE,
        )
    if config.provider == "posix" and not config.path:
        raise CommandError(f"{where}name the root of the tier with --path ROOT", ExitCode.USAGE)
    if config.provider == "s3" and not config.bucket:
        raise CommandError(f"{where}name the bucket of the tier with --bucket NAME", ExitCode.USAGE)
    log_of(__name__).info(
        "the tier of broker %s in %s: provider %s%s%s",
        config.broker_name,
        config.cluster_name,
        config.provider,
        "".join(f", {where}" for where in (config.path, config.bucket, config.prefix) if where),
        f", by {tier.config}" if tier.config is not None else "",
    )
    return config.with_secrets(os.environ)


def require_file(file: Path) -> None:
    """Raise if the file does not exist."""
    if not file.exists():
        raise CommandError(printable(f"no such file: {file}"), ExitCode.NOT_THERE)


def chosen(
    everything: Sequence[QueueKey],
    topic: str | None,
    queue_id: int | None,
    *,
    topics: Collection[str] = (),
    where: str = "store",
) -> list[QueueKey]:
    """The named queues, or all; an error if a named one does not exist.

    `topics` are known topics, which may have no queue.
    """
    keys = [key for key in everything if topic in (None, key.topic)]
    if topic is not None and not keys and topic not in topics:
        names = sorted({key.topic for key in everything}.union(topics))
        raise CommandError(
            f"no topic {printable(topic)!r} is in this {where}; there are: {known_names(names)}",
            ExitCode.NOT_THERE,
        )
    found = [key for key in keys if queue_id in (None, key.queue_id)]
    if queue_id is not None and not found:
        numbers = [str(number) for number in sorted({key.queue_id for key in keys})]
        raise CommandError(
            f"no queue {queue_id} is there; there are: {known_names(numbers, _QUEUES_NAMED_MAX)}",
            ExitCode.NOT_THERE,
        )
    return found


def known_names(names: Sequence[str], count_max: int = _TOPICS_NAMED_MAX) -> str:
    """The first names, for an error."""
    more = ", ..." if len(names) > count_max else ""
    return ", ".join(map(printable, names[:count_max])) + more or "none"
