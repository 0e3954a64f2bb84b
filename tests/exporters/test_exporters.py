"""Both exporters and the docs show every declared metric with its labels, and its values are true.

Both exporters get the same measurements and must show the same. tests/s3/test_metrics_on_s3.py has
the metrics that only an object store has.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exporters.metrics_page import PAGE, TABLES, with_tables
from tests.exporters.shown import (
    BROKER,
    NEW_TOPIC,
    EventfulBroker,
    Exporter,
    OpenTelemetry,
    Prometheus,
    labels_of,
    measured_store,
    sample_names,
    shown_metrics,
    wrong_labels,
)
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.tiered_index import slot_position
from tieredstore.driver.metadata import Put
from tieredstore.driver.metrics import (
    API_LATENCY,
    BASE_LABELS,
    BUFFERED_BYTES,
    DISPATCH_BEHIND,
    FOOTER_CACHE_BYTES,
    GET_MESSAGE_FALLBACK,
    HELD_LOG_BYTES,
    INDEX_BEHIND,
    INDEX_DAMAGED,
    INDEX_FILES,
    INDEX_PROBLEM,
    JOURNAL_BYTES,
    KEYS_INCOMPLETE,
    LOST_MESSAGES,
    MESSAGES_OUT,
    OBJECT_BILL,
    OBJECT_BYTES,
    OBJECT_REQUESTS,
    OUR_METRICS,
    PUBLISH_PROBLEM,
    PUBLISHED,
    QUEUE_HELD_LOG_BYTES,
    QUEUE_PROBLEM,
    QUEUES,
    READ_CACHE_ACCESS,
    READ_CACHE_BYTES,
    READ_CACHE_COUNT,
    READ_CACHE_HIT,
    RETRIES,
    ROCKETMQ_METRICS,
    RPC_LATENCY,
    SCRUB_AGE,
    SCRUB_BYTES,
    SCRUB_FINDINGS,
    SCRUB_PROGRESS,
    STORAGE_RESERVE_TIME,
    STORAGE_SIZE,
    UPLOAD_BYTES,
    UPLOADS,
    GaugeRead,
    Labels,
    Metric,
    MetricKind,
)
from tieredstore.exporters import instruments
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.values import SegmentType
from tieredstore.testing.samples import TOPIC, a_message

ALL = (*ROCKETMQ_METRICS, *OUR_METRICS)
METRICS = {name: metric for metric in ALL for name in sample_names(metric)}
ONLY_OBJECTS = {OBJECT_REQUESTS, OBJECT_BYTES, OBJECT_BILL}
ONLY_FAILURES = {RETRIES, GET_MESSAGE_FALLBACK, KEYS_INCOMPLETE}
OF_A_SCRUB = {SCRUB_BYTES, SCRUB_PROGRESS, SCRUB_FINDINGS, SCRUB_AGE}


@pytest.fixture
def broker(exporter: Exporter, tmp_path: Path) -> Iterator[EventfulBroker]:
    made = EventfulBroker(tmp_path, exporter.metrics)
    yield made
    made.store.shutdown(drain=False)


def test_declarations_are_complete_and_told_apart() -> None:
    names = [name for metric in ALL for name in sample_names(metric)]
    assert len(names) == len(set(names))
    assert all(metric.meaning for metric in ALL)
    assert all(metric.name.startswith("tieredstore_") for metric in OUR_METRICS)
    counters = {metric for metric in ALL if metric.kind is MetricKind.COUNTER}
    assert counters == {metric for metric in ALL if metric.name.endswith("_total")}


def test_every_metric_is_shown_with_its_labels_by_a_store_on_posix(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    broker.put(5, 6)  # these wait
    first = exporter.samples()
    broker.live_again()
    found = first | exporter.samples()
    assert wrong_labels(found, ALL) == []
    missing = {metric.name for metric in ONLY_OBJECTS | ONLY_FAILURES | OF_A_SCRUB}
    assert shown_metrics(found, ALL) == {metric.name for metric in ALL} - missing


def test_storage_is_what_the_catalogue_says(exporter: Exporter, broker: EventfulBroker) -> None:
    broker.live()
    found = exporter.samples()
    path = f"broker-a/{TOPIC}/0"
    rows = broker.store._loaded().tier.metadata.segments(path)
    log_bytes = sum(row.size for row in rows if row.type is SegmentType.COMMIT_LOG)

    def stored(file_type: str, path: str = path) -> float:
        return found[STORAGE_SIZE.name, labels_of(topic=path, file_type=file_type)]

    assert stored("commit_log") == log_bytes > 0
    assert stored("consume_queue") == 5 * UNIT_BYTES
    assert stored("index", "broker-a/rmq_sys_INDEX/0") > 0
    # The five messages were put a second apart.
    reserve = found[STORAGE_RESERVE_TIME.name, labels_of(topic=TOPIC, queue_id="0")]
    assert reserve == 5_000


def test_the_age_is_not_that_of_a_message_whose_unit_has_expired(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    metadata = broker.store._loaded().tier.metadata
    (units,) = metadata.segments(f"broker-a/{TOPIC}/0", SegmentType.CONSUME_QUEUE)
    assert units.begin_timestamp is not None
    metadata.apply([Put(replace(units, begin_timestamp=units.begin_timestamp + 2_000))])
    reserve = exporter.samples()[STORAGE_RESERVE_TIME.name, labels_of(topic=TOPIC, queue_id="0")]
    assert reserve == 3_000


def test_the_read_cache_shows_what_it_holds(exporter: Exporter, broker: EventfulBroker) -> None:
    def shown(metric: Metric) -> float:
        return exporter.samples()[metric.name, labels_of()]

    broker.put(*range(5))
    assert broker.store.flush()
    assert [shown(READ_CACHE_ACCESS), shown(READ_CACHE_BYTES), shown(READ_CACHE_COUNT)] == [0, 0, 0]
    assert broker.store.get_message(TOPIC, 0, 0).messages
    cache = broker.store._loaded().tier.fetcher.cache
    assert cache is not None
    assert (shown(READ_CACHE_BYTES), shown(READ_CACHE_COUNT)) == (
        cache.held_bytes,
        cache.extent_count,
    )
    assert shown(READ_CACHE_BYTES) > 5 * UNIT_BYTES
    asked, hits = shown(READ_CACHE_ACCESS), shown(READ_CACHE_HIT)
    assert hits < asked
    assert broker.store.get_message(TOPIC, 0, 0).messages
    assert shown(READ_CACHE_HIT) - hits == shown(READ_CACHE_ACCESS) - asked > 0


def test_a_queue_that_stops_and_one_with_a_gap_are_named(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    calm = exporter.samples()
    assert calm[QUEUES.name, labels_of(state="ok")] == 1
    assert not {QUEUE_PROBLEM.name, LOST_MESSAGES.name} & {name for name, _ in calm}
    broker.live_again()
    found = exporter.samples()
    states = {s: found[QUEUES.name, labels_of(state=s)] for s in ("ok", "failing", "stopped")}
    assert states == {"ok": 1, "failing": 0, "stopped": 1}
    queue = labels_of(topic=TOPIC, queue_id="0", state="stopped")
    assert found[QUEUE_PROBLEM.name, queue] == 1
    assert found[LOST_MESSAGES.name, labels_of(topic=NEW_TOPIC, queue_id="0")] == 2


def test_what_waits_and_what_was_published_and_indexed_is_shown(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    found = exporter.samples()
    files = {s: found[INDEX_FILES.name, labels_of(state=s)] for s in ("sealed", "uploaded")}
    assert files == {"sealed": 0, "uploaded": 1}
    for metric in (BUFFERED_BYTES, UPLOADS, HELD_LOG_BYTES, INDEX_BEHIND):
        assert found[metric.name, labels_of()] == 0, metric.name
    for metric in (INDEX_PROBLEM, PUBLISH_PROBLEM):
        assert found[metric.name, labels_of()] == 0, metric.name
    assert found[JOURNAL_BYTES.name, labels_of()] > 0
    assert found[FOOTER_CACHE_BYTES.name, labels_of()] > 0
    health = broker.store.health().catalogue
    assert found[PUBLISHED.name, labels_of(success="true")] == health.published_count > 0
    assert found[PUBLISHED.name, labels_of(success="false")] == 0
    before = broker.local.confirmed_offset()
    broker.put(5, 6)
    held = exporter.samples()[HELD_LOG_BYTES.name, labels_of()]
    assert held == broker.local.confirmed_offset() - before > 0


def test_damage_that_a_look_up_meets_is_counted(
    exporter: Exporter, broker: EventfulBroker, tmp_path: Path
) -> None:
    broker.live()
    assert broker.store.query_message(TOPIC, "shared").complete
    calm = exporter.samples()
    assert calm[INDEX_DAMAGED.name, labels_of()] == 0
    assert KEYS_INCOMPLETE.name not in {name for name, _ in calm}
    (path,) = (tmp_path / "tier").rglob("INDEX/*")
    data = bytearray(path.read_bytes())
    data[slot_position(broker.config.index_slot_count)] ^= 1  # the hash of the first item
    path.write_bytes(data)
    for _ in range(2):
        assert not broker.store.query_message(TOPIC, "shared").complete
    found = exporter.samples()
    assert found[INDEX_DAMAGED.name, labels_of()] == 1
    assert found[KEYS_INCOMPLETE.name, labels_of(topic=TOPIC)] == 2


def test_each_queue_that_waits_says_how_much_of_the_local_log_it_holds(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    calm = exporter.samples()
    assert QUEUE_HELD_LOG_BYTES.name not in {name for name, _ in calm}
    first = broker.local.confirmed_offset()
    broker.local.put_message(a_message(queue_id=0))
    second = broker.local.confirmed_offset()
    broker.local.put_message(a_message(queue_id=1))
    end = broker.local.confirmed_offset()
    found = exporter.samples()
    held = {
        queue_id: found[QUEUE_HELD_LOG_BYTES.name, labels_of(topic=TOPIC, queue_id=queue_id)]
        for queue_id in ("0", "1")
    }
    assert held == {"0": end - first, "1": end - second}
    assert found[HELD_LOG_BYTES.name, labels_of()] == end - first


def test_a_topic_that_is_deleted_is_shown_no_more(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    broker.store.delete_topics([TOPIC])
    found = exporter.samples()
    named = {
        METRICS[name].kind
        for name, labels in found
        if any(TOPIC in value.split("/") for _, value in labels)
    }
    if isinstance(exporter, Prometheus):
        assert named == set()
    else:  # the SDK keeps what it has counted
        assert MetricKind.GAUGE not in named


def test_a_store_that_was_shut_down_shows_no_gauges_and_one_loaded_again_shows_its_own(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    while_open = exporter.samples()
    broker.store.shutdown()
    observed = {metric.name for metric in ALL if metric.kind is MetricKind.GAUGE} | {
        READ_CACHE_ACCESS.name,
        PUBLISHED.name,
    }
    closed = exporter.samples()
    assert not observed & {name for name, _ in closed}
    assert closed  # counts stay
    broker.store.load()
    broker.store.start()
    again = exporter.samples()
    size = (STORAGE_SIZE.name, labels_of(topic=f"broker-a/{TOPIC}/0", file_type="consume_queue"))
    assert again[size] == while_open[size]


def test_what_destroys_the_data_leaves_no_gauge_behind(
    exporter: Exporter, broker: EventfulBroker
) -> None:
    broker.live()
    broker.store.destroy()
    gauges = {metric.name for metric in ALL if metric.kind is MetricKind.GAUGE}
    assert not gauges & {name for name, _ in exporter.samples()}


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


def test_a_group_that_is_no_valid_unicode_is_shown_and_the_page_is_whole(
    exporter: Exporter,
) -> None:
    exporter.metrics.add(MESSAGES_OUT, 1, {"topic": "t", "group": "half\ud800"})
    exporter.metrics.add(MESSAGES_OUT, 2, {"topic": "t", "group": "g"})
    assert exporter.samples() == {
        (MESSAGES_OUT.name, labels_of(topic="t", group="half\\ud800")): 1,
        (MESSAGES_OUT.name, labels_of(topic="t", group="g")): 2,
    }


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


def test_the_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: python -m tests.exporters.metrics_page"


def test_a_page_that_says_something_else_is_made_true() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for metrics in TABLES.values():
        wrong = text.replace(f"`{metrics[0].name}`", "`another`")
        assert wrong != text
        assert with_tables(wrong) == text


def test_the_base_labels_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, value in BASE_LABELS.items():
        assert f'`{name}="{value}"`' in text
