"""Exports into a Delta table: each range once, whoever commits before, meanwhile and after."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.jobs.job_kit import golden_config, run_inline
from tests.jobs.lake_kit import (
    DAY,
    KEY,
    SCHEMA,
    at_once,
    committed,
    failing_in,
    in_order,
    made,
    rows,
    staged,
)
from tieredstore.driver.runtime import InlinePool, ManualClock
from tieredstore.jobs.export import ExportJob, TableFormat
from tieredstore.jobs.export_delta import NUMBERS_KEPT, OFFSETS, DeltaTarget
from tieredstore.jobs.export_ledger import Ledger, StagedRange, TableChangedError
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.jobs.job import JobState, LocalEngine, run_job
from tieredstore.model.errors import BackendError, InvalidConfigError, MetadataError

FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name != "topic"])


def opened(path: Path | str, options: TargetOptions | None = None) -> DeltaTarget:
    given = options or TargetOptions()
    return DeltaTarget(ExportTarget(str(path), given), given, FILE_SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTarget:
    return made(opened(tmp_path / "table"))


def orders(table: DeltaTarget, first: int, end: int, **more: Any) -> StagedRange:
    return staged(table.target, "orders", first, end, without=["topic"], **more)


def held(table: DeltaTarget) -> list[dict[str, Any]]:
    return in_order(deltalake.DeltaTable(table.name).to_pyarrow_table())


def versions(table: DeltaTarget) -> int:
    return deltalake.DeltaTable(table.name).version()


def test_rows_come_back_as_they_were_staged(table: DeltaTarget) -> None:
    odd = "%RETRY%gröup a"
    ranges = [
        orders(table, 0, 10),
        orders(table, 10, 12, days=[None]),
        staged(table.target, odd, 5, 9, without=["topic"]),
    ]
    added, ledger = committed(table, *ranges, run="one")
    assert added == ranges
    wanted = pa.concat_tables(
        [rows("orders", 0, 0, 10), rows("orders", 0, 10, 12, None), rows(odd, 0, 5, 9)]
    )
    assert held(table) == in_order(wanted)
    assert opened(table.name).read() == ledger
    assert ledger.exported == {KEY: [(0, 12)], f"Cluster/broker-a/{odd}/0": [(5, 9)]}


def test_files_are_found_by_topic_day_and_statistics(table: DeltaTarget) -> None:
    committed(table, orders(table, 0, 10), orders(table, 10, 20, days=[DAY + 1]), run="one")
    delta = deltalake.DeltaTable(table.name)
    wanted = [("day", "=", "2024-10-05"), ("topic", "=", "orders")]
    assert len(delta.file_uris(file_pruning_predicate=wanted)) == 1
    found = delta.to_pyarrow_dataset().to_table(filter=pc.field("queue_offset") == 19)
    assert found.num_rows == 1


def test_a_file_of_a_year_of_less_than_four_digits_is_found_by_its_times(
    table: DeltaTarget,
) -> None:
    day = datetime(1, 1, 1, tzinfo=UTC)
    long_ago = (day - datetime(1970, 1, 1, tzinfo=UTC)).days
    committed(table, orders(table, 0, 10, days=[long_ago]), run="one")
    found = deltalake.DeltaTable(table.name).to_pyarrow_dataset()
    assert found.to_table(filter=pc.field("store_time") >= day).num_rows == 10


def test_a_second_run_adds_what_is_new_and_says_so_in_the_commit(table: DeltaTarget) -> None:
    first = orders(table, 0, 10)
    committed(table, first, run="one")
    added, ledger = committed(table, first, orders(table, 10, 15), run="two")
    assert [each.part for each in added] == [(10, 15)]
    assert [row["queue_offset"] for row in held(table)] == list(range(15))
    newest = deltalake.DeltaTable(table.name).history(1)[0]
    assert newest["tieredstore.run"] == "two"
    assert Ledger.unpacked("", newest["tieredstore.offsets"]) == ledger
    assert committed(table, first, run="three") == ([], ledger)
    assert versions(table) == 2


def test_any_version_in_between_refuses_a_commit(table: DeltaTarget) -> None:
    before = table.read()
    range_ = orders(table, 0, 10)
    other = deltalake.DeltaTable(table.name)
    other.alter.set_table_properties({"delta.checkpointInterval": "5"})
    with pytest.raises(TableChangedError):
        table.append([range_], before.after("one", {}, [range_]))
    assert held(table) == []
    committed(table, range_, run="one")
    assert len(held(table)) == 10


def test_of_exports_at_once_each_message_comes_once(table: DeltaTarget) -> None:
    tables = [opened(table.name) for _ in range(3)]
    works = []
    for number, each in enumerate(tables):
        own = staged(each.target, f"own-{number}", 0, 5, without=["topic"])
        ranges = [orders(each, 0, 10, mark=str(number)), own]
        works.append(partial(committed, each, *ranges, run=f"run-{number}"))
    results = at_once(*works)
    assert sum(len(added) for added, _ in results) == 4
    assert versions(table) == 3
    offsets = [row["queue_offset"] for row in held(table) if row["topic"] == "orders"]
    assert offsets == list(range(10))
    assert len(held(table)) == 25


def test_a_commit_whose_answer_is_lost_is_found(
    table: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = deltalake.DeltaTable.create_write_transaction

    def lost(self: deltalake.DeltaTable, *given: Any, **named: Any) -> None:
        write(self, *given, **named)
        raise OSError("connection reset")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
    range_ = orders(table, 0, 10)
    added, _ = committed(table, range_, run="one")
    assert added == [range_]
    assert versions(table) == 1


def test_an_error_that_changed_nothing_is_told_at_once(
    table: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fails(*given: Any, **named: Any) -> None:
        tries.append(given)
        raise OSError("no route to host")

    range_ = orders(table, 0, 10)
    with monkeypatch.context() as broken:
        broken.setattr(deltalake.DeltaTable, "create_write_transaction", fails)
        with pytest.raises(BackendError, match="no route"):
            committed(table, range_, run="one")
    assert len(tries) == 1
    committed(table, range_, run="two")
    assert len(held(table)) == 10


def test_a_kill_before_the_commit_leaves_nothing_to_be_seen(
    table: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    range_ = orders(table, 0, 10)
    with monkeypatch.context() as broken:
        broken.setattr(deltalake.DeltaTable, "create_write_transaction", dies)
        with pytest.raises(KeyboardInterrupt):
            committed(table, range_, run="one")
    assert held(table) == []
    assert table.read() == Ledger()
    committed(table, range_, run="two")
    assert len(held(table)) == 10


def test_offsets_outlive_compaction_vacuum_checkpoint_and_cleaning(table: DeltaTarget) -> None:
    committed(table, orders(table, 0, 10), run="one")
    committed(table, orders(table, 10, 20), run="two")
    other = deltalake.DeltaTable(table.name)
    other.optimize.compact()
    other.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    other = deltalake.DeltaTable(table.name)
    other.create_checkpoint()
    log = Path(table.name) / "_delta_log"
    for version in range(other.version()):
        (log / f"{version:020d}.json").unlink()
    assert table.read().exported == {KEY: [(0, 20)]}
    committed(table, orders(table, 20, 25), run="three")
    assert [row["queue_offset"] for row in held(table)] == list(range(25))


def test_only_the_newest_files_of_offsets_are_kept(table: DeltaTarget) -> None:
    for number in range(NUMBERS_KEPT + 3):
        committed(table, orders(table, number, number + 1), run=f"run-{number}")
    assert len(table.target.names(OFFSETS)) == NUMBERS_KEPT
    assert table.read().exported == {KEY: [(0, NUMBERS_KEPT + 3)]}


def test_a_commit_whose_older_offsets_cannot_be_removed_is_made(
    table: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExportTarget, "names", failing_in(OFFSETS))
    added, _ = committed(table, orders(table, 0, 10), run="one")
    assert [each.part for each in added] == [(0, 10)]
    assert len(held(table)) == 10


def test_offsets_that_are_gone_or_no_offsets_are_an_error(table: DeltaTarget) -> None:
    committed(table, orders(table, 0, 10), run="one")
    (path,) = (Path(table.name) / OFFSETS).iterdir()
    path.write_text("[]")
    with pytest.raises(MetadataError):
        table.read()
    path.unlink()
    with pytest.raises(MetadataError, match="is gone"):
        table.read()


def test_a_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    deltalake.DeltaTable.create(str(tmp_path / "a"), FILE_SCHEMA)
    with pytest.raises(InvalidConfigError, match="partitioned by nothing"):
        opened(tmp_path / "a").read()
    fields = [pa.field("topic", pa.string()), pa.field("day", pa.date32())]
    named = ["topic", "day"]
    deltalake.DeltaTable.create(str(tmp_path / "b"), pa.schema(fields), partition_by=named)
    with pytest.raises(InvalidConfigError, match="no column 'queue_id'"):
        opened(tmp_path / "b").read()
    other = [pa.field("keys", pa.string()) if f.name == "keys" else f for f in FILE_SCHEMA]
    schema = pa.schema([*other, *fields])
    deltalake.DeltaTable.create(str(tmp_path / "c"), schema, partition_by=named)
    with pytest.raises(InvalidConfigError, match="column 'keys' of .* is \"string\""):
        opened(tmp_path / "c").read()


@pytest.mark.parametrize("name", ["a%41", "{}/a%20b"])
def test_a_target_whose_log_would_be_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    url = name.format(f"file://{tmp_path}") if "{" in name else str(tmp_path / name)
    job = ExportJob(config=golden_config(), target=url, format=TableFormat.DELTA)
    with pytest.raises(InvalidConfigError, match="has a %[24]"):
        run_inline(job)
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path / "100%").read() == Ledger()


def test_a_target_is_of_one_format_for_ever(tmp_path: Path) -> None:
    """A vacuum of the table would delete the other format's files."""
    job = partial(ExportJob, config=golden_config(), topics=("GoldAa",))
    first, second = str(tmp_path / "parquet"), str(tmp_path / "delta")
    for target, form in ((first, TableFormat.PARQUET), (second, TableFormat.DELTA)):
        assert run_inline(job(target=target, format=form)).state is JobState.DONE
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidConfigError, match="has an export to Parquet"):
        run_inline(job(target=first, format=TableFormat.DELTA))
    with pytest.raises(InvalidConfigError, match="is a Delta table"):
        run_inline(job(target=second, format=TableFormat.PARQUET))
    assert sorted(tmp_path.rglob("*")) == held


def test_a_table_that_forgets_transactions_is_refused(table: DeltaTarget) -> None:
    log = Path(table.name) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            name = "delta.setTransactionRetentionDuration"
            line["metaData"]["configuration"][name] = "interval 7 days"
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InvalidConfigError, match="forget"):
        table.read()


def test_a_table_made_by_two_at_once_is_one(tmp_path: Path) -> None:
    path = tmp_path / "new"
    assert at_once(*(opened(path).make for _ in range(4))) == [None] * 4
    assert versions(opened(path)) == 0


def test_a_run_that_was_planned_before_another_made_the_table_adds_to_that_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, target = tmp_path / "here", tmp_path / "table"
    here.mkdir()
    monkeypatch.chdir(here)
    job = partial(ExportJob, config=golden_config(), target=str(target), format=TableFormat.DELTA)

    def another_runs(_plan: object) -> None:
        assert run_inline(job(topics=("GoldAa",))).state is JobState.DONE

    engine = LocalEngine(pool=InlinePool(), threads=1)
    report = run_job(job(), engine, clock=ManualClock(), on_plan=another_runs)
    assert report.state is JobState.DONE
    assert deltalake.DeltaTable(target).to_pyarrow_table().num_rows == 533
    assert list(here.iterdir()) == []


def test_what_a_killed_writer_leaves_of_a_version_is_no_version(tmp_path: Path) -> None:
    """On a disk, deltalake writes a version beside its name, and then links it there."""
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    for version in range(2):
        (log / f"{version:020d}.json#1").write_bytes(b'{"protocol":')
    job = ExportJob(
        config=golden_config(), target=str(tmp_path / "table"), format=TableFormat.DELTA
    )
    assert run_inline(job).state is JobState.DONE
    assert run_inline(job).counts["messages"] == 0
    assert deltalake.DeltaTable(job.target).to_pyarrow_table().num_rows == 533
