"""A broker loses its files, its life and its disk, and its consumers notice nothing: `python -m`
`examples.broker --story`.

It starts the broker in its own process and talks to it as any client does, over a socket: messages
are sent, uploaded, and deleted on the broker's disk; the broker is killed while more are sent, and
everything acknowledged is read back by offset, time and key. Then its whole disk is lost, and it
continues from the tier alone. It prints a line for each step.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from examples.broker.commands import Ask, Code
from examples.broker.frames import Command, FrameDecoder, encode
from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.codec.record import peek_message_bytes

TOPIC: Final = "Orders"
QUEUES: Final = 4
COUNT: Final = 4_000
MORE: Final = 100
IN_FLIGHT: Final = 500
WAIT_SECONDS: Final = 120.0

SETTINGS: Final = """
[broker]
port = 0

[local]
store_path = "{folder}/store"
commit_log_file_bytes = 262144
reserve_hours = 0
expiry_interval_ms = 100

[tieredstore]
store_path = "{folder}/store"
broker_name = "story"
provider = "posix"
path = "{folder}/tier"
dispatch_interval_ms = 100
group_commit_timeout_ms = 100
"""


class Client:
    """A few of the requests that RocketMQ's clients make."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = FrameDecoder()
        self._opaque = 0

    def begin(self, code: Ask, body: bytes = b"", **fields: object) -> int:
        """Send a request; returns the number that its answer has too: answers come in any order."""
        self._opaque += 1
        given = {name: str(value) for name, value in fields.items()}
        self._socket.sendall(
            encode(Command(code=code, opaque=self._opaque, fields=given, body=body))
        )
        return self._opaque

    def answer(self) -> Command:
        while (found := self._decoder.take()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker has gone")
            self._decoder.feed(data)
        return found

    def ask(self, code: Ask, body: bytes = b"", **fields: object) -> Command:
        self.begin(code, body, **fields)
        return self.answer()

    def begin_send(self, number: int) -> int:
        text = f"KEYS\x01order-{number}\x02TAGS\x01{('even', 'odd')[number % 2]}\x02"
        return self.begin(
            Ask.SEND_MESSAGE_V2, body_of(number), a="story", b=TOPIC, e=number % QUEUES, i=text
        )

    def pull(self, queue_id: int, offset: int) -> tuple[list[StoredMessage], int]:
        """Messages, and where to continue."""
        answer = self.ask(
            Ask.PULL_MESSAGE,
            consumerGroup="readers",
            topic=TOPIC,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=64,
            sysFlag=4,
            subscription="*",
        )
        found = messages_of(answer.body) if answer.code == Code.SUCCESS else []
        return found, int(answer.fields["nextBeginOffset"])

    def pull_all(self, queue_id: int, offset: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while True:
            page, offset = self.pull(queue_id, offset)
            if not page:
                return found
            found += page


def body_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * 16


def messages_of(data: bytes) -> list[StoredMessage]:
    """The records of an answer; each checks the CRC of its body."""
    found = []
    at = 0
    while at < len(data):
        found.append(decode_message(data, at))
        at += peek_message_bytes(data, at)
    return found


@contextmanager
def broker(folder: Path, log: str = "warning") -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """A running broker; it must end well, unless it was killed."""
    config = str(folder / "broker.toml")
    command = [sys.executable, "-m", "examples.broker", "--config", config, "--log", log]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline().rpartition(":")[2]
            if not told.strip().isdigit():
                raise SystemExit("the broker does not start")
            with socket.create_connection(("127.0.0.1", int(told)), timeout=30) as connection:
                yield process, Client(connection)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def send(
    client: Client,
    first: int,
    count: int,
    sent: dict[int, tuple[int, int]],
    *,
    killed: subprocess.Popen[str] | None = None,
) -> None:
    """Send messages, and note where each acknowledged one was stored.

    The broker `killed`, if given, is killed half way, while other messages are in flight.
    """
    unsent, asked = iter(range(first, first + count)), dict[int, int]()
    for done in range(count):
        if killed is not None and done == count // 2:
            killed.kill()
        for number in islice(unsent, IN_FLIGHT - len(asked)):
            asked[client.begin_send(number)] = number
        answer = client.answer()
        number = asked.pop(answer.opaque)
        if answer.code != Code.SUCCESS:
            raise SystemExit(f"message {number} was refused: {answer.remark}")
        sent[number] = int(answer.fields["queueId"]), int(answer.fields["queueOffset"])


def check(client: Client, sent: dict[int, tuple[int, int]]) -> tuple[int, dict[int, int]]:
    """How many messages there are, and when the acknowledged ones were stored."""
    there: dict[tuple[int, int], StoredMessage] = {}
    for queue_id in range(QUEUES):
        page = client.pull_all(queue_id)
        require([each.queue_offset for each in page] == list(range(len(page))), "offsets are dense")
        there.update({(queue_id, each.queue_offset): each for each in page})
    times = {}
    for number, place in sent.items():
        found = there.get(place)
        require(found is not None, f"message {number} is there")
        if found is not None:
            require(found.body == body_of(number), f"message {number} has its body")
            require(found.keys == (f"order-{number}",), f"message {number} has its key")
            times[number] = found.store_timestamp
    return len(there), times


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise SystemExit(f"NOT SO: {what}")


def until_files_are_gone(log: Path) -> int:
    """Wait for files of the log to be deleted; returns how many are left: the last one stays."""
    until = time.monotonic() + WAIT_SECONDS
    while (count := len(list(log.iterdir()))) > 1:
        require(time.monotonic() < until, "local files go when the tier has them")
        time.sleep(0.05)
    return count


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="broker-story-") as name:
        folder = Path(name)
        log = folder / "store" / "commitlog"
        config = folder / "broker.toml"
        config.write_text(SETTINGS.format(folder=folder), encoding="utf-8")
        sent: dict[int, tuple[int, int]] = {}

        with broker(folder) as (_, client):
            client.ask(
                Ask.UPDATE_AND_CREATE_TOPIC,
                topic=TOPIC,
                readQueueNums=QUEUES,
                writeQueueNums=QUEUES,
            )
            send(client, 0, COUNT, sent)
            print(f"sent {COUNT:,} messages to {QUEUES} queues; all are acknowledged")
            half = COUNT // QUEUES // 2
            client.ask(
                Ask.UPDATE_CONSUMER_OFFSET,
                consumerGroup="readers",
                topic=TOPIC,
                queueId=0,
                commitOffset=half,
            )
        print("ended the broker: what was not in the tier yet is uploaded")

        with broker(folder) as (process, client):
            left = until_files_are_gone(log)
            print(f"started it again; of its log {left} file of 256 KiB is left")
            count, _ = check(client, sent)
            print(f"read {count:,} messages from the start, most of them from the tier")
            require_group_at(client, half)
            print(f"the group goes on at offset {half} of queue 0, where it was")

            before = len(sent)
            with suppress(ConnectionError):
                send(client, COUNT, COUNT, sent, killed=process)
            print(f"killed it after {len(sent) - before:,} more were acknowledged")

        with broker(folder) as (_, client):
            count, times = check(client, sent)
            print(f"of {count:,} messages all {len(sent):,} that were acknowledged are there")
            number = COUNT // 3
            answer = client.ask(
                Ask.QUERY_MESSAGE, topic=TOPIC, key=f"order-{number}", maxNum=8, endTimestamp=2**60
            )
            bodies = [each.body for each in messages_of(answer.body)]
            require(bodies == [body_of(number)], "a message is found by its key")
            queue_id, offset = sent[number]
            answer = client.ask(
                Ask.SEARCH_OFFSET_BY_TIMESTAMP,
                topic=TOPIC,
                queueId=queue_id,
                timestamp=times[number],
            )
            require(int(answer.fields["offset"]) <= offset, "a time leads to its messages")
            print(f"order-{number} is found by key, and its queue by the time it was stored")

        shutil.rmtree(folder / "store")
        print("ended it well, and deleted its disk: the tier's folder is all there is")
        recover(config)
        with broker(folder, log="error") as (_, client):
            found, _ = check(client, sent)
            require(found == count, "nothing is lost, and nothing is new")
            require_group_at(client, half)
            print(f"on an empty disk it has {found:,} messages, and the group at {half}")
            first = 2 * COUNT
            send(client, first, MORE, sent)
            found, _ = check(client, sent)
            require(found == count + MORE, "no offset is given twice")
            print(f"{MORE} more follow where each queue had ended")


def require_group_at(client: Client, offset: int) -> None:
    answer = client.ask(Ask.QUERY_CONSUMER_OFFSET, consumerGroup="readers", topic=TOPIC, queueId=0)
    require(answer.fields["offset"] == str(offset), "the group goes on where it was")


def recover(config: Path) -> None:
    """Do what an operator does on a new machine; with a bucket nothing has to be done."""
    command = [sys.executable, "-m", "tieredstore", "recover", "--config", str(config), "--apply"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"tieredstore recover: {done.stdout}{done.stderr}")
    print(f"tieredstore recover --apply: {done.stdout.splitlines()[-1]}")
