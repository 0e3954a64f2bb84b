"""The version that was installed: the last tag's, or one that counts the commits since."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("tieredstore")
except PackageNotFoundError:  # a folder of sources in the search path, which nobody installed
    __version__ = "0.0"
