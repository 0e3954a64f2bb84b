"""A set of settings: built from keywords, a mapping, TOML, a broker.conf or the environment.

What lives here: `Settings`, which every dataclass of settings inherits. What is known of one of
them is in `setting.py`; how text becomes values is in `config_sources.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from tieredstore.model import config_sources
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.setting import checked, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked when built, never changed afterwards; unknown keys are an error.

    A subclass declares its fields with `setting`, its table in TOML and the prefix of its
    environment variables, and calls `_check` when it is built.
    """

    TABLE: ClassVar[str]
    ENV_PREFIX: ClassVar[str]

    # from broker.conf: what is not ours
    ignored: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __new__(cls, **values: Any) -> Self:
        """Only to name the nearest setting where dataclasses would raise a bare TypeError."""
        config_sources.refuse_unknown(values, [spec.name for spec in fields(cls)])
        return object.__new__(cls)

    def _check(self) -> None:
        if not isinstance(self.ignored, Mapping):
            raise InvalidConfigError("ignored: want a mapping")
        for name, spec in settings_of(self).items():
            object.__setattr__(self, name, checked(spec, getattr(self, name)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings under their names here, in their own types."""
        return cls(**config_sources.from_mapping(settings_of(cls), values))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """A TOML file: the table of these settings where it has one, else its top level."""
        with config_sources.naming(path):
            return cls(**config_sources.from_toml(settings_of(cls), path, cls.TABLE))

    @classmethod
    def from_broker_conf(cls, path: str | os.PathLike[str]) -> Self:
        """RocketMQ's own properties file with its Java key names.

        Keys that are not ours are kept in `ignored`. One that only nearly is ours is an error,
        since RocketMQ would silently run with the default.
        """
        with config_sources.naming(path):
            values, ignored = config_sources.from_broker_conf(settings_of(cls), path)
            return cls(**values, ignored=ignored)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """A `.toml` file, or else a broker.conf."""
        return cls.from_toml(path) if str(path).endswith(".toml") else cls.from_broker_conf(path)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Variables such as TIEREDSTORE_PROVIDER over the defaults."""
        return cls(**config_sources.from_env(settings_of(cls), environ, cls.ENV_PREFIX))

    def with_env(self, environ: Mapping[str, str]) -> Self:
        """These settings with variables such as TIEREDSTORE_PROVIDER laid over them."""
        return replace(self, **config_sources.from_env(settings_of(self), environ, self.ENV_PREFIX))
