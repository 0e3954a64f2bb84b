"""The example broker's settings in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.broker.__main__ import _of_file
from tieredstore import InvalidConfigError


@pytest.mark.parametrize("seconds", ["2", "2.0"])
def test_seconds_need_no_decimal_point(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f"[broker]\nretry_seconds = {seconds}\n")
    assert _of_file(str(path))[0].retry_seconds == 2


@pytest.mark.parametrize("line", ['retry_seconds = "2"', "port = 1.0", "grpc_port = true"])
def test_another_kind_of_value_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f"[broker]\n{line}\n")
    with pytest.raises(InvalidConfigError, match=r"_?\w+ is no setting of a broker, or not"):
        _of_file(str(path))
