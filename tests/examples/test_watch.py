"""A broker under load shows what the dashboard and the alerts ask for, and `watch` ends.

If Prometheus is there, it is asked each query too; `make watch` installs it.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples import watch
from tests.examples.example_kit import ROOT, environment, interruptible
from tests.exporters.test_dashboard import METRICS, OF_THE_SCRAPE, read, rules

PROMETHEUS = watch.find_prometheus(None) or ROOT / ".watch" / "usr" / "bin" / "prometheus"
TURNS_MAX = 500
# A broker without trouble does not have these; tests/exporters covers them.
OF_TROUBLE = {
    "rocketmq_tiered_store_get_message_fallback_total",
    "tieredstore_incomplete_key_answers_total",
    "tieredstore_lost_messages",
    "tieredstore_queue_problem",
    "tieredstore_retries_total",
}
OF_A_FOLDER = {"tieredstore_catalogue_snapshot_age"}  # in a bucket the log is the catalogue
OF_A_SCRUB = {name for name in METRICS if name.startswith("tieredstore_scrub_")}
EMPTY_PANELS = {
    "Age of the catalogue's snapshot",
    "Age of the last whole scrub",
    "Answers by key that may lack a message, an hour",
    "Bytes a second that the scrub has checked",
    "Failed requests and retries a second",
    "Fallbacks a second",
    "How far the scrub is",
    "Queues that lost messages",
    "Queues with a problem",
    "Reads and writes of segments that failed",
    "What a scrub has found",
}
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_EQUALS = re.compile(r'(\w+)="([^"]*)"')

Samples = dict[str, list[dict[str, str]]]


def expressions() -> list[str]:
    return [*(query for _, query in watch.queries({})), *(rule["expr"] for rule in rules())]


def scraped(address: str) -> Samples:
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        text = reply.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def missing(expression: str, samples: Samples) -> Iterator[str]:
    """Metrics, labels and label values that an expression asks for but no sample has."""
    named = read(expression)
    for name, labels in named.metrics:
        shown = {label for each in samples.get(name, ()) for label in each}
        if name not in samples:
            yield name
        else:
            yield from (f"{name}: {label}" for label in labels - shown - OF_THE_SCRAPE)
    for name, selected in _SELECTOR.findall(expression):
        wanted = dict(_EQUALS.findall(selected))
        if name in samples and not any(wanted.items() <= each.items() for each in samples[name]):
            yield f"{name}: {wanted}"
    shown = {label for name, _ in named.metrics for each in samples.get(name, ()) for label in each}
    if shown:
        yield from named.grouped_by - shown - OF_THE_SCRAPE


@pytest.mark.slow
def test_what_is_asked_for_is_in_a_scrape_of_a_broker_under_load(tmp_path: Path) -> None:
    with ExitStack() as stack:
        client, address = watch.start_broker(stack, tmp_path)
        load, samples = watch.Load(client), dict[str, list[dict[str, str]]]()
        for _ in range(TURNS_MAX):
            load.turn(100)
            samples = scraped(address)
            if {"rocketmq_tiered_store_messages_out_total", "tieredstore_queues"} <= set(samples):
                break
    gone = {each for expression in expressions() for each in missing(expression, samples)}
    failed = "rocketmq_tiered_store_provider_rpc_latency_count: {'success': 'false'}"
    assert gone - OF_TROUBLE - OF_A_FOLDER - OF_A_SCRUB <= {failed}
    assert METRICS.keys() >= OF_TROUBLE | OF_A_FOLDER


def test_what_is_not_in_a_scrape_is_missed() -> None:
    samples = {"a": [{"x": "1", "instance": "i"}, {"x": "2"}]}
    for expression in ('sum by (x) (a{x="1", job="j"})', 'a{x="2"}', "sum by (job) (a)"):
        found = list(missing(expression.replace(', job="j"', ""), samples))
        assert found == []
    assert list(missing("b > 0", samples)) == ["b"]
    assert list(missing("a{y=~'.*'}", samples)) == ["a: y"]
    assert list(missing('a{x="3"}', samples)) == ["a: {'x': '3'}"]
    assert list(missing("sum by (y) (a)", samples)) == ["y"]


@contextmanager
def watching(folder: Path, *words: str, path: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run the example until it has printed everything up to "It ends"."""
    variables = environment(TMPDIR=str(folder))
    if path:
        variables["PATH"] = path
    with interruptible():
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "examples.watch", *words],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    with watching(tmp_path, "--seconds", "600", path="/nowhere") as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        assert told[-1] == "It ends after 600 s, or at Ctrl-C.\n", (told, process.communicate())
        metrics = told[0].split()[-1]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "interrupted\nended\n", "")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        urllib.request.urlopen(metrics)


@pytest.mark.slow
@pytest.mark.skipif(not Path(PROMETHEUS).exists(), reason="no Prometheus: `make watch` brings it")
def test_prometheus_answers_each_query_and_evaluates_each_alert(tmp_path: Path) -> None:
    until = time.monotonic() + 240
    with ExitStack() as stack:
        client, address = watch.start_broker(stack, tmp_path)
        prometheus = watch.start_prometheus(stack, tmp_path, str(PROMETHEUS), address)
        load, answered, empty = watch.Load(client), list[watch.Answer](), {""}
        while empty - EMPTY_PANELS and time.monotonic() < until:
            load.turn(100)
            answered = watch.asked(prometheus)
            empty = {each.panel for each in answered if not each.values}
        rules_there = watch.alerts(prometheus)
    assert empty <= EMPTY_PANELS
    assert {each.error for each in answered} == {""}
    assert {state for state, _ in rules_there.values()} <= {"inactive", "pending", "firing"}
    assert rules_there.keys() == {rule["alert"] for rule in rules()}


def test_what_prometheus_refuses_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    answered = [
        watch.Answer("Good", "up", [1.0, 2.0], ""),
        watch.Answer("Bad", "up(", [], "parse error"),
    ]
    assert watch.tell(answered, {"A": ("inactive", ""), "B": ("err", "no such thing")}) == 2
    told = capsys.readouterr().out
    assert "1, 2\n" in told
    assert "parse error\n" in told
    assert "2 queries and 2 alerts evaluated, 2 refused" in told


def test_what_grafana_is_given_names_the_dashboard_and_where_to_ask(tmp_path: Path) -> None:
    yaml: Any = importlib.import_module("yaml")
    watch.provision(tmp_path, "http://127.0.0.1:9090")
    [source] = yaml.safe_load((tmp_path / "datasources" / "tieredstore.yaml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    assert source["isDefault"]
    [place] = yaml.safe_load((tmp_path / "dashboards" / "tieredstore.yaml").read_text())[
        "providers"
    ]
    [dashboard] = Path(place["options"]["path"]).glob("*.json")
    assert json.loads(dashboard.read_text())["uid"] == "tieredstore"


@pytest.mark.parametrize("words", ["--seconds 0", "--rate 0", "--rate 9999", "--seconds 86400"])
def test_more_than_the_server_can_hold_is_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        watch.main(words.split())
    assert "want " in capsys.readouterr().err
