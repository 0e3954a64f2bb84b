"""The reference that `make docs` builds has every public name and no broken link."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import tieredstore
from tests.docs.pages import ROOT

_HREF = re.compile(r'\bhref="([^"]*)"')
_ID = re.compile(r'\bid="([^"]*)"')
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_WORDS = re.compile(r"^REFERENCE := ((?:.*\\\n)*.*)", re.MULTILINE)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, built with the Makefile's list of modules."""
    folder = tmp_path_factory.mktemp("reference")
    found = _WORDS.search((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found
    words = shlex.split(found[1].replace("\\\n", " "))
    command = [sys.executable, "-W", "ignore", "-m", "pdoc", "--docformat", "markdown"]
    subprocess.run([*command, "--output-directory", folder, *words], cwd=ROOT, check=True)
    return folder


def dead_links(folder: Path) -> list[str]:
    pages = {
        path: _SCRIPT.sub("", path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")
    }
    names = {path: set(map(unescape, _ID.findall(text))) for path, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in map(unescape, _HREF.findall(text)):
            if re.match(r"[a-z]+:", link):
                continue
            target, name = map(unquote, urldefrag(link))
            path = (page.parent / target).resolve() if target else page
            if not path.is_file() or (name and name not in names.get(path, ())):
                dead.append(f"{page.relative_to(folder)}: {link}")
    return dead


def test_no_link_leads_nowhere(reference: Path) -> None:
    assert dead_links(reference) == []


def test_every_public_name_is_in_it(reference: Path) -> None:
    page = (reference / "tieredstore.html").read_text(encoding="utf-8")
    public = set(tieredstore.__all__) - {"__version__"}
    assert public <= set(_ID.findall(page))


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a id="x" href="#x"/><a href="#y"/><a href="b.html"/>')
    assert dead_links(tmp_path) == ["a.html: #y", "a.html: b.html"]
