"""Each example runs as a user would run it."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import struct
import subprocess
import urllib.error
import urllib.request
import uuid
from contextlib import ExitStack, chdir, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN
from tests.examples.example_kit import EXAMPLES, command, environment, output, serving
from tests.jobs.job_kit import picture
from tests.s3.moto_server import moto_server
from tieredstore import StoreConfig, TieredReader

RUN_ELSEWHERE = {  # each has its own test module
    "migrate_posix_to_s3",
    "own_metadata_store",
    "own_provider",
    "read_with_spark",
    "stream_to_parquet",
    "watch",
}


def test_a_store_of_ones_own_gets_a_tier(tmp_path: Path) -> None:
    folder = str(tmp_path / "not there yet")
    told = output("wrap_your_store.py", folder)
    assert told.splitlines() == [
        "10 messages are in the tier",
        "from offset 7 on: [b'order 7', b'order 8', b'order 9']",
        "by key: [b'order 3']",
    ]
    again = output("wrap_your_store.py", folder)
    assert again.startswith("20 messages are in the tier"), again


@pytest.mark.parametrize("provider", ["posix", "memory"])
def test_the_demo_runs_and_cleans_up(provider: str, tmp_path: Path) -> None:
    told = output("demo.py", "--provider", provider, TMPDIR=str(tmp_path))
    for part in ("put 30,000 messages", "find 2,000 by key", "customer-750 has 7 orders", "/s"):
        assert part in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.s3
def test_the_demo_brings_its_own_s3(tmp_path: Path) -> None:
    told = output("demo.py", "--provider", "s3", TMPDIR=str(tmp_path))
    for part in ("client: obstore, s3://demo/", "10 of 10 checks passed", "find 300 by key"):
        assert part in told
    assert "all the rest" in told
    assert "$0.0" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--keep", "kept"], ["--provider", "memory"]])
def test_what_the_demo_says_to_do_next_can_be_done(words: list[str], tmp_path: Path) -> None:
    with chdir(tmp_path):
        told = output("demo.py", *words)
    shown = [line for line in told.partition("\nnext:\n")[2].splitlines() if " --" in line]
    assert len(shown) == (3 if "kept" in words else 2)
    for line in shown:
        ran = subprocess.run(
            shlex.split(line),
            cwd=tmp_path,
            env=environment(TMPDIR=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, bool(ran.stdout)) == (0, True), ran.stderr
    if "kept" in words:
        left = {path.name for path in (tmp_path / "kept").iterdir()}
        assert left == {"tier", "tieredstore.toml", "report.html"}


def test_the_quickstart_finds_its_messages_in_the_tier(tmp_path: Path) -> None:
    *lines, by_time = output("quickstart.py", TMPDIR=str(tmp_path)).splitlines()
    assert list(tmp_path.iterdir()) == []
    assert lines == [
        "10 messages are in the tier",
        "from offset 7 on: [b'order 7', b'order 8', b'order 9']",
        "by key: [b'order 3']",
    ]
    found = int(by_time.removeprefix("stored at the time of offset 5: from offset "))
    assert found <= 5  # others may have the same millisecond


def tiered(store: Path, broker: str) -> dict[tuple[str, int], int]:
    """How many messages of each queue are in the tier of an ended broker."""
    config = StoreConfig(
        broker_name=broker, provider="posix", path=str(store / "tier"), store_path=str(store)
    )
    with TieredReader.open(config) as reader:
        return {
            (key.topic, key.queue_id): len(list(reader.messages(*key))) for key in reader.queues()
        }


def reply_to(port: int, data: bytes) -> bytes:
    """The reply to a client that sends this and nothing more."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def gone(port: int, data: bytes) -> None:
    """Send this and reset the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(data)


def test_the_asyncio_broker_answers_and_uploads_when_it_ends(tmp_path: Path) -> None:
    def ask(**asked: Any) -> Any:
        lines.write(json.dumps(asked) + "\n")
        lines.flush()
        return json.loads(lines.readline())

    with (
        serving("asyncio_broker.py", "--store", tmp_path) as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
        connection.makefile("rw") as lines,
    ):
        for number in range(3):
            body, key = f"order {number}", f"order-{number}"
            assert ask(put="orders", queue=0, key=key, body=body) == {
                "status": "PUT_OK",
                "offset": number,
            }
        assert ask(pull="orders", queue=0, offset=1)["bodies"] == ["order 1", "order 2"]
        assert ask(find="orders", key="order-1") == {"complete": True, "bodies": ["order 1"]}
        assert ask(find="orders", key="never")["bodies"] == []
        assert ask(pull="orders", queue=0, offset=3, wait=0.001)["bodies"] == []
        with (
            socket.create_connection(("127.0.0.1", port)) as another,
            another.makefile("rw") as waiting,
        ):
            waiting.write(json.dumps({"pull": "late", "queue": 0, "offset": 0, "wait": 240}) + "\n")
            waiting.flush()
            assert ask(put="late", queue=0, body="at last")["offset"] == 0
            assert json.loads(waiting.readline())["bodies"] == ["at last"]
        assert "error" in ask(drop="orders")
        assert ask(put="orders", queue="x", body="y")["status"] == "MESSAGE_ILLEGAL"
        assert "error" in ask(put="orders", queue=0, body=5)
        assert ask(put="large", queue=0, body="x" * 100_000)["offset"] == 0
        assert "error" in json.loads(reply_to(port, b"[" * 20_000 + b"\n"))
        with suppress(ConnectionError):  # the broker may hang up before all is sent
            reply_to(port, b"x" * (5 << 20))
        gone(port, b'{"pull": "orders", "queue": 0, "offset": 3, "wait": 0.01}\n')
        assert ask(pull="orders", queue=0, offset=3, wait=0.1)["bodies"] == []
    assert tiered(tmp_path, "asyncio-broker") == {("orders", 0): 3, ("late", 0): 1, ("large", 0): 1}


def test_the_asyncio_broker_ends_though_clients_stay(tmp_path: Path) -> None:
    """One is silent and one waits for a message. Since Python 3.12 a server waits for both."""
    with ExitStack() as staying, serving("asyncio_broker.py", "--store", tmp_path) as port:
        for line in (
            {"put": "orders", "queue": 0, "body": "last"},
            {"pull": "orders", "queue": 0, "offset": 1, "wait": 240},
        ):
            connection = staying.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(json.dumps(line).encode() + b"\n")
            if "put" in line:
                assert b"PUT_OK" in connection.recv(1_000)
    assert tiered(tmp_path, "asyncio-broker") == {("orders", 0): 1}


def test_the_threaded_broker_answers_and_uploads_when_it_ends(tmp_path: Path) -> None:
    def ask(path: str, body: bytes | None = None) -> Any:
        url = f"http://127.0.0.1:{port}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data=body)) as answer:
            return json.load(answer)

    with serving("threaded_broker.py", "--store", tmp_path) as port:
        for number in range(3):
            stored = ask(f"orders/1?key=order-{number}", f"order {number}".encode())
            assert stored == {"status": "PUT_OK", "offset": number}
        assert ask("orders/1?offset=1")["bodies"] == ["order 1", "order 2"]
        assert ask("orders?key=order-1") == {"complete": True, "bodies": ["order 1"]}
        for wrong in ("orders/x", "orders"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(wrong)
            assert caught.value.code == 400
            caught.value.close()
        for length, code in ((50, b"400"), (-5, b"413"), ("x", b"413"), ("9" * 5_000, b"413")):
            head = f"POST /orders/1 HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
            assert reply_to(port, head.encode() + b"half").split()[1] == code
        gone(port, b"GET /orders/1 HTTP/1.1\r\n")
        assert ask("orders/1?offset=3")["bodies"] == []
    assert tiered(tmp_path, "threaded-broker") == {("orders", 1): 3}


def test_the_threaded_broker_ends_after_the_requests_under_way(tmp_path: Path) -> None:
    with ExitStack() as clients:
        with serving("threaded_broker.py", "--store", tmp_path) as port:
            slow = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(b"POST /orders/1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe")
            found = reply_to(port, b"GET /orders?key=k HTTP/1.1\r\n\r\n")
            assert found.split()[1] == b"200"  # so the slow one was accepted too
            ending = Thread(target=finish_once_closed, args=(port, slow), daemon=True)
            ending.start()
        slow.settimeout(60)
        assert slow.recv(1_000).split()[1] == b"200"
    assert tiered(tmp_path, "threaded-broker") == {("orders", 1): 1}


def finish_once_closed(port: int, slow: socket.socket) -> None:
    """Send the rest of a request when the broker accepts nothing more."""
    with suppress(OSError):
        for _ in range(1_000):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    slow.sendall(b"llo")


@pytest.mark.slow
@pytest.mark.s3
def test_a_store_is_offloaded_to_s3_and_read_from_there(tmp_path: Path) -> None:
    bucket = f"example-{uuid.uuid4().hex}"
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    with moto_server() as (endpoint, _):
        words = (bucket, "--endpoint", endpoint)
        assert output("offload_to_s3.py", *words, TMPDIR=str(tmp_path), **keys).splitlines() == [
            "orders/0: uploaded up to offset 1000",
            f"orders/0: 1000 messages read from {bucket}",
        ]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def broker_conf(tmp_path: Path) -> Path:
    """The settings of the broker that Java ran, with a copy of its files."""
    shutil.copytree(GOLDEN / "tier-posix", tmp_path / "rocketmq")
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerClusterName=GoldenCluster\n"
        "brokerName=broker-gold-a\n"
        f"storePathRootDir={tmp_path}/rocketmq/store\n"
        f"tieredStoreFilePath={tmp_path}/rocketmq/tiered\n"
        "tieredBackendServiceProvider="
        "org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        "tieredStoreIndexFileMaxHashSlotNum=64\n"
        "tieredStoreIndexFileMaxIndexNum=300\n"
    )
    return file


def test_a_tier_of_rocketmq_opens_and_is_not_touched(broker_conf: Path, tmp_path: Path) -> None:
    before = picture(tmp_path)
    queues = output("open_rocketmq_tier.py", broker_conf).splitlines()
    assert len(queues) == 9
    assert "GoldBB/1: offsets 7 to " in "\n".join(queues)
    first = output("open_rocketmq_tier.py", broker_conf, "GoldAa").splitlines()
    assert len(first) == 5
    assert first[0].startswith("  GoldAa/0/0  ")
    absent = subprocess.run(
        command("open_rocketmq_tier.py", broker_conf, "GoldAa", "no such key"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr == "open_rocketmq_tier: no such message is in the tier\n"
    assert "GoldAa/" in output("open_rocketmq_tier.py", broker_conf, "GoldAa", "Aa")
    assert picture(tmp_path) == before


def test_no_example_is_forgotten() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in here or path.stem in RUN_ELSEWHERE, path.name
