"""`make watch`: a broker under load, Prometheus that scrapes it, and Grafana if it is installed.

    python -m examples.watch [--seconds 900] [--rate 200] [--bring FOLDER]

Prometheus loads `docs/grafana/alerts.yml`, Grafana the dashboard beside it. At the end each query
of the dashboard is sent, and its answer printed; if Prometheus refuses one, the exit code is 1.
Everything listens on 127.0.0.1 only, is in a temporary folder, and is gone after the given time, or
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from examples.broker.commands import Ask
from examples.broker.story import QUEUES, TOPIC, Client
from tieredstore import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

GRAFANA: Final = Path(__file__).resolve().parents[1] / "docs" / "grafana"
DASHBOARD: Final = GRAFANA / "tieredstore.json"
ALERTS: Final = GRAFANA / "alerts.yml"
GRAFANA_HOME: Final = Path("/usr/share/grafana")  # of the packages for Debian and Red Hat
START_SECONDS: Final = 60.0
END_SECONDS: Final = 30.0
TOLD_SECONDS: Final = 15.0
SCRAPE_SECONDS: Final = 2
PAGE_BYTES_MAX: Final = 16 << 20
RATE_MAX: Final = 2_000
MESSAGES_MAX: Final = 1_000_000

# Small files that leave the local disk soon, so that reads come from the tier. The bucket's server
# is our own, so it need not be certified.
SETTINGS: Final = """
[broker]
port = 0

[local]
store_path = "{folder}/store"
commit_log_file_bytes = 262144
reserve_hours = 0
expiry_interval_ms = 1000

[tieredstore]
store_path = "{folder}/store"
broker_name = "watched"
provider = "s3"
bucket = "watched"
endpoint = "{endpoint}"
access_key = "any"
secret_key = "any"
certify = "off"
dispatch_interval_ms = 1000
group_commit_timeout_ms = 1000
index_slot_count = 10000
index_item_count = 40000
"""

PROMETHEUS: Final = """
global: {{scrape_interval: {seconds}s, evaluation_interval: {seconds}s}}
rule_files: [{alerts}]
scrape_configs:
  - {{job_name: brokers, static_configs: [{{targets: ["{broker}"]}}]}}
"""

SOURCES: Final = """
apiVersion: 1
datasources:
  - {{name: Prometheus, type: prometheus, access: proxy, url: "{prometheus}", isDefault: true}}
"""

DASHBOARDS: Final = """
apiVersion: 1
providers:
  - {{name: tieredstore, type: file, options: {{path: {folder}}}}}
"""


class Answer(NamedTuple):
    """What Prometheus answers to one query of the dashboard."""

    panel: str
    expression: str
    values: list[float]
    error: str


class Load:
    """What clients do: send, read the newest messages and those that left the disk, ask by key."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.sent = self.read = 0
        self._newest = dict.fromkeys(range(QUEUES), 0)
        self._oldest = dict.fromkeys(range(QUEUES), 0)

    def turn(self, messages: int) -> None:
        for _ in range(messages):
            self._client.begin_send(self.sent)
            self.sent += 1
        for _ in range(messages):
            self._client.answer()
        for queue_id in range(QUEUES):
            self._read(queue_id, self._newest)
            self._read(queue_id, self._oldest)
        key = f"order-{self.sent // 2}"
        self._client.ask(Ask.QUERY_MESSAGE, topic=TOPIC, key=key, maxNum=8, endTimestamp=2**60)

    def _read(self, queue_id: int, place: dict[int, int]) -> None:
        """One page; a reader that reaches the newest messages begins again at the oldest."""
        found, place[queue_id] = self._client.pull(queue_id, place[queue_id])
        self.read += len(found)
        if place is self._oldest and place[queue_id] >= self._newest[queue_id]:
            place[queue_id] = 0


def queries(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each query of the dashboard and its panel, with values for Grafana's variables."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression: str = target["expr"]
            for name, value in variables.items():
                expression = expression.replace(f"${name}", value)
            yield panel["title"], expression


def asked(prometheus: str) -> list[Answer]:
    """The answers to all queries of the dashboard, for all brokers and topics."""
    every = dict.fromkeys(("job", "instance", "topic"), ".*")
    found = []
    for panel, expression in queries({**every, "__rate_interval": "1m"}):
        query = urllib.parse.urlencode({"query": expression})
        told = page(f"{prometheus}/api/v1/query?{query}")
        rows = told.get("data", {}).get("result", [])
        found.append(
            Answer(
                panel, expression, [float(row["value"][1]) for row in rows], told.get("error", "")
            )
        )
    return found


def alerts(prometheus: str) -> dict[str, tuple[str, str]]:
    """The state of each alert, and what went wrong when its rule was evaluated."""
    groups = page(f"{prometheus}/api/v1/rules")["data"]["groups"]
    return {
        rule["name"]: (
            rule["state"] if rule["health"] == "ok" else rule["health"],
            rule.get("lastError", ""),
        )
        for group in groups
        for rule in group["rules"]
    }


def page(url: str) -> dict[str, Any]:
    """JSON from a server of this machine, including its answer to an invalid query."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            text = reply.read(PAGE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(PAGE_BYTES_MAX)
    found: dict[str, Any] = json.loads(text)
    return found


def find_prometheus(bring: Path | None) -> str | None:
    """The program on the PATH, else Debian's, unpacked into the given folder."""
    if (found := shutil.which("prometheus")) or bring is None:
        return found
    program = bring / "usr" / "bin" / "prometheus"
    if not program.exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        bring.mkdir(parents=True, exist_ok=True)
        say(f"bringing Debian's prometheus into {bring}: 20 MB, once")
        quiet: Any = {"cwd": bring, "stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], check=False, **quiet)
        for package in bring.glob("prometheus_*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package.name, "."], check=False, **quiet)
            package.unlink()
    return str(program) if program.exists() else None


def find_grafana() -> tuple[str, Path] | None:
    """The program and its home: the folder above it, or the one of the packages."""
    program = shutil.which("grafana")
    if program is None:
        return None
    beside = Path(program).resolve().parents[1]
    return program, beside if (beside / "conf" / "defaults.ini").exists() else GRAFANA_HOME


@contextmanager
def running(
    command: Sequence[str], log: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to a file. Ctrl-C does not reach it: the block ends it."""
    with open(log, "wb") as words:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], log: Path, is_there: Callable[[str], bool]) -> str:
    """Wait until the process is ready; returns what it has printed by then."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        text = log.read_text(encoding="utf-8", errors="replace")
        if is_there(text):
            return text
        time.sleep(0.1)
    raise SystemExit(f"{log.stem} does not start:\n{log.read_text(errors='replace')[-2000:]}")


def answers(url: str) -> Callable[[str], bool]:
    def ask(_: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    return ask


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def start_bucket(stack: ExitStack, folder: Path) -> Path:
    """An S3 server in memory with a bucket; the broker's settings name it."""
    log = folder / "bucket.log"
    module = "tieredstore.testing.memory_objects"
    server = stack.enter_context(running([sys.executable, "-m", module, "--port", "0"], log))
    endpoint = wait_for(server, log, lambda text: "http://" in text and text.endswith("\n"))
    settings = folder / "broker.toml"
    text = SETTINGS.format(folder=folder, endpoint=endpoint.strip().rpartition("\n")[2])
    settings.write_text(text, encoding="utf-8")
    tier = folder / "tier.toml"
    tier.write_text(text[text.index("[tieredstore]") :], encoding="utf-8")
    create_bucket(ObjectStoreSettings.from_config(StoreConfig.from_file(tier)))
    return settings


def start_broker(stack: ExitStack, folder: Path) -> tuple[Client, str]:
    """Start the broker; returns a client and the address of its metrics."""
    settings, log, port = start_bucket(stack, folder), folder / "broker.log", free_port()
    words = ["-m", "examples.broker", "--config", str(settings), "--metrics-port", str(port)]
    broker = stack.enter_context(running([sys.executable, *words], log))
    told = wait_for(broker, log, lambda text: "listening on " in text and text.endswith("\n"))
    place = ("127.0.0.1", int(told.strip().rpartition(":")[2]))
    client = Client(stack.enter_context(socket.create_connection(place, timeout=30)))
    client.ask(
        Ask.UPDATE_AND_CREATE_TOPIC, topic=TOPIC, readQueueNums=QUEUES, writeQueueNums=QUEUES
    )
    return client, f"127.0.0.1:{port}"


def start_prometheus(stack: ExitStack, folder: Path, program: str, broker: str) -> str:
    address, log, settings = (
        f"127.0.0.1:{free_port()}",
        folder / "prometheus.log",
        folder / "prometheus.yml",
    )
    text = PROMETHEUS.format(seconds=SCRAPE_SECONDS, alerts=json.dumps(str(ALERTS)), broker=broker)
    settings.write_text(text, encoding="utf-8")
    command = [
        program,
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder}/prometheus",
        f"--web.listen-address={address}",
    ]
    process = stack.enter_context(running(command, log))
    wait_for(process, log, answers(f"http://{address}/-/ready"))
    return f"http://{address}"


def start_grafana(stack: ExitStack, folder: Path, found: tuple[str, Path], prometheus: str) -> str:
    """Without accounts: only this machine reaches it, and may look at everything."""
    program, home = found
    port, log = free_port(), folder / "grafana.log"
    provision(folder / "provisioning", prometheus)
    process = stack.enter_context(
        running(
            [program, "server", "--homepath", str(home)],
            log,
            GF_SERVER_HTTP_ADDR="127.0.0.1",
            GF_SERVER_HTTP_PORT=str(port),
            GF_PATHS_DATA=str(folder / "grafana"),
            GF_PATHS_LOGS=str(folder / "grafana"),
            GF_PATHS_PLUGINS=str(folder / "plugins"),
            GF_PATHS_PROVISIONING=str(folder / "provisioning"),
            GF_AUTH_ANONYMOUS_ENABLED="true",
            GF_ANALYTICS_REPORTING_ENABLED="false",
            GF_ANALYTICS_CHECK_FOR_UPDATES="false",
            GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES="false",
            GF_PLUGINS_PREINSTALL_DISABLED="true",
        )
    )
    wait_for(process, log, answers(f"http://127.0.0.1:{port}/api/health"))
    uid = json.loads(DASHBOARD.read_text(encoding="utf-8"))["uid"]
    return f"http://127.0.0.1:{port}/d/{uid}?from=now-15m"


def provision(folder: Path, prometheus: str) -> None:
    """Write what Grafana reads when it starts: where to ask, and where dashboards are."""
    for name, text in (
        ("datasources", SOURCES.format(prometheus=prometheus)),
        ("dashboards", DASHBOARDS.format(folder=json.dumps(str(GRAFANA)))),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "tieredstore.yaml").write_text(text, encoding="utf-8")


def watch(load: Load, seconds: float, rate: int, prometheus: str | None) -> None:
    """One turn a second, until the time is over or somebody presses Ctrl-C."""
    began = told = time.monotonic()
    try:
        say(f"It ends after {seconds:.0f} s, or at Ctrl-C.")
        while (now := time.monotonic()) < began + seconds:
            load.turn(rate)
            if now >= told + TOLD_SECONDS:
                told = now
                say(
                    f"{now - began:.0f} s: {load.sent:,} sent, {load.read:,} read{loud(prometheus)}"
                )
            time.sleep(max(0.0, now + 1.0 - time.monotonic()))
    except KeyboardInterrupt:
        say("interrupted")
    except ConnectionError as error:
        raise SystemExit(f"the broker has gone: {error}") from error


def loud(prometheus: str | None) -> str:
    """The alerts that are pending or firing, for the end of a line."""
    if prometheus is None:
        return ""
    named = [
        f"{name} {state}" for name, (state, _) in alerts(prometheus).items() if state != "inactive"
    ]
    return f"; {', '.join(named)}" if named else "; no alert"


def tell(answered: Sequence[Answer], rules: Mapping[str, tuple[str, str]]) -> int:
    """Print answers and alerts; returns how many were refused."""
    for each in answered:
        values = ", ".join(f"{value:,.6g}" for value in each.values[:4]) or "nothing"
        say(f"{each.panel:<50} {each.error or values}")
    for name, (state, error) in rules.items():
        say(f"alert {name:<44} {error or state}")
    refused = sum(bool(each.error) for each in answered) + sum(
        bool(error) for _, error in rules.values()
    )
    say(f"{len(answered)} queries and {len(rules)} alerts evaluated, {refused} refused")
    return refused


def say(text: str) -> None:
    print(text, flush=True)


def end_once(*_: object) -> None:
    """The first signal ends everything; a second one must not disturb the shutdown."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_once)
    try:
        return run(options)
    except KeyboardInterrupt:  # before there was anything to watch
        return 130


def run(options: argparse.Namespace) -> int:
    program, grafana = find_prometheus(options.bring), find_grafana()
    with tempfile.TemporaryDirectory(prefix="watch-") as name, ExitStack() as stack:
        folder, prometheus = Path(name), None
        client, metrics = start_broker(stack, folder)
        say(f"a broker under load; metrics  http://{metrics}/metrics")
        if program is not None:
            prometheus = start_prometheus(stack, folder, program, metrics)
            say(f"Prometheus, with the alerts   {prometheus}")
        else:
            say("no Prometheus here: `make watch` brings it where apt-get does")
        if prometheus is not None and grafana is not None:
            say(
                f"Grafana, with the dashboard   {start_grafana(stack, folder, grafana, prometheus)}"
            )
        elif grafana is None:
            say("no Grafana here: with the program `grafana` in the PATH, it shows the dashboard")
        watch(Load(client), options.seconds, options.rate, prometheus)
        refused = 0 if prometheus is None else tell(asked(prometheus), alerts(prometheus))
    say("ended")
    return 1 if refused else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.watch", description="A broker under load, to be watched."
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="then it ends; default 900")
    parser.add_argument("--rate", type=int, default=200, help="messages a second; default 200")
    parser.add_argument(
        "--bring", type=Path, metavar="FOLDER", help="bring Prometheus there where there is none"
    )
    options = parser.parse_args(arguments)
    if not (options.seconds > 0 and 0 < options.rate <= RATE_MAX):
        parser.error(f"want some seconds, and up to {RATE_MAX} messages a second")
    if not options.seconds * options.rate <= MESSAGES_MAX:
        parser.error(f"want up to {MESSAGES_MAX:,} messages: the S3 server has them in memory")
    return options


if __name__ == "__main__":
    sys.exit(main())
