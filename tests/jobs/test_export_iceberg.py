"""Exports into an Iceberg table: each range once, whoever commits before, meanwhile and after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as IceCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table

from tests.jobs.lake_kit import (
    DAY,
    KEY,
    SCHEMA,
    SETTINGS,
    at_once,
    committed,
    failing_in,
    in_order,
    made,
    rows,
    staged,
)
from tieredstore.jobs import export_iceberg
from tieredstore.jobs.export_iceberg import OFFSETS, RUN, Catalog, IcebergTarget
from tieredstore.jobs.export_ledger import Ledger, StagedRange, TableChangedError
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.model.errors import BackendError, InvalidConfigError, MetadataError

NAME = "lake.messages"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    places = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    return Catalog(name="test", properties=places)


@pytest.fixture
def other(catalog: Catalog) -> Iterator[IceCatalog]:
    """Another client of the same catalogue."""
    made = SqlCatalog(catalog.name, **catalog.properties)
    yield made
    made.close()


@pytest.fixture
def opened(catalog: Catalog) -> Iterator[Any]:
    made: list[IcebergTarget] = []

    def open_one(name: str = NAME, schema: pa.Schema = SCHEMA) -> IcebergTarget:
        made.append(IcebergTarget(name, catalog, TargetOptions(), schema))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


@pytest.fixture
def table(opened: Any) -> IcebergTarget:
    found: IcebergTarget = opened()
    return made(found)


def orders(table: IcebergTarget, first: int, end: int, **more: Any) -> StagedRange:
    return staged(table.target, "orders", first, end, **more)


def add_others(table: IcebergTarget, other: IceCatalog, first: int = 0, end: int = 3) -> Table:
    """Add rows as another writer, which knows nothing about offsets."""
    range_ = staged(table.target, "others", first, end)
    found = other.load_table(NAME)
    found.add_files([f"{found.location()}/{file.path}" for file in range_.files])
    return found


def held(other: IceCatalog) -> list[dict[str, Any]]:
    return in_order(other.load_table(NAME).scan().to_arrow())


def test_rows_come_back_as_they_were_staged(
    table: IcebergTarget, opened: Any, other: IceCatalog
) -> None:
    odd = "%RETRY%gröup a"
    ranges = [
        orders(table, 0, 10),
        orders(table, 10, 12, days=[None]),
        staged(table.target, odd, 5, 9),
    ]
    added, ledger = committed(table, *ranges, run="one")
    assert added == ranges
    wanted = pa.concat_tables(
        [rows("orders", 0, 0, 10), rows("orders", 0, 10, 12, None), rows(odd, 0, 5, 9)]
    )
    assert held(other) == in_order(wanted)
    assert opened().read() == ledger
    assert ledger.exported == {KEY: [(0, 12)], f"Cluster/broker-a/{odd}/0": [(5, 9)]}


def test_files_are_found_by_topic_and_day(table: IcebergTarget, other: IceCatalog) -> None:
    beside = staged(table.target, "beside", 0, 10)
    committed(table, orders(table, 0, 10), orders(table, 10, 20, days=[DAY + 1]), beside, run="one")
    scan = other.load_table(NAME).scan(
        row_filter="topic = 'orders' and store_time >= '2024-10-05T00:00:00+00:00'"
    )
    (task,) = scan.plan_files()
    assert (task.file.partition[0], task.file.partition[1]) == ("orders", DAY + 1)


def test_a_table_without_store_time_is_by_topic(opened: Any, other: IceCatalog) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != "store_time"])
    table = opened(schema=schema)
    table.make()
    committed(table, orders(table, 0, 10, without=["store_time"]), run="one")
    found = other.load_table(NAME)
    assert [field.name for field in found.spec().fields] == ["topic"]
    assert len(found.scan().to_arrow()) == 10


def test_a_second_run_adds_what_is_new_and_says_so_in_the_snapshot(
    table: IcebergTarget, other: IceCatalog
) -> None:
    first = orders(table, 0, 10)
    committed(table, first, run="one")
    added, ledger = committed(table, first, orders(table, 10, 15), run="two")
    assert [each.part for each in added] == [(10, 15)]
    assert [row["queue_offset"] for row in held(other)] == list(range(15))
    found = other.load_table(NAME)
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    assert properties[RUN] == "two"
    assert Ledger.unpacked("", properties[OFFSETS]) == ledger
    assert found.properties[OFFSETS] == properties[OFFSETS]
    assert "commit.retry.num-retries" not in found.properties
    assert committed(table, first, run="three") == ([], ledger)
    assert len(other.load_table(NAME).snapshots()) == 2


def test_any_snapshot_in_between_refuses_a_commit(table: IcebergTarget, other: IceCatalog) -> None:
    before = table.read()
    range_ = orders(table, 0, 10)
    add_others(table, other)
    with pytest.raises(TableChangedError):
        table.append([range_], before.after("one", {}, [range_]))
    assert len(held(other)) == 3
    committed(table, range_, run="one")
    assert len(held(other)) == 13


def test_of_exports_at_once_each_message_comes_once(
    table: IcebergTarget, opened: Any, other: IceCatalog
) -> None:
    tables = [opened() for _ in range(3)]
    works = []
    for number, each in enumerate(tables):
        ranges = [
            orders(each, 0, 10, mark=str(number)),
            staged(each.target, f"own-{number}", 0, 5),
        ]
        works.append(partial(committed, each, *ranges, run=f"run-{number}"))
    results = at_once(*works)
    assert sum(len(added) for added, _ in results) == 4
    offsets = [row["queue_offset"] for row in held(other) if row["topic"] == "orders"]
    assert offsets == list(range(10))
    assert len(held(other)) == 25
    assert len(other.load_table(NAME).snapshots()) == 3


def test_a_commit_whose_answer_is_lost_is_found(
    table: IcebergTarget, other: IceCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqlCatalog.commit_table

    def lost(*given: Any) -> None:
        commit(*given)
        raise CommitStateUnknownException("connection reset")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    range_ = orders(table, 0, 10)
    added, _ = committed(table, range_, run="one")
    assert added == [range_]
    assert len(other.load_table(NAME).snapshots()) == 1


def test_an_error_that_changed_nothing_is_told_at_once(
    table: IcebergTarget, other: IceCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fails(*given: Any) -> None:
        tries.append(given)
        raise OSError("no route to host")

    range_ = orders(table, 0, 10)
    with monkeypatch.context() as broken:
        broken.setattr(SqlCatalog, "commit_table", fails)
        with pytest.raises(BackendError, match="no route"):
            committed(table, range_, run="one")
    assert len(tries) == 1
    committed(table, range_, run="two")
    assert len(held(other)) == 10


def test_a_kill_before_the_commit_leaves_nothing_to_be_seen(
    table: IcebergTarget, other: IceCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*given: Any) -> None:
        raise KeyboardInterrupt

    range_ = orders(table, 0, 10)
    with monkeypatch.context() as broken:
        broken.setattr(SqlCatalog, "commit_table", dies)
        with pytest.raises(KeyboardInterrupt):
            committed(table, range_, run="one")
    assert held(other) == []
    assert table.read() == Ledger()
    committed(table, range_, run="two")
    assert len(held(other)) == 10


def test_offsets_are_found_behind_the_snapshots_of_others(
    table: IcebergTarget, other: IceCatalog
) -> None:
    committed(table, orders(table, 0, 10), run="one")
    found = add_others(table, other)
    found.delete("topic = 'others'")
    assert table.read().exported == {KEY: [(0, 10)]}
    first = found.snapshots()[0].snapshot_id
    found.maintenance.expire_snapshots().by_id(first).commit()
    assert first not in {each.snapshot_id for each in other.load_table(NAME).snapshots()}
    assert table.read().exported == {KEY: [(0, 10)]}
    committed(table, orders(table, 10, 12), run="two")
    assert [row["queue_offset"] for row in held(other)] == list(range(12))


def test_offsets_go_back_with_a_table_that_is_rolled_back(
    table: IcebergTarget, other: IceCatalog
) -> None:
    committed(table, orders(table, 0, 10), run="one")
    committed(table, orders(table, 10, 20), run="two")
    found = other.load_table(NAME)
    first = found.snapshots()[0].snapshot_id
    found.manage_snapshots().set_current_snapshot(first).commit()
    assert table.read().exported == {KEY: [(0, 10)]}
    committed(table, orders(table, 10, 15), run="three")
    assert [row["queue_offset"] for row in held(other)] == list(range(15))


def test_a_table_rolled_back_behind_its_offsets_is_told_apart(
    table: IcebergTarget, other: IceCatalog
) -> None:
    add_others(table, other)
    found = add_others(table, other, 3, 6)
    committed(table, orders(table, 0, 10), run="one")
    found.refresh()
    first, second, _ = (each.snapshot_id for each in found.snapshots())
    found.manage_snapshots().set_current_snapshot(first).commit()
    assert table.read() == Ledger()
    found.manage_snapshots().set_current_snapshot(second).commit()
    assert table.read() == Ledger()
    found.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(MetadataError, match="rolled back"):
        table.read()
    add_others(table, other, 6, 9)  # whose snapshot is newer than all that have offsets
    with pytest.raises(MetadataError, match="rolled back"):
        table.read()


def test_offsets_of_many_queues_are_in_a_file(
    table: IcebergTarget, opened: Any, other: IceCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_iceberg, "INLINE_MAX", 100)
    monkeypatch.setattr(export_iceberg, "FILES_KEPT", 2)
    for number in range(5):
        committed(table, orders(table, number, number + 1), run=f"run-{number}")
    assert len(table.target.names("_tieredstore/offsets")) == 5, "each has its snapshot"
    assert opened().read().exported == {KEY: [(0, 5)]}
    found: Table = other.load_table(NAME)
    assert found.properties[OFFSETS].startswith("file:_tieredstore/offsets/")
    for snapshot in found.snapshots()[:-1]:
        found.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    committed(table, orders(table, 5, 6), run="six")
    assert len(table.target.names("_tieredstore/offsets")) == 2
    assert [row["queue_offset"] for row in held(other)] == list(range(6))
    for name in table.target.names("_tieredstore/offsets"):
        table.target.delete(f"_tieredstore/offsets/{name}")
    with pytest.raises(MetadataError, match="is gone"):
        table.read()
    with other.load_table(NAME).transaction() as changing:
        changing.set_properties({OFFSETS: "file:../../elsewhere"})


def test_a_commit_whose_older_offsets_cannot_be_removed_is_made(
    table: IcebergTarget, other: IceCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExportTarget, "names", failing_in("_tieredstore/offsets"))
    added, _ = committed(table, orders(table, 0, 10), run="one")
    assert [each.part for each in added] == [(0, 10)]
    assert len(held(other)) == 10


def test_other_settings_are_refused(table: IcebergTarget) -> None:
    committed(table, orders(table, 0, 10), run="one")
    with pytest.raises(InvalidConfigError, match="times"):
        table.read().refuse_other(table.name, {"columns": SETTINGS["columns"], "times": [1, 2]})


def test_a_table_of_another_shape_is_refused(opened: Any, other: IceCatalog) -> None:
    other.create_namespace("lake")
    other.create_table(NAME, pa.schema([pa.field("topic", pa.string())]))
    with pytest.raises(InvalidConfigError, match="no column 'queue_id'"):
        opened().read()


def test_a_column_that_takes_no_nulls_is_told_before_anything_is_read(
    opened: Any, other: IceCatalog
) -> None:
    fields = [each.with_nullable(each.name != "body") for each in SCHEMA]
    other.create_namespace("lake")
    other.create_table(NAME, pa.schema(fields))
    with pytest.raises(InvalidConfigError, match=f"column 'body' of {NAME} is NOT NULL"):
        opened().read()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.list_(pa.field("element", pa.string(), nullable=False)), "column 'keys.* is NOT NULL"),
        (pa.string(), "lake.messages has other columns: .*keys.element"),
    ],
)
def test_a_list_that_cannot_take_ours_is_told_before_anything_is_read(
    opened: Any, other: IceCatalog, kind: pa.DataType, told: str
) -> None:
    fields = [each.with_type(kind) if each.name == "keys" else each for each in SCHEMA]
    other.create_namespace("lake")
    other.create_table(NAME, pa.schema(fields))
    with pytest.raises(InvalidConfigError, match=told):
        opened().read()


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("store_time", pa.timestamp("us"), "timestamp, and is to have timestamptz"),
        ("queue_id", pa.string(), "string, and is to have int"),
        ("queue_id", pa.int64(), ""),  # Iceberg widens it
        ("keys", pa.list_(pa.int32()), "int, and is to have string"),
        ("properties", pa.map_(pa.string(), pa.int32()), "int, and is to have string"),
    ],
)
def test_a_column_of_another_type_is_told_before_anything_is_read(
    opened: Any, other: IceCatalog, name: str, kind: pa.DataType, told: str
) -> None:
    fields = [each.with_type(kind) if each.name == name else each for each in SCHEMA]
    other.create_namespace("lake")
    other.create_table(NAME, pa.schema(fields))
    if told:
        with pytest.raises(
            InvalidConfigError, match=f"column '{name}.*' of {NAME} has the type {told}"
        ):
            opened().read()
    else:
        table = opened()
        table.read()
        committed(table, orders(table, 0, 10), run="one")


def test_a_table_whose_place_is_written_as_hadoop_does_has_its_files_there(
    opened: Any, other: IceCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    other.create_namespace("lake")
    other.create_table(NAME, SCHEMA, location=f"file:{tmp_path}/elsewhere")
    table = opened()
    table.read()
    committed(table, orders(table, 0, 10), run="one")
    assert len(held(other)) == 10
    assert len([*(tmp_path / "elsewhere" / "data").glob("*.parquet")]) == 1
    assert [*Path().iterdir()] == []


def test_a_table_made_by_two_at_once_is_one(opened: Any) -> None:
    assert at_once(*(opened().make for _ in range(3))) == [None] * 3


def test_a_catalogue_that_cannot_be_opened_is_one_error() -> None:
    with pytest.raises(InvalidConfigError, match="catalog: nowhere"):
        IcebergTarget(NAME, Catalog(name="nowhere"), TargetOptions(), SCHEMA)
    with pytest.raises(InvalidConfigError, match="namespace.table"):
        IcebergTarget("messages", Catalog(), TargetOptions(), SCHEMA)
