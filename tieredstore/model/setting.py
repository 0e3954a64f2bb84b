"""What is known of a setting beside its default: doc, Java key, range, secrecy.

What lives here: the description of one dataclass field and the check of a value against it.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, Final

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import INT64_MAX, StorageLevel

MAYBE_BOOLEAN: Final = "bool | None"  # None: as the setting's own text says
BOOLEANS: Final = frozenset({"bool", MAYBE_BOOLEAN})


class Secret(str):
    """A text that shows in no repr, of itself or of what holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one field beside its default."""

    doc: str
    java: str = ""
    minimum: int = 0
    maximum: int = INT64_MAX
    secret: bool = False


def setting(
    default: Any,
    doc: str,
    java: str = "",
    *,
    minimum: int = 0,
    maximum: int = INT64_MAX,
    secret: bool = False,
) -> Any:
    facts = Setting(doc, java, minimum, maximum, secret)
    return field(default=default, repr=not secret, metadata={"setting": facts})


def computed(factory: Any, doc: str, java: str) -> Any:
    return field(default_factory=factory, metadata={"setting": Setting(doc, java)})


def settings_of(config: Any) -> dict[str, Field[Any]]:
    """The fields of a dataclass that can be set, in the order of their declaration."""
    return {spec.name: spec for spec in fields(config) if "setting" in spec.metadata}


def facts_of(spec: Field[Any]) -> Setting:
    facts: Setting = spec.metadata["setting"]
    return facts


def checked(spec: Field[Any], value: Any) -> Any:
    """The value in the field's own type, or InvalidConfigError; a secret is never quoted."""
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


def shown(spec: Field[Any], value: Any) -> str:
    """The value as an error may quote it."""
    if facts_of(spec).secret:
        return "the value given"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def has_password(url: str) -> bool:
    """Whether it is of the form scheme://user:password@host: such a one must not be shown."""
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0]
