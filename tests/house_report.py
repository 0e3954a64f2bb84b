"""What `make house` prints: lengths of modules and functions, and modules with a single importer.

This is a report for people and not a rule: limits in a test are met by moving lines about.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = "tieredstore"
WORTH_A_DOOR: Final = 120  # code lines that justify a module with a single importer
FUNCTION_LINES: Final = 70
_SHOWN: Final = 12
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Module:
    path: Path
    code_lines: int
    functions: tuple[tuple[int, str], ...]  # lines and name
    imports: frozenset[str]

    @property
    def name(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(path: Path) -> Module:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    return Module(
        path=path,
        code_lines=code_lines(source),
        functions=tuple(
            ((node.end_lineno or node.lineno) - node.lineno + 1, node.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        imports=frozenset(_imported(tree)),
    )


def code_lines(source: str) -> int:
    """The number of lines with code, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def modules(folder: str) -> list[Module]:
    """Every module under a folder of the repository; links are not followed."""
    found = []
    for here, below, names in os.walk(ROOT / folder):
        below.sort()
        found += [read(Path(here, name)) for name in sorted(names) if name.endswith(".py")]
    return found


def guarded() -> set[str]:
    """Modules whose importers are named by an import contract: they are separate on purpose."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    return {name for found in contracts for name in found.get("protected_modules", ())}


def single_importers(library: list[Module]) -> Iterator[tuple[Module, str]]:
    """Modules with a single importer that are too short to be separate modules."""
    importers: dict[str, set[str]] = {}
    known = {module.name for module in library}
    for module in library:
        for name in module.imports & known - {module.name}:
            importers.setdefault(name, set()).add(module.name)
    skipped = guarded()
    for module in library:
        if module.path.name == "__init__.py" or module.name in skipped:
            continue
        found = sorted(importers.get(module.name, set()))
        if len(found) == 1 and module.code_lines < WORTH_A_DOOR:
            yield module, found[0]


def report() -> Iterator[str]:
    library = modules(LIBRARY)
    plain = [module for module in library if module.path.name != "__init__.py"]
    yield f"{len(plain)} modules, {sum(module.code_lines for module in library):,} lines of code"
    folders: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for module in library:
        folder = str(module.path.parent.relative_to(ROOT))
        folders[folder] += module.code_lines
        counts[folder] += module.path.name != "__init__.py"
    yield from (f"  {folder:26}{counts[folder]:4}{lines:7,}" for folder, lines in folders.items())
    yield f"  {'tests':26}{'':4}{sum(module.code_lines for module in modules('tests')):7,}"

    yield f"\nThe longest modules, of {_median(plain)} lines in the median:"
    longest = sorted(plain, key=lambda module: -module.code_lines)[:_SHOWN]
    yield from (f"  {module.code_lines:5} {module.name}" for module in longest)

    yield f"\nOne importer, and fewer than {WORTH_A_DOOR} lines:"
    alone = [
        f"  {module.code_lines:5} {module.name} <- {by}" for module, by in single_importers(library)
    ]
    yield from alone or ["  none"]

    yield f"\nFunctions of more than {FUNCTION_LINES} lines:"
    long = [
        f"  {lines:5} {module.name}.{name}"
        for module in library
        for lines, name in module.functions
        if lines > FUNCTION_LINES
    ]
    yield from long or ["  none"]


def _median(plain: list[Module]) -> int:
    return sorted(module.code_lines for module in plain)[len(plain) // 2]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]  # classes are also named by dotted strings


if __name__ == "__main__":
    sys.stdout.write("\n".join(report()) + "\n")
