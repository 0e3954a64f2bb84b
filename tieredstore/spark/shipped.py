"""Functions that are pickled for a Spark process, which may lack the package or have another
version.

Spark 4.3 gives `--py-files` to all its Python processes except the one that plans a stream, which
runs on the driver. What is pickled for that one carries these functions by value, and the path of
the package on the driver's machine. They run before anything of the package is unpickled.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def revived(place: str, options: dict[str, str], version: str) -> DataSource:
    """The source with these options, from the installed package or else from the one at `place`."""
    if importlib.util.find_spec("tieredstore") is None:
        sys.path.append(place)
    made: DataSource = _found("tieredstore.spark.source", "TierDataSource", version)(options)
    return made


class Shipped:
    """What a worker unpickles first for a read or a write. It checks the package.

    Partitions do not check it again: the functions below are 2 kB.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        kind, version = type(self), importlib.import_module("tieredstore").__version__
        return empty, (kind.__module__, kind.__qualname__, version), self.__getstate__()


def empty(module: str, name: str, version: str) -> Any:
    """An object of this class without its state, which is unpickled next."""
    kind = _found(module, name, version)
    return kind.__new__(kind)


def _found(module: str, name: str, version: str) -> Any:
    # Use only the arguments here: nothing of the package can be used before it is found.
    try:
        here = importlib.import_module("tieredstore").__version__
        if here != version:
            raise ImportError(f"its tieredstore is {here}, and the driver's is {version}")
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise ImportError(
            f"a process of Spark cannot read the tier: {error}; install tieredstore with its extra"
            f" spark for {sys.executable}, or name another interpreter by PYSPARK_PYTHON"
        ) from None


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
