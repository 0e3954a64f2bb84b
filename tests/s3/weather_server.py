"""An S3 server in its own process, whose weather lines on its input change.

A program without tests. It writes its address first, and ends when its input ends. Each line of
the input is one of `WEATHERS`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from werkzeug.wrappers import Request, Response

from tests.s3.moto_server import BUSY, served
from tieredstore.testing.memory_objects import moto_application

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FINE: Final = "fine"
AWAY: Final = "away"  # every request fails
SLOW: Final = "slow"  # some requests take a second
WEATHERS: Final = (FINE, AWAY, SLOW)
SLOW_SECONDS: Final = 1.0
SLOW_SHARE: Final = 0.02


class Weather:
    """What a backend currently does to requests."""

    def __init__(self) -> None:
        self.now = FINE
        self._dice = random.Random(5)

    def is_away(self) -> bool:
        """Take the time that a request takes, and say whether it fails."""
        if self.now == SLOW and self._dice.random() < SLOW_SHARE:
            threading.Event().wait(SLOW_SECONDS)
        return self.now == AWAY


class Outside:
    """A WSGI application in front of moto's."""

    def __init__(self, inner: Any, weather: Weather) -> None:
        self._inner = inner
        self._weather = weather

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if not self._weather.is_away():
            return self._inner(environ, start)  # type: ignore[no-any-return]
        Request(environ).get_data()
        return Response(BUSY, 503, content_type="application/xml")(environ, start)


def main() -> None:
    weather = Weather()
    with served(Outside(moto_application(), weather)) as endpoint:
        print(endpoint, flush=True)
        for line in sys.stdin:
            assert line.strip() in WEATHERS, line
            weather.now = line.strip()


if __name__ == "__main__":
    main()
