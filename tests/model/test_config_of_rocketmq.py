"""Every setting of RocketMQ 5.5.0 may stand in a broker.conf, and a long file is read quickly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tieredstore.local.config import LocalConfig
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError

KEYS = [
    line
    for line in (Path(__file__).parent / "broker_conf_keys.txt").read_text().splitlines()
    if not line.startswith("#")
]
KINDS = pytest.mark.parametrize("kind", [StoreConfig, LocalConfig])
LONG = 60_000
SECONDS_MAX = 5.0  # it takes a tenth of it; the square of these lengths took up to 20


@KINDS
def test_no_setting_of_rocketmq_is_called_unknown(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig]
) -> None:
    assert len(KEYS) == 522
    unknown = []
    for key in KEYS:
        file = tmp_path / "broker.conf"
        file.write_text(f"brokerName=b\n{key}=1\n")
        try:
            kind.from_file(file)
        except InvalidConfigError as error:  # 1 is no value of some settings of ours
            if "unknown" in str(error):
                unknown.append(key)
    assert unknown == []


TOML = {
    "a dotted name": "a" + ".a" * (LONG // 2) + "=1",
    "a dotted table": "[a" + ".a" * (LONG // 2) + "]",
    "a dotted name in a table": "x={" + "a." * (LONG // 2) + "a=1}",
    "quoted parts": '"a".' * (LONG // 4) + "a=1",
    "an open string of escapes": 'path="' + '"\\' * (LONG // 2),
    "quotes": '"' * LONG,
    "threefold quotes": "\"\"\"'''" * (LONG // 6),
    "tables": "".join(f"[t{number}]\n" for number in range(LONG // 6)),
    "brackets": "a=" + "[" * LONG,
}


@KINDS
@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_sixty_kilobytes_of_toml_are_refused_at_once(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig], text: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    begun = time.process_time()
    with pytest.raises(InvalidConfigError):
        kind.from_file(file)
    assert time.process_time() - begun < SECONDS_MAX


def test_dots_in_a_value_or_a_comment_are_text(tmp_path: Path) -> None:
    dots = "a." * (LONG // 20)
    file = tmp_path / "settings.toml"
    for value in (f'"{dots}"', f"'{dots}'", f'"""\n{dots}"""', f"'''{dots}'''"):
        file.write_text(f"# {dots}\n[tieredstore] # {dots}\nprefix = {value}\n")
        assert StoreConfig.from_file(file).prefix.startswith("a.a.")


@KINDS
@pytest.mark.parametrize("text", ["a=b\\\n", "\\\n", "a ", "=", "\\u0041", "k\n", "#"])
def test_sixty_kilobytes_of_a_broker_conf_are_read_at_once(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig], text: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n" + text * (LONG // len(text)))
    begun = time.process_time()
    kind.from_file(file)
    assert time.process_time() - begun < SECONDS_MAX
