"""Packages of extras: if one is missing, one line says how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tieredstore.model.errors import InvalidConfigError


class MissingPackageError(InvalidConfigError, ImportError):
    """A package is not installed. The message names the extra that brings it."""


def missing(package: str, extra: str) -> MissingPackageError:
    """The error for a package that is not there."""
    return MissingPackageError(f"{package} is missing: pip install 'tieredstore[{extra}]'")


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around imports: what is missing in this block is brought by `extra`.

    Modules of tieredstore itself, and what these miss in turn, pass as they are.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name == "tieredstore":
            raise
        raise missing(name, extra) from error
