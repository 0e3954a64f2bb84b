"""Machines that forget what was not synced, and a bucket whose requests come late, twice or never.

At every step of a machine's disk and every request to the bucket the scheduler may let another
actor run, a process may die, and a fault may happen.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import pytest

from tests.roundlog.parked_client import (
    GO,
    IN_VAIN,
    LAST,
    LATE,
    LOST,
    REFUSED,
    TWICE,
    ParkedClient,
)
from tests.simulation.scheduler import Process, Scheduler
from tieredstore.driver import durable
from tieredstore.driver.object_client import ListedKey
from tieredstore.model.errors import TieredStoreError
from tieredstore.testing.disk import STEPS, Crash, ForgetfulDisk
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LOOKS: Final = ("open", "pread", "scandir", "listdir", "stat")
"""What another process may have changed just before; nothing is forgotten of them."""
SECTORS: Final = (512, 4096)
"""A smaller piece could be lost of a record's head, which no checksum covers."""
PAGES: Final = (2, 5, 1_000)  # keys of one answer
LANDS_MS: Final = 20 * 60_000  # no request lands later than this


class Machine:
    """A folder on a disk that forgets; `used_percent` is how full the disk seems."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._world = str(folder.parent)
        self.used_percent = 50
        self.is_full = False  # if so, steps that need room fail
        self.lies = 0  # how many further steps fail with an input/output error
        self.is_hasty = False  # if so, reads and writes do only a part of what was asked
        folder.mkdir(parents=True)
        self.free_locks()
        self.disk = ForgetfulDisk(folder)

    def holds(self, arguments: tuple[Any, ...]) -> bool:
        """Whether the first argument is a descriptor, or a path of a machine."""
        place = arguments[0] if arguments else ""
        return type(place) is int or str(place).startswith(self._world)

    def lose_power(self, dice: Random) -> None:
        """Keep what was synced, and of each later change perhaps a part."""
        after = self.folder.with_name(f"{self.folder.name}-after")
        self.disk.cut(after, dice, pieces=SECTORS)
        shutil.rmtree(self.folder)
        after.rename(self.folder)
        self.disk = ForgetfulDisk(self.folder)

    def free_locks(self) -> None:
        """Its process has died: forget what the process knew and held."""
        durable._durable_directories.clear()
        for path in [each for each in durable._held if each.startswith(f"{self.folder}/")]:
            durable._held.discard(path)


class Disks:
    """Directs every call of `os` by an actor to the machine of its process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.fails: Callable[[Machine, str], None] = lambda machine, name: None
        self._is_noting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, self._step(name, getattr(os, name)))
            for name in LOOKS:
                patch.setattr(os, name, self._look(name, getattr(os, name)))
            patch.setattr(shutil, "disk_usage", self._usage)
            yield

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Calls in this block are not steps of an actor."""
        self._is_noting = True
        try:
            yield
        finally:
            self._is_noting = False

    def _machine(self) -> Machine | None:
        actor = self._scheduler.running
        return None if actor is None or self._is_noting else actor.process.place

    def _look(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **named: Any) -> Any:
            machine = self._machine()
            if machine is None or not machine.holds(arguments):  # a module that is imported, say
                return real(*arguments, **named)
            self._scheduler.pause(name)
            found = real(*arguments, **named)
            return self._part_of(machine, found) if name == "pread" else found

        return look

    def _step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            machine = self._machine()
            if machine is None:
                return real(*arguments, **named)
            self._scheduler.pause(name)
            self.fails(machine, name)
            if name == "pwrite":
                descriptor, data, position = arguments
                arguments = descriptor, self._part_of(machine, data), position
            result = real(*arguments, **named)
            if name in {"fsync", "fdatasync"}:
                with self.unseen():
                    machine.disk.note_sync(arguments[0])
            return result

        return step

    def _part_of(self, machine: Machine, data: Any) -> Any:
        """All of the data, or less on a hasty machine: a system may do less than asked."""
        if not machine.is_hasty or len(data) < 2:
            return data
        return bytes(data)[: self._scheduler.dice.randrange(1, len(data) + 1)]

    def _usage(self, path: object) -> Any:
        machine = self._machine()
        used = 50 if machine is None else machine.used_percent
        return SimpleNamespace(total=100, used=used, free=100 - used)


NEEDS_ROOM: Final = frozenset({"pwrite", "write", "ftruncate", "posix_fallocate", "mkdir", "link"})


class Bucket:
    """An object store's service, and the requests still in flight to it."""

    def __init__(self, scheduler: Scheduler, dice: Random) -> None:
        self.scheduler, self.dice = scheduler, dice
        self.late: list[tuple[int, str, Callable[[], Any]]] = []
        self.pages_lists = False  # a listing takes several requests
        self.odds: float = 0.0  # that something happens to a request
        self.until = {"503": 0.0, "403": 0.0}  # until when every request is answered like this
        self.is_sound = False  # faults have stopped
        self.ends: Callable[[str], None] | None = None  # ends a process after a request landed
        self.may_end: Callable[[Process], bool] = lambda process: False

    def client(self, objects: MemoryObjects) -> SimClient:
        running = self.scheduler.running
        assert running is not None
        return SimClient(self, objects, running.process)

    def land_one(self) -> None:
        """Let one of the late requests land now, unless it is too late."""
        if self.late:
            sent_ms, name, call = self.late.pop(self.dice.randrange(len(self.late)))
            if self.scheduler.clock.passed_ms - sent_ms < LANDS_MS:
                self.scheduler.note(f"late: {name}")
                with suppress(TieredStoreError):
                    call()


class SimClient(ParkedClient):
    """One process in front of the bucket."""

    def __init__(self, bucket: Bucket, objects: MemoryObjects, process: Process) -> None:
        super().__init__(MemoryObjectClient(objects))
        self._bucket, self._process = bucket, process

    def _verdict(self, request: str, *, changes: bool) -> str:
        bucket = self._bucket
        scheduler = bucket.scheduler
        if self._process.is_dead:  # called by a finalizer
            raise Crash(request)
        scheduler.pause(request)
        if bucket.is_sound:
            return GO
        if bucket.late and bucket.dice.random() < 0.05:
            bucket.land_one()
        verdict = GO
        if scheduler.clock.monotonic() < bucket.until["503"]:
            verdict = IN_VAIN
        elif scheduler.clock.monotonic() < bucket.until["403"]:
            verdict = REFUSED
        elif bucket.dice.random() < bucket.odds:
            unusual = [LOST, IN_VAIN, LATE, TWICE]
            if bucket.may_end(self._process):
                unusual.append(LAST)
            verdict = bucket.dice.choice(unusual if changes else [LOST])
        scheduler.note(f"{request}: {verdict}")
        return verdict

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        """Page by page, as a store lists: others run in between, and any page may fail."""
        dice = self._bucket.dice
        size = dice.choice(PAGES) if self._bucket.pages_lists else PAGES[-1]
        while True:
            listed = partial(self.inner.list, prefix, after=after)
            page = self._request(f"LIST {prefix}", lambda: list(islice(listed(), size)))  # noqa: B023
            yield from page
            if len(page) < size:
                return
            after = page[-1].key

    def _lands_later(self, request: str, call: Callable[[], Any]) -> None:
        bucket = self._bucket
        bucket.late.append((int(bucket.scheduler.clock.passed_ms), request, call))

    def _ends(self) -> NoReturn:
        assert self._bucket.ends is not None
        self._bucket.ends("its last request")
        self._bucket.scheduler.pause("the end")
        raise AssertionError("it goes on")


def refuse_for_room(machine: Machine, name: str) -> None:
    if machine.is_full and name in NEEDS_ROOM:
        raise OSError(errno.ENOSPC, "no space left on device")
    if machine.lies and name in STEPS:
        machine.lies -= 1
        raise OSError(errno.EIO, f"{name} failed")


def process_on(machine: Machine | None, name: str) -> Process:
    return Process(name, machine)
