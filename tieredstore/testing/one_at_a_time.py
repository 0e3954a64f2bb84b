"""A WSGI application that is asked one thing at a time.

What lives here: `one_at_a_time`, for a server in memory that looks and writes in two steps, as moto
does: of many that make one object at the same moment two may win there.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


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
