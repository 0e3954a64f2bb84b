"""The verb report: one page with everything in it, which asks nobody for anything."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import TIER, asked
from tieredstore.access.survey import DrawnSegment, Load, MonthlyCost, QueuePicture, TierPicture
from tieredstore.cli.output import ExitCode
from tieredstore.cli.report import QUEUES_SHOWN_MAX, page
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
    asked(command, TIER, "report", "--out", out).done()
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
    assert "There is no segment with times that can be believed." in checked.text


def test_problems_come_first_and_a_broken_queue_is_told_by_name() -> None:
    checked = drawn(a_queue("fine", 0), a_queue("broken", 7, problem="it is lost"))
    assert checked.text.index("it is lost") < checked.text.index("Topics by bytes")
    assert checked.text.count("broken/7") == 3
    assert "What is wrong" not in drawn(a_queue("fine", 0)).text


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


def test_what_only_the_local_store_has_is_told(command: Command, tmp_path: Path) -> None:
    store, tier, out = tmp_path / "store", tmp_path / "tier", tmp_path / "tier.html"
    where = ("--provider", "posix", "--path", tier, "--store-path", store, "--broker", "b")
    command.run("put", "Orders", "--store-path", store, "--body", "x", "--count", 3)
    assert command.run("offload", *where).code == 0
    command.run("put", "Orders", "--store-path", store, "--body", "x", "--count", 2)
    command.run("put", "Later", "--store-path", store, "--body", "x", "--count", 4)
    command.run("put", "TBW102", "--store-path", store, "--body", "x")
    assert command.run("report", "--out", out, "--local", store, *where).code == 0
    words = Checked(out.read_text(encoding="utf-8")).words
    assert words[words.index("not uploaded yet") - 1] == "6"
    assert any("has nothing yet (1): Later/0" in each for each in words)


def test_a_tier_without_a_queue_says_so() -> None:
    checked = drawn()
    assert "Nothing has been uploaded yet." in checked.text
    assert "The tier has no queue yet." in checked.text
