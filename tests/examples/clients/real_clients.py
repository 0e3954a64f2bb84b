"""Third-party clients against the example broker: `make clients`.

These are Apache's for Java, npm's `ali-ons` and PyPI's `rocketmq`, which wraps the C++ client; and
over gRPC PyPI's `rocketmq-python-client` and npm's `rocketmq-client-nodejs`. Each sends messages of
all shapes and reads them back. Then the local files are deleted, the broker is killed, and each
client reads from the tier what every client has sent: bodies, tags, keys, properties and offsets
must be equal. Each also lives through the long story, in which the broker dies while the client
sends, and loses its disk.

The clients are set up in `.clients`; one that cannot be set up is reported and left out. The
program exits with 1 if a client finds something else than was sent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.examples.broker.broker_kit import Running, cold_config, running
from tests.examples.broker.long_story import (
    Line,
    LongStory,
    a_bucket,
    begin_at,
    free_port,
    offset_at,
    offsets,
    wait_for,
)
from tests.examples.broker.remoting import Remoting
from tests.examples.example_kit import ROOT, environment
from tieredstore.codec import fastjson

HERE: Final = Path(__file__).parent
PLACE: Final = ROOT / ".clients"
COUNT: Final = 1_000
MORE: Final = 40
STORY_COUNT: Final = 10_000
SECONDS: Final = 300
RPC_CLIENT: Final = "rocketmq-python-client==5.1.2"
STUBS: Final = PLACE / "stubs"
ATTEMPTS: Final = 3
ORDERED: Final = 90
# Shapes with zero bytes, at the first of which Python's client ends a body.
BINARY: Final = frozenset({"random", "tiny"})


@dataclass(frozen=True, slots=True)
class Client:
    """How to set a client up, and how to run our program with it."""

    name: str
    what: str
    set_up: Callable[[], None]
    command: tuple[str, ...]
    variables: Mapping[str, str]
    reads: str  # the mode that reads everything with a group
    sees_zeros: bool = True
    begins: bool = True  # can say where a new group begins
    asks_by_key: bool = False
    speaks_grpc: bool = False  # at the next port

    def run(self, port: int, mode: str, *words: object) -> list[Line]:
        """Run it and return the lines that it prints; raise RuntimeError if it fails."""
        return list(self.lines(port, self.reads if mode == "read" else mode, *words))

    def lines(self, port: int, mode: str, *words: object) -> Iterator[Line]:
        """Run it and yield each line as it is printed."""
        log = PLACE / f"{self.name}.log"
        with (
            open(log, "w", encoding="utf-8") as errors,
            subprocess.Popen(
                [*self.command, mode, self._address(port), *map(str, words)],
                env={**os.environ, **self.variables},
                cwd=PLACE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            ) as process,
        ):
            ending = threading.Timer(SECONDS, process.kill)
            ending.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    yield tuple(line.rstrip("\n").split("\t"))
            except BaseException:
                process.kill()
                raise
            finally:
                ending.cancel()
        if process.returncode:
            told = log.read_text(encoding="utf-8")[-2_000:]
            raise RuntimeError(f"{self.name} {mode} ended with {process.returncode}:\n{told}")

    def _address(self, port: int) -> str:
        return f"127.0.0.1:{port + 1 if self.speaks_grpc else port}"

    # -- in the long story --------------------------------------------------------------------

    def produce(self, port: int, topic: str, first: int, count: int) -> Iterator[Line]:
        return self.lines(port, "send", topic, first, count)

    def read(
        self,
        port: int,
        topic: str,
        group: str,
        count: int,
        *,
        since: int | None = None,
        tags: str = "*",
    ) -> list[Line]:
        words: list[object] = [topic, group, count, tags]
        if self.begins:
            if since is not None:
                words.append(time.strftime("%Y%m%d%H%M%S", time.localtime(since)))
        else:
            with Remoting(port) as own:
                begin_new_group(own, topic, group, since)
        return self.run(port, "read", *words)

    def by_key(self, port: int, topic: str, key: str) -> list[Line] | None:
        return self.run(port, "key", topic, key) if self.asks_by_key else None

    def comparable(self, line: Line) -> Line:
        """The line without ids, which only some print, and its queue, which one is not told."""
        found = [line[0], "?", *line[2:7]]
        if not self.sees_zeros and line[6] in BINARY:
            found[3] = "?"
        return tuple(found)


def begin_new_group(own: Remoting, topic: str, group: str, since: int | None) -> None:
    """Set the offsets of a new group for a client that would begin it at the end."""
    for queue_id, offset in enumerate(offsets(own, group, topic)):
        if offset < 0:
            begin_at(own, group, topic, queue_id, offset_at(own, topic, queue_id, since))


def called(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def set_up_java() -> None:
    folder, source = PLACE / "java", HERE / "java"
    if (folder / "classes" / "Client.class").exists() and not _is_newer(source / "Client.java"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "lib").is_dir():
        shutil.copy(source / "pom.xml", folder)
        called("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib",
               cwd=folder)  # fmt: skip
    called("javac", "-nowarn", "-encoding", "UTF-8", "-cp", "lib/*", "-d", "classes",
           str(source / "Client.java"), cwd=folder)  # fmt: skip


def _is_newer(source: Path) -> bool:
    made = PLACE / "java" / "classes" / "Client.class"
    return source.stat().st_mtime > made.stat().st_mtime


def set_up_node() -> None:
    folder = PLACE / "node"
    if not (folder / "node_modules" / "urllib").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "node" / "package.json", folder)
        called("npm", "install", "--no-audit", "--no-fund", cwd=folder)


def set_up_python() -> None:
    folder = PLACE / "python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input")
        called(*pip, "rocketmq==0.4.4", cwd=folder)
        (folder / "done").touch()


def set_up_grpc_python() -> None:
    set_up_stubs()
    folder = PLACE / "grpc_python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input")
        called(*pip, RPC_CLIENT, cwd=folder)
        (folder / "done").touch()


def set_up_grpc_node() -> None:
    set_up_stubs()
    folder = PLACE / "grpc_node"
    if not (folder / "node_modules" / "rocketmq-client-nodejs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "grpc_node" / "package.json", folder)
        called("npm", "install", "--no-audit", "--no-fund", cwd=folder)


def set_up_stubs() -> None:
    """Install what the broker needs for gRPC outside its environment."""
    if not (STUBS / "done").exists():
        STUBS.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--upgrade")
        called(*pip, "--target", str(STUBS), "grpcio", "protobuf", cwd=STUBS)
        called(*pip, "--target", str(STUBS), "--no-deps", RPC_CLIENT, cwd=STUBS)
        (STUBS / "done").touch()


CLIENTS: Final = (
    Client(
        "java",
        "Maven rocketmq-client 5.3.3",
        set_up_java,
        ("java", "-cp", f"{PLACE}/java/classes:{PLACE}/java/lib/*", "Client"),
        {},
        "push",
        asks_by_key=True,
    ),
    Client(
        "node",
        "npm ali-ons 3.12.0",
        set_up_node,
        ("node", str(HERE / "node" / "client.js")),
        {"NODE_PATH": str(PLACE / "node" / "node_modules")},
        "consume",
    ),
    Client(
        "python",
        "PyPI rocketmq 0.4.4",
        set_up_python,
        (str(PLACE / "python" / "bin" / "python"), str(HERE / "python" / "client.py")),
        {},
        "consume",
        sees_zeros=False,
        begins=False,
    ),
    Client(
        "grpc-python",
        "PyPI rocketmq-python-client 5.1.2",
        set_up_grpc_python,
        (str(PLACE / "grpc_python" / "bin" / "python"), str(HERE / "grpc_python" / "client.py")),
        {"HOME": str(PLACE / "grpc_python")},  # the client writes a log there
        "push",
        begins=False,
        speaks_grpc=True,
    ),
    Client(
        "grpc-node",
        "npm rocketmq-client-nodejs 1.0.8",
        set_up_grpc_node,
        ("node", str(HERE / "grpc_node" / "client.js")),
        {"NODE_PATH": str(PLACE / "grpc_node" / "node_modules")},
        "push",
        begins=False,
        speaks_grpc=True,
    ),
)


def main() -> int:
    print("Setting up clients in .clients, where they are not there: a minute or two.", flush=True)
    clients = [client for client in CLIENTS if is_set_up(client)]
    folder = Path(tempfile.mkdtemp(prefix="broker-clients-"))
    try:
        failures = story(clients, folder / "short")
        for client in clients:
            print(f"{client.what}, the long story:", flush=True)
            with a_bucket() as (tier, of_bucket):
                failures += LongStory(
                    client=client,
                    folder=folder / client.name,
                    count=STORY_COUNT,
                    grpc=client.speaks_grpc,
                    tier=tier,
                    variables={**variables([client]), **of_bucket},
                ).run()
            if client.speaks_grpc:
                failures += through_a_kill(client, folder / f"{client.name}-kill")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for failure in failures:
        print(f"FAILED: {failure}")
    left_out = len(CLIENTS) - len(clients)
    print(f"{len(clients)} clients, {len(failures)} failures, {left_out} could not be set up")
    return 1 if failures or not clients else 0


def is_set_up(client: Client) -> bool:
    try:
        client.set_up()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{client.what}: cannot be set up: {error}")
        return False
    return True


def variables(clients: list[Client]) -> dict[str, str]:
    """The environment variables of a broker for these clients."""
    if not any(client.speaks_grpc for client in clients):
        return {}
    return {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(STUBS)])}


def config_in(folder: Path, clients: list[Client], more: str = "") -> Path:
    """Settings with files that fit the largest message, and a gRPC port if a client needs one."""
    config, port = cold_config(folder), free_port()
    grpc_port = port + 1 if any(client.speaks_grpc for client in clients) else -1
    text = config.read_text(encoding="utf-8").replace("= 65536", "= 1048576")
    text = text.replace("port = 0", f"port = {port}\ngrpc_port = {grpc_port}\n{more}")
    config.write_text(text, encoding="utf-8")
    return config


def story(clients: list[Client], folder: Path) -> list[str]:
    """Let the clients send and read; return what went wrong."""
    failures: list[str] = []
    sent: dict[str, list[Line]] = {}
    groups = ", ".join(f"{client.name}-ordered" for client in clients)
    settings = f'attempts_max = {ATTEMPTS}\nretry_seconds = 0.1\nfifo_groups = "{groups}"\n'
    config = config_in(folder, clients, settings)
    words, others = ("--config", config), variables(clients)

    def check(what: str, found: list[Line], wanted: list[Line], *, reader: Client) -> None:
        left, right = comparable(found, reader), comparable(wanted, reader)
        same = left == right
        print(f"  {what}: {len(found)} messages, {'equal' if same else 'NOT EQUAL'}", flush=True)
        if not same:
            failures.append(what)
            lost = sorted(set(right) - set(left))
            print(f"    not found: {len(lost)}, first {lost[:2]}, last {lost[-2:]}")
            print(f"    the broker said: {broker.errors()[-2_000:]}")

    with running(folder, *words, is_quiet=False, **others) as broker:
        for client in clients:
            print(f"{client.what}:")
            sent[client.name] = topic_of(client, broker)
            mine, group = topic(client.name), f"{client.name}-first"
            lines = client.read(broker.port, mine, group, COUNT)
            check(f"{client.name} reads from the log", lines, sent[client.name], reader=client)
            odd = [line for line in sent[client.name] if line[4] == "odd"]
            group = f"{client.name}-odd"
            lines = client.read(broker.port, mine, group, len(odd), tags="odd")
            check(f"{client.name} reads one tag", lines, odd, reader=client)
            if client.speaks_grpc:
                pops(client, broker, sent[client.name], check)
        java(clients, broker, sent, check)
        until_offsets_are_kept(folder, [client.name for client in clients])
        until_files_are_gone(folder)
        print("local files are gone, the broker is killed", flush=True)
        broker.kill()
    with running(folder, *words, is_quiet=False, **others) as broker:
        for reader in clients:
            for writer in clients:
                theirs, group = topic(writer.name), f"{writer.name}-cold-{reader.name}"
                lines = reader.read(broker.port, theirs, group, COUNT)
                what = f"{reader.name} reads from the tier what {writer.name} sent"
                check(what, lines, sent[writer.name], reader=reader)
        java(clients, broker, sent, check)
        for client in clients:
            more = client.run(broker.port, "produce", topic(client.name), MORE)
            group = f"{client.name}-first"
            lines = client.read(broker.port, topic(client.name), group, MORE)
            check(f"{client.name} goes on where its group was", lines, more, reader=client)
    return failures


def java(
    clients: list[Client],
    broker: Running,
    sent: Mapping[str, list[Line]],
    check: Callable[..., None],
) -> None:
    """Check what only Apache's client can do: orderly reads, lite pull and look-ups."""
    client = next((each for each in clients if each.name == "java"), None)
    if client is None:
        return
    name, group = topic("java"), f"java-{time.monotonic_ns()}"
    for mode in ("orderly", "lite"):
        lines = client.run(broker.port, mode, name, f"{group}-{mode}", COUNT)
        check(f"java reads all, {mode}", lines, sent["java"], reader=client)
    one = sent["java"][7]
    found = client.run(broker.port, "look", name, one[5].split()[0], one[7])
    for kind in ("key", "id"):
        lines = [line[1:] for line in found if line[0] == kind]
        check(f"java finds one by {kind}", lines, [one], reader=client)
    ends = [tuple(line[2:]) for line in found if line[0] == "queue"]
    counts: dict[str, int] = {}
    for line in sent["java"]:
        counts[line[1]] = counts.get(line[1], 0) + 1
    wanted = [("0", str(count), "0", str(count)) for _, count in sorted(counts.items())]
    check("java sees the ends of queues, by offset and by time", ends, wanted, reader=client)


def pops(client: Client, broker: Running, sent: list[Line], check: Callable[..., None]) -> None:
    """Check what consumers do only over gRPC: ask for messages, keep their order, fail for good."""
    name, port = client.name, broker.port
    lines = client.run(port, "simple", topic(name), f"{name}-simple", COUNT)
    check(f"{name} reads all, asking for it", lines, sent, reader=client)
    ordered = client.run(port, "produce", f"{name}-orders", ORDERED, "ordered")
    lines = client.run(port, "push", f"{name}-orders", f"{name}-ordered", ORDERED)
    check(f"{name} reads messages with an order", lines, ordered, reader=client)
    numbers = [int(line[0]) for line in lines]
    orders = [(str([at for at in numbers if at % 3 == group]),) for group in range(3)]
    wanted = [(str(list(range(group, ORDERED, 3))),) for group in range(3)]
    check(f"{name} reads them in their order", orders, wanted, reader=client)
    client.run(port, "produce", f"{name}-bad", 3, "plain")
    tries = client.run(port, "fail", f"{name}-bad", f"{name}-failing", 3 * ATTEMPTS)
    expected = [(str(at), str(nth)) for at in range(3) for nth in range(1, ATTEMPTS + 1)]
    check(f"{name} fails {ATTEMPTS} times", tries, expected, reader=client)
    with broker.client() as own:
        dead = own.pull_all(f"%DLQ%{name}-failing", 0)
    found = [(each.properties["number"],) for each in dead]
    check(f"{name} has dead letters", found, [("0",), ("1",), ("2",)], reader=client)


def through_a_kill(client: Client, folder: Path) -> list[str]:
    """The broker dies under a consumer and returns; the consumer goes on and misses nothing."""
    config = config_in(folder, [client])
    name, found = topic(client.name), []
    with ExitStack() as life:

        def start() -> Running:
            others = variables([client])
            begun = running(folder, "--config", config, is_quiet=False, **others)
            return life.enter_context(begun)

        broker = start()
        with broker.client() as own:
            own.create_topic(name, 4)
        port = broker.port  # the next broker has the same
        sent = client.run(port, "produce", name, COUNT)
        for line in client.lines(port, "push", name, "steadfast", COUNT):
            found.append(line)
            if len(found) == COUNT // 3:
                broker.kill()
                life.close()
                broker = start()
        with broker.client() as own:
            done = sum(offsets(own, "steadfast", name))
    is_equal = comparable(found, client) == comparable(sent, client)
    print(f"  {client.name} reads on after a kill: {len(found)}, {done} are done", flush=True)
    return [] if is_equal and done == COUNT else [f"{client.name} reads on after a kill"]


def topic(name: str) -> str:
    return f"of-{name}"


def topic_of(client: Client, broker: Running) -> list[Line]:
    """Make the client's own topic, and return what the client sends to it."""
    if client.name == "java":
        client.run(broker.port, "create", topic(client.name), 4)
    else:
        with broker.client() as maker:
            maker.create_topic(topic(client.name), 4)
    lines = client.run(broker.port, "produce", topic(client.name), COUNT)
    assert len(lines) == COUNT, f"{client.name}: {len(lines)} were acknowledged"
    return lines


def comparable(lines: list[Line], reader: Client) -> list[Line]:
    return sorted(reader.comparable(line) if len(line) >= 7 else line for line in lines)


def until_offsets_are_kept(folder: Path, names: list[str]) -> None:
    """Wait for the broker, which writes offsets every few seconds."""
    path = folder / "store" / "config" / "consumerOffset.json"

    def all_kept() -> bool:
        table: Any = fastjson.decode(path.read_bytes())["offsetTable"]
        groups = [table.get(f"{topic(name)}@{name}-first", {}) for name in names]
        return all(sum(each.values()) == COUNT for each in groups)

    wait_for(lambda: path.exists() and all_kept(), "consumer offsets")


def until_files_are_gone(folder: Path) -> None:
    log = folder / "store" / "commitlog"
    wait_for(lambda: len(list(log.iterdir())) <= 2, "the end of local files")


if __name__ == "__main__":
    sys.exit(main())
