"""Conditions as RocketMQ's consumers write them, some odd or wrong, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

NAMES = ["a", "b", "A", "TAGS", "absent", "$x_1"]
VALUES = [
    *["", "x", "red", "TAGS", "it's", "true", "TRUE", "false", "ü", "5 ", " 5", "+5", "-5", "5.0"],
    *["0", "-0", "5", "7", "007", "2147483647", "2147483648", "-2147483648", "9223372036854775807"],
    *["9223372036854775808", "1e3", "1E400", "-1e400", "5f", "5d", "0x1p3", "0X.8P-1", "NaN"],
    *["Infinity", "-Infinity", "infinity", "1_0", "٥", "-", ".5", "5.", "."],
]
NUMBERS = [
    *["0", "5", "7", "5L", "2147483647", "2147483648", "9223372036854775807l", "5.0", ".5", "5."],
    *[
        "1e3",
        "1E+2",
        "1.5e-3",
        "9223372036854775808",
        "1e400",
        "2e308",
        "007",
        "1.7976931348623157E308",
    ],
]
SIGNS = ["=", "<>", ">", ">=", "<", "<="]
DAMAGE = [" ", "(", ")", "'", "!", "!=", "--", "/*", ",", "NOT", "AND", "IS", "NULL", "1", "x", "-"]


class _Drawn:
    """One random condition; deep parts are simple."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def word(self, text: str) -> str:
        return self.dice.choice([text, text, text.lower(), text.title()])

    def space(self) -> str:
        return self.dice.choice([" "] * 8 + ["  ", "\n", " /* c * / */ ", " -- c\n"])

    def text(self) -> str:
        value = self.dice.choice(VALUES)
        return "'" + value.replace("'", "''") + "'"

    def operand(self, depth: int) -> str:
        kind = self.dice.randrange(12)
        if kind < 6:
            return self.dice.choice(NAMES)
        if kind < 8:
            return self.dice.choice(NUMBERS)
        if kind < 9:
            return self.text()
        if kind < 10 and depth:
            return f"({self.condition(depth - 1)})"
        if kind < 11:
            return self.dice.choice(["-", "- ", "+"]) + self.operand(depth)
        return self.word(self.dice.choice(["TRUE", "FALSE", "NULL"]))

    def plain(self, depth: int) -> str:
        """Mostly a valid comparison."""
        left, space = self.operand(depth), self.space()
        kind = self.dice.randrange(10)
        is_not = self.word("NOT") + " " if self.dice.random() < 0.4 else ""
        if kind < 5:
            return f"{left}{space}{self.dice.choice(SIGNS)}{self.space()}{self.operand(depth)}"
        if kind < 6:
            return f"{left} {self.word('IS')}{space}{is_not}{self.word('NULL')}"
        if kind < 7:
            texts = ", ".join(self.text() for _ in range(self.dice.randrange(1, 7)))
            return f"{left} {is_not}{self.word('IN')}{space}({texts})"
        if kind < 8:
            low, high = self.operand(depth), self.operand(depth)
            return f"{left} {is_not}{self.word('BETWEEN')} {low} {self.word('AND')} {high}"
        if kind < 9:
            search = self.word(self.dice.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"]))
            return f"{left} {is_not}{search}{space}{self.text()}"
        return left

    def condition(self, depth: int) -> str:
        kind = self.dice.randrange(8)
        if depth == 0 or kind < 4:
            return self.plain(depth)
        if kind < 5:
            return f"{self.word('NOT')} {self.condition(depth - 1)}"
        if kind < 6:
            return f"({self.condition(depth - 1)}){self.space()}{self.dice.choice(['', 'IS NULL'])}"
        words = [
            self.word(self.dice.choice(["AND", "OR"])) for _ in range(self.dice.randrange(1, 4))
        ]
        parts = [self.condition(depth - 1) for _ in range(len(words) + 1)]
        return parts[0] + "".join(f" {w} {part}" for w, part in zip(words, parts[1:], strict=True))


def questions(seed: int, count: int, *, messages: int = 6) -> Iterator[dict[str, Any]]:
    """Conditions, each with the properties of some messages."""
    dice = random.Random(seed)
    drawn = _Drawn(dice)
    for _ in range(count):
        sql = drawn.condition(dice.randrange(4))
        if dice.random() < 0.1:
            at = dice.randrange(len(sql) + 1)
            sql = sql[:at] + dice.choice(DAMAGE) + sql[at + dice.randrange(2) :]
        names = [name for name in NAMES if name != "absent"]
        properties = [
            {name: dice.choice(VALUES[1:]) for name in names if dice.random() < 0.7}
            for _ in range(messages)
        ]
        yield {"sql": sql, "properties": properties}
