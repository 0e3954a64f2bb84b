"""The metrics of a store on S3: its requests, their cost, and what was retried and given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporters.shown import (
    EventfulBroker,
    Exporter,
    OpenTelemetry,
    Prometheus,
    labels_of,
    shown_metrics,
    wrong_labels,
)
from tests.s3.moto_server import Door
from tests.s3.s3_clients import new_settings
from tieredstore.driver.metrics import (
    GET_MESSAGE_FALLBACK,
    KEYS_INCOMPLETE,
    OBJECT_BILL,
    OBJECT_BYTES,
    OBJECT_REQUESTS,
    OUR_METRICS,
    RETRIES,
    ROCKETMQ_METRICS,
)
from tieredstore.driver.object_requests import PriceTable
from tieredstore.testing.samples import TOPIC

ALL = (*ROCKETMQ_METRICS, *OUR_METRICS)


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def exporter(request: pytest.FixtureRequest) -> Iterator[Exporter]:
    made: Exporter = request.param()
    yield made
    made.close()


def test_every_metric_is_shown_with_its_labels_by_a_store_on_s3(
    exporter: Exporter, tmp_path: Path, moto: tuple[str, Door]
) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, "obstore")
    door.requests()
    broker = EventfulBroker(
        tmp_path,
        exporter.metrics,
        provider="s3",
        object_client="obstore",
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=endpoint,
        region=settings.region,
        access_key=settings.access_key,
        secret_key=settings.secret_key,
        certify="off",
        read_ahead_enabled=False,
    )
    broker.live()
    found = exporter.samples()
    counted = {
        operation: found.get(
            (OBJECT_REQUESTS.name, labels_of(operation=operation, success="true")), 0.0
        )
        for operation in ("put", "get", "list")
    }
    seen = door.requests()
    assert counted == {"put": seen["PUT"], "get": seen["GET"], "list": seen["LIST"]}
    assert not [labels for name, labels in found if name == RETRIES.name]
    prices = PriceTable()
    least = sum(counted[each] * prices.of(each) / 1000 for each in counted)
    bills = [found[OBJECT_BILL.name, labels_of(operation=each)] for each in counted]
    assert sum(bills) >= least > 0
    assert found[OBJECT_BYTES.name, labels_of(operation="put")] > 0

    with door.breaking("503", rate=1.0):
        assert broker.store.get_message(TOPIC, 0, 0, group="g").messages  # the local store answers
    failed = exporter.samples()
    fallback = labels_of(operation="get_message", topic=TOPIC, group="g")
    assert failed[GET_MESSAGE_FALLBACK.name, fallback] == 1
    retried = {labels for name, labels in failed if name == RETRIES.name}
    assert retried == {labels_of(operation="get")}
    failures = failed[OBJECT_REQUESTS.name, labels_of(operation="get", success="false")]
    assert 0 < failed[RETRIES.name, labels_of(operation="get")] < failures

    broker.put(5, 6)  # these wait
    first = {**found, **failed, **exporter.samples()}
    broker.live_again()
    found = first | exporter.samples()
    broker.store.shutdown(drain=False)
    assert wrong_labels(found, ALL) == []
    names = {metric.name for metric in ALL}
    cached = {metric.name for metric in ALL if "read_ahead" in metric.name}  # read-ahead is off
    others = {name for name in names if "_scrub_" in name} | {KEYS_INCOMPLETE.name}
    assert shown_metrics(found, ALL) == names - cached - others
