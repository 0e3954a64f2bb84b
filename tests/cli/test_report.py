"""The verb report: one page with everything in it, which asks nobody for anything."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import TIER, asked
from tieredstore.access.cost import Load, MonthlyCost
from tieredstore.access.tier_picture import DrawnSegment, QueuePicture, TierPicture
from tieredstore.cli.failures import ExitCode
from tieredstore.cli.report_page import QUEUES_SHOWN_MAX, page
from tieredstore.model.values import QueueKey

VOID = {"meta", "br", "rect", "link", "img", "input", "hr"}


class Checked(HTMLParser):
    """Every tag is closed in its turn; what is on the page is kept."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def a_queue(topic: str, queue_id: int, **others: Any) -> QueuePicture:
    settings: dict[str, Any] = {
        "min_offset": 0,
        "max_offset": 10,
        "indexed_offset": 5,
        "local_offset": 12,
        "queue_bytes": 200,
        "segments": (
            DrawnSegment(base_offset=0, size=1000, begin_timestamp=1, end_timestamp=3),
            DrawnSegment(base_offset=1000, size=10, begin_timestamp=None, end_timestamp=None),
        ),
        **others,
    }
    return QueuePicture(key=QueueKey(topic, queue_id), **settings)


def a_picture(*queues: QueuePicture, **others: Any) -> TierPicture:
    settings: dict[str, Any] = {
        "broker_name": "broker-a",
        "cluster_name": "c",
        "place": "/tier",
        "taken_at": 1_800_000_000_000,
        "index_files": (),
        "reserve_hours": {},
        "load": Load(queue_count=1, messages_per_second=1, message_bytes=1),
        "cost": MonthlyCost(lines=()),
        **others,
    }
    return TierPicture(queues=queues, **settings)


def drawn(*queues: QueuePicture, **others: Any) -> Checked:
    return Checked("\n".join(page(a_picture(*queues, **others))))


def test_the_page_of_a_golden_tier_is_whole_and_asks_nobody(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "tier.html"
    before = picture(TIER)
    ran = asked(command, TIER, "report", "--out", out)
    assert (ran.code, ran.err) == (0, "")
    assert picture(TIER) == before
    checked = Checked(out.read_text(encoding="utf-8"))
    assert checked.open == []
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(checked.tags)
    names = {name for name, _ in checked.attributes}
    assert not {"src", "href", "srcset", "action", "onload"} & names
    assert "url(" not in out.read_text(encoding="utf-8")
    for row in asked(command, TIER, "queues", "--json").rows:
        assert f"{row['topic']}/{row['queue_id']}" in checked.text
        assert f"{row['max_offset']:,}" in checked.text


def test_a_name_is_text_and_never_part_of_the_page() -> None:
    evil = "<script>alert(1)</script>\"'&"
    checked = drawn(a_queue(evil, 0, problem=evil), broker_name=evil, cluster_name=evil, place=evil)
    assert "script" not in checked.tags
    assert checked.text.count(evil) >= 5


def test_what_nobody_knows_is_a_question_mark() -> None:
    unknown = a_queue("t", 0, min_offset=None, indexed_offset=None, local_offset=None, segments=())
    checked = drawn(unknown)
    assert checked.open == []
    assert checked.words.count("?") >= 3
    assert "No segment has times that can be believed." in checked.text


def test_a_page_of_very_many_queues_shows_the_largest_and_those_with_a_problem() -> None:
    queues = [a_queue(f"t{number:04}", 0) for number in range(QUEUES_SHOWN_MAX + 50)]
    queues[-1] = a_queue("broken", 0, problem="it is lost", segments=())
    checked = drawn(*queues)
    assert "it is lost" in checked.text
    assert f"The largest {QUEUES_SHOWN_MAX} of {len(queues):,} queues." in checked.text


def test_no_bar_leaves_its_picture() -> None:
    begin = 1_700_000_000_000
    segments = tuple(
        DrawnSegment(
            base_offset=at, size=1, begin_timestamp=begin + at, end_timestamp=begin + at + 1
        )
        for at in range(1000)
    )
    queues = [
        a_queue("t", 0, segments=segments),
        a_queue("t", 1, min_offset=5, max_offset=7, indexed_offset=1, local_offset=3),
    ]
    checked = drawn(*queues)
    for name, value in checked.attributes:
        if name in ("x", "width") and value is not None and value.replace(".", "").isdigit():
            assert 0 <= float(value) <= 400


def test_a_tier_that_is_not_there_leaves_no_page(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "tier.html"
    ran = command.run("report", "--out", out, "--provider", "posix", "--path", tmp_path / "no")
    assert ran.code == ExitCode.NOT_THERE
    assert not out.exists()


class Counting(BaseHTTPRequestHandler):
    asked: list[str]
    page: bytes

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page if self.path == "/" else b"")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def served(command: Command, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The page behind a server that notes what it is asked for."""
    out = tmp_path / "tier.html"
    asked(command, TIER, "report", "--out", out)
    handler = type("Handler", (Counting,), {"asked": [], "page": out.read_bytes()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", handler.asked  # type: ignore[attr-defined]
        server.shutdown()
        thread.join(10)


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it_on_a_phone_and_on_a_desk(
    served: tuple[str, list[str]], width: int
) -> None:
    if chromium() is None:
        pytest.skip("there is no chromium on this machine; CHROMIUM may name one")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("selenium is not installed: pip install selenium")
    from selenium import webdriver

    url, asked_for = served
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium())
    for flag in ("--headless=new", "--no-sandbox", f"--window-size={width},800"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options)
    try:
        browser.get(url)
        assert browser.title == "Tier of broker-gold-a"
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= browser.execute_script("return window.innerWidth")
        tables = browser.execute_script("return document.querySelectorAll('table').length")
        assert tables >= 4
    finally:
        browser.quit()
    assert set(asked_for) <= {"/", "/favicon.ico"}
