"""The messages of apache.rocketmq.v2, whose code PyPI's `rocketmq-python-client` ships.

Importing that package starts most of a client: a log file in the home folder, and everything for
its metrics. Only its `grpc_protocol` is imported here, which needs grpcio and protobuf.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from tieredstore import InvalidConfigError

_PACKAGE = "rocketmq"
_HOW = "want `pip install grpcio protobuf` and `pip install --no-deps rocketmq-python-client`"


def load() -> tuple[Any, Any, Any]:
    """The modules `grpc`, definitions and services. Raises InvalidConfigError."""
    if _PACKAGE not in sys.modules:
        found = importlib.util.find_spec(_PACKAGE)
        if found is None or found.submodule_search_locations is None:
            raise InvalidConfigError(f"gRPC: there is no {_PACKAGE}; {_HOW}")
        # Created, but never executed.
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(found)
    try:
        importlib.import_module("grpc.aio")
        return (
            importlib.import_module("grpc"),
            importlib.import_module("rocketmq.grpc_protocol.definition_pb2"),
            importlib.import_module("rocketmq.grpc_protocol.service_pb2"),
        )
    except ImportError as error:
        raise InvalidConfigError(f"gRPC: {error}; {_HOW}") from error
