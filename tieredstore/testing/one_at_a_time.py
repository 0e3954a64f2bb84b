"""A WSGI application that is asked one thing at a time, and an S3 server to try a tier on.

What lives here: `one_at_a_time`, for a server in memory that looks and writes in two steps, as moto
does: of many that make one object at the same moment two may win there, and a tier refuses such a
store. And moto's server behind it, for tests and for a first try:

    python -m tieredstore.testing.one_at_a_time --port 9000
"""

from __future__ import annotations

import argparse
import io
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


log = logging.getLogger(__name__)


def one_at_a_time(application: WSGIApplication) -> WSGIApplication:
    """The same application; a request has its turn when all of its body has come."""
    turn = threading.Lock()

    def call(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"] = io.BytesIO(_body(environ))
        with turn:
            return application(environ, start)

    return call


def _body(environ: WSGIEnvironment) -> bytes:
    read: Callable[..., bytes] = environ["wsgi.input"].read
    if environ.get("wsgi.input_terminated"):  # the server itself ends it: a body in chunks too
        return read()
    return read(int(environ.get("CONTENT_LENGTH") or 0))


def moto_application() -> Any:
    """Moto's S3, one request at a time. It keeps everything in memory and takes any keys."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return one_at_a_time(DomainDispatcherApplication(create_backend_app))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve on 127.0.0.1 until it is interrupted; the address is one line on stderr."""
    from werkzeug.serving import make_server

    parser = argparse.ArgumentParser(description="An S3 server in memory, to try a tier on.")
    parser.add_argument("--port", type=int, default=9000, help="0: any that is free")
    port = parser.parse_args(arguments).port
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it logs each request
    with make_server("127.0.0.1", port, moto_application(), threaded=True) as server:
        log.info("http://127.0.0.1:%d", server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    main()
