"""Both exporters, one after the other: from the same input they must show the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exporters.shown import Exporter, OpenTelemetry, Prometheus


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def exporter(request: pytest.FixtureRequest) -> Iterator[Exporter]:
    made: Exporter = request.param()
    yield made
    made.close()
