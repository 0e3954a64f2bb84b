"""What a PromQL expression names: metrics with the labels they are selected by, and groupings.

`read` takes every name apart and evaluates nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTIONS = frozenset(
    [
        "absent",
        "avg",
        "clamp_max",
        "clamp_min",
        "count",
        "delta",
        "deriv",
        "histogram_quantile",
        "increase",
        "max",
        "min",
        "rate",
        "sum",
        "topk",
        "vector",
    ]
)
GROUPINGS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset"})

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<range>\[[^\]]*\])
      | (?P<number>\d[\w.+]*)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<match>=~|!~|!=|==|>=|<=|=)
      | (?P<other>\S)""",
    re.VERBOSE,
)


@dataclass(slots=True)
class Named:
    """`metrics` are pairs of a name and the labels in braces behind it."""

    metrics: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped_by: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # functions


def read(expression: str) -> Named:
    found = Named()
    tokens = [(str(each.lastgroup), each.group()) for each in _TOKEN.finditer(expression)]
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        place += 1
        following = tokens[place][1] if place < len(tokens) else ""
        if text == "{" and found.metrics:
            place, labels = _until(tokens, place, "}")
            found.metrics[-1][1].update(labels)
        elif kind != "name" or text in KEYWORDS:
            continue
        elif text in GROUPINGS and following == "(":
            place, labels = _until(tokens, place + 1, ")")
            found.grouped_by |= labels
        elif following == "(" or (following in GROUPINGS and text in FUNCTIONS):
            if text not in FUNCTIONS:
                found.unknown.add(text)
        else:
            found.metrics.append((text, set()))
    return found


def _until(tokens: list[tuple[str, str]], place: int, end: str) -> tuple[int, set[str]]:
    """The names up to a closing bracket, and the place behind it."""
    labels = set()
    while tokens[place][1] != end:
        if tokens[place][0] == "name":
            labels.add(tokens[place][1])
        place += 1
    return place + 1, labels
