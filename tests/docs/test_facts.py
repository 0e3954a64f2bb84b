"""What the pages say is what the code says: tables, names, defaults, permissions."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, blocks, inline_code, page, section, table, tables
from tieredstore.access.survey import MONTH_SECONDS
from tieredstore.codec import message, queue_unit, tiered_index
from tieredstore.codec.message import encode_message
from tieredstore.codec.names import segment_name
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import DISPATCH_THREADS, FETCH_THREADS
from tieredstore.index import footer
from tieredstore.jobs import load_records
from tieredstore.jobs.scan import SCAN_COLUMNS
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import Host

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
    """Every name of the code, and of its modules."""
    found: set[str] = set()
    for folder in ("tieredstore", "tests", "bench"):
        for file in (ROOT / folder).rglob("*.py"):
            if DOCS.name not in file.parts:
                found |= {file.stem, *re.findall(r"\w+", file.read_text("utf-8"))}
    return found


def test_names_in_the_pages_are_names_of_the_code() -> None:
    """Those with an underscore: settings, functions, options, modules."""
    known = names()
    unknown = [
        f"{path.name}: {name}"
        for path in PAGES
        if path.name != "metrics.md"  # which has a test of its own
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
        for sentence in {each.strip() for each in re.split(r"(?<=[.:])\s+", prose)}:
            plain = " ".join(sentence.split())
            if len(plain) > 50 and seen.setdefault(plain, path.name) != path.name:
                twice.append(f"{path.name} and {seen[plain]}: {plain}")
    assert twice == []


# Formats


def layouts(text: str) -> Iterator[list[tuple[int, int]]]:
    """Tables of offset and width, as numbers."""
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
        88,  # of a record, up to its body
        queue_unit.UNIT_BYTES,
        message.CODA_BYTES,
        tiered_index.HEADER_BYTES,
        tiered_index.ITEM_BYTES,
        footer.TRAILER_BYTES,
        footer.BLOCK_BYTES,
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
    assert "commits every 40 s" in operations
    assert "due after 30 s, and queues are looked at every 20" in operations
    assert "two PUTs each, 129,600 in a month" in operations
    config = StoreConfig()
    assert (config.group_commit_timeout_ms, config.dispatch_interval_ms) == (30_000, 20_000)
    assert 2 * MONTH_SECONDS // 40 == 129_600
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
    """The operations of S3 that these modules name, in calls and in texts."""
    session = importlib.import_module("botocore.session").get_session()
    xform_name = importlib.import_module("botocore").xform_name
    known = {xform_name(each) for each in session.get_service_model("s3").operation_names}
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
    granted = {action for each in policy["Statement"] for action in each["Action"]}
    # obstore asks for a part of these: what it lacks it leaves to the client of s3fs.
    clients = {path.name for path in (ROOT / "providers").glob("s3*.py")} - {"s3_admin.py"}
    asked = operations_of(*clients)
    assert {"put_object", "list_objects_v2", "delete_objects"} <= asked
    assert {PERMISSIONS[each] for each in asked} == granted
    admin = {PERMISSIONS[each] for each in operations_of("s3_admin.py")}
    assert all(f"`{each}`" in page("security.md") for each in admin)


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
    (writes,) = tables(section(page("spark.md"), "Write"))
    settings = {"any [setting](configuration.md#the-tier)", "config and all settings"}
    known = {"config", *options._READ_NAMES, *options._SHORT_NAMES}
    assert first_cells(reads) - settings == known
    assert first_cells(writes) - settings == set(sink._WRITE_NAMES)
    assert "64 MiB" in dict(reads)["split_bytes"]
    assert options.SPLIT_BYTES == 64 << 20
    assert "16 MiB" in dict(writes)["block_bytes"]
    assert sink.BLOCK_BYTES == 16 << 20
