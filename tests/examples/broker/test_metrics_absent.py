"""A broker without the package for metrics."""

from __future__ import annotations

import sys

import pytest

from examples.broker.__main__ import _metrics
from tieredstore import InvalidConfigError, StoreConfig


def test_it_says_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tieredstore.exporters.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidConfigError, match=r"pip install 'tieredstore\[prometheus\]'"):
        _metrics(StoreConfig(), 0)
