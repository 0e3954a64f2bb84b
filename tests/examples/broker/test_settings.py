"""The example broker's settings in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.broker.__main__ import _of_file, _options, settings
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


@pytest.mark.parametrize(
    ("variables", "provider", "path"),
    [
        ({}, "posix", "store/tier"),
        ({"PATH": "elsewhere"}, "posix", "elsewhere"),
        ({"PROVIDER": "posix", "PATH": "elsewhere"}, "posix", "elsewhere"),
        ({"PROVIDER": "s3", "BUCKET": "b"}, "s3", ""),
    ],
)
def test_the_environment_may_say_where_the_tier_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], provider: str, path: str
) -> None:
    monkeypatch.setattr("sys.argv", ["broker", "--store", "store"])
    for name, value in variables.items():
        monkeypatch.setenv(f"TIEREDSTORE_{name}", value)
    _, _, tier = settings(_options())
    assert (tier.provider, tier.path) == (provider, path)
