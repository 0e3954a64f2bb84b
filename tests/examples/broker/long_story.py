"""The long story of a client: it sends messages of all shapes to a broker that dies meanwhile, and
reads them back.

The broker is killed while the client sends, and once gets an empty disk, after which only what its
tier held must be there. At the end this module itself reads the queues. What the client was told,
and what it reads from the start, from an old offset, from a time and by key, must be the same. A
message is a line of fields:

    number, queue, offset, SHA-256 of the body, tags, keys, the property "shape", other fields

A "?" stands for a field that a client is not told.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tests.examples.broker.broker_kit import Running, running
from tests.examples.broker.remoting import Found, Remoting, read_messages
from tests.s3.moto_server import moto_server
from tieredstore import StoreConfig, TieredReader
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

Line: TypeAlias = tuple[str, ...]

TOPIC: Final = "Story"
QUEUES: Final = 4
KEYS_ASKED: Final = 60
WAIT_SECONDS: Final = 120.0
LATE_SECONDS: Final = 20.0
ASKED_BY_CLIENT: Final = 3

# Small files that are deleted once the tier has them. The port stays, as clients come back to it.
SETTINGS: Final = """
[local]
store_path = "{folder}/store"
commit_log_file_bytes = {file_bytes}
queue_file_bytes = 20000
reserve_hours = 0
expiry_interval_ms = 50

[tieredstore]
store_path = "{folder}/store"
broker_name = "story"
dispatch_interval_ms = 50
group_commit_timeout_ms = 50
publish_interval_ms = 1000
{tier}

[broker]
port = {port}
grpc_port = {grpc_port}
"""


class StoryClient(Protocol):
    """A client that lives through the story."""

    @property
    def name(self) -> str: ...

    def produce(self, port: int, topic: str, first: int, count: int) -> Iterator[Line]:
        """Send each of these numbers until it is acknowledged, and then yield its line."""

    def read(
        self, port: int, topic: str, group: str, count: int, *, since: int | None = None
    ) -> list[Line]:
        """Read `count` messages, each once, from the group's offset on; a new group begins at the
        second `since`, or else at the start."""

    def by_key(self, port: int, topic: str, key: str) -> list[Line] | None:
        """The messages of a key; None if the client cannot ask for them."""

    def comparable(self, line: Line) -> Line:
        """The line without what this client cannot see."""


@dataclass(kw_only=True)
class LongStory:
    """One client's story, in its own folder. `run` returns what went wrong."""

    client: StoryClient
    folder: Path
    count: int
    kills: int = 4
    tier: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = print
    file_bytes: int = 1 << 20
    grpc: bool = False  # the broker also listens for gRPC, at the next port
    failures: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        tier = self.tier or f'provider = "posix"\npath = "{self.folder}/tier"'
        self.config = self.folder / "broker.toml"
        self.config.write_text(
            SETTINGS.format(
                folder=self.folder,
                file_bytes=self.file_bytes,
                tier=tier,
                port=self.port,
                grpc_port=self.port + 1 if self.grpc else -1,
            ),
            encoding="utf-8",
        )
        self.acknowledged: dict[str, Line] = {}
        self.lost: set[str] = set()
        with ExitStack() as self.life:
            self.start()
            with self.own() as own:
                own.create_topic(TOPIC, QUEUES)
            self.send_all()
            self.until_files_are_gone()
            self.start_again()  # so nothing is in memory
            self.read_all()
        return self.failures

    # -- the broker's lives -------------------------------------------------------------------

    def start(self) -> None:
        self.broker: Running = self.life.enter_context(
            running(self.folder, "--config", self.config, is_quiet=False, **self.variables)
        )

    def start_again(self) -> None:
        self.broker.kill()
        self.life.close()
        self.start()

    def move(self) -> None:
        """Lose the disk, with whatever was not in the tier."""
        self.broker.kill()
        self.life.close()
        kept = {line[0] for line in self.in_tier()}
        self.lost = {number for number in self.acknowledged if number not in kept}
        shutil.rmtree(self.folder / "store")
        if not self.tier:  # a folder's catalogue is on the disk; a bucket's is its log
            words = ("recover", "--config", str(self.config), "--apply")
            command = [sys.executable, "-m", "tieredstore", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.start()
        self.tell(
            f"  moved to an empty disk: {len(kept):,} messages were in the tier, "
            f"{len(self.lost)} of {len(self.acknowledged):,} acknowledged ones were not yet"
        )

    def own(self) -> Remoting:
        return Remoting(self.port)

    # -- sending ------------------------------------------------------------------------------

    def send_all(self) -> None:
        acts = ["kill"] * self.kills
        acts.insert(len(acts) // 2, "move")
        acts.append("")
        share = self.count // len(acts)
        for at, act in enumerate(acts):
            first = at * share
            count = share if at < len(acts) - 1 else self.count - first
            for done, line in enumerate(self.client.produce(self.port, TOPIC, first, count), 1):
                self.acknowledged[line[0]] = line
                if act == "kill" and done == count // 2:
                    self.start_again()
                if act == "move" and done == count // 2:
                    wait_for(partial(self.has_some_since, first), "an upload")
            if act == "move":
                self.move()
            if at == 0:
                self.begin_groups()
        self.require(
            len(self.acknowledged) == self.count,
            f"all of {self.count:,} are acknowledged, with {self.kills} kills meanwhile",
        )

    def begin_groups(self) -> None:
        """One group commits offsets and one reads what is there; delayed messages come later."""
        with self.own() as own:
            self.early = ends(own)
            for queue_id, end in enumerate(self.early):
                begin_at(own, "early", TOPIC, queue_id, end)
            self.read_early = self.client.read(self.port, TOPIC, "steady", sum(self.early))
            wait_for(lambda: min(offsets(own, "steady")) > 0, "the group's offsets")
        # The broker writes offsets every few seconds, and when it ends well.
        self.life.close()
        self.start()
        with self.own() as own:
            self.steady = offsets(own, "steady")
        self.tell(f"  a group reads {len(self.read_early):,} so far, and is at {self.steady}")

    # -- reading ------------------------------------------------------------------------------

    def until_files_are_gone(self) -> None:
        log = self.folder / "store" / "commitlog"
        wait_for(lambda: len(list(log.iterdir())) <= 2, "the end of local files")

    def read_all(self) -> None:
        client, port = self.client, self.port
        with self.own() as own:
            stored = [each for queue_id in range(QUEUES) for each in own.pull_all(TOPIC, queue_id)]
            begins, found_ends = begins_of(own), ends(own)
            at_early, at_steady = offsets(own, "early"), offsets(own, "steady")
        all_lines = [line_of(each) for each in stored]
        self.truth(all_lines, begins, found_ends)

        def since(offset_of: Sequence[int]) -> list[Line]:
            pairs = zip(stored, all_lines, strict=True)
            return [line for each, line in pairs if each.queue_offset >= offset_of[each.queue_id]]

        self.same("from the start", client.read(port, TOPIC, "new", len(all_lines)), all_lines)
        self.require(at_early == self.early, "the group has its old offset")
        wanted = since(self.early)
        self.same("from the old offset", client.read(port, TOPIC, "early", len(wanted)), wanted)
        self.require(at_steady == self.steady, f"the group is where it was, at {self.steady}")
        wanted = since(self.steady)
        read_early = set(self.compared(self.read_early))
        passed = self.compared(sorted(set(all_lines) - set(wanted)))
        self.require(read_early.issuperset(passed), "it has read all that it does not read again")
        self.same("going on", client.read(port, TOPIC, "steady", len(wanted)), wanted)
        times = sorted(each.store_timestamp for each in stored)
        second = times[len(times) * 2 // 3] // 1000
        wanted = [
            line
            for each, line in zip(stored, all_lines, strict=True)
            if each.store_timestamp >= second * 1000
        ]
        found = client.read(port, TOPIC, "timed", len(wanted), since=second)
        self.same("from a time", found, wanted)
        self.by_key(all_lines)

    def truth(self, lines: list[Line], begins: list[int], found_ends: list[int]) -> None:
        """Check that what was acknowledged is where the client was told."""
        offsets_of = Counter(line[1] for line in lines)
        self.require(
            begins == [0] * QUEUES
            and found_ends == [offsets_of[str(queue_id)] for queue_id in range(QUEUES)]
            and len({line[1:3] for line in lines}) == len(lines),
            f"offsets are dense: {found_ends}",
        )
        there: dict[str, list[Line]] = {}
        for line in lines:
            there.setdefault(line[0], []).append(line)
        missing = [
            told
            for number, told in self.acknowledged.items()
            if number not in self.lost
            and not any(agrees(told, line) for line in there.get(number, ()))
        ]
        count = len(self.acknowledged) - len(self.lost)
        self.require(
            not missing,
            f"all {count:,} acknowledged and committed messages are there, as they were sent",
            f"{len(missing)} are not, first {missing[:2]} {[there.get(m[0]) for m in missing[:2]]}",
        )
        self.tell(f"    {len(lines) - len(there)} came twice: sent again after a kill")

    def by_key(self, lines: list[Line]) -> None:
        """The tier's index lags behind its messages, so an answer may come late after a start."""
        failed = []
        some = lines[:: max(1, len(lines) // KEYS_ASKED)]
        with self.own() as own:
            for line in some:
                key = line[5].split()[0]
                wanted = sorted(each for each in lines if key in each[5].split())

                def is_found(key: str = key, wanted: list[Line] = wanted) -> bool:
                    found = messages_of_key(own, key)
                    return sorted(found) == wanted

                try:
                    wait_for(is_found, key, seconds=LATE_SECONDS)
                except TimeoutError:
                    failed.append(key)
        for line in some[:ASKED_BY_CLIENT]:
            key = line[5].split()[0]
            theirs = self.client.by_key(self.port, TOPIC, key)
            wanted = [each for each in lines if key in each[5].split()]
            if theirs is not None and self.compared(theirs) != self.compared(wanted):
                failed.append(f"{key}, asked by the client")
        self.require(not failed, f"{len(some)} keys find their messages", f"not so: {failed[:5]}")

    def has_some_since(self, first: int) -> bool:
        return any(int(line[0]) >= first for line in self.in_tier())

    def in_tier(self) -> list[Line]:
        """What the tier itself has according to the broker's catalogue."""
        document = tomllib.loads(self.config.read_text(encoding="utf-8"))
        config = StoreConfig.from_mapping(document["tieredstore"]).with_env(self.variables)
        with TieredReader.open(config) as reader:
            return [
                line_of(found)
                for message in reader.messages(TOPIC)
                for found in read_messages(message.record)
            ]

    # -----------------------------------------------------------------------------------------

    def same(self, what: str, found: list[Line], wanted: list[Line]) -> None:
        """Compare messages, each of which a client prints once, even if it gets it again."""
        left, right = self.compared(found), self.compared(wanted)
        missing, extra = Counter(right) - Counter(left), Counter(left) - Counter(right)
        self.require(
            not missing and not extra,
            f"{what}: {len(found):,} messages, equal",
            f"missing {len(missing)}: {list(missing)[:2]}; extra {len(extra)}: {list(extra)[:2]}",
        )

    def compared(self, lines: list[Line]) -> list[Line]:
        return sorted(self.client.comparable(line[:7]) for line in lines)

    def require(self, is_so: bool, what: str, otherwise: str = "") -> None:
        if is_so:
            self.tell(f"  {what}")
            return
        self.failures.append(f"{self.client.name}: {what}: {otherwise or 'not so'}")
        self.tell(f"  NOT SO: {what} {otherwise}")
        self.tell(f"    the broker said: {self.broker.errors()[-2_000:]}")


def agrees(told: Line, stored: Line) -> bool:
    """Whether a message is what a client was told of it."""
    return all(left in ("?", right) for left, right in zip(told[:7], stored[:7], strict=True))


def line_of(found: Found) -> Line:
    body = zlib.decompress(found.body) if found.sys_flag & 1 else found.body
    properties = found.properties
    padding = properties.get("padding", "")
    return (
        properties["number"],
        str(found.queue_id),
        str(found.queue_offset),
        hashlib.sha256(body + padding.encode()).hexdigest(),
        properties.get("TAGS") or "null",  # one client writes an empty value for none
        properties.get("KEYS", "").strip(),
        properties["shape"],
    )


def messages_of_key(own: Remoting, key: str) -> list[Line]:
    answer = own.ask(12, topic=TOPIC, key=key, maxNum=64, beginTimestamp=0, endTimestamp=2**60)
    return [line_of(found) for found in read_messages(answer.body)]


def offset_at(own: Remoting, topic: str, queue_id: int, since: int | None) -> int:
    """The offset of the first message since this second, or of the first of all."""
    asked: dict[str, Any] = {"topic": topic, "queueId": queue_id}
    if since is None:
        return int(own.ask(31, **asked).fields["offset"])
    return int(own.ask(29, timestamp=since * 1000, **asked).fields["offset"])


def ends(own: Remoting) -> list[int]:
    return [
        int(own.ask(30, topic=TOPIC, queueId=queue_id).fields["offset"])
        for queue_id in range(QUEUES)
    ]


def begins_of(own: Remoting) -> list[int]:
    return [
        int(own.ask(31, topic=TOPIC, queueId=queue_id).fields["offset"])
        for queue_id in range(QUEUES)
    ]


def begin_at(own: Remoting, group: str, topic: str, queue_id: int, offset: int) -> None:
    answer = own.ask(15, consumerGroup=group, topic=topic, queueId=queue_id, commitOffset=offset)
    assert answer.code == 0, answer


def offsets(own: Remoting, group: str, topic: str = TOPIC) -> list[int]:
    """The group's offset in each queue, or -1 for none."""
    asked: dict[str, Any] = {"consumerGroup": group, "topic": topic, "setZeroIfNotFound": "false"}
    answers = [own.ask(14, queueId=queue_id, **asked) for queue_id in range(QUEUES)]
    return [int(answer.fields["offset"]) if not answer.code else -1 for answer in answers]


def free_port() -> int:
    """A free port whose successor is also free."""
    for _ in range(100):
        with socket.socket() as free, socket.socket() as following:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            with suppress(OSError, OverflowError):
                following.bind(("127.0.0.1", port + 1))
                return port
    raise OSError("there are no two free ports side by side")


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(what)
        threading.Event().wait(0.02)


@contextmanager
def a_bucket() -> Iterator[tuple[str, dict[str, str]]]:
    """Settings and variables for a tier in a new bucket of a server on this machine.

    Servers of one process share their contents, so no name is used twice.
    """
    name = f"story-{uuid.uuid4()}"
    with moto_server() as (endpoint, _):
        keys = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
        keys["endpoint"] = endpoint
        config = StoreConfig.from_mapping({"provider": "s3", "bucket": name, **keys})
        create_bucket(ObjectStoreSettings.from_config(config))
        variables = {f"TIEREDSTORE_{key.upper()}": value for key, value in keys.items()}
        yield f'provider = "s3"\nbucket = "{name}"\nprefix = "tier"', variables


# -- the tests' own client ----------------------------------------------------------------------


class OwnClient:
    """Sends many single messages and batches at a time, and again after a lost connection."""

    name = "own"
    in_flight = 64
    batch = 8

    def produce(self, port: int, topic: str, first: int, count: int) -> Iterator[Line]:
        waiting = [list(range(at, min(at + self.batch, first + count))) for at in
                   range(first, first + count, self.batch)]  # fmt: skip
        until = time.monotonic() + WAIT_SECONDS
        while waiting:
            left = list(waiting)
            try:
                with Remoting(port) as connection:
                    for at, line in self._round(connection, topic, waiting):
                        if at in left:
                            left.remove(at)
                        yield line
            except OSError:
                if time.monotonic() > until:
                    raise
                threading.Event().wait(0.02)
            waiting = left

    def _round(
        self, connection: Remoting, topic: str, waiting: list[list[int]]
    ) -> Iterator[tuple[list[int], Line]]:
        """Send batches, but the numbers of every second batch as single messages."""
        asked: list[tuple[list[int], list[int]]] = []
        coming = list(waiting)
        while coming or asked:
            while coming and len(asked) < self.in_flight:
                numbers = coming.pop(0)
                asked.append((numbers, self._begin(connection, topic, numbers)))
            numbers, opaque = asked.pop(0)
            answers = [connection.end(each) for each in opaque]
            for at, number in enumerate(numbers):
                answer = answers[min(at, len(answers) - 1)]
                assert answer.code == 0, answer
                offset = int(answer.fields["queueOffset"]) + (at if len(answers) == 1 else 0)
                queue_id = answer.fields["queueId"]
                yield numbers, acknowledged(number, queue_id, str(offset))

    def _begin(self, connection: Remoting, topic: str, numbers: list[int]) -> list[int]:
        queue_id = numbers[0] // self.batch // 2 % QUEUES
        if numbers[0] // self.batch % 2 and not any(map(is_delayed, numbers)):
            pairs = [(body_of(number), properties_of(number)) for number in numbers]
            return [connection.begin_batch(topic, queue_id, pairs)]
        return [
            connection.begin_send(topic, queue_id, body_of(number), **properties_of(number))  # type: ignore[arg-type]
            for number in numbers
        ]

    def read(
        self, port: int, topic: str, group: str, count: int, *, since: int | None = None
    ) -> list[Line]:
        found: list[Found] = []
        with Remoting(port) as connection:
            for queue_id, known in enumerate(offsets(connection, group)):
                offset = offset_at(connection, topic, queue_id, since) if known < 0 else known
                page = connection.pull_all(topic, queue_id, offset, group=group)
                found += page
                if page:
                    begin_at(connection, group, topic, queue_id, page[-1].queue_offset + 1)
        return [line_of(each) for each in found]

    def by_key(self, port: int, topic: str, key: str) -> list[Line] | None:
        return None

    def comparable(self, line: Line) -> Line:
        return line


SHAPES: Final = ("plain", "random", "unicode", "tiny", "untagged", "keys", "long", "large")


def shape_of(number: int) -> str:
    return "delayed" if is_delayed(number) else SHAPES[number % len(SHAPES)]


def is_delayed(number: int) -> bool:
    return number % 97 == 13


def body_of(number: int) -> bytes:
    shape = shape_of(number)
    if shape == "large":
        return f"body {number} ".encode() * (3_000 if number % 64 == 7 else 300)
    if shape == "random":
        return hashlib.sha512(struct.pack(">q", number)).digest() * (number % 50 + 1)
    if shape == "unicode":
        return f"заказ № {number} 订单 ✓ 𝄞".encode()
    return b"\0" if shape == "tiny" else f"order {number}".encode()


def properties_of(number: int) -> dict[str, str]:
    shape = shape_of(number)
    properties = {
        "number": str(number),
        "shape": "юникод 𝄞" if shape == "unicode" else shape,
        "KEYS": f"key-{number}" + (f" other-{number}" if shape == "keys" else ""),
        "UNIQ_KEY": f"UNIQUE{number}",
    }
    if shape != "untagged":
        properties["TAGS"] = ("even", "odd")[number % 2]
    if shape == "long":
        properties["padding"] = "x" * 9_000
    if shape == "delayed":
        properties["DELAY"] = "1"
    return properties


def acknowledged(number: int, queue_id: str, offset: str) -> Line:
    properties = properties_of(number)
    body = body_of(number) + properties.get("padding", "").encode()
    # For a delayed message the broker names the place where it waits.
    return (
        str(number),
        *(("?", "?") if is_delayed(number) else (queue_id, offset)),
        hashlib.sha256(body).hexdigest(),
        properties.get("TAGS", "null"),
        properties["KEYS"],
        properties["shape"],
    )
