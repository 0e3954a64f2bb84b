"""Mutants: each is one small change in the body of one function, as a syntax tree.

Code on which no behaviour depends is left alone: annotations, texts, what an error is made of,
logging. So are values of modules and classes and default arguments, as only bodies can be replaced
in a process that has imported everything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
LOGGED = ("_log", "log", "_logger", "logger", "logging")


class Unit(NamedTuple):
    """Names the code of a function or method by what stays the same when its body changes."""

    path: str
    name: str
    line: int


@dataclass(frozen=True)
class Mutant:
    unit: Unit
    lines: range  # from the start of the statement to the change
    change: str
    tree: ast.Module
    holder: ast.AST
    field: str
    index: int | None  # in the holder's list
    new: ast.AST

    @property
    def key(self) -> str:
        """Its name in the list of survivors, without a line number, which other changes move."""
        return f"{self.unit.path} {self.unit.name}: {self.change}"

    def code(self) -> CodeType:
        """The code of the changed function."""
        old = self._put(self.new)
        try:
            module = compile(self.tree, str(ROOT / self.unit.path), "exec", dont_inherit=True)
        finally:
            self._put(old)
        return codes(module, self.unit.path)[self.unit]

    def _put(self, node: ast.AST) -> ast.AST:
        value = getattr(self.holder, self.field)
        if self.index is None:
            setattr(self.holder, self.field, node)
            return value  # type: ignore[no-any-return]
        old: ast.AST = value[self.index]
        value[self.index] = node
        return old


def codes(module: CodeType, path: str) -> dict[Unit, CodeType]:
    """The code of each function and method; nested code belongs to the outer function."""
    found: dict[Unit, CodeType] = {}
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            unit = Unit(path, constant.co_qualname, constant.co_firstlineno)
            found[unit] = constant
            found |= {} if "<locals>" in unit.name else codes(constant, path)
    return found


def mutants_of(path: str) -> list[Mutant]:
    """All mutants of a file of the repository; equal ones in a function are numbered."""
    tree = ast.parse((ROOT / path).read_text())
    found: dict[str, Mutant] = {}
    for name, function in functions(tree):
        line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for holder, field, index, old, lines in places(function):
            for text, new in changes(old, field):
                change, count = text, 1
                while f"{path} {name}: {change}" in found:
                    count += 1
                    change = f"{text} ({count})"
                ast.fix_missing_locations(ast.copy_location(new, old))
                unit = Unit(path, name, line)
                mutant = Mutant(unit, lines, change, tree, holder, field, index, new)
                found[mutant.key] = mutant
    return list(found.values())


def sample(paths: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Draw `count` mutants by a seed, in the order of the files.

    Each is drawn by its own key, so changes to other code do not affect it.
    """
    every = [mutant for path in paths for mutant in mutants_of(path)]
    draws = [sha256(f"{seed} {mutant.key}".encode()).digest() for mutant in every]
    chosen = sorted(range(len(every)), key=draws.__getitem__)[:count]
    return [every[place] for place in sorted(chosen)]


def functions(tree: ast.Module | ast.ClassDef, within: str = "") -> Iterator[tuple[str, Function]]:
    for node in tree.body:
        if isinstance(node, Function):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")


def places(
    node: ast.AST, begins: int = 0
) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, range]]:
    """Every node below this one that may be changed, with its holder, field, place and lines."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(
            node, ast.Call
        ):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or is_idle(child):
                continue
            line = getattr(child, "lineno", begins)
            first = line if isinstance(child, ast.stmt | ast.ExceptHandler) else begins
            at = index if isinstance(value, list) else None
            yield node, field, at, child, range(first, line + 1)
            if not isinstance(child, ast.Raise):
                yield from places(child, first)


def is_idle(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        return isinstance(function, ast.Attribute) and ast.unparse(function.value) in LOGGED
    return isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom)


def changes(node: ast.AST, field: str) -> Iterator[tuple[str, ast.AST]]:
    """Each change of one node: its description, and the node that replaces it.

    Dropped code stays as code that is never reached, so the function keeps all of its names.
    """
    was = ast.unparse(node).split("\n")[0]
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield f"drop {was}", ast.If(ast.Constant(False), [node], [])
        case ast.Return(value=ast.expr() as value) if was != "return None":
            nothing = ast.IfExp(ast.Constant(True), ast.Constant(None), value)
            yield f"{was} -> return None", ast.Return(nothing)
        case ast.Break():
            yield "break -> continue", ast.Continue()
        case ast.Continue():
            yield "continue -> break", ast.Break()
        case ast.ExceptHandler(body=body) if not isinstance(body[0], ast.Raise):
            again = ast.ExceptHandler(node.type, node.name, [ast.Raise(), *body])
            yield f"{was} -> raise", again
        case _:
            for new in expressions(node, field):
                yield f"{was} -> {ast.unparse(ast.fix_missing_locations(new))}", new


def expressions(node: ast.AST, field: str) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[first, *others], comparators=compared):
            for other in COMPARED[type(first)]:
                yield ast.Compare(left, [other(), *others], compared)
            for place, operator in enumerate(others):
                ops = [first, *others]
                ops[place + 1] = COMPARED[type(operator)][0]()
                yield ast.Compare(left, ops, compared)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(operator)](), right)
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in COMPUTED:
            yield ast.AugAssign(target, COMPUTED[type(operator)](), value)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Name() | ast.Attribute() | ast.Call() if field in {"test", "ifs", "values"}:
            yield ast.UnaryOp(ast.Not(), node)
