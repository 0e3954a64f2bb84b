"""What a verb is given: which tier or local store, and which of its topics and queues.

A bundle is a dataclass of options that several verbs take: a new option is one more field. For a
tier each field but `config` has the name of its setting.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from tieredstore.cli.output import CommandError, ExitCode, parse_time, printable

if TYPE_CHECKING:  # help must be fast
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.values import QueueKey

Verb = Callable[..., None]

HOW_TO_NAME: Final = "--config FILE, or --provider posix --path ROOT --metadata FILE"
TIME_HELP: Final = "epoch milliseconds or ISO 8601 (UTC unless it says otherwise)"

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
    """The parser of an option or argument."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Json = Annotated[bool, option("--json", "One JSON object a line, nothing else.")]
Topic = Annotated[str, argument("TOPIC")]
Queue = Annotated[int, argument("QUEUE", min=0)]
Key = Annotated[str, argument("KEY", "A key or the unique key.")]
Time = Annotated[int, argument("TIME", TIME_HELP, parser=time_option)]
OneQueue = Annotated[int | None, option("--queue", "This queue only.", min=0)]
Begin = Annotated[int | None, option("--begin TIME", TIME_HELP, parser=time_option)]
End = Annotated[int | None, option("--end TIME", "the last to count", parser=time_option)]
CountMax = Annotated[int, option("--max", "At most so many.", min=1)]
Body = Annotated[bool, option("--body", "With the body; base64 in JSON.")]
Plain = Annotated[bool, option("--plain", "With the body as its producer made it, not compressed.")]
Topics = Annotated[
    list[str] | None, option("--topic PATTERN", "Only these topics, such as 'orders-*'.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """How a tier is named. All but `config` have the names of settings, None if not given."""

    config: Annotated[
        Path | None, option("--config FILE", "Settings of the tier: a .toml, or a broker.conf.")
    ] = None
    provider: Annotated[
        str | None, option("--provider NAME", "Without --config: where it lies, such as posix.")
    ] = None
    path: Annotated[str | None, option("--path ROOT", "Root directory, for posix.")] = None
    bucket: Annotated[str | None, option("--bucket NAME", "Bucket, for s3.")] = None
    prefix: Annotated[
        str | None, option("--prefix FOLDER", "Folder of the bucket that holds the tier.")
    ] = None
    endpoint: Annotated[
        str | None, option("--endpoint URL", "Address of the object store; else AWS.")
    ] = None
    region: Annotated[
        str | None, option("--region NAME", "Its region; else as the AWS chain says.")
    ] = None
    metadata_path: Annotated[
        str | None, option("--metadata FILE", "The catalogue: tieredStoreMetadata.json.")
    ] = None
    catalogue: Annotated[
        str | None,
        option(
            "--catalogue WHICH",
            "file, published, or rebuild: in memory; else the file, or what is published.",
        ),
    ] = None
    store_path: Annotated[
        str | None, option("--store-path DIR", "Without --metadata: config/ in here has it.")
    ] = None
    cluster_name: Annotated[
        str | None, option("--cluster NAME", "Its cluster; else DefaultCluster.")
    ] = None
    broker_name: Annotated[
        str | None, option("--broker NAME", "Its broker; else the name of this host.")
    ] = None
    index_slot_count: Annotated[
        int | None, option("--index-slots", "tieredStoreIndexFileMaxHashSlotNum", min=1)
    ] = None
    index_item_count: Annotated[
        int | None, option("--index-items", "tieredStoreIndexFileMaxIndexNum", min=2)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """The sizes of a local store's files, where they are neither RocketMQ's nor written down."""

    commit_log_file_bytes: Annotated[
        int | None, option("--commit-log-file-bytes", "mappedFileSizeCommitLog", min=1)
    ] = None
    queue_file_bytes: Annotated[
        int | None, option("--queue-file-bytes", "mappedFileSizeConsumeQueue", min=1)
    ] = None
    index_slot_count: Annotated[int | None, option("--index-slots", "maxHashSlotNum", min=1)] = None
    index_item_count: Annotated[int | None, option("--index-items", "maxIndexNum", min=1)] = None
    config: Annotated[
        Path | None, option("--config FILE", "A broker.conf with the sizes, or TOML with [local].")
    ] = None


def verb(app: typer.Typer, example: str, short_help: str | None = None) -> Callable[[Verb], Verb]:
    """Make a function a verb of `app`, with an example below its help.

    A parameter whose type is a bundle stands for the options of the bundle.
    """

    def registered(function: Verb) -> Verb:
        command = app.command(short_help=short_help, epilog=f"Example: tieredstore {example}")
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
            words[name] = bundle(**{field.name: words.pop(field.name) for field in fields(bundle)})
        function(**words)

    # Typer looks at these instead of the signature of the function.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {known.name: known.annotation for known in parameters}
    return with_options


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def given(bundle: TierOptions | SizeOptions) -> dict[str, Any]:
    """The settings that were given, by name; `config` is none, it names a file of them."""
    words = {field.name: getattr(bundle, field.name) for field in fields(bundle)}
    return {name: word for name, word in words.items() if word is not None and name != "config"}


def config_of(tier: TierOptions) -> StoreConfig:
    """The settings of the tier that was named; what is said beside a file counts more than it.

    Keys of an object store that neither says come from the environment: a file need hold no secret.
    """
    from tieredstore.model.config import StoreConfig

    if tier.config is not None:
        if not tier.config.exists():
            raise CommandError(f"{tier.config}: there is no such file", ExitCode.NOT_THERE)
        config = replace(StoreConfig.from_file(tier.config), **given(tier))
        where = f"{tier.config}: "
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
    return config.with_secrets(os.environ)


def chosen(
    everything: Sequence[QueueKey],
    topic: str | None,
    queue_id: int | None,
    *,
    topics: Collection[str] = (),
    where: str = "store",
) -> list[QueueKey]:
    """The queues that are meant; naming one that is not there is an error.

    `topics` may be there without a queue.
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
    """The first of them, for an error."""
    more = ", ..." if len(names) > count_max else ""
    return ", ".join(map(printable, names[:count_max])) + more or "none"
