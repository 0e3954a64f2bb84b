"""Packages of extras: if one is missing, a one-line error says how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tieredstore.model.errors import InvalidConfigError


class MissingPackageError(InvalidConfigError, ImportError):
    """A package is not installed. The message names the extra that installs it."""


def missing(package: str, extra: str) -> MissingPackageError:
    """The error for a package that is not installed."""
    return MissingPackageError(f"{package} is missing: pip install 'tieredstore[{extra}]'")


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """For a block of imports: a missing package raises an error that names `extra`.

    Errors about missing modules of tieredstore itself pass unchanged, and so do those that its
    modules raise about missing packages.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name == "tieredstore":
            raise
        raise missing(name, extra) from error
