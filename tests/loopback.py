"""Servers for tests: they run on loopback and stop when a block ends."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running(server: socketserver.TCPServer, *, scheme: str = "http") -> Iterator[str]:
    """The address of a server that answers in its own thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    with server:
        thread.start()
        try:
            yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
