"""Fifty threads on one store while its tier goes away, is slow, and the disk is full.

Puts never wait for the tier; memory, descriptors and threads stay bounded; in the end every
acknowledged message is there once. TORTURE_SECONDS in the environment sets the duration:

    TORTURE_SECONDS=600 make torture ARGS='-s tests/access/test_fifty_threads.py'
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.disk_with_room.sitecustomize import half_full
from tests.s3.weather_server import AWAY, FINE, SLOW, Weather
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import check_page
from tieredstore.testing.samples import a_message

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = float(os.environ.get("TORTURE_SECONDS") or 60)
TOPIC: Final = "Fifty"
WRITERS, READERS, BY_TIME, BY_KEY = 20, 20, 5, 5  # a queue for each writer
PUTS_A_SECOND: Final = 15  # of each writer
READS_A_SECOND: Final = 5
FULL: Final = "full disk"
PARTS: Final = {FINE: 0.25, AWAY: 0.25, SLOW: 0.2, FULL: 0.1, "fine again": 0.2}
THREADS_MAX: Final = 50 + 40
# Two for each of 256 local files, which OPEN_FILES allows, and connections.
OPEN_FILES: Final = 1_024
DESCRIPTORS_MAX: Final = 2 * 256 + 150
DESCRIPTORS_LEFT_MAX: Final = 100  # growth from the first part to the last
GROWTH_MAX_MB: Final = 150.0  # after the first part
PUT_SLACK_SECONDS: Final = 0.1  # how far two p99 of the same load differ on a busy machine


@dataclass(slots=True)
class Seen:
    """What was measured in one part of the run: puts, reads, and the peaks of the process."""

    puts: array[float] = field(default_factory=lambda: array("d"))
    refused: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    memory: float = 0.0
    heap: str = ""  # malloc's share of the memory at the end of the part
    descriptors: int = 0
    threads: int = 0

    @property
    def p99(self) -> float:
        return float(np.percentile(self.puts, 99)) if self.puts else 0.0


class WeatherFaults(Faults):
    """Applies the weather to every step of a provider."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self._weather = weather

    def next(self) -> Fault | None:
        return Fault.BEFORE if self._weather.is_away() else None


class Crowd:
    """The threads and their shared state: queue `n` holds the keys `n-0`, `n-1` and so on."""

    def __init__(self, store: TieredMessageStore) -> None:
        self.store = store
        self.ends = [0] * WRITERS
        self.part = Seen()
        self.wrong: list[BaseException] = []
        self.ended = threading.Event()
        self._begun_ms = time.time_ns() // 1_000_000

    def start(self) -> list[threading.Thread]:
        works: list[tuple[Callable[[random.Random], None], float]] = [
            *[(self._writer(number), PUTS_A_SECOND) for number in range(WRITERS)],
            *[(self.read, READS_A_SECOND)] * READERS,
            *[(self.by_time, READS_A_SECOND)] * BY_TIME,
            *[(self.by_key, READS_A_SECOND)] * BY_KEY,
        ]
        threads = [
            threading.Thread(target=self._run, args=(work, rate, seed))
            for seed, (work, rate) in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, work: Callable[[random.Random], None], rate: float, seed: int) -> None:
        dice = random.Random(seed)
        while not self.ended.wait(dice.random() * 2 / rate):
            try:
                work(dice)
            except BackendUnavailableError:
                self.part.reads["the tier is away"] += 1
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self.wrong.append(error)
                return

    def _writer(self, queue_id: int) -> Callable[[random.Random], None]:
        def put(dice: random.Random) -> None:
            number = self.ends[queue_id]
            properties = {"UNIQ_KEY": f"{queue_id}-{number}", "TAGS": "a"}
            message = a_message(
                topic=TOPIC,
                queue_id=queue_id,
                body_bytes=dice.randrange(100, 1_000),
                properties=properties,
            )
            part, begun = self.part, time.perf_counter()
            result = self.store.put_message(message)
            part.puts.append(time.perf_counter() - begun)
            if not result.stored:
                part.refused += 1
                return
            assert result.queue_offset == number
            self.ends[queue_id] += 1

        return put

    def _some(self, dice: random.Random) -> tuple[int, int]:
        queue_id = dice.randrange(WRITERS)
        return queue_id, self.ends[queue_id]

    def read(self, dice: random.Random) -> None:
        queue_id, end = self._some(dice)
        offset = dice.randrange(end + 1)
        page = self.store.get_message(TOPIC, queue_id, offset, count_max=32)
        check_page(page, offset, there=range(offset, end))
        self.part.reads["by offset"] += 1

    def by_time(self, dice: random.Random) -> None:
        queue_id, end = self._some(dice)
        now_ms = time.time_ns() // 1_000_000
        moment = dice.randrange(self._begun_ms, now_ms + 1)
        found = self.store.offset_by_time(TOPIC, queue_id, moment)
        assert found is None or 0 <= found <= self.ends[queue_id], (found, end)
        self.part.reads["by time"] += 1

    def by_key(self, dice: random.Random) -> None:
        queue_id, end = self._some(dice)
        if not end:
            return
        offset = dice.randrange(end)
        found = self.store.query_message(TOPIC, f"{queue_id}-{offset}")
        offsets = [one.queue_offset for one in found.messages]
        assert offsets == [offset] or not (offsets or found.complete), (offset, found)
        self.part.reads["by key" if found.complete else "by key, not complete"] += 1

    def check_all(self) -> None:
        """Every acknowledged message is there once, by offset and by key."""
        for queue_id, end in enumerate(self.ends):
            assert self.store.max_offset(TOPIC, queue_id) == end
            offset = 0
            while offset < end:
                page = self.store.get_message(TOPIC, queue_id, offset, count_max=32)
                check_page(page, offset, there=range(offset, end))
                for one in page.messages:
                    key = decode_message(one.record).unique_key
                    assert key == f"{queue_id}-{one.queue_offset}"
                offset = page.next_offset
            for offset in range(0, end, max(1, end // 10)):
                found = self.store.query_message(TOPIC, f"{queue_id}-{offset}")
                assert [one.queue_offset for one in found.messages] == [offset]


def watched(crowd: Crowd, seconds: float) -> Seen:
    """Run and measure the next part."""
    seen = crowd.part = Seen()
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0 and not crowd.wrong:
        crowd.ended.wait(min(left, 0.5))
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        anonymous = next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))
        seen.memory = max(seen.memory, anonymous)
        seen.descriptors = max(seen.descriptors, len(os.listdir("/proc/self/fd")))
        seen.threads = max(seen.threads, threading.active_count())
    seen.heap = heap()
    return seen


class Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, with names for three of its ten counts."""

    _fields_ = (
        *((f"_{number}", ctypes.c_size_t) for number in range(4)),
        ("mapped", ctypes.c_size_t),
        *((f"_{number}", ctypes.c_size_t) for number in range(5, 7)),
        ("used", ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("_9", ctypes.c_size_t),
    )


def heap() -> str:
    """What malloc has given out, and what it was given back and keeps. Python allocates its small
    objects elsewhere. Empty without glibc.
    """
    try:
        ask = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return ""
    ask.restype = Mallinfo
    found = ask()
    used = found.used + found.mapped
    return f" (malloc: {used / 1e6:.0f} used, {found.free / 1e6:.0f} free)"


def tier_config(root: Path, **place: Any) -> StoreConfig:
    return StoreConfig(
        broker_name="broker-a",
        store_path=str(root / "store"),
        commit_log_segment_bytes=2 * MIB,
        consume_queue_segment_bytes=20 * 500,
        group_commit_timeout_ms=500,
        dispatch_interval_ms=500,
        index_slot_count=500,
        index_item_count=4_000,
        read_cache_bytes=16 * MIB,
        certify="off",
        **place,
    )


def local_config(root: Path) -> LocalConfig:
    """Settings with which uploaded messages expire at once."""
    return LocalConfig(
        store_path=str(root / "store"),
        commit_log_file_bytes=MIB,
        queue_file_bytes=20 * 500,
        index_slot_count=500,
        index_item_count=4_000,
        reserve_hours=0,
        expiry_interval_ms=500,
        delete_count_max=20,
    )


@contextmanager
def log_in(path: Path) -> Iterator[None]:
    """Log to a file only, as a broker does: pytest would keep thousands of lines in the memory that
    is measured.
    """
    log = logging.getLogger("tieredstore")
    before, log.handlers, log.propagate = log.handlers, [logging.FileHandler(path)], False
    try:
        yield
    finally:
        log.handlers[0].close()
        log.handlers, log.propagate = before, True


def fifty(
    root: Path,
    store: Callable[[LocalMessageStore, Runtime], TieredMessageStore],
    change: Callable[[str], None],
    patch: pytest.MonkeyPatch,
) -> None:
    with log_in(root / "tieredstore.log"), Runtime.threads() as runtime:
        local = LocalMessageStore(local_config(root), runtime)
        tiered = store(local, runtime)
        tiered.load()
        tiered.start()
        crowd = Crowd(tiered)
        threads = crowd.start()
        parts: dict[str, Seen] = {}
        for name, share in PARTS.items():
            change(name if name in (AWAY, SLOW) else FINE)
            patch.setattr(shutil, "disk_usage", full if name == FULL else half_full)
            parts[name] = watched(crowd, SECONDS * share)
        crowd.ended.set()
        for thread in threads:
            thread.join()
        assert not crowd.wrong, crowd.wrong
        assert tiered.flush(seal=True)
        crowd.check_all()
        print(f"\n{sum(crowd.ends)} messages, {local.min_log_offset()} bytes expired")
        tiered.shutdown()
    gc.collect()
    for name, part in parts.items():
        print(
            f"{name}: {len(part.puts)} puts, p99 {part.p99 * 1e3:.1f} ms, "
            f"longest {max(part.puts, default=0.0) * 1e3:.0f} ms, {part.refused} refused; "
            f"{dict(part.reads)}; {part.memory:.0f} MB{part.heap}, {part.descriptors} descriptors, "
            f"{part.threads} threads"
        )
    check_parts(parts)


def full(path: int | str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Any:
    usage = half_full(path)
    return usage._replace(used=usage.total, free=0)


def check_parts(parts: dict[str, Seen]) -> None:
    calm = parts[FINE]
    for name, part in parts.items():
        assert part.p99 <= 2 * calm.p99 + PUT_SLACK_SECONDS, name
        assert part.memory <= calm.memory + GROWTH_MAX_MB, name
        assert part.descriptors <= DESCRIPTORS_MAX, name
        assert part.threads <= THREADS_MAX, name
        assert part.refused == 0 or name in (FULL, "fine again"), name
    assert parts["fine again"].descriptors <= calm.descriptors + DESCRIPTORS_LEFT_MAX
    assert parts[FULL].refused
    assert parts[AWAY].reads["by offset"]


@pytest.fixture(autouse=True)
def usual_limit() -> Iterator[None]:
    """Limit open files to the usual default of a system."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.torture
def test_over_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weather = Weather()

    def store(local: LocalMessageStore, runtime: Runtime) -> TieredMessageStore:
        config = tier_config(tmp_path, provider="posix", path=str(tmp_path / "tier"))
        faulty = FaultyProvider(
            PosixProvider(config.path, config.cluster_name, runtime),
            WeatherFaults(weather),
            runtime,
        )
        return TieredMessageStore(local, config, runtime=runtime, provider=faulty)

    fifty(tmp_path, store, lambda now: setattr(weather, "now", now), monkeypatch)


@contextmanager
def outside() -> Iterator[tuple[str, Callable[[str], None]]]:
    """Start a server in another process; yield its address and a call that changes its weather."""
    command = [sys.executable, "-m", "tests.s3.weather_server"]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    stdin = server.stdin

    def change(weather: str) -> None:
        stdin.write(weather + "\n")
        stdin.flush()

    try:
        yield server.stdout.readline().strip(), change
    finally:
        server.communicate()


@pytest.mark.torture
@pytest.mark.s3
def test_over_a_bucket(
    tmp_path: Path, s3_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outside() as (endpoint, change):
        asked = urllib.request.Request(f"{endpoint}/fifty", method="PUT")
        urllib.request.urlopen(asked, timeout=60).close()

        def store(local: LocalMessageStore, runtime: Runtime) -> TieredMessageStore:
            config = tier_config(tmp_path, provider="s3", endpoint=endpoint, bucket="fifty")
            return TieredMessageStore(local, config, runtime=runtime)

        fifty(tmp_path, store, change, monkeypatch)
