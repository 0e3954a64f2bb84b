"""Processes that write one tier in a bucket are killed, stalled and overtaken by the next one,
while the server repeats requests that make or delete objects, at any later time.

Whatever was acknowledged is there, readers see one history, and an overtaken writer says so.
"""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from werkzeug.serving import make_server

from tests.loopback import running
from tests.s3.killed_writer import BROKER, QUEUES, TYPES, body, config, path_of
from tests.s3_places import Place
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import S3Provider
from tieredstore.testing.memory_objects import moto_application

ROOT: Final = Path(__file__).parents[2]
SECONDS_MAX: Final = 120.0  # for a process to end
REPEATED: Final = 0.15  # share of the requests that change something
HELD_MAX: Final = 200


class Repeating:
    """A WSGI application in front of moto's that delivers some requests again, much later."""

    def __init__(self, inner: Any, seed: int) -> None:
        self._inner = inner
        self._dice = random.Random(seed)
        self._guard = threading.Lock()
        self._held: list[tuple[dict[str, Any], bytes]] = []
        self._has_held = False
        self.repeated = 0

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "DELETE", "POST"):
            answered: Iterable[bytes] = self._inner(environ, start)
            return answered
        read = environ["wsgi.input"].read
        chunked = environ.get("wsgi.input_terminated")
        data = read() if chunked else read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(data)
        with self._guard:
            is_held = self._dice.random() < REPEATED or not self._has_held
            if is_held and len(self._held) < HELD_MAX:
                self._held.append((dict(environ), data))
                self._has_held = True
            late = [] if self._dice.random() > REPEATED else self._taken(1)
        answer = b"".join(self._inner(environ, start))
        self._deliver(late)
        return [answer]

    def deliver_all(self) -> None:
        """Deliver all held requests again, as if days had passed."""
        with self._guard:
            late = self._taken(len(self._held))
        self._deliver(late)

    def _taken(self, count: int) -> list[tuple[dict[str, Any], bytes]]:
        self._dice.shuffle(self._held)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _deliver(self, late: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        for environ, data in late:
            again = {**environ, "wsgi.input": io.BytesIO(data)}
            b"".join(self._inner(again, lambda *_: None))
            self.repeated += 1


class Process:
    """One writer process, and what it said."""

    def __init__(self, endpoint: str, bucket: str, client: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.s3.killed_writer", endpoint, bucket, client]
        self._process = subprocess.Popen(
            [*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.is_fenced = False
        self.has_claimed = False

    def read(self, count: int) -> list[list[int]]:
        """The acknowledged bytes that its next `count` lines report; fewer lines at its end."""
        told: list[list[int]] = []
        for _ in range(count):
            line = self._lines.readline()
            if not line:
                break
            told += self._told(line)
        return told

    def stall(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> list[list[int]]:
        self._process.kill()
        return self.end()

    def end(self) -> list[list[int]]:
        """What it still reports until it ends."""
        out, _ = self._process.communicate(timeout=SECONDS_MAX)
        return [each for line in out.splitlines() for each in self._told(line + b"\n")]

    def _told(self, line: bytes) -> Iterator[list[int]]:
        words = line.decode().split()
        assert line.endswith(b"\n"), line
        assert words[0] in ("A", "C", "F"), line
        self.has_claimed = self.has_claimed or words[0] == "C"
        self.is_fenced = self.is_fenced or words[0] == "F"
        if words[0] == "A":
            yield [int(word) for word in words[1:]]


class History:
    """One bucket, and what was acknowledged in it."""

    def __init__(self, place: Place, server: Repeating, client: str, seed: int) -> None:
        self._place = place
        self._server = server
        self._client = client
        self._dice = random.Random(seed)
        self._acknowledged: list[list[int]] = []

    def run(self, lives: int) -> None:
        alive: Process | None = None
        for _ in range(lives):
            new = self._begun()
            if alive is not None:  # it was stalled, and wakes up beside its successor
                alive.go_on()
                self._acknowledged += alive.end()
                assert alive.is_fenced
                alive = None
            self._acknowledged += new.read(self._dice.randrange(200))
            if self._dice.random() < 0.5:
                self._acknowledged += new.kill()
            else:
                new.stall()
                alive = new
            self._server.deliver_all()
            self.check()
        last = self._begun()
        if alive is not None:
            alive.go_on()
            self._acknowledged += alive.end()
            assert alive.is_fenced
        self._acknowledged += last.read(20)
        self._acknowledged += last.kill()
        self._server.deliver_all()
        self.check()

    def _begun(self) -> Process:
        """A new writer that has claimed the tier."""
        settings = self._place.settings
        new = Process(
            settings.endpoint or "", settings.bucket, self._client, self._dice.randrange(1 << 30)
        )
        self._acknowledged += new.read(1)
        assert new.has_claimed
        return new

    def check(self) -> None:
        """Check that a reader elsewhere finds all that was acknowledged."""
        settings = self._place.settings
        runtime = Runtime.threads()
        found = config(settings.endpoint or "", settings.bucket, self._client)
        with runtime, S3Provider.from_config(found, runtime) as provider:
            held = {
                (queue, kind): self._bytes_of(provider, queue, kind)
                for queue in range(QUEUES)
                for kind in TYPES
            }
        for queue, type_number, start, length, seed in self._acknowledged:
            there = held[queue, SegmentType(type_number)][start : start + length]
            assert there == body(seed, length), (queue, type_number, start)

    def _bytes_of(self, provider: S3Provider, queue: int, kind: SegmentType) -> bytes:
        """A queue's bytes; check that its segments have no gap and that the catalogue agrees."""
        catalogue = provider.catalogue(BROKER, read_only=True)
        listed = [each for each in provider.list(path_of(queue)) if each.type is kind]
        listed.sort(key=lambda each: each.base)
        pieces, end = [], 0
        for each in listed:
            assert each.base == end
            with provider.open(each.path, kind, each.base) as segment:
                pieces.append(segment.read(0, each.size))
            row = None if catalogue is None else catalogue.segment(each.path, kind, each.base)
            assert row is not None
            assert row.size == each.size
            end += each.size
        return b"".join(pieces)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(3, 200))]
)
def test_nothing_acknowledged_is_lost(s3_environment: None, seed: int) -> None:
    client = ("s3fs", "obstore")[seed % 2]
    server = Repeating(moto_application(), seed)
    with running(make_server("127.0.0.1", 0, server, threaded=True)) as endpoint:
        place = Place(endpoint, client)
        try:
            History(place, server, client, seed).run(2 + seed % 3)
        finally:
            place.close()
    assert server.repeated
