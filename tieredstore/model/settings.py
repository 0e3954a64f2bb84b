"""Settings: how one is declared, and how they are read from keywords, TOML, the environment or a
broker.conf.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Self, TypeAlias

from tieredstore.model.errors import InvalidConfigError, system_says
from tieredstore.model.values import INT64_MAX, StorageLevel

MAYBE_BOOLEAN: Final = "bool | None"  # the setting's own text says what None means
BOOLEANS: Final = frozenset({"bool", MAYBE_BOOLEAN})
Fields: TypeAlias = Mapping[str, Field[Any]]
JAVA_ENCODING: Final = "latin-1"  # as in Java, so that names in a properties file come out alike
FILE_BYTES_MAX: Final = 1024 * 1024  # a larger file is no settings file
# RocketMQ keys that look like ours, but are about something that does not exist here: a share of
# Java's heap, files of Java's extended queues, and keys that came after 5.3.3.
FOREIGN_KEYS: Final = frozenset(
    {
        "mappedFileSizeConsumeQueueExt",
        "readAheadCacheSizeThresholdRate",
        "readAheadCacheCreateExpireDuration",
        "readAheadCacheAfterReadExpireDuration",
        "flushConsumerOffsetHistoryInterval",
        "tieredStoreDispatchMinFreeMemoryRatio",
        "tieredStoreDispatchMinFreeMemoryMaxBytes",
    }
)
# A file with none of these keys is a broker.conf only if each of its lines could be in one: every
# version of RocketMQ adds keys, and by Java's rules any text is a properties file.
_BROKER_KEY: Final = re.compile(
    r"(?:broker|namesrv|storePath|mappedFileSize|tiered|readAheadCache|objectStore)[A-Za-z0-9]*"
    r"|listenPort|deleteWhen|fileReservedTime|flushDiskType|messageStorePlugIn"
)
_KEY_IS_VALUE: Final = re.compile(r"[a-z][A-Za-z0-9]*\s*=.*", re.DOTALL)
JAVA_CLASSES: Final[Mapping[str, str]] = {
    "TieredMessageStore": "tiered",
    "PosixFileSegment": "posix",
    "MemoryFileSegment": "memory",
    "DefaultMetadataStore": "json",
}
NAME_PARTS_MAX: Final = 16
# The time of Python's parser grows with the square of the parts of a dotted name; no setting has
# more than two. In quotes and after #, dots are only text.
_TOML_STRINGS: Final = re.compile(
    r""""{3}(?:[^\\]|\\.)*?(?:"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|#[^\n]*""",
    re.DOTALL,
)
_LONG_NAME: Final = re.compile(rf'\.(?:[ \t]*[\w"-]+[ \t]*\.){{{NAME_PARTS_MAX - 1}}}')
_JAVA_PACKAGE: Final = "org.apache.rocketmq."
# Variables that begin with TIEREDSTORE_ but are no settings of the tier: those of the local store,
# the file and the tier for the command, and the servers for tests and benchmarks.
CONFIG_VARIABLE: Final = "TIEREDSTORE_CONFIG"
TIER_VARIABLE: Final = "TIEREDSTORE_TIER"
OTHER_PREFIXES: Final = (
    *("TIEREDSTORE_LOCAL_", "TIEREDSTORE_S3_", "TIEREDSTORE_BENCH_"),
    *(CONFIG_VARIABLE, TIER_VARIABLE),
)
TIERS_TABLE: Final = "tier"  # in a file with several tiers: [tier.prod]
_CLASS_SETTINGS: Final = frozenset({"provider", "metadata", "plugins"})
_NEAR: Final = 0.88
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
# Java's blanks. Python's are more, such as a byte at the end of a name in UTF-8, read as Latin-1.
_BLANKS: Final = " \t\n\r\f"
_KEY: Final = re.compile(rf"(?:[^\\=:{_BLANKS}]|\\.)*")
_SEPARATOR: Final = re.compile(rf"[{_BLANKS}]*[=:]?[{_BLANKS}]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked when built, never changed afterwards; unknown keys are an error.

    A subclass declares its fields with `setting`, its TOML table and the prefix of its environment
    variables, and calls `_check` when it is built.
    """

    TABLE: ClassVar[str]
    ENV_PREFIX: ClassVar[str]

    # keys of a broker.conf that are not ours
    ignored: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __new__(cls, **values: Any) -> Self:
        """Name the nearest setting in the error, where a dataclass would raise a bare TypeError."""
        refuse_unknown(values, [spec.name for spec in fields(cls)])
        return object.__new__(cls)

    def _check(self) -> None:
        if not isinstance(self.ignored, Mapping):
            raise InvalidConfigError("ignored: want a mapping")
        for name, spec in settings_of(self).items():
            object.__setattr__(self, name, checked(spec, getattr(self, name)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings by their names here, with values of their own types."""
        return cls(**from_mapping(settings_of(cls), values))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, tier: str | None = None) -> Self:
        """From a TOML file: its table for these settings if it has one, else its top level.

        With `tier`, only the table `[tier.NAME]`. A relative path starts in the folder of the
        file. Raises InvalidConfigError if the file, the tier or a setting is wrong.
        """
        with naming(path):
            known = settings_of(cls)
            values = from_toml(known, path, cls.TABLE, tier)
            return cls(**_in_folder(known, values, os.path.dirname(os.path.abspath(path))))

    @classmethod
    def from_broker_conf(cls, path: str | os.PathLike[str]) -> Self:
        """From RocketMQ's own properties file, with its Java key names.

        Keys that are not ours are kept in `ignored`. A key that is nearly one of ours is an error,
        as RocketMQ would silently use the default.
        """
        with naming(path):
            values, ignored = from_broker_conf(settings_of(cls), path)
            config = cls(**values, ignored=ignored)
            config._refuse_ignored()
            return config

    def _refuse_ignored(self) -> None:
        """Raise InvalidConfigError for a key of RocketMQ's that cannot be ignored."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, tier: str | None = None) -> Self:
        """From a `.toml` file, or with `tier` from its table `[tier.NAME]`; else a broker.conf."""
        if str(path).endswith(".toml"):
            return cls.from_toml(path, tier=tier)
        if tier is not None:
            raise InvalidConfigError(f"{path}: a broker.conf is about one tier; name a .toml")
        return cls.from_broker_conf(path)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """The defaults, overridden by variables such as TIEREDSTORE_PROVIDER."""
        return cls(**from_env(settings_of(cls), environ, cls.ENV_PREFIX))

    def with_env(self, environ: Mapping[str, str]) -> Self:
        """These settings, overridden by variables such as TIEREDSTORE_PROVIDER."""
        return replace(self, **from_env(settings_of(self), environ, self.ENV_PREFIX))


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts about one field, except its default."""

    doc: str
    java: str = ""
    minimum: int = 0
    maximum: int = INT64_MAX
    secret: bool = False
    is_path: bool = False


def setting(
    default: Any,
    doc: str,
    java: str = "",
    *,
    minimum: int = 0,
    maximum: int = INT64_MAX,
    secret: bool = False,
    is_path: bool = False,
) -> Any:
    facts = Setting(doc, java, minimum, maximum, secret, is_path)
    return field(default=default, repr=not secret, metadata={"setting": facts})


def computed(factory: Any, doc: str, java: str, *, is_path: bool = False) -> Any:
    facts = Setting(doc, java, is_path=is_path)
    return field(default_factory=factory, metadata={"setting": facts})


class Secret(str):
    """A text that is hidden in its own repr, and so in that of whatever holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"


def settings_of(config: Any) -> dict[str, Field[Any]]:
    """The fields of a dataclass that are settings, in the order of their declaration."""
    return {spec.name: spec for spec in fields(config) if "setting" in spec.metadata}


def facts_of(spec: Field[Any]) -> Setting:
    facts: Setting = spec.metadata["setting"]
    return facts


def checked(spec: Field[Any], value: Any) -> Any:
    """The value in the field's own type, else InvalidConfigError, which never quotes a secret."""
    kind = spec.type
    if kind == "StorageLevel":
        return _level(spec.name, value)
    if kind == "tuple[str, ...]":
        return _names(spec.name, value)
    if value is None and kind == MAYBE_BOOLEAN:
        return None
    if kind in BOOLEANS:
        wanted: type = bool
    else:
        wanted = int if kind == "int" else str
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InvalidConfigError(f"{spec.name}: want {wanted.__name__}, not {shown(spec, value)}")
    facts = facts_of(spec)
    if isinstance(value, int) and not facts.minimum <= value <= facts.maximum:
        raise InvalidConfigError(
            f"{spec.name}: {value} is not within {facts.minimum} to {facts.maximum}"
        )
    if isinstance(value, str) and "\0" in value:
        raise InvalidConfigError(f"{spec.name}: holds a NUL character")
    return Secret(value) if facts.secret else value


def shown(spec: Field[Any], value: Any) -> str:
    """The value as an error may quote it."""
    if facts_of(spec).secret:
        return "the value given"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def has_password(url: str) -> bool:
    """Whether the URL has the form scheme://user:password@host, and so must not be shown."""
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0]


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            near = _near(str(name), known, cutoff=0.6)
            raise InvalidConfigError(
                f"unknown key {name}" + (f": did you mean {near}?" if near else "")
            )


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in errors about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidConfigError(f"no such file: {os.fspath(path)}") from error
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{os.fspath(path)}: {error}") from error


def from_mapping(known: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unknown(values, known)
    return {name: _class_name(known[name], value) for name, value in values.items()}


def from_toml(
    known: Fields, path: str | os.PathLike[str], table_name: str, tier: str | None = None
) -> dict[str, Any]:
    text = _read(path)
    if _LONG_NAME.search(_TOML_STRINGS.sub('""', text)):
        raise InvalidConfigError(f"a name of more than {NAME_PARTS_MAX} parts")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"is no TOML: {error}") from error
    tiers = document.pop(TIERS_TABLE, {})
    if not isinstance(tiers, dict):
        raise InvalidConfigError(f"{TIERS_TABLE} is no table")
    there = ", ".join(tiers) or "none"
    if tier is not None:
        if tier not in tiers:
            raise InvalidConfigError(f"no tier {tier!r} is in it; there are: {there}")
        table_name, table = f"{TIERS_TABLE}.{tier}", tiers[tier]
    elif tiers and table_name not in document and not document.keys() & known.keys():
        raise InvalidConfigError(f"which of its tiers? There are: {there}")
    else:
        table = document.get(table_name, document)
    if not isinstance(table, dict):
        raise InvalidConfigError(f"{table_name} is no table")
    return from_mapping(known, table)


def _in_folder(known: Fields, values: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The values with full paths: relative ones start in this folder."""
    return {
        name: os.path.join(folder, value)
        if facts_of(known[name]).is_path and isinstance(value, str) and value
        else value
        for name, value in values.items()
    }


def from_env(known: Fields, environ: Mapping[str, str], prefix: str) -> dict[str, Any]:
    variables = {prefix + name.upper(): spec for name, spec in known.items()}
    ours = {name: text for name, text in environ.items() if _is_of(name, prefix)}
    refuse_unknown(ours, variables)
    values = {}
    for name, text in ours.items():
        with naming(name):
            values[variables[name].name] = _parsed(variables[name], text)
    return values


def from_broker_conf(
    known: Fields, path: str | os.PathLike[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values, and the keys that are not ours. InvalidConfigError if it is no broker.conf."""
    java = {facts_of(spec).java: spec for spec in known.values() if facts_of(spec).java}
    values: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    text = _read(path, encoding=JAVA_ENCODING)
    found = _properties(text)
    for key, value in found.items():
        if key in java:
            values[java[key].name] = _parsed(java[key], value)
        elif key not in FOREIGN_KEYS and (near := _near(key, java)):
            raise InvalidConfigError(f"unknown key {key}: did you mean {near}?")
        else:
            ignored[key] = value
    if not (values or any(_BROKER_KEY.fullmatch(key) for key in found)) and not (
        found and all(_KEY_IS_VALUE.fullmatch(line) for line in _lines_of(text))
    ):
        raise InvalidConfigError(
            "is no broker.conf: it has not one key of RocketMQ's, such as brokerName; the name of "
            "a file with settings of ours ends with .toml"
        )
    return values, ignored


def _level(name: str, value: Any) -> StorageLevel:
    try:
        if isinstance(value, (bool, float)):
            raise TypeError
        if isinstance(value, str) and not value.strip().isdigit():
            return StorageLevel[value.strip().upper()]
        return StorageLevel(int(value))
    except (KeyError, ValueError, TypeError):
        known = ", ".join(f"{level.name} ({level.value})" for level in StorageLevel)
        raise InvalidConfigError(f"{name}: {str(value)[:40]!r} is none of {known}") from None


def _names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (tuple, list)) or not all(isinstance(part, str) for part in value):
        raise InvalidConfigError(f"{name}: want a list of names")
    return tuple(part.strip() for part in value if part.strip())


def _is_of(name: str, prefix: str) -> bool:
    """Whether a variable begins with this prefix, but with no longer prefix of other settings."""
    return name.startswith(prefix) and not any(
        name.startswith(other) for other in OTHER_PREFIXES if len(other) > len(prefix)
    )


def _parsed(spec: Field[Any], text: str) -> Any:
    """The text in the field's type; ranges are left to `checked`."""
    text = text.strip(_BLANKS)
    if spec.type == "int":
        try:
            return int(text)
        except ValueError:
            raise InvalidConfigError(
                f"{spec.name}: want a whole number, not {shown(spec, text)}"
            ) from None
    if spec.type in BOOLEANS:
        if text.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{spec.name}: want true or false, not {shown(spec, text)}")
        return text.lower() == "true"
    return _class_name(spec, text)


def _class_name(spec: Field[Any], value: Any) -> Any:
    """Our names for RocketMQ's class names, alone or in a comma-separated chain."""
    if spec.name not in _CLASS_SETTINGS:
        return value
    if isinstance(value, (list, tuple)):
        return [_class_name(spec, part) for part in value]
    if not isinstance(value, str):
        return value
    return ",".join(_our_name(part.strip()) for part in value.split(","))


def _our_name(name: str) -> str:
    java = name.rpartition(".")[2] if name.startswith(_JAVA_PACKAGE) else name
    ours = JAVA_CLASSES.get(java)
    if ours is None and name.startswith(_JAVA_PACKAGE):
        raise InvalidConfigError(f"this project has nothing for the Java class {name}")
    return ours or name


def _properties(text: str) -> dict[str, str]:
    """The keys of a properties file, by Java's rules: if a key occurs twice, the last counts."""
    found: dict[str, str] = {}
    for line in _lines_of(text):
        key = _KEY.match(line)
        separator = _SEPARATOR.match(line, key.end()) if key else None
        if key and separator:
            found[_unescaped(key[0])] = _unescaped(line[separator.end() :])
    return found


def _lines_of(text: str) -> Iterator[str]:
    return _logical_lines(re.split(r"\r\n|\r|\n", text))


def _logical_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines without comments and blank ones; a line that ends with an odd number of backslashes
    is joined with the next."""
    whole = ""
    joining = False
    for line in lines:
        part = line.lstrip(" \t\f")
        if not joining and (not part or part[0] in "#!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        joining = backslashes % 2 == 1
        whole += part[:-1] if joining else part
        if not joining:
            yield whole
            whole = ""
    if whole:
        yield whole


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(character, text)


def _read(path: str | os.PathLike[str], *, encoding: str = "utf-8") -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InvalidConfigError(f"larger than {FILE_BYTES_MAX} bytes")
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidConfigError("is no UTF-8 text") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidConfigError(system_says(error)) from error


def _near(name: str, known: Iterable[str], *, cutoff: float = _NEAR) -> str | None:
    """The known name closest to this one, ignoring case."""
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return lower[close[0]] if close else None
