"""Formats counts and sizes for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def shown_size(size: float, *, exact: bool = False) -> str:
    """A size in units of 1024; with `exact`, in single bytes."""
    if exact:
        return counted(int(size), "byte")
    amount, unit = float(size), "B"
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.1f} {unit}"


def counted(count: int, what: str) -> str:
    """A count with its noun: `1 queue`, `1,234 queues`."""
    plural = f"{what[:-1]}ies" if what.endswith(("dy", "ry")) else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
