"""A broker is killed while it puts, uploads, seals, expires, deletes a topic and reads, all at
once.

Every page must skip nothing that is there. The threads of the killed process check this, readers
beside it, and the next life, which must have every acknowledged message. KILLS in the environment
sets how often `make torture` kills:

    KILLS=500 make torture ARGS='-s tests/access/test_kills.py -k directory'
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.access.kill_writer import BRIEF, KEPT, QUEUES, local_config, stores, tier_config
from tests.disk_with_room import sitecustomize
from tests.s3.moto_server import Door
from tests.s3_places import Place
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local.reader import LocalReader
from tieredstore.model.errors import SegmentCorruptError, TieredStoreError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, QueueKey, StorageLevel
from tieredstore.testing.message_store_contract import check_page

ROOT = Path(__file__).parents[2]
LINES_MAX = 400  # of one process, before it is killed
PAGES_MAX = 5_000  # of one queue, read from its beginning
KILLS = int(os.environ.get("KILLS") or 300)  # by `make torture`, in each kind of place
HISTORY_KILLS = 20
BUCKET_KILLS = 5  # of a history in a bucket, whose pages are read one request at a time
LEVELS = [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM, StorageLevel.FORCE]


class Counts(NamedTuple):
    """What has happened in a history."""

    kills: int = 0
    acknowledged: int = 0
    deletions: int = 0
    pages: int = 0
    expired_bytes: int = 0  # of the local log
    segments: int = 0  # of the tier


class History:
    """One directory, and the processes that are killed on it one after the other."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self._root = root
        self._dice = dice
        self._kept: dict[QueueKey, dict[int, str]] = {}
        self._brief: dict[QueueKey, dict[int, str]] = {}  # since BRIEF was last deleted
        self._doubtful = False  # a deletion of BRIEF has begun and may not have ended
        self.counts = Counts()

    def live_and_die(self) -> None:
        kills = self.counts.kills
        command = [sys.executable, "-m", "tests.access.kill_writer", str(self._root), f"L{kills}"]
        paths = [str(sitecustomize.FOLDER), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        writer = subprocess.Popen(
            [*command, str(self._dice.randrange(1 << 30))],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        assert writer.stdout is not None
        lines: list[bytes] = []
        try:
            lines += [writer.stdout.readline() for _ in range(self._dice.randrange(LINES_MAX))]
            if len(lines) > 5 and self._dice.random() < 0.5:
                self._take_note([lines.pop(0) for _ in range(len(lines))])
                self._read_beside()
        finally:
            writer.kill()
            writer.wait()
        lines += writer.stdout.read().splitlines(keepends=True)
        writer.stdout.close()
        self._take_note(lines)
        self._count(kills=1)

    def _take_note(self, lines: list[bytes]) -> None:
        for line in lines:
            assert line.endswith(b"\n"), line
            what, *words = line.decode().rstrip("\n").split("\t")
            assert what in "PDE", line.decode()
            if what == "P":
                topic, queue_id, offset, key = words
                known = self._kept if topic == KEPT else self._brief
                queue = known.setdefault(QueueKey(topic, int(queue_id)), {})
                assert int(offset) not in queue, f"{line!r} was given out before"
                queue[int(offset)] = key
                self._count(acknowledged=1)
            else:
                self._doubtful = what == "D"
                self._brief = {}
                self._count(deletions=what == "E")

    def _read_beside(self) -> None:
        """Read in this process while the writer's process lives."""
        with TieredReader.open(tier_config(self._root)) as reader:
            self.counts = self.counts._replace(segments=len(reader.segments()))
            for number in range(QUEUES):
                self._walk(reader, QueueKey(KEPT, number), reader.max_offset(KEPT, number) or 0)
        with (
            suppress(TieredStoreError),
            LocalReader.open(local_config(self._root).store_path) as it,
        ):
            for number in range(QUEUES):
                self._look(it, number)

    def _look(self, reader: LocalReader, queue_id: int) -> None:
        """Read the pages that have not expired; what must be there is not known here."""
        end = reader.max_offset(KEPT, queue_id) or 0
        offset = reader.min_offset(KEPT, queue_id) or 0
        while offset < end:
            with suppress(SegmentCorruptError):  # a record that the writer is still writing
                page = reader.get_message(KEPT, queue_id, offset)
                check_page(page, offset, there=())
                self._check_keys(QueueKey(KEPT, queue_id), page)
                self._count(pages=1)
                assert page.next_offset > offset
                offset = page.next_offset
                continue
            return

    def reopen(self) -> None:
        """Open the next life, and check that its pages have every acknowledged message."""
        runtime = Runtime.threads()
        local, store = stores(self._root, runtime)
        try:
            store.load()
            store.start()
            store.level = self._dice.choice(LEVELS)
            for key, known in self._kept.items():
                assert (store.max_offset(*key) or 0) > max(known)
                self._walk(store, key, store.max_offset(*key) or 0)
            for key, known in {} if self._doubtful else self._brief.items():
                assert (store.max_offset(*key) or 0) > max(known), key
                self._walk(store, key, store.max_offset(*key) or 0)
            if self._doubtful:
                store.delete_topics([BRIEF])
                self._doubtful = False
                self._brief = {}
            if self._dice.random() < 0.3:
                assert store.flush(seal=True)
            self.counts = self.counts._replace(expired_bytes=local.min_log_offset() or 0)
            health = store.health()
            assert not [one.problem for one in health.queues if one.problem]
        finally:
            store.shutdown(drain=False)
            runtime.close()

    def _walk(self, store: TieredMessageStore | TieredReader, key: QueueKey, end: int) -> None:
        """Read all pages of a queue: none skips a message, and each message is the one put."""
        offset = 0
        for _ in range(PAGES_MAX):
            if offset >= end:
                return
            page = store.get_message(*key, offset)
            check_page(page, offset, there=range(offset, end))
            self._check_keys(key, page)
            self._count(pages=1)
            assert page.status is not GetStatus.NO_MATCHED_MESSAGE
            offset = page.next_offset
        raise AssertionError(f"{key}: it comes no further than {offset} of {end}")

    def _check_keys(self, key: QueueKey, page: GetResult) -> None:
        known = (self._kept if key.topic == KEPT else self._brief).get(key, {})
        for one in page.messages:
            message = decode_message(one.record)
            wanted = known.get(one.queue_offset, message.unique_key)
            assert (message.queue_offset, message.unique_key) == (one.queue_offset, wanted)

    def _count(self, **more: int) -> None:
        now = self.counts._asdict()
        self.counts = Counts(**{name: now[name] + more.get(name, 0) for name in now})


def lives(root: Path, kills: int, dice: random.Random) -> Counts:
    history = History(root, dice)
    for _ in range(kills):
        history.live_and_die()
        if dice.random() < 0.8:  # else the next life opens what two processes have left
            history.reopen()
    history.reopen()
    return history.counts


@pytest.mark.slow
def test_no_page_is_wrong_and_nothing_acknowledged_is_lost_after_kills(tmp_path: Path) -> None:
    counts = lives(tmp_path, 4, random.Random(14))
    assert counts.acknowledged > 100
    assert counts.pages > 10
    assert counts.expired_bytes > 0


@pytest.mark.torture
@pytest.mark.parametrize("history", range(-(-KILLS // HISTORY_KILLS)))
def test_nor_after_hundreds_over_a_directory(tmp_path: Path, history: int) -> None:
    often(tmp_path, history, HISTORY_KILLS)


@pytest.mark.torture
@pytest.mark.s3
@pytest.mark.parametrize("history", range(-(-KILLS // BUCKET_KILLS)))
def test_nor_after_hundreds_over_a_bucket(
    tmp_path: Path, moto: tuple[str, Door], history: int
) -> None:
    place = Place(moto[0], "obstore")
    (tmp_path / "bucket").write_text(f"{moto[0]} {place.settings.bucket}", encoding="utf-8")
    often(tmp_path, history, BUCKET_KILLS)
    place.close()


def often(root: Path, history: int, kills: int) -> None:
    counts = lives(root, kills, random.Random())
    print(history, counts)
    assert counts.kills == kills
    assert counts.acknowledged
