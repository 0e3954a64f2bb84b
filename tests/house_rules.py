"""The house rules as pure functions: source text in, offenders out.

tests/test_house.py chooses the files for each rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CLASS_WORDS = frozenset({"Impl", "Manager", "Factory", "Abstract"})
# Authors of plugins know these names from RocketMQ.
CLASS_NAMES_OF_ROCKETMQ = frozenset({"AbstractPluginMessageStore"})
MODULE_WORDS = frozenset({"util", "utils", "helper", "helpers", "common"})
MODULE_NAMES = frozenset({"base", "core"})

# Only tieredstore/driver/runtime.py, which hands out time and threads, may name these.
TIME_AND_THREADS = frozenset(
    {
        "_thread.start_new_thread",
        "asyncio.sleep",
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.ThreadPoolExecutor",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "multiprocessing.Pool",
        "multiprocessing.Process",
        "threading.Thread",
        "threading.Timer",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.sleep",
        "time.time",
        "time.time_ns",
    }
)
SLEEPS = frozenset({"asyncio.sleep", "time.sleep"})

# Written so that this file does not contain what it forbids.
_MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + "work|root|tmp/bash" + r")(?=[/\s\"'`)_,.]|$)")

_TOP_FOLDERS = "tieredstore|providers|metadata|tests|examples|bench|docs|\\.ci"
_SUFFIXES = "py|md|toml|json|txt"
_NAMED_FILE = re.compile(
    rf"(?<![\w./-])((?:{_TOP_FOLDERS})/[\w./*-]*[\w*/]|[\w.-]+(?:/[\w.-]+)+\.(?:py|md|toml))(?![\w/])"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")

Rule = Callable[[str], list[str]]


def banned_class_names(source: str) -> list[str]:
    return [
        f"{node.lineno}: class {node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and node.name not in CLASS_NAMES_OF_ROCKETMQ
        and CLASS_WORDS & set(_WORDS.findall(node.name))
    ]


def banned_module_name(path: str) -> list[str]:
    """Reads the path of a module, not its text; folders count as modules."""
    found = []
    for part in Path(path).with_suffix("").parts:
        name = part.strip("_").removeprefix("test_")
        if name in MODULE_NAMES or MODULE_WORDS & set(name.split("_")):
            found.append(part)
    return found


def no_docstring(source: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(source)) else ["no docstring"]


def prints(source: str) -> list[str]:
    return [
        f"{node.lineno}: {node.id}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id in {"print", "pprint"}
    ]


def time_and_threads(source: str) -> list[str]:
    return _names_used(source, TIME_AND_THREADS)


def sleeps(source: str) -> list[str]:
    return _names_used(source, SLEEPS)


def machine_paths(text: str) -> list[str]:
    """Absolute paths that exist on one machine only."""
    return [
        f"{number}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), start=1)
        if _MACHINE_PATH.search(line)
    ]


def missing_files(text: str, folder: Path = ROOT) -> list[str]:
    """Names of repository files in a text that do not exist.

    A name counts if it starts with a folder of the repository, or if it has a slash and the suffix
    of source or a document. It may be relative to the top, to tieredstore/ or to `folder`.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for name in _NAMED_FILE.findall(line):
            places = (ROOT, ROOT / "tieredstore", folder)
            if not any(_exists(place, name) for place in places):
                found.append(f"{number}: {name}")
    return found


def docstrings(source: str) -> str:
    """All docstrings of a module, for the rules that read prose."""
    nodes = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return "\n".join(text for node in nodes if (text := ast.get_docstring(node)))


def _exists(place: Path, name: str) -> bool:
    return any(place.glob(name)) if "*" in name else (place / name).exists()


def _names_used(source: str, banned: Collection[str]) -> list[str]:
    """Every mention of a banned name, however it was imported: a call, a default, an argument."""
    tree = ast.parse(source)
    origins = dict(_imported(tree))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            dotted_names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute | ast.Name):
            dotted_names = [_dotted(node, origins)]
        else:
            continue
        found.extend(f"{node.lineno}: {name}" for name in dotted_names if name in banned)
    return sorted(set(found), key=lambda line: int(line.split(":")[0]))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name and dotted origin of everything imported anywhere in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    top = alias.name.partition(".")[0]
                    yield top, top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.expr, origins: dict[str, str]) -> str:
    """The full name: `t.sleep` after `import time as t` is `time.sleep`; empty if not imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in origins:
        return ""
    return ".".join([origins[node.id], *reversed(parts)])
