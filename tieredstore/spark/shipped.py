"""The source in a process of Spark that was not told where the package is.

Spark 4.3 gives `--py-files` to all its Python processes but the one that plans a stream, which runs
on the driver. What is pickled for it brings this function along, by value, and the path
of the package on the driver's machine.
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


def revived(place: str, options: dict[str, str]) -> DataSource:
    """The source with these options, from the package that is installed, or else from `place`.

    Nothing of this package can be used before it was found: this needs its arguments only.
    """
    if importlib.util.find_spec("tieredstore") is None:
        sys.path.append(place)
    try:
        source: Any = importlib.import_module("tieredstore.spark.source")
    except ImportError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise ImportError(
            f"a process of Spark cannot read the tier: {error}; install tieredstore with its extra"
            f" spark for {sys.executable}, or name another interpreter by PYSPARK_PYTHON"
        ) from None
    made: DataSource = source.TierDataSource(options)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
