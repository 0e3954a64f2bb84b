"""Shows the progress of long work on stderr: on a terminal one line that is redrawn, elsewhere a
line every half minute.

Bytes and places come from the metrics of the backend, totals from the job. Work that takes less
than a second shows nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from tieredstore.model.amounts import shown_size

if TYPE_CHECKING:  # help must be fast
    from tieredstore.driver.metrics import GaugeRead, Labels, Metric
    from tieredstore.driver.runtime import Clock
    from tieredstore.jobs.job import Progress

LOG_SECONDS: Final = 30.0
FIRST_SECONDS: Final = 1.0  # also the pause after a row: rows that come fast show progress enough
TICK_MS: Final = 250
_SAMPLE_SECONDS: Final = 1.0
_SAMPLES_MAX: Final = 30  # the rate is measured over as many seconds
_ERASE: Final = "\r\x1b[K"
_MESSAGES: Final = "rocketmq_tiered_store_messages_dispatch_total"

_GO_ON: Final = "run it again to go on"
_AGAIN: Final = "nothing was changed"
# What remains of a run that was interrupted, and what to do.
_INTERRUPTED: Final = {
    **dict.fromkeys(("migrate", "export", "reindex", "offload", "expire"), _GO_ON),
    **dict.fromkeys(("verify", "cost", "report"), _AGAIN),
    **dict.fromkeys(("audit", "rebuild", "recover", "certify"), "run it again"),
    "put": "what was put and synced before stays",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line, and whether only its result is wanted."""

    words: Sequence[str] = ()
    quiet: bool = True

    @property
    def verb(self) -> str:
        """The first word that is no option; some options may stand before it."""
        return next((word for word in self.words if not word.startswith("-")), "tieredstore")

    def with_word(self, option: str) -> str:
        """The same command with one more option, to be pasted into a shell."""
        return shlex.join(["tieredstore", *self.words, option])

    @property
    def interrupted(self) -> str:
        """The line to print after Ctrl-C."""
        what_now = _INTERRUPTED.get(self.verb)
        return f"interrupted; {what_now}" if what_now else "interrupted"


class Work:
    """What has been done so far, and the line about it.

    It takes metrics, and the progress of a job. Any thread may report to it; only `tick` decides
    whether to print.
    """

    def __init__(self, verb: str, out: TextIO, clock: Clock, *, on_terminal: bool) -> None:
        self._verb = verb
        self._out = out
        self._clock = clock
        self._on_terminal = on_terminal
        self._guard = threading.Lock()
        self._begun = self._said = self._row_at = clock.monotonic()
        self._is_drawn = False
        self._read = self._written = 0
        self._bytes_total = self._bytes_before = self._bytes_most = 0
        self._done, self._total, self._noun = 0, 0, ""
        self._where = ""
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=_SAMPLES_MAX)

    # Reports from others

    def of_job(self, progress: Progress) -> None:
        """Items and bytes of a job. A changed total means its next step."""
        with self._guard:
            total = progress.items_total, progress.bytes_total
            if total != (self._total, self._bytes_total):
                self._total, self._bytes_total = total
                self._bytes_most = 0
                self._bytes_before = self._moved
                self._samples.clear()
            self._done, self._noun = progress.items_done, "parts"
            self._bytes_most = max(self._bytes_most, progress.bytes_done)

    def of_messages(self, waiting: int) -> None:
        """Set how many messages are still to be done; 0: unknown."""
        with self._guard:
            self._total, self._noun = self._done + waiting if waiting else 0, "messages"

    def did(self, messages: int, size: int = 0) -> None:
        with self._guard:
            self._done += messages
            self._written += size

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        if metric.name == _MESSAGES:
            self.did(amount)

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        if metric.unit != "bytes":
            return
        with self._guard:
            if labels["operation"] == "write":
                self._written += int(value)
            else:
                self._read += int(value)
            self._where = labels["path"]

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        pass

    def forget(self, label: str, values: Collection[str]) -> None:
        pass

    # Output

    def tick(self) -> None:
        """Print the progress, if it is time for that. Called a few times a second."""
        with self._guard:
            now = self._clock.monotonic()
            self._sample(now)
            if self._on_terminal:
                if now - max(self._begun, self._row_at) >= FIRST_SECONDS:
                    self._is_drawn = True
                    self._write(_ERASE + _cut(self._text(now), _columns(self._out) - 1))
            elif now - self._said >= LOG_SECONDS:
                self._said = now
                self._write(f"tieredstore: {self._text(now)}\n")

    def make_room(self) -> None:
        """Erase the line, as another line is about to be written on this terminal."""
        if not self._on_terminal:
            return
        with self._guard:
            self._row_at = self._clock.monotonic()
            if self._is_drawn:
                self._is_drawn = False
                self._write(_ERASE)

    @property
    def _moved(self) -> int:
        """Bytes written, if any: they say more than bytes read, some of which are only compared."""
        return self._written or self._read

    def _bytes_done(self) -> int:
        moved = self._moved - self._bytes_before
        if self._bytes_total:
            moved = min(self._bytes_total, moved)
        self._bytes_most = max(self._bytes_most, moved)
        return self._bytes_most

    def _share(self) -> float | None:
        """How much is done, from 0 to 1; None if the total is unknown."""
        if self._bytes_total:
            return self._bytes_done() / self._bytes_total
        return min(1.0, self._done / self._total) if self._total else None

    def _sample(self, now: float) -> None:
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, self._bytes_done(), self._share() or 0.0))

    def _text(self, now: float) -> str:
        size, share = self._bytes_done(), self._share()
        since, size_then, share_then = self._samples[0]
        seconds = now - since
        parts = []
        if self._bytes_total:
            parts.append(f"{shown_size(size)} of {shown_size(self._bytes_total)}")
        elif size:
            parts.append(shown_size(size))
        if self._noun and (self._total or self._done):
            of_total = f" of {self._total:,}" if self._total else ""
            parts.append(f"{self._done:,}{of_total} {self._noun}")
        if share is not None:
            parts.append(f"{int(share * 100)}%")
        if seconds > 0 and size > size_then:
            parts.append(f"{shown_size((size - size_then) / seconds)}/s")
        if share is None:
            parts.append(span_text(now - self._begun))
        elif self._total and self._done >= self._total:
            parts.append("ending")
        elif seconds > 0 and share > share_then:
            left = (1.0 - share) * seconds / (share - share_then)
            parts.append(f"{span_text(left)} left")
        if self._where:
            parts.append(self._where)
        text = f"{self._verb}: {', '.join(parts)}"
        return text if text.isprintable() else ascii(text)[1:-1]

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads stderr, or it is closed
            self._out.write(text)
            self._out.flush()


_asked = Asked()
_shown: Work | None = None


@contextmanager
def asked(words: Sequence[str], *, quiet: bool) -> Iterator[Asked]:
    """Set the command line for the time of the block."""
    global _asked
    before, _asked = _asked, Asked(words=tuple(words), quiet=quiet)
    try:
        yield _asked
    finally:
        _asked = before


def command_line() -> Asked:
    """The command line that is being run."""
    return _asked


@contextmanager
def shown_work(clock: Clock | None = None) -> Iterator[Work]:
    """Work whose progress is shown during the block. A nested block shares the outer one's work."""
    global _shown
    from tieredstore.driver.runtime import SystemClock, ThreadService

    if _shown is not None:
        yield _shown
        return
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    work = Work(_asked.verb, sys.stderr, clock or SystemClock(), on_terminal=on_terminal)
    if _asked.quiet:
        yield work
        return
    _shown = work
    service = ThreadService("progress", work.tick, TICK_MS)
    try:
        yield work
    finally:
        service.stop()
        _shown = None
        work.make_room()


def make_room(out: TextIO) -> None:
    """Called before a line is written to what may be the same terminal."""
    if _shown is not None and out.isatty():
        _shown.make_room()


def span_text(seconds: float) -> str:
    for unit, length, least in (("days", 86_400, 2), ("h", 3_600, 2), ("min", 60, 2)):
        if seconds >= least * length:
            value = seconds / length
            return f"{value:,.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _columns(out: TextIO) -> int:
    """The current width of the terminal."""
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _cut(text: str, columns: int) -> str:
    """Cut the end of the text; wide characters count twice."""
    if text.isascii():
        return text[:columns]
    from rich.cells import set_cell_size

    return set_cell_size(text, columns).rstrip()
