"""The page about a tier, which makes no requests, and what a tier costs a month."""

from __future__ import annotations

import base64
import csv
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.browser_kit import Seen, chromium, printed, seen
from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import CATALOGUE, TIER, asked, tier_beside
from tests.codec.golden_files import BROKER
from tieredstore.access.cost import Load, MonthlyCost, monthly_cost, rounds_per_second
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.access.survey import DrawnSegment, QueuePicture, TierPicture, Trouble
from tieredstore.cli.output import ExitCode
from tieredstore.cli.report_page import QUEUES_SHOWN_MAX, page, spread
from tieredstore.codec.names import queue_path
from tieredstore.driver.metadata import DeleteSegment, PutNote
from tieredstore.driver.provider import Appended
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import QueueKey, SegmentType

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Checked(HTMLParser):
    """Check that tags are closed in order, and keep what is on the page."""

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
    return Checked(page(a_picture(*queues, **others)))


def test_the_page_of_a_golden_tier_is_whole_and_asks_nobody(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "tier.html"
    before = picture(TIER)
    asked(command, TIER, "report", "--out", out).done()
    assert picture(TIER) == before
    checked = Checked(out.read_text(encoding="utf-8"))
    assert checked.open == []
    assert not {"link", "img", "iframe", "object", "embed"} & set(checked.tags)
    assert checked.tags.count("script") == 1
    names = {name for name, _ in checked.attributes}
    assert not {"src", "href", "srcset", "action", "onload"} & names
    assert "url(" not in out.read_text(encoding="utf-8")
    for row in asked(command, TIER, "queues", "--json").rows:
        assert f"{row['topic']}/{row['queue_id']}" in checked.text
        assert f"{row['max_offset']:,}" in checked.text


def test_a_name_is_text_and_never_part_of_the_page() -> None:
    evil = "<script>alert(1)</script>\"'&"
    checked = drawn(a_queue(evil, 0, problem=evil), broker_name=evil, cluster_name=evil, place=evil)
    assert checked.tags.count("script") == 1
    assert checked.text.count(evil) >= 5


def test_the_only_script_that_may_run_is_the_one_of_the_page() -> None:
    """The policy names the script by its hash: the browser would refuse any other."""
    checked = drawn(a_queue("t", 0))
    policy = next(value for _, value in checked.attributes if value and "default-src" in value)
    script = checked.words[max(at for at, word in enumerate(checked.words) if "search" in word)]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_what_nobody_knows_is_a_question_mark() -> None:
    unknown = a_queue("t", 0, min_offset=None, indexed_offset=None, local_offset=None, segments=())
    checked = drawn(unknown)
    assert checked.open == []
    assert checked.words.count("?") >= 3
    assert "There is no segment with times that can be believed." in checked.text


def test_problems_come_first_and_a_broken_queue_is_told_by_name() -> None:
    checked = drawn(a_queue("fine", 0), a_queue("broken", 7, problem="it is lost"))
    assert checked.text.index("it is lost") < checked.text.index("Topics by trouble")
    assert checked.text.count("broken/7") == 2
    assert "1 of 2 queues needs a look: 1 damaged." in checked.text
    fine = drawn(a_queue("fine", 0)).text
    assert "Nothing is wrong with 1 queue." in fine
    assert "What is wrong" not in fine


HOUR_MS = 3_600_000
TAKEN_AT = 1_800_000_000_000


def aged(hours: float, end_hours: float, base: int = 0) -> DrawnSegment:
    begin, end = (int(TAKEN_AT - each * HOUR_MS) for each in (hours, end_hours))
    return DrawnSegment(base_offset=base, size=100, begin_timestamp=begin, end_timestamp=end)


def test_each_trouble_is_told_in_words_and_its_queue_is_large() -> None:
    old = aged(90, 80)
    queues = [
        a_queue("fine", 0),
        a_queue("broken", 0, problem="bytes are gone"),
        a_queue("halted", 0, stopped="others hold 1,000"),
        a_queue("gappy", 0, lost_count=1204),
        a_queue("old", 0, segments=(old, aged(80, 1, 100))),
        a_queue("growing", 0, segments=(old,)),  # its last segment expires only once it is rolled
        a_queue("slow", 0, local_offset=10 + 4097),
        a_queue("busy", 0, local_offset=10 + 4096),  # a whole batch is due
    ]
    picture = a_picture(*queues, reserve_hours={"old": 72, "growing": 72})
    found = {queue.key.topic: list(picture.troubles(queue)) for queue in queues}
    assert found == {
        "fine": [],
        "broken": [Trouble.DAMAGED],
        "halted": [Trouble.STOPPED],
        "gappy": [Trouble.GAP],
        "old": [Trouble.OVERDUE],
        "growing": [],
        "slow": [Trouble.BEHIND],
        "busy": [],
    }
    checked = Checked(page(picture))
    told = "1 damaged, 1 stopped, 1 with a gap, 1 overdue, 1 behind"
    assert f"5 of 8 queues need a look: {told}." in checked.text
    for words in (
        "1 queue cannot be read as a whole", "1 queue takes no more uploads",
        "1 queue lacks messages", "1 queue keeps what should have expired",
        "1 queue is behind the broker", "others hold 1,000", "1,204 messages are missing",
        "should be gone since 8 h: the topic is kept 72 h", "4,097 messages wait",
    ):  # fmt: skip
        assert words in checked.text, words
    assert [value for name, value in checked.attributes if name == "class"].count("q odd") == 5


def test_what_the_catalogue_notes_of_a_queue_is_on_the_page(
    command: Command, root: Path, tmp_path: Path
) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        rows = metadata.segments(queue_path(BROKER, "GoldAa", 1), SegmentType.CONSUME_QUEUE)
        lost = rows[1]
        metadata.apply([
            PutNote(STOPPED_QUEUE, queue_path(BROKER, "GoldAa", 0), {"reason": "it differs"}),
            DeleteSegment(lost.path, lost.type, lost.base_offset),
        ])  # fmt: skip
    out = tmp_path / "tier.html"
    asked(command, root, "report", "--out", out).done()
    text = Checked(out.read_text("utf-8")).text
    assert "1 queue takes no more uploads" in text
    assert "it differs" in text
    assert f"{lost.size // 20:,} messages are missing in its gaps" in text


def test_nothing_is_overdue_where_nothing_expires() -> None:
    old = a_queue("old", 0, segments=(aged(90, 80), aged(80, 1, 100)))
    kept = {"old": 72}
    assert a_picture(old, reserve_hours=kept).troubles(old)
    assert not a_picture(old, reserve_hours=kept, is_expiring=False).troubles(old)


def test_topics_come_by_trouble_and_then_by_bytes() -> None:
    large = (DrawnSegment(base_offset=0, size=10**6, begin_timestamp=1, end_timestamp=3),)
    checked = drawn(
        a_queue("minor", 0), a_queue("major", 0, segments=large), a_queue("zilch", 0, lost_count=1)
    )
    text = checked.text[checked.text.index("Topics by trouble") :]
    assert text.index("zilch") < text.index("major") < text.index("minor")


def test_bytes_are_spread_over_the_time_that_they_came_in() -> None:
    segments = [
        DrawnSegment(base_offset=0, size=40, begin_timestamp=10, end_timestamp=29),
        DrawnSegment(base_offset=40, size=7, begin_timestamp=None, end_timestamp=None),
        DrawnSegment(base_offset=47, size=5, begin_timestamp=39, end_timestamp=39),
        DrawnSegment(base_offset=52, size=30, begin_timestamp=-10, end_timestamp=4),
    ]
    assert spread(segments, 0, 10, 4) == pytest.approx([10, 20, 20, 5])


def test_what_the_log_of_a_bucket_took_is_drawn_and_priced() -> None:
    spans = tuple(
        Appended(begin_ms=hour * HOUR_MS, end_ms=(hour + 1) * HOUR_MS, entry_count=90, size=1 << 20)
        for hour in range(8)
    )
    text = drawn(a_queue("t", 0), appended=spans, entry_dollars=0.0054 / 1000).text
    assert "Rounds and other entries of the log: 720 with 8.0 MiB" in text
    assert "0.0039 dollars" in text
    assert "A folder takes no requests." in drawn(a_queue("t", 0)).text


def test_ten_thousand_queues_with_long_names_are_a_page_of_five_megabytes_at_most() -> None:
    one = a_queue("t", 0)
    queues = [
        replace(one, key=QueueKey(f"{number // 10:0127}", number % 10), lost_count=number % 25)
        for number in range(10_000)
    ]
    text = page(a_picture(*queues))
    assert len(text.encode()) < 5_000_000
    assert "and 9,400 more: " in Checked(text).text


def test_a_page_of_very_many_queues_shows_the_largest_and_those_with_a_problem() -> None:
    queues = [a_queue(f"t{number:04}", 0) for number in range(QUEUES_SHOWN_MAX + 50)]
    queues[-1] = a_queue("broken", 0, problem="it is lost", segments=())
    checked = drawn(*queues)
    assert "it is lost" in checked.text
    assert [value for name, value in checked.attributes if name == "class"].count("q") == 249
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


def test_the_bytes_of_a_page_are_those_of_its_file(command: Command, tmp_path: Path) -> None:
    where = ("--store-path", tmp_path / "store", "--broker", "brôker")
    command.run("put", "Orders", "--store-path", tmp_path / "store", "--body", "x").done()
    command.run("offload", *where).done()
    out = tmp_path / "tier.html"
    (row,) = command.run(
        "report", "--out", out, *tier_beside(tmp_path / "store")[:4], *where, "--json"
    ).rows
    assert row["bytes"] == out.stat().st_size
    assert "brôker" in out.read_text(encoding="utf-8")


def test_a_tier_that_is_not_there_leaves_no_page(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "tier.html"
    ran = command.run("report", "--out", out, "--provider", "posix", "--path", tmp_path / "no")
    ran.refused(ExitCode.NOT_THERE)
    assert not out.exists()


def test_what_only_the_local_store_has_is_told(command: Command, tmp_path: Path) -> None:
    store, tier, out = tmp_path / "store", tmp_path / "tier", tmp_path / "tier.html"
    where = ("--provider", "posix", "--path", tier, "--store-path", store, "--broker", "b")
    command.run("put", "Orders", "--store-path", store, "--body", "x", "--repeat", 3)
    assert command.run("offload", *where).code == 0
    command.run("put", "Orders", "--store-path", store, "--body", "x", "--repeat", 2)
    command.run("put", "Later", "--store-path", store, "--body", "x", "--repeat", 4)
    command.run("put", "TBW102", "--store-path", store, "--body", "x")
    assert command.run("report", "--out", out, "--local", store, *where).code == 0
    words = Checked(out.read_text(encoding="utf-8")).words
    assert words[words.index("not uploaded yet") - 1] == "6"
    assert any("has nothing yet (1): Later/0" in word for word in words)


def test_the_command_counts_what_its_page_shows_as_wrong(command: Command, tmp_path: Path) -> None:
    where = ("--store-path", tmp_path / "store", "--broker", "b")
    tier = (*tier_beside(tmp_path / "store")[:4], *where)
    for topic in ("Kept", "Damaged"):
        command.run("put", topic, "--store-path", tmp_path / "store", "--body", "x").done()
    command.run("offload", *where).done()
    words = ("report", "--out", tmp_path / "tier.html", *tier)
    assert "2 queues; open it" in command.run(*words).done().out
    for path in (tmp_path / "store").glob("**/Damaged/0/CONSUME_QUEUE/*"):
        path.write_bytes(b"")
    assert "2 queues, 1 in trouble; open it" in command.run(*words).done().out
    (row,) = command.run(*words, "--json").done().rows
    assert (row["queues"], row["in_trouble"]) == (2, 1)


def test_a_tier_without_a_queue_says_so() -> None:
    checked = drawn()
    assert "Nothing has been uploaded yet." in checked.text
    assert "The tier has no queue yet." in checked.text


NEEDS_BROWSER = pytest.mark.skipif(
    chromium() is None, reason="there is no chromium on this machine; CHROMIUM may name one"
)
PHONE, DESK = 390, 1200
NAMES = (
    "orders",
    "订单-支付结果通知-华东区" * 4,
    "%RETRY%consumer-group-of-the-settlement-service-in-eu-west-1",
    "A" * 127,
)


def complaints(found: Seen) -> list[str]:
    """What would be wrong with any of our pages on any screen."""
    wrong = [*found.complaints, *found.beside]
    if found.scroll_width > found.width:
        wrong.append(f"{found.scroll_width} wide on {found.width}")
    return wrong + sorted(found.asked - {"", "page"})


@pytest.mark.slow
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_of_a_golden_tier_fits_asks_nobody_and_complains_of_nothing(
    command: Command, tmp_path: Path, width: int
) -> None:
    out = tmp_path / "tier.html"
    asked(command, TIER, "report", "--out", out)
    found = seen(out.read_bytes(), tmp_path, width=width)
    assert complaints(found) == []
    assert (found.title, found.width, found.tables) == ("Tier of broker-gold-a", width, 3)
    assert "page" in found.asked  # proves that requests are noticed
    for row in asked(command, TIER, "queues", "--json").rows:
        assert f"{row['topic']}/{row['queue_id']}" in found.text


@pytest.mark.slow
@NEEDS_BROWSER
def test_long_names_large_numbers_and_problems_fit_on_a_phone(tmp_path: Path) -> None:
    queues = [
        a_queue(name, 1023, max_offset=2**50, indexed_offset=2**49, local_offset=2**50 + 9)
        for name in NAMES
    ]
    queues[0] = a_queue("orders", 0, problem="the tier has messages up to 4,711 " * 9)
    only_local = {QueueKey(name, 7): 2**40 for name in NAMES}
    text = page(a_picture(*queues, place="/a" * 200, only_local=only_local))
    found = seen(text.encode(), tmp_path, width=PHONE)
    assert complaints(found) == []
    assert all(f"{name}/1023" in found.text for name in NAMES[1:])
    assert found.text.index("What is wrong") < found.text.index("Topics by trouble")


@pytest.mark.slow
@NEEDS_BROWSER
def test_a_search_leaves_the_queues_that_are_called_so(tmp_path: Path) -> None:
    queues = [a_queue(topic, at, lost_count=at) for topic in ("Orders", "bills") for at in range(3)]
    text = page(a_picture(*queues)).encode()
    found = seen(text, tmp_path, width=DESK, search=" ORDERS/2")
    assert complaints(found) == []
    assert "1 queue is called so" in found.text
    assert "Orders/2" in found.text
    assert not {"Orders/1", "bills", "bills/2"} & set(found.text.split())
    found = seen(text, tmp_path, width=DESK, search="bill")
    assert "3 queues are called so" in found.text
    assert "Orders" not in found.text


@pytest.mark.slow
@NEEDS_BROWSER
def test_it_can_be_printed(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "tier.html"
    asked(command, TIER, "report", "--out", out)
    sheets = re.findall(rb"/Type /Page\b", printed(out.read_bytes(), tmp_path))
    assert 1 <= len(sheets) <= 4


@pytest.mark.slow
@NEEDS_BROWSER
def test_a_page_that_is_wide_asks_others_or_fails_is_caught(tmp_path: Path) -> None:
    bad = (
        "<!doctype html><title>bad</title><img src='http://example.invalid/a.png'>"
        "<div style='width:2000px'>wide</div><script>never()</script>"
    )
    found = seen(bad.encode(), tmp_path, width=PHONE)
    assert found.scroll_width == 2000 + 8  # with the margin
    assert "wide" in found.beside[0]
    assert "http://example.invalid/a.png" in found.asked
    assert any("never is not defined" in line for line in found.complaints)
    assert len(complaints(found)) >= 4


SLOW = Load(queue_count=1, messages_per_second=1, message_bytes=100)


def requests(load: Load, **settings: Any) -> float:
    lines = monthly_cost(load, StoreConfig(**settings)).lines
    return sum(line.dollars for line in lines if line.operation != "store")


def test_a_round_every_forty_seconds_costs_what_its_put_and_its_look_cost() -> None:
    """At list prices, 64 800 PUTs in 30 days cost 0.32 dollars, and as many HEADs 0.03.

    A batch is due after 30 s, and a look for due batches comes every 20 s.
    """
    lines = {line.what: line for line in monthly_cost(SLOW, StoreConfig()).lines}
    rounds, looks = lines["rounds of all queues"], lines["looks for a newer writer, one an entry"]
    assert rounds.amount == 64_800
    assert math.isclose(rounds.dollars, 0.324)
    assert 64_800 <= looks.amount < 70_000


def test_a_queue_without_messages_commits_nothing() -> None:
    idle = Load(queue_count=100, messages_per_second=0, message_bytes=100)
    cost = monthly_cost(idle, StoreConfig())
    assert cost.dollars == 0
    assert rounds_per_second(idle, StoreConfig()) == 0


def test_a_rate_that_is_next_to_nothing_can_be_reckoned_with() -> None:
    slowest = Load(queue_count=1, messages_per_second=5e-324, message_bytes=1)
    assert 0 <= monthly_cost(slowest, StoreConfig()).dollars < 0.01


def test_a_full_batch_is_committed_before_it_is_old() -> None:
    fast = Load(queue_count=1, messages_per_second=4096, message_bytes=10)
    assert rounds_per_second(fast, StoreConfig()) == 1
    large = Load(queue_count=1, messages_per_second=8, message_bytes=1 << 20)
    assert rounds_per_second(large, StoreConfig()) == 2


def test_the_number_of_queues_costs_next_to_nothing() -> None:
    few = Load(queue_count=10, messages_per_second=10, message_bytes=100)
    many = Load(queue_count=10_000, messages_per_second=10, message_bytes=100)
    assert requests(many) < 1.1 * requests(few)


def test_deletes_are_counted_and_free() -> None:
    lines = monthly_cost(SLOW, StoreConfig()).lines
    deletes = [line for line in lines if line.operation == "delete"]
    assert sum(line.amount for line in deletes) > 0
    assert sum(line.dollars for line in deletes) == 0


def test_a_longer_wait_for_a_batch_saves_requests() -> None:
    often = monthly_cost(SLOW, StoreConfig(group_commit_timeout_ms=10_000))
    seldom = monthly_cost(SLOW, StoreConfig(group_commit_timeout_ms=300_000))
    assert seldom.dollars < often.dollars / 3


@given(
    st.integers(1, 10_000),
    st.floats(0, 1e5),
    st.floats(1, 1e6),
    st.floats(1, 4),
)
def test_more_messages_never_cost_less(
    queues: int, rate: float, message_bytes: float, more: float
) -> None:
    config = StoreConfig()
    some = Load(queue_count=queues, messages_per_second=rate, message_bytes=message_bytes)
    many = Load(queue_count=queues, messages_per_second=rate * more, message_bytes=message_bytes)
    cost = monthly_cost(some, config).dollars
    assert cost >= 0
    assert monthly_cost(many, config).dollars >= cost * (1 - 1e-9)


def test_the_prices_of_the_settings_count(command: Command) -> None:
    words = ["cost", "--messages-per-second", 1, "--message-bytes", 100, "--queues", 1, "--json"]
    rows = command.run(*words).rows
    assert rows[0]["dollars"] == 0.324
    assert rows[-1]["what"] == "total"
    free = command.run(*words, "--storage-price", 0).rows
    assert free[-1]["dollars"] < rows[-1]["dollars"]


def test_costs_as_csv_have_the_fields_of_the_json(command: Command) -> None:
    words = ["cost", "--messages-per-second", 1, "--message-bytes", 100, "--queues", 1]
    found = list(csv.DictReader(command.run(*words, "--csv").out.splitlines()))
    rows = command.run(*words, "--json").rows
    assert [row["what"] for row in found] == [row["what"] for row in rows]
    assert [float(row["dollars"]) for row in found] == [row["dollars"] for row in rows]


def test_a_tier_that_is_there_costs_what_its_bytes_cost(command: Command) -> None:
    ran = asked(command, TIER, "cost", "--json")
    assert ran.code == 0
    stored = next(row for row in ran.rows if row["operation"] == "store")
    segments = asked(command, TIER, "segments", "--json").rows
    assert math.isclose(stored["amount"], sum(row["size"] for row in segments) / 1e9, abs_tol=0.001)
    assert "total: " in asked(command, TIER, "cost").out


def test_neither_a_tier_nor_rates_is_a_clear_error(command: Command) -> None:
    command.run("cost").refused(ExitCode.USAGE, "--messages-per-second")


RATES = {
    "--messages-per-second": "1",
    "--message-bytes": "100",
    "--keys": "2",
    "--read-bytes-per-second": "1",
    "--reserve-hours": "72",
    "--storage-price": "0.02",
}


@pytest.mark.parametrize("option", RATES)
@pytest.mark.parametrize(
    "number", ["inf", "-inf", "nan", "NaN", "1e400", "1e300", "-1", "many", ""]
)
def test_a_number_that_is_no_amount_is_refused(command: Command, option: str, number: str) -> None:
    words = [word for name, value in RATES.items() for word in (name, value)]
    assert command.run("cost", *words, "--json").code == 0
    command.run("cost", *words, option, number, "--json").refused(2, option)


def test_the_largest_amounts_still_come_to_numbers(command: Command) -> None:
    words = [word for name in RATES for word in (name, "1e15")]
    for row in command.run("cost", *words, "--json").rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, 1e16])
def test_no_load_and_no_price_is_made_of_what_is_no_amount(value: float) -> None:
    with pytest.raises(InvalidConfigError, match="messages_per_second"):
        Load(queue_count=1, messages_per_second=value, message_bytes=1)
    with pytest.raises(InvalidConfigError, match="is no price"):
        monthly_cost(SLOW, StoreConfig(), storage_dollars=value)


def test_a_month_reckoned_from_a_moment_says_so(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "s"
    put = ("put", "Orders", "--store-path", store, "--body", "x")
    assert command.run(*put, "--repeat", 50).code == 0
    assert command.run("offload", "--store-path", store, "--broker", "b").code == 0
    tier = tier_beside(store)
    ran = command.run("cost", *tier)
    assert ran.code == 0
    assert "\ncalculated from 1 s: all messages of this tier came within that time" in ran.out
    assert "--messages-per-second" in ran.out
    assert command.run("cost", *tier, "--json").rows[-1]["seconds_covered"] == 1.0
    given = command.run("cost", *tier, "--messages-per-second", 5, "--json")
    assert (given.err, given.rows[-1]["seconds_covered"]) == ("", None)
