"""What a store measures arrives in Prometheus and OpenTelemetry, under RocketMQ's names and labels.

Both get the same measurements and must show the same.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.exporters.shown import (
    BROKER,
    Exporter,
    OpenTelemetry,
    Prometheus,
    labels_of,
    measured_store,
)
from tieredstore.driver.metrics import (
    API_LATENCY,
    BASE_LABELS,
    DISPATCH_BEHIND,
    MESSAGES_OUT,
    READ_CACHE_ACCESS,
    READ_CACHE_BYTES,
    RPC_LATENCY,
    STORAGE_RESERVE_TIME,
    UPLOAD_BYTES,
    GaugeRead,
    Labels,
)
from tieredstore.exporters import instruments
from tieredstore.model.errors import StoreClosedError
from tieredstore.testing.samples import TOPIC, a_message


def always(value: float, **labels: str) -> GaugeRead:
    return lambda: [(value, labels)]


def test_a_store_is_seen_under_the_names_of_rocketmq(exporter: Exporter, tmp_path: Path) -> None:
    with measured_store(tmp_path, exporter.metrics) as store:
        for _ in range(5):
            store.put_message(a_message())
        behind = (
            DISPATCH_BEHIND.name,
            labels_of(topic=TOPIC, queue_id="0", file_type="consume_queue"),
        )
        assert store.flush()
        assert store.get_message(TOPIC, 0, 0, group="g").messages
        found = exporter.samples()
    assert found[behind] == 0
    assert found[MESSAGES_OUT.name, labels_of(topic=TOPIC, group="g")] == 5
    names = {name for name, _ in found}
    for metric in (API_LATENCY, RPC_LATENCY, UPLOAD_BYTES):
        assert {metric.name + "_bucket", metric.name + "_count"} <= names
        counted = {labels for name, labels in found if name == metric.name + "_count"}
        assert {name for labels in counted for name, _ in labels} == {
            *metric.labels,
            *BASE_LABELS,
            *BROKER,
        }
    assert READ_CACHE_BYTES.name in names
    edges = [dict(labels)["le"] for name, labels in found if name == f"{UPLOAD_BYTES.name}_bucket"]
    assert {float(edge) for edge in edges} == {*map(float, UPLOAD_BYTES.buckets), float("inf")}


def test_a_gauge_that_cannot_be_read_is_left_out(exporter: Exporter) -> None:
    def closed() -> list[tuple[float, Labels]]:
        raise StoreClosedError("closed")

    exporter.metrics.observe(READ_CACHE_BYTES, closed)
    exporter.metrics.observe(READ_CACHE_BYTES, lambda: [(7, {})])
    assert exporter.samples() == {(READ_CACHE_BYTES.name, labels_of()): 7}


def test_what_several_stores_show_is_added_up_and_the_longest_time_counts(
    exporter: Exporter,
) -> None:
    queue = {"topic": TOPIC, "queue_id": "0"}
    for figure in (7, 5):
        exporter.metrics.observe(READ_CACHE_ACCESS, always(figure))
        exporter.metrics.observe(STORAGE_RESERVE_TIME, always(figure, **queue))
    assert exporter.samples() == {
        (READ_CACHE_ACCESS.name, labels_of()): 12,
        (STORAGE_RESERVE_TIME.name, labels_of(**queue)): 7,
    }


@pytest.mark.parametrize("kind", [Prometheus, OpenTelemetry])
def test_labels_can_be_left_out_and_what_they_told_apart_is_added_up(kind: type[Exporter]) -> None:
    exporter = kind(without=["path", "node_id"])
    for path in ("a/t/0", "a/t/1"):
        labels = {"path": path, "file_type": "commit_log", "operation": "write"}
        exporter.metrics.record(UPLOAD_BYTES, 100, labels)
    shown = exporter.samples()
    rest = {"file_type": "commit_log", "operation": "write", "cluster": "c", **BASE_LABELS}
    assert shown[UPLOAD_BYTES.name + "_count", tuple(sorted(rest.items()))] == 2
    assert not [labels for _, labels in shown if {"path", "node_id"} & dict(labels).keys()]
    exporter.close()


def test_the_number_of_label_sets_is_bounded(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruments, "LABEL_SETS_MAX", 3)
    for number in range(10):
        exporter.metrics.add(MESSAGES_OUT, 1, {"topic": f"t{number}", "group": ""})
    found = exporter.samples()
    assert len(found) == 4
    rest = labels_of(topic=instruments.OTHER, group=instruments.OTHER)
    assert found[MESSAGES_OUT.name, rest] == 7


def test_gauges_of_queues_that_come_and_go_take_no_room_for_good(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruments, "LABEL_SETS_MAX", 3)
    shown: list[tuple[float, Labels]] = []
    exporter.metrics.observe(STORAGE_RESERVE_TIME, lambda: list(shown))
    for number in range(10):
        shown[:] = [(number, {"topic": f"t{number}", "queue_id": "0"})]
        queue = labels_of(topic=f"t{number}", queue_id="0")
        assert exporter.samples() == {(STORAGE_RESERVE_TIME.name, queue): number}


def test_what_is_forgotten_makes_room_and_is_counted_anew(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruments, "LABEL_SETS_MAX", 3)
    for number in range(10):
        exporter.metrics.add(MESSAGES_OUT, 1, {"topic": f"t{number}", "group": "g"})
        exporter.metrics.forget("topic", [f"t{number}"])
    exporter.metrics.forget("no label of any", ["x"])
    exporter.metrics.add(MESSAGES_OUT, 5, {"topic": "t9", "group": "g"})
    found = {dict(labels)["topic"]: value for (_, labels), value in exporter.samples().items()}
    if isinstance(exporter, Prometheus):
        assert found == {"t9": 5}
    else:  # the SDK keeps what it has counted
        assert found == {**{f"t{number}": 1 for number in range(9)}, "t9": 6}


@pytest.mark.parametrize("kind", [Prometheus, OpenTelemetry])
def test_a_label_that_is_not_shown_takes_nothing_away_when_it_is_forgotten(
    kind: type[Exporter],
) -> None:
    exporter = kind(without=["topic"])
    for _ in range(2):
        exporter.metrics.add(MESSAGES_OUT, 1, {"topic": "t", "group": "g"})
        exporter.metrics.forget("topic", ["t"])
    shown = {"group": "g", **BROKER, **BASE_LABELS}
    assert exporter.samples() == {(MESSAGES_OUT.name, tuple(sorted(shown.items()))): 2}
    exporter.close()


def test_many_threads_count_forget_and_look_at_once(exporter: Exporter) -> None:
    def count(number: int) -> None:
        for turn in range(200):
            exporter.metrics.add(MESSAGES_OUT, 1, {"topic": "stays", "group": "g"})
            exporter.metrics.add(MESSAGES_OUT, 1, {"topic": f"t{turn % 7}", "group": str(number)})
            exporter.metrics.forget("topic", [f"t{turn % 5}"])
            if not turn % 50:
                exporter.samples()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert exporter.samples()[MESSAGES_OUT.name, labels_of(topic="stays", group="g")] == 800
