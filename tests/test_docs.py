"""The documents are true as far as a machine can tell: links, code blocks, targets of make.

tests/test_house.py checks that the files they name exist. tests/docs compares single pages, and the
commands that they show, with the code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, outside_blocks

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DECISIONS = sorted(ROOT.glob("docs/decisions/*.md"))

_LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_NAME = r"([a-z][a-z0-9-]*)"
_TARGET = re.compile(rf"^{_NAME}:.*## ", re.MULTILINE)
_COMMAND = re.compile(rf"^[$ ]*make {_NAME}\b", re.MULTILINE)
_INLINE_COMMAND = re.compile(rf"`make {_NAME}\b|^ {{4}}[$ ]*make {_NAME}\b", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def broken_links(path: Path, text: str) -> list[str]:
    """Links to files or headings that do not exist."""
    found = []
    for target, anchor in _LINK.findall(outside_blocks(text)):
        file = path.parent / target if target else path
        if not file.exists():
            found.append(target)
        elif anchor and file.suffix == ".md":
            content = text if file == path else file.read_text(encoding="utf-8")
            if anchor not in {slug(heading) for heading in _HEADING.findall(content)}:
                found.append(f"{target}#{anchor}")
    return found


def slug(heading: str) -> str:
    """The anchor that code hosts make from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def python_blocks(text: str) -> list[str]:
    """The Python blocks of a document to run; a block marked `python no-run` is only shown.

    Tests in tests/docs run the blocks marked `python spark`, `python here` or `python s3`. A block
    that names a file is the content of that file, for later commands.
    """
    return [
        block.text
        for block in blocks(text)
        if block.language == "python"
        and not {"no-run", "spark", "here", "s3"}.intersection(block.words)
        and not any(word.endswith(".py") for word in block.words)
    ]


def commands(text: str) -> set[str]:
    """The make targets that a document names, but not the words after "make" in prose."""
    inline = {name for pair in _INLINE_COMMAND.findall(text) for name in pair if name}
    return inline.union(*(_COMMAND.findall(block.text) for block in blocks(text)))


def unknown_targets(text: str) -> set[str]:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    return commands(text) - targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_make_targets_in_a_document_exist(path: Path) -> None:
    assert unknown_targets(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_python_blocks_of_a_document_run(path: Path, tmp_path: Path) -> None:
    """They run top to bottom in one Python, in an empty folder, and leave no temporary files."""
    shown = python_blocks(path.read_text(encoding="utf-8"))
    if not shown:
        return
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(shown), encoding="utf-8")
    scratch, temporary = tmp_path / "empty", tmp_path / "temporary"
    scratch.mkdir()
    temporary.mkdir()
    # The path is given, so that the checkout need not be installed.
    start = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2])"
    command = [sys.executable, "-W", "error", "-c", start, str(ROOT), str(script)]
    ran = subprocess.run(
        command,
        cwd=scratch,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("path", DECISIONS, ids=named)
def test_a_decision_says_context_decision_and_consequences(path: Path) -> None:
    headings = _HEADING.findall(path.read_text(encoding="utf-8"))
    assert headings[1:4] == ["Context", "Decision", "Consequences"]


def test_decisions_are_numbered_without_gap() -> None:
    numbers = [int(path.name.partition("-")[0]) for path in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"demo", "test"} <= commands(text)


BROKEN_LINKS = ["[a](never.md)", "[a](README.md#never-a-heading)", "[a](#never)"]


@pytest.mark.parametrize("text", BROKEN_LINKS)
def test_a_link_to_nowhere_is_caught(text: str) -> None:
    assert broken_links(ROOT / "CONTRIBUTING.md", text)


def test_a_link_to_somewhere_passes() -> None:
    text = "# A `b`, c\n[a](#a-b-c) [b](LICENSE) [c](https://x.org/y.md)\n```\n[a](never.md)\n```\n"
    assert broken_links(ROOT / "CONTRIBUTING.md", text) == []


def test_blocks_and_targets_are_found() -> None:
    text = "```python\na = 1\n```\n```sh\nmake never\n```\n```python no-run\nb\n```\n`make test`\n"
    text += "make sure that\n    $ make demo\n`make test-s3` `make test-never`\n"
    text += "```python a.py\nc\n```\n"
    assert python_blocks(text) == ["a = 1\n"]
    assert commands(text) == {"never", "test", "demo", "test-s3", "test-never"}
    assert unknown_targets(text) == {"never", "test-never"}
