"""How a tier is named on the command line: one bundle of options for every verb.

What lives here: `TierOptions`, `takes_tier` which gives a verb these options, and `config_of`. A
new option is one more field, with the name of its setting. Opening what was named is in `tier`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tieredstore.cli.failures import CommandError, ExitCode

if TYPE_CHECKING:  # help must be fast
    from tieredstore.model.config import StoreConfig

HOW_TO_NAME = "--config FILE, or --provider posix --path ROOT --metadata FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """What was said of the tier. All but `config` have the names of settings, None if not given."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings of the tier: a .toml, or a broker.conf."
        ),
    ] = None
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider", metavar="NAME", help="Without --config: where it lies, such as posix."
        ),
    ] = None
    path: Annotated[
        str | None, typer.Option("--path", metavar="ROOT", help="Root directory, for posix.")
    ] = None
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="NAME", help="Bucket, for s3.")
    ] = None
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="FOLDER", help="Folder of the bucket that holds the tier."
        ),
    ] = None
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="Address of the object store; else AWS."),
    ] = None
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="NAME", help="Its region; else as the AWS chain says."),
    ] = None
    metadata_path: Annotated[
        str | None,
        typer.Option("--metadata", metavar="FILE", help="The catalogue: tieredStoreMetadata.json."),
    ] = None
    catalogue: Annotated[
        str | None,
        typer.Option(
            "--catalogue",
            metavar="WHICH",
            help="file, published, or rebuild: in memory; else the file, or what is published.",
        ),
    ] = None
    store_path: Annotated[
        str | None,
        typer.Option(
            "--store-path", metavar="DIR", help="Without --metadata: config/ in here has it."
        ),
    ] = None
    cluster_name: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="Its cluster; else DefaultCluster."),
    ] = None
    broker_name: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="Its broker; else the name of this host."),
    ] = None
    index_slot_count: Annotated[
        int | None,
        typer.Option("--index-slots", min=1, help="tieredStoreIndexFileMaxHashSlotNum"),
    ] = None
    index_item_count: Annotated[
        int | None, typer.Option("--index-items", min=2, help="tieredStoreIndexFileMaxIndexNum")
    ] = None

    def settings(self) -> dict[str, Any]:
        """What was given, by the names of the settings."""
        given = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return {
            name: value for name, value in given.items() if value is not None and name != "config"
        }


def takes_tier(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of `TierOptions` in the place of its argument `tier`."""
    return takes_bundle(verb, "tier", TierOptions)


def takes_bundle(
    verb: Callable[..., None], argument: str, bundle: Callable[..., Any]
) -> Callable[..., None]:
    """The verb with the options of `bundle`, a dataclass, in the place of this argument."""
    defaults = {spec.name: spec.default for spec in fields(bundle)}  # type: ignore[arg-type]

    @wraps(verb)
    def with_options(**words: Any) -> None:
        words[argument] = bundle(**{name: words.pop(name) for name in defaults})
        verb(**words)

    hints = get_type_hints(verb, include_extras=True)
    options = get_type_hints(bundle, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name == argument:
            parameters += [_parameter(name, options[name], defaults[name]) for name in defaults]
        else:
            parameters.append(_parameter(parameter.name, hints[parameter.name], parameter.default))
    # What typer looks at instead of the verb's own.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def config_of(tier: TierOptions) -> StoreConfig:
    """The settings of the tier that was named; what is said beside a file counts more than it.

    Keys of an object store that neither says come from the environment: a file need hold no secret.
    """
    from tieredstore.model.config import StoreConfig

    if tier.config is not None:
        if not tier.config.exists():
            raise CommandError(f"{tier.config}: there is no such file", ExitCode.NOT_THERE)
        config = replace(StoreConfig.from_file(tier.config), **tier.settings())
        where = f"{tier.config}: "
    elif tier.provider is not None:
        config = StoreConfig(**tier.settings())
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
