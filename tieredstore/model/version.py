"""The installed version: that of the last tag, or one that counts the commits since."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("tieredstore")
except PackageNotFoundError:  # sources in the search path that are not installed
    __version__ = "0.0"
