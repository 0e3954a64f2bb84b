"""The tables of docs/configuration.md, made from the settings.

python -m tests.docs.configuration_page     writes them into the page
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tests.docs.pages import DOCS
from tieredstore.local.config import LocalConfig
from tieredstore.model.config import GIB, KIB, MIB, StoreConfig
from tieredstore.model.settings import Settings, facts_of, settings_of
from tieredstore.model.values import INT64_MAX

PAGE: Final = DOCS / "configuration.md"
KINDS: Final[dict[str, type[Settings]]] = {"tier": StoreConfig, "local store": LocalConfig}
_SIZES: Final = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_TIMES: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_COMMENT: Final = re.compile(r"    # (\w[\w -]*)")
_FIELD: Final = re.compile(r"    (\w+): ")


def begin(name: str) -> str:
    return f"<!-- settings of the {name} -->"


def end(name: str) -> str:
    return f"<!-- end of the settings of the {name} -->"


def with_tables(text: str) -> str:
    """The page with new tables."""
    for name, kind in KINDS.items():
        before, _, rest = text.partition(begin(name))
        _, mark, after = rest.partition(end(name))
        assert mark, f"{end(name)} is missing"
        made = "\n".join(_tables(name, kind))
        text = f"{before}{begin(name)}\n\n{made}\n{end(name)}{after}"
    return text


def _tables(name: str, kind: type[Settings]) -> Iterator[str]:
    fields = settings_of(kind)
    for heading, names in _groups(kind):
        yield f"### The {name}: {heading}"
        yield ""
        yield "| setting | RocketMQ's key | default | range | what it is |"
        yield "| --- | --- | --- | --- | --- |"
        for field in names:
            yield f"| {' | '.join(_cells(fields[field]))} |"
        yield ""


def _groups(kind: type[Settings]) -> Iterator[tuple[str, list[str]]]:
    """The groups of settings in the code: each comment in the class begins a group."""
    known = settings_of(kind)
    heading, names = "where", list[str]()
    for line in inspect.getsource(kind).splitlines():
        if comment := _COMMENT.fullmatch(line):
            if names:
                yield heading, names
            heading, names = comment[1], []
        elif (field := _FIELD.match(line)) and field[1] in known:
            names.append(field[1])
    yield heading, names


def _cells(field: Field[Any]) -> tuple[str, ...]:
    facts = facts_of(field)
    java = f"`{facts.java}`" if facts.java else ""
    doc = facts.doc.replace("|", r"\|").replace("<", "&lt;")
    return (
        f"`{field.name}`",
        java,
        _default(field),
        _range(field),
        doc + (" (secret)" if facts.secret else ""),
    )


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        assert callable(field.default_factory)
        value = str(field.default_factory())
        home = str(Path.home())
        return f"`~{value.removeprefix(home)}`" if value.startswith(home) else "of this host"
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, int):
        return f"`{value}`{_unit(field.name, value)}"
    if isinstance(value, tuple):
        return "none"
    return f"`{value}`" if value else "empty"


def _unit(name: str, value: int) -> str:
    """A large number in a readable unit."""
    words = name.split("_")
    if "bytes" in words:
        return next((f" ({value // size} {unit})" for size, unit in _SIZES if not value % size), "")
    if words[-1] == "ms" and value:
        return next(f" ({value // size} {unit})" for size, unit in _TIMES if not value % size)
    return ""


def _range(field: Field[Any]) -> str:
    facts = facts_of(field)
    if field.type != "int":
        return ""
    if facts.maximum == INT64_MAX:
        return f"≥ {facts.minimum}"
    return f"{facts.minimum} to {facts.maximum}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
