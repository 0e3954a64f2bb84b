"""The dashboard and the alerts use only metrics and labels that exist."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.shown import sample_names
from tieredstore.driver.metrics import BASE_LABELS, OUR_METRICS, ROCKETMQ_METRICS
from tieredstore.model.config import StoreConfig

FUNCTIONS = frozenset(
    {
        *("absent", "avg", "clamp_max", "clamp_min", "count", "delta", "deriv"),
        *("histogram_quantile", "increase", "max", "min", "rate", "sum", "topk", "vector"),
    }
)
GROUPINGS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset"})

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<range>\[[^\]]*\])
      | (?P<number>\d[\w.+]*)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<match>=~|!~|!=|==|>=|<=|=)
      | (?P<other>\S)""",
    re.VERBOSE,
)
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "grafana"
METRICS = {
    name: metric for metric in (*ROCKETMQ_METRICS, *OUR_METRICS) for name in sample_names(metric)
}
OF_THE_SCRAPE = {"job", "instance"}  # Prometheus adds them

_LEGEND = re.compile(r"\{\{\s*([^}\s]+)\s*\}\}")
_QUOTED_LABEL = re.compile(r"\$labels\.(\w+)")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(slots=True)
class Named:
    """What an expression names: metrics, each with the labels in its braces, and the rest."""

    metrics: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped_by: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # functions


def read(expression: str) -> Named:
    """Find the names in a PromQL expression, without evaluating it."""
    found = Named()
    tokens = [(str(each.lastgroup), each.group()) for each in _TOKEN.finditer(expression)]
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        place += 1
        following = tokens[place][1] if place < len(tokens) else ""
        if text == "{" and found.metrics:
            place, labels = _until(tokens, place, "}")
            found.metrics[-1][1].update(labels)
        elif kind != "name" or text in KEYWORDS:
            continue
        elif text in GROUPINGS and following == "(":
            place, labels = _until(tokens, place + 1, ")")
            found.grouped_by |= labels
        elif following == "(" or (following in GROUPINGS and text in FUNCTIONS):
            if text not in FUNCTIONS:
                found.unknown.add(text)
        else:
            found.metrics.append((text, set()))
    return found


def _until(tokens: list[tuple[str, str]], place: int, end: str) -> tuple[int, set[str]]:
    """The names up to a closing bracket, and the place after it."""
    labels = set()
    while tokens[place][1] != end:
        if tokens[place][0] == "name":
            labels.add(tokens[place][1])
        place += 1
    return place + 1, labels


def complaints(expression: str, *, shown: AbstractSet[str] = frozenset()) -> list[str]:
    """Names in an expression that do not exist; `shown` holds labels of its result."""
    named = read(expression)
    found = [f"function {each}" for each in named.unknown]
    if not named.metrics:
        found.append("no metric")
    for name, labels in named.metrics:
        if name not in METRICS:
            found.append(f"metric {name}")
        else:
            found += [f"{name}: label {each}" for each in labels - labels_of(name)]
    return found + [f"label {each}" for each in (named.grouped_by | shown) - known_labels(named)]


def labels_of(name: str) -> set[str]:
    bucket = {"le"} if name.endswith("_bucket") else set()
    return {*METRICS[name].labels, *BASE_LABELS, *OF_THE_SCRAPE, *bucket}


def known_labels(named: Named) -> set[str]:
    return set().union(*(labels_of(name) for name, _ in named.metrics if name in METRICS))


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "tieredstore.json").read_text(encoding="utf-8"))
    return found


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target


def rules() -> list[dict[str, Any]]:
    yaml: Any = importlib.import_module("yaml")
    told = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    (group,) = told["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.parametrize(
    ("name", "target"), [pytest.param(*each, id=each[0]) for each in targets()]
)
def test_a_query_of_the_dashboard_names_what_exists(name: str, target: dict[str, Any]) -> None:
    shown = set(_LEGEND.findall(target["legendFormat"]))
    assert complaints(target["expr"], shown=shown) == []
    named = read(target["expr"])
    if named.grouped_by:  # the grouping must keep the labels of the legend
        assert shown <= named.grouped_by


def test_the_dashboard_shows_every_metric() -> None:
    asked = {name for _, target in targets() for name, _ in read(target["expr"]).metrics}
    assert {METRICS[name].name for name in asked} == {metric.name for metric in METRICS.values()}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == [
        "Upload lag",
        "Reads and cache",
        "Backend requests and cost",
        "Storage",
        "Index",
        "Problems",
    ]


def test_the_dashboard_has_what_grafana_wants_and_names_only_its_own_variables() -> None:
    whole = dashboard()
    assert whole["schemaVersion"] >= 39
    assert whole["id"] is None  # Grafana assigns one at the import
    variables = {each["name"]: each for each in whole["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = set(_VARIABLE.findall(json.dumps(whole["panels"])))
    used |= set(_VARIABLE.findall(json.dumps([each["query"] for each in variables.values()])))
    assert {name for name in used if not name.startswith("__")} == set(variables)
    for panel in whole["panels"]:
        assert [target["refId"] for target in panel.get("targets", ())] == sorted(
            {target["refId"] for target in panel.get("targets", ())}
        )
        sources = {
            json.dumps(each["datasource"])
            for each in (panel, *panel.get("targets", ()))
            if "datasource" in each
        }
        assert sources <= {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
        assert panel["type"] == "row" or (panel["targets"] and sources)


def test_variables_are_asked_of_metrics_and_labels_that_exist() -> None:
    for each in dashboard()["templating"]["list"]:
        if each["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
            assert asked is not None
            assert complaints(asked[1], shown={asked[2]}) == []


def test_descriptions_name_settings_that_exist() -> None:
    settings = {each.name for each in fields(StoreConfig)}
    for panel in dashboard()["panels"]:
        assert set(re.findall(r"[a-z]+(?:_[a-z]+)+", panel.get("description", ""))) <= settings


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in rules()])
def test_an_alert_names_what_exists_and_says_what_to_do(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    shown = set(_QUOTED_LABEL.findall(" ".join(notes.values())))
    assert complaints(rule["expr"], shown=shown) == []
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(notes) == {"summary", "description"}
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "expression",
    [
        "tieredstore_never",
        'tieredstore_queues{never="x"}',
        "sum by (never) (tieredstore_queues)",
        "never(tieredstore_queues)",
        "rocketmq_tiered_store_api_latency",  # only the parts of a histogram are shown
        "sum by (le) (tieredstore_queues)",
        "vector(0)",
    ],
)
def test_what_does_not_exist_is_caught(expression: str) -> None:
    assert complaints(expression)


def test_names_are_read_out_of_an_expression() -> None:
    named = read(
        'histogram_quantile(0.9, sum by (le, a) (rate(x_bucket{b=~"c{d}", e!="f"}[5m]))) > 5e9'
        " and on (g) y offset 1h or vector(0)"
    )
    assert named.metrics == [("x_bucket", {"b", "e"}), ("y", set())]
    assert named.grouped_by == {"le", "a", "g"}
    assert not named.unknown
