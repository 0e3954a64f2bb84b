"""What the README tells readers to type works, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.docs.page_commands import run_block
from tests.docs.pages import ROOT, blocks, inline_code
from tests.docs.test_commands import shown, unknown

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_commands_of_the_readme_end_well_and_find_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the real home may have a store
    command, said = Command(capsys), []

    def run(words: list[str]) -> tuple[int, str]:
        ran = command.run(*words)
        said.append(ran.out)
        return ran.code, ran.err

    [block] = [each for each in blocks(README) if each.language == "shell"]
    assert run_block(block, tmp_path, run, "") == []
    _, _, query, why, cost = said
    assert "orders/0/0" in query
    assert "the index finds it by order-1" in why
    assert "total:" in cost
    assert list(tmp_path.iterdir()) == []


def test_the_python_of_the_readme_is_short_small_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[int] = []  # bytes on the disk when the code is done with them

    class Measured(tempfile.TemporaryDirectory[str]):
        def cleanup(self) -> None:
            found = [path.stat() for path in Path(self.name).rglob("*") if path.is_file()]
            taken.append(sum(each.st_blocks * 512 for each in found))
            super().cleanup()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryDirectory", Measured)
    [block] = [each for each in blocks(README) if each.language == "python"]
    assert len([line for line in block.text.splitlines() if line]) <= 15
    exec(block.text, {})
    assert capsys.readouterr().out == "1 message is in the tier\nb'hello'\n"
    assert (
        1 << 20 <= taken[0] < 100 << 20
    )  # two sparse index files of RocketMQ's size, and little else
    assert list(tmp_path.iterdir()) == []


def test_commands_that_the_readme_only_shows_exist() -> None:
    assert [found for words in shown(README) if (found := unknown(words))] == []
    assert any(code.startswith("tieredstore ") for code in inline_code(README))


def test_every_example_is_named_in_the_readme() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert f"examples/{path.name}" in README or path.stem == "demo"


def test_every_page_is_reached_from_the_readme() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert f"docs/{path.name}" in README or f"]({path.name})" in index, path.name
