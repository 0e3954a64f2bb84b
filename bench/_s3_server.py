"""A fast S3 server in its own process, for benchmarks: ministack, if it is installed.

It is not a dependency: TIEREDSTORE_BENCH_SERVER names a Python that has it (`pip install
ministack`); without that variable the running Python must have it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_SECONDS = 30.0


@contextmanager
def ministack() -> Iterator[str | None]:
    """The address of a server that ends with the block; None if ministack is not installed."""
    python = os.environ.get("TIEREDSTORE_BENCH_SERVER", sys.executable)
    asked = subprocess.run(
        [python, "-c", "import hypercorn, ministack"], capture_output=True, check=False
    )
    if asked.returncode:
        yield None
        return
    port = _free_port()
    environment = {
        **os.environ,
        "SERVICES": "s3",
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "ERROR",
        "GATEWAY_PORT": str(port),
    }
    environment.pop("PYTHONPATH", None)
    command = [python, "-m", "hypercorn", "ministack.app:app", "--bind", f"127.0.0.1:{port}"]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"ministack did not start on port {port}")
