"""The pages agree with the code: tables, names, defaults, permissions, numbers."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench._front import BEGIN, END, between_marks, front_of
from tests.docs.pages import (
    DOCS,
    PAGES,
    ROOT,
    blocks,
    inline_code,
    page,
    prose,
    section,
    table,
    tables,
)
from tests.exporters.shown import measured_store
from tieredstore.access.cost import MONTH_SECONDS
from tieredstore.codec import message, queue_unit, tiered_index
from tieredstore.codec.message import encode_message
from tieredstore.codec.names import segment_name
from tieredstore.driver.certify import certify
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import DISPATCH_THREADS, FETCH_THREADS
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.index import footer
from tieredstore.jobs import load_records
from tieredstore.jobs.scan import SCAN_COLUMNS
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.values import Host, SegmentRecord, SegmentType
from tieredstore.roundlog import frames
from tieredstore.testing.memory_objects import MemoryObjectClient
from tieredstore.testing.samples import a_message

_NO_CLASS = frozenset({"DefaultCluster"})
_CLASS = re.compile(r"(?:[A-Z][a-z]+){2,}")


def classes() -> set[str]:
    found: set[str] = set()
    for folder in ("tieredstore", "pyspark_tieredstore", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"^\s*class (\w+)", file.read_text("utf-8"), re.MULTILINE))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_classes_that_a_page_names_exist(path: Path) -> None:
    words = {word for code in inline_code(path.read_text("utf-8")) for word in code.split()}
    named = {word.partition("(")[0] for word in words}
    assert {name for name in named if _CLASS.fullmatch(name)} - classes() - _NO_CLASS == set()


def names() -> set[str]:
    """Every name in the code, and the names of its modules."""
    found: set[str] = set()
    for folder in ("tieredstore", "examples", "tests", "bench"):
        for file in (ROOT / folder).rglob("*.py"):
            if DOCS.name not in file.parts:
                found |= {file.stem, *re.findall(r"\w+", file.read_text("utf-8"))}
    return found


def test_names_in_the_pages_are_names_of_the_code() -> None:
    """Checks only names with an underscore: settings, functions, options, modules."""
    known = names()
    unknown = [
        f"{path.name}: {name}"
        for path in PAGES
        if path.name != "metrics.md"  # has its own test
        for code in inline_code(path.read_text("utf-8"))
        for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", code)
        if name not in known
    ]
    assert unknown == []


def test_every_page_is_in_the_index_once() -> None:
    links = re.findall(r"^\| \[[^\]]*\]\(([^)]+)\)", page("README.md"), re.MULTILINE)
    wanted = {path.name for path in PAGES if path.name != "README.md"} | {"decisions/"}
    assert sorted(links) == sorted(wanted)


def test_no_page_repeats_a_sentence_of_another() -> None:
    seen: dict[str, str] = {}
    twice = []
    for path in PAGES:
        prose = re.sub(r"^\|.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
        prose = re.sub(r"```.*?```", "", prose, flags=re.DOTALL)
        for sentence in {line.strip() for line in re.split(r"(?<=[.:])\s+", prose)}:
            plain = " ".join(sentence.split())
            if len(plain) > 50 and seen.setdefault(plain, path.name) != path.name:
                twice.append(f"{path.name} and {seen[plain]}: {plain}")
    assert twice == []


# Formats


def layouts(text: str) -> Iterator[list[tuple[int, int]]]:
    """The offsets and widths of each table that has them."""
    for rows in tables(text):
        if rows and len(rows[0]) == 3 and rows[0][0] == "0":
            yield [(int(row[0]), int(row[1])) for row in rows if row[0]]


def test_layouts_have_no_holes_and_the_sizes_of_the_code() -> None:
    sizes = []
    for rows in layouts(page("formats.md")):
        ends = [offset + width for offset, width in rows]
        assert [offset for offset, _ in rows] == [0, *ends[:-1]]
        sizes.append(ends[-1])
    assert sizes == [
        88,  # a record, up to its body
        queue_unit.UNIT_BYTES,
        message.CODA_BYTES,
        tiered_index.HEADER_BYTES,
        tiered_index.ITEM_BYTES,
        footer.TRAILER_BYTES,
        footer.BLOCK_BYTES,
        frames.HEADER_BYTES,
        frames.TAIL_BYTES,
    ]


def test_the_fields_of_a_record_lie_where_the_page_says() -> None:
    values = {
        "queue id": 3,
        "flag, the sender's own": 7,
        "queue offset": 42,
        "log offset": 1 << 40,
        "system flag": 0,
        "born timestamp": 1_700_000_000_123,
        "store timestamp": 1_700_000_000_456,
        "reconsume times": 2,
        "prepared transaction offset": 99,
        "bytes of the body": 5,
    }
    host = Host(bytes([10, 0, 0, 5]), 10911)
    record = encode_message(
        topic="T",
        queue_id=3,
        flag=7,
        queue_offset=42,
        log_offset=1 << 40,
        born_timestamp=1_700_000_000_123,
        born_host=host,
        store_timestamp=1_700_000_000_456,
        store_host=host,
        reconsume_times=2,
        prepared_transaction_offset=99,
        body=b"hello",
    )
    found = {}
    for offset, width, field in table(page("formats.md"), "RocketMQ's: record"):
        for name in values:
            if field.startswith(name) and offset:
                found[name] = int.from_bytes(record[int(offset) :][: int(width)], "big")
    assert found == values


def test_magic_numbers_and_names_are_those_of_the_code() -> None:
    text = page("formats.md")
    magics = (tiered_index.BEGIN_MAGIC, tiered_index.END_MAGIC, message.BLANK_MAGIC)
    for magic in magics:
        assert f"`{magic & 0xFFFFFFFF:08X}`" in text
    assert f"`{footer.MAGIC.decode()}`" in text
    assert f"`{segment_name(0)}`" in text


# Operations


def test_threads_and_retries_are_those_of_the_code() -> None:
    text = page("operations.md")
    assert f"{DISPATCH_THREADS} for uploads, {FETCH_THREADS} for fetches" in text
    assert "tries again, five times within a minute" in text
    assert (RetryPolicy().retries_max, RetryPolicy().deadline_ms) == (5, 60_000)


def test_defaults_that_are_told_in_prose_are_those_of_the_code() -> None:
    operations = " ".join(page("operations.md").split())
    assert "one comes every 40 s" in operations
    assert "due after 30 s, and queues are looked at every 20" in operations
    assert "64,800 in a month" in operations
    config = StoreConfig()
    assert (config.group_commit_timeout_ms, config.dispatch_interval_ms) == (30_000, 20_000)
    assert MONTH_SECONDS // 40 == 64_800
    assert "Uploads in flight are a quarter of `pending_count_max`" in operations
    assert "One that aborts uploads after two days" in " ".join(page("security.md").split())
    assert importlib.import_module("tieredstore.providers.s3_admin").ABORT_DAYS == 2


# Compatibility


def test_every_difference_from_java_is_told() -> None:
    rows = json.loads((ROOT / "tests/golden/differences.json").read_text("utf-8"))
    wanted: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        wanted.setdefault((row["file"], row["reason"]), set()).add(row["row"])
    told = {
        (file, why): {int(number) for number in numbers.split(", ")}
        for file, why, numbers in table(page("compatibility.md"), "Where we answer otherwise")
    }
    assert told == wanted


# Security


def operations_of(*modules: str) -> set[str]:
    """The S3 operations that these modules name, in calls and in strings."""
    session = importlib.import_module("botocore.session").get_session()
    xform_name = importlib.import_module("botocore").xform_name
    known = {xform_name(name) for name in session.get_service_model("s3").operation_names}
    found: set[str] = set()
    for module in modules:
        tree = ast.parse((ROOT / "providers" / module).read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found & known


PERMISSIONS = {
    "head_object": "s3:GetObject",
    "get_object": "s3:GetObject",
    "put_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "list_objects_v2": "s3:ListBucket",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "create_bucket": "s3:CreateBucket",
    "head_bucket": "s3:ListBucket",
    "get_bucket_lifecycle_configuration": "s3:GetLifecycleConfiguration",
    "put_bucket_lifecycle": "s3:PutLifecycleConfiguration",
    "put_bucket_lifecycle_configuration": "s3:PutLifecycleConfiguration",
}


def test_the_policy_grants_what_the_clients_ask_for_and_no_more() -> None:
    (policy,) = [json.loads(b.text) for b in blocks(page("security.md")) if b.language == "json"]
    granted = {action for statement in policy["Statement"] for action in statement["Action"]}
    # obstore makes only some of these requests, and leaves the others to the client of s3fs.
    clients = {path.name for path in (ROOT / "providers").glob("s3*.py")} - {"s3_admin.py"}
    asked = operations_of(*clients)
    assert {"put_object", "list_objects_v2", "delete_objects"} <= asked
    assert {PERMISSIONS[name] for name in asked} == granted
    admin = {PERMISSIONS[name] for name in operations_of("s3_admin.py")}
    assert all(f"`{action}`" in page("security.md") for action in admin)


# Benchmarks


def test_every_benchmark_is_told_and_the_marks_are_there() -> None:
    text = page("benchmarks.md")
    told = {row[0] for row in table(text, "What each measures")}
    assert told == {f"bench/{path.name}" for path in (ROOT / "bench").glob("[!_]*.py")}
    main = importlib.import_module("bench.__main__")
    assert text.count(main.BEGIN) == text.count(main.END) == 1
    assert DOCS / "benchmarks.md" == main.PAGE


# Spark


def first_cells(rows: list[list[str]]) -> set[str]:
    return {name for row in rows for name in row[0].split(", ")}


def test_the_columns_of_a_read_are_all_told() -> None:
    _, columns = tables(section(page("spark.md"), "Read"))
    assert first_cells(columns) == set(SCAN_COLUMNS)


def test_the_columns_of_a_write_are_all_told() -> None:
    text = section(page("spark.md"), "Write")
    sentence = text[text.index("Columns that a write takes") :].partition(".")[0]
    table = (load_records.__doc__ or "").partition("without it")[2].partition("\n\n")[0]
    rows = re.findall(r"^    \| (\w+) ", table, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", sentence)) == {*rows}


def test_the_options_of_a_read_and_of_a_write_are_all_told() -> None:
    options = importlib.import_module("tieredstore.spark.options")
    sink = importlib.import_module("tieredstore.spark.sink")
    reads, _ = tables(section(page("spark.md"), "Read"))
    writes, _ = tables(section(page("spark.md"), "Write"))
    settings = {"any [setting](configuration.md#the-tier)", "config and all settings"}
    known = {"config", "tier", *options._READ_NAMES, *options._SHORT_NAMES}
    assert first_cells(reads) - settings == known
    assert first_cells(writes) - settings == set(sink._WRITE_NAMES)
    assert "128 MiB" in dict(reads)["split_bytes"]
    assert options.PARTITION_BYTES == 128 << 20
    assert "16 MiB" in dict(writes)["block_bytes"]
    assert sink.BLOCK_BYTES == 16 << 20


LAYOUT, OPERATIONS, METRICS = "object-store-layout.md", "operations.md", "metrics.md"
DAY_MS = 86_400_000

# The page, its words, and the name and value in the code.
TOLD = [
    (LAYOUT, "8 MiB lie in the entry itself", "roundlog.log.INLINE_BYTES_MAX", 8 * MIB),
    (LAYOUT, "data objects of at most 32 MiB", "roundlog.draft.DATA_BYTES_MAX", 32 * MIB),
    (LAYOUT, "shares the next one, up to 64 MiB", "roundlog.log.TOGETHER_BYTES_MAX", 64 * MIB),
    (LAYOUT, "| merge | 32 rounds", "roundlog.upkeep.ROUNDS_MERGED", 32),
    (LAYOUT, "or 64 MiB of their bytes", "roundlog.upkeep.MERGED_BYTES", 64 * MIB),
    (LAYOUT, "last 64 MiB of rounds", "roundlog.recent.RECENT_BYTES_MAX", 64 * MIB),
    (LAYOUT, "16 of those, or of merges", "roundlog.upkeep.CHUNKS_MERGED", 16),
    (LAYOUT, "less than 8 MiB in each", "roundlog.upkeep.SPAN_BYTES", 8 * MIB),
    (LAYOUT, "one PUT up to 32 MiB", "roundlog.upkeep.ONE_PUT_BYTES", 32 * MIB),
    (LAYOUT, "every 256 entries", "roundlog.upkeep.STATE_EVERY", 256),
    (LAYOUT, "the last three are kept", "roundlog.upkeep.STATES_KEPT", 3),
    (LAYOUT, "deleted 15 minutes later", "roundlog.upkeep.GRACE_MS", 15 * 60_000),
    (LAYOUT, "used again for 30 days", "roundlog.state.NAME_RESTS_MS", 30 * DAY_MS),
    (LAYOUT, "sealed: ⌈N/8⌉ GET", "roundlog.object_calls.RANGE_BYTES_MAX", 8 * MIB),
    (
        LAYOUT,
        "a PUT for each 16 MiB and 2 more",
        "driver.object_client.UPLOAD_PART_BYTES",
        16 * MIB,
    ),
    (LAYOUT, "more than 256 MiB", "metadata.published.PUBLISHED_BYTES_MAX", 256 * MIB),
    (LAYOUT, "and three are kept", "metadata.published.KEPT", 3),
    (OPERATIONS, "journal up to 4 MiB, or", "metadata.files.JOURNAL_BYTES_MIN", 4 * MIB),
    (OPERATIONS, "one GET for 8 MiB", "access.cost._READ_BYTES", 8 * MIB),
    (OPERATIONS, "$0.023 for a GB-month", "access.cost.STORAGE_DOLLARS", 0.023),
    (METRICS, "100 000 sets of labels", "exporters.instruments.LABEL_SETS_MAX", 100_000),
]


@pytest.mark.parametrize(("name", "told", "where", "value"), TOLD, ids=[row[1] for row in TOLD])
def test_a_number_in_prose_is_that_of_the_code(
    name: str, told: str, where: str, value: float
) -> None:
    assert told in prose(name)
    module, _, constant = where.rpartition(".")
    assert getattr(importlib.import_module(f"tieredstore.{module}"), constant) == value


def test_the_interval_of_publishing_is_its_default() -> None:
    assert "every `publish_interval_ms` (60 000; 0: never)" in prose(LAYOUT)
    assert StoreConfig().publish_interval_ms == 60_000


NOW_MS = 1_700_000_000_000
TOPIC = "OrderEvents"


def test_a_proof_takes_about_as_many_requests_as_the_page_says() -> None:
    client = MemoryObjectClient()
    assert certify(client).passed
    assert "about 1 200 small requests" in prose("object-store-layout.md")
    assert 1_150 <= client.requests.total() < 1_250


def test_a_segment_takes_about_as_many_bytes_of_the_catalogue_as_the_page_says(
    tmp_path: Path,
) -> None:
    def size_with(count: int) -> int:
        path = tmp_path / f"{count}.json"
        with JsonMetadataStore.open(path) as store:
            store.add_topic(TOPIC)
            store.put(
                *(
                    SegmentRecord(
                        path=f"broker-a/{TOPIC}/3",
                        type=SegmentType.COMMIT_LOG,
                        base_offset=number << 30,
                        size=1 << 30,
                        create_timestamp=NOW_MS,
                        begin_timestamp=NOW_MS + number,
                        end_timestamp=NOW_MS + number + 1,
                    )
                    for number in range(count)
                )
            )
        return path.stat().st_size

    assert "about 270 bytes a segment" in prose("operations.md")
    assert 240 <= (size_with(1_100) - size_with(100)) / 1_000 <= 300


def test_metrics_without_paths_are_as_short_as_the_documents_say(tmp_path: Path) -> None:
    def page_bytes(*without: str) -> int:
        registry = CollectorRegistry()
        metrics = PrometheusMetrics(registry=registry, without=without)
        with measured_store(tmp_path / "-".join(("metrics", *without)), metrics) as store:
            for queue_id in range(120):
                store.put_message(a_message(queue_id=queue_id))
            assert store.flush()
            return len(generate_latest(registry))

    assert "a twelfth of the length" in prose("metrics.md")
    assert 9 <= page_bytes() / page_bytes("path") <= 15


_TEST = re.compile(r"tests/[\w/]+/test_\w+\.py")


def test_each_of_the_nine_invariants_names_a_test() -> None:
    text = section(page("durability.md"), "The nine invariants")
    told = re.findall(r"^\*\*([0-9])\. .*?(?=^\*\*|\Z)", text, re.MULTILINE | re.DOTALL)
    assert told == [str(number) for number in range(1, 10)]
    for paragraph in re.split(r"^\*\*[0-9]\. ", text, flags=re.MULTILINE)[1:]:
        assert re.search(rf"`{_TEST.pattern}`", paragraph), paragraph


def test_each_crash_names_tests_that_there_are() -> None:
    rows = table(page("durability.md"), "The power fails after …")
    assert len(rows) >= 16
    for row in rows:
        shown = _TEST.findall(row[-1])
        assert shown, row
        assert [path for path in shown if not (ROOT / path).is_file()] == []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_figures_of_the_front_page_are_made_from_the_page_of_benchmarks() -> None:
    assert between_marks(README, front_of(page("benchmarks.md"))) == README


def test_no_other_figure_of_speed_stands_on_the_front_page() -> None:
    before, _, rest = README.partition(BEGIN)
    prose = before + rest.partition(END)[2]
    assert re.findall(r"[\d,.]+ ?(?:MB/s|GB/s|/s|µs|us|ms)\b", prose) == []


def test_a_row_that_nobody_measured_is_an_error() -> None:
    with pytest.raises(KeyError):
        front_of(page("benchmarks.md").replace("cached read of 1 ", "cached read of 2 "))


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="marks"):
        between_marks(README.replace(END, ""), "")
