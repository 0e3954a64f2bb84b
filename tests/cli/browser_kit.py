"""A page in a real browser: its content, what does not fit, its requests and its complaints.

This needs only chromium. A window cannot be as narrow as a phone, so the page is shown in a frame
of the screen's width, and a script around the frame looks inside.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.loopback import running

_FRAME = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<iframe id="frame" style="width:{width}px;height:800px;border:0"></iframe><pre id="seen"></pre>
<script>
const frame = document.getElementById("frame");
frame.onload = () => {{
  const inside = frame.contentDocument, box = inside.getElementById("search");
  if (box) {{ box.value = {search}; box.dispatchEvent(new Event("input")); }}
  const wide = frame.contentWindow.innerWidth;
  const beside = [...inside.body.querySelectorAll("*")].filter(
    each => each.getBoundingClientRect().right > wide + 0.5);
  document.getElementById("seen").textContent = JSON.stringify({{
    title: inside.title,
    width: wide,
    scroll_width: inside.documentElement.scrollWidth,
    beside: beside.slice(0, 5).map(each => each.outerHTML.slice(0, 80)),
    tables: inside.querySelectorAll("table").length,
    text: inside.body.innerText,
  }});
}};
frame.src = "/page";
</script>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a browser made of a page; `asked` holds the addresses that the page requested."""

    title: str
    width: int
    scroll_width: int
    beside: list[str]
    tables: int
    text: str
    complaints: list[str]
    asked: set[str]


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, bytes]

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


def seen(page: bytes, folder: Path, *, width: int, search: str = "") -> Seen:
    """Show the page on a screen of this width until its scripts and requests are done.

    `search` is typed into its search box if it has one.
    """
    frame = _FRAME.format(width=width, search=json.dumps(search)).encode()
    net = folder / f"net-{width}.json"
    with _served({"/": frame, "/page": page}) as url:
        ran = _run(
            folder,
            "--enable-logging=stderr",
            f"--log-net-log={net}",
            "--virtual-time-budget=10000",
            "--dump-dom",
            url,
        )
    found = re.search(r'<pre id="seen">(.+?)</pre>', ran.stdout, re.DOTALL)
    assert found, ran.stderr
    complaints = [line for line in ran.stderr.splitlines() if ":CONSOLE" in line]
    asked = {each.removeprefix(url) for each in _asked(net, url)}
    return Seen(**json.loads(unescape(found[1])), complaints=complaints, asked=asked)


def printed(page: bytes, folder: Path) -> bytes:
    """The page printed to PDF."""
    target = folder / "printed.pdf"
    with _served({"/": page}) as url:
        _run(folder, "--no-pdf-header-footer", f"--print-to-pdf={target}", url)
    return target.read_bytes()


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = chromium()
    assert program is not None
    return subprocess.run(
        [
            program,
            "--headless=new",
            "--no-sandbox",  # it shows only our own page, and root gets no sandbox
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            *words,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def _asked(net: Path, origin: str) -> Iterator[str]:
    """What pages of this origin requested; the browser also makes requests of its own."""
    for event in json.loads(net.read_text(encoding="utf-8"))["events"]:
        facts = event.get("params", {})
        if "url" in facts and facts.get("initiator", "").startswith(origin.rstrip("/")):
            yield facts["url"]


@contextmanager
def _served(pages: dict[str, bytes]) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"pages": pages})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as address:
        yield f"{address}/"
