"""The report as a browser shows it: on a desk, on a phone, on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.browser_kit import Seen, chromium, printed, seen
from tests.cli.cli_kit import Command
from tests.cli.test_report import a_picture, a_queue
from tests.cli.tier_kit import TIER, asked
from tieredstore.cli.report import page
from tieredstore.model.values import QueueKey

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium() is None, reason="there is no chromium on this machine; CHROMIUM may name one"
    ),
]
PHONE, DESK = 390, 1200
NAMES = (
    "orders",
    "订单-支付结果通知-华东区" * 4,
    "%RETRY%consumer-group-of-the-settlement-service-in-eu-west-1",
    "A" * 127,
)


def complaints(found: Seen) -> list[str]:
    """What is wrong with any page of ours, wherever it is shown."""
    wrong = [*found.complaints, *found.beside]
    if found.scroll_width > found.width:
        wrong.append(f"{found.scroll_width} wide on {found.width}")
    return wrong + sorted(found.asked - {"", "page"})


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_of_a_golden_tier_fits_asks_nobody_and_complains_of_nothing(
    command: Command, tmp_path: Path, width: int
) -> None:
    out = tmp_path / "tier.html"
    asked(command, TIER, "report", "--out", out)
    found = seen(out.read_bytes(), tmp_path, width=width)
    assert complaints(found) == []
    assert (found.title, found.width, found.tables) == ("Tier of broker-gold-a", width, 5)
    assert "page" in found.asked  # that what it asks for is noticed
    for row in asked(command, TIER, "queues", "--json").rows:
        assert f"{row['topic']}/{row['queue_id']}" in found.text


def test_long_names_large_numbers_and_problems_fit_on_a_phone(tmp_path: Path) -> None:
    queues = [
        a_queue(name, 1023, max_offset=2**50, indexed_offset=2**49, local_offset=2**50 + 9)
        for name in NAMES
    ]
    queues[0] = a_queue("orders", 0, problem="the tier has messages up to 4,711 " * 9)
    only_local = {QueueKey(name, 7): 2**40 for name in NAMES}
    text = "\n".join(page(a_picture(*queues, place="/a" * 200, only_local=only_local)))
    found = seen(text.encode(), tmp_path, width=PHONE)
    assert complaints(found) == []
    assert all(f"{name}/1023" in found.text for name in NAMES[1:])
    assert found.text.index("What is wrong") < found.text.index("Topics by bytes")


def test_it_can_be_printed(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "tier.html"
    asked(command, TIER, "report", "--out", out)
    sheets = re.findall(rb"/Type /Page\b", printed(out.read_bytes(), tmp_path))
    assert 1 <= len(sheets) <= 4


def test_a_page_that_is_wide_asks_others_or_fails_is_caught(tmp_path: Path) -> None:
    bad = (
        "<!doctype html><title>bad</title><img src='http://example.invalid/a.png'>"
        "<div style='width:2000px'>wide</div><script>never()</script>"
    )
    found = seen(bad.encode(), tmp_path, width=PHONE)
    assert found.scroll_width == 2000 + 8  # with the margin
    assert "wide" in found.beside[0]
    assert "http://example.invalid/a.png" in found.asked
    assert any("never is not defined" in each for each in found.complaints)
    assert len(complaints(found)) >= 4
