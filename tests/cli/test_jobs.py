"""The verbs `verify`, `reindex` and `export`: their output, changes and exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from tests.cli.cli_kit import Command, picture, started
from tests.cli.tier_kit import TIER, named, segment_file
from tests.examples.example_kit import interruptible
from tests.jobs.job_kit import golden_config, messages_in, table, tier_messages
from tests.jobs.load_kit import open_tier_of
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.audit import AuditKind
from tieredstore.cli.jobs import after_findings, end_with
from tieredstore.cli.output import CommandError, ExitCode
from tieredstore.jobs.job import FAILURES_MAX, ItemFailure, JobReport, JobState
from tieredstore.jobs.verify_findings import VerifyKind
from tieredstore.model.config import StoreConfig
from tieredstore.model.findings import Finding, FindingKind, Severity


def test_a_sound_tier_is_told_to_be_so(command: Command) -> None:
    ran = command.run("verify", *named(TIER, store_path=TIER / "store")).done()
    assert ran.out.splitlines() == [
        "9 queues with 533 messages, 338.7 KiB are to be read",
        "read 533 messages, 1,279 keys, 1,324 entries: nothing is wrong",
    ]


def test_damage_is_named_in_words_and_in_json_and_ends_with_4(
    command: Command, tmp_path: Path, root: Path
) -> None:
    path = segment_file(root, "GoldBB/0", "CONSUME_QUEUE", 400)
    data = bytearray(path.read_bytes())
    data[19] ^= 1
    path.write_bytes(data)
    options = named(root, store_path=root / "store")
    ran = command.run("verify", *options)
    assert ran.code == 4
    assert ran.err.startswith("tieredstore: verify: found tags-code: ")
    assert "message 20: its unit has tags code" in ran.out
    assert ran.out.splitlines()[-1].startswith("next: restore the named segments")
    ran = command.run("verify", *options, "--json", "--report", tmp_path / "report.json")
    assert [row["what"] for row in ran.rows] == ["plan", "report"]
    (finding,) = ran.rows[1]["findings"]
    assert (finding["severity"], finding["kind"]) == ("damage", "tags-code")
    assert (finding["topic"], finding["queue_id"], finding["queue_offset"]) == ("GoldBB", 0, 20)
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == [finding]


def test_a_dry_run_says_what_would_be_read(command: Command) -> None:
    ran = command.run("verify", *named(TIER), "--dry-run", "--topic", "GoldAa")
    assert ran.code == 0
    assert ran.out.startswith("3 queues with 199 messages, ")


def test_without_arrow_the_verb_says_what_to_install(tmp_path: Path) -> None:
    """It needs its own process: reimported modules would stay in their packages after the test."""
    program = (
        "import sys; sys.modules['pyarrow'] = None; "
        "from tieredstore.__main__ import main; sys.exit(main())"
    )
    words = [str(word) for word in ("export", *named(TIER), "--to", tmp_path / "parquet")]
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")
    assert ended.stderr == "tieredstore: pyarrow is missing: pip install 'tieredstore[jobs]'\n"


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    config = posix_config(tmp_path, index_item_count=100)
    WrittenTier(config=config).add("orders", 0, 70)
    return config


def words_for(config: StoreConfig) -> list[str]:
    return [
        *("reindex", "--provider", "posix", "--path", config.path),
        *("--store-path", config.store_path, "--cluster", config.cluster_name),
        *("--broker", config.broker_name, "--index-slots", str(config.index_slot_count)),
        *("--index-items", str(config.index_item_count)),
    ]


def test_a_dry_run_changes_nothing(command: Command, config: StoreConfig) -> None:
    before = picture(Path(config.path))
    ran = command.run(*words_for(config), "--dry-run").done()
    assert "70 messages in 1 slice" in ran.out
    assert picture(Path(config.path)) == before


def test_a_run_ends_with_a_report_and_keys_are_found(
    command: Command, config: StoreConfig, tmp_path: Path
) -> None:
    words = words_for(config)
    ran = command.run(*words, "--json", "--threads", "2", "--report", tmp_path / "report.json")
    assert ran.code == 0, ran.err
    assert [row["what"] for row in ran.rows] == ["plan", "report"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == {name: value for name, value in ran.rows[-1].items() if name != "what"}
    assert (report["state"], report["counts"]["keys"], report["counts"]["files"]) == (
        "done",
        180,
        2,
    )
    assert command.run(*words).out.splitlines()[-1].startswith("next: start the broker; `verify`")
    found = command.run("query", *words[1:], "orders", "shared-2", "--json")
    assert sorted(row["queue_offset"] for row in found.rows) == [21, 22, 23, 24, 25, 26, 28, 29]


def test_processes_find_what_threads_find(command: Command) -> None:
    words = ("verify", *named(TIER), "--json")
    on_threads, in_processes = (
        command.run(*words, *more).rows[-1] for more in ((), ("--processes", 2))
    )
    del on_threads["seconds"], in_processes["seconds"]
    assert in_processes == on_threads


def test_a_living_writer_is_one_line(command: Command, config: StoreConfig) -> None:
    with open_tier_of(config):
        ran = command.run(*words_for(config))
    ran.refused(5, "another process has it open")


def test_messages_of_a_time_come_out_as_parquet(command: Command, tmp_path: Path) -> None:
    words = (*named(TIER), "--to", tmp_path, "--topic", "GoldB?")
    times = ("--from", "2026-11-20T10:45:40Z", "--until", "1795171545000")
    ran = command.run("export", *words, *times, "--columns", "queue_id,store_time").done()
    exported, then = ran.out.splitlines()[-2:]
    assert exported.startswith("exported ")
    assert then.startswith(f"next: read it with spark.read.parquet('{tmp_path}'), or pyarrow.")
    found = table(tmp_path)
    assert found.column_names == ["queue_id", "store_time", "commit", "topic", "day"]
    assert set(found.column("topic").to_pylist()) == {"GoldBB"}
    stamps = [round(each.timestamp() * 1000) for each in found.column("store_time").to_pylist()]
    assert stamps
    assert 1795171540000 <= min(stamps) <= max(stamps) <= 1795171545000
    ran = command.run("export", *words, *times, "--columns", "queue_id,store_time", "--json")
    assert ran.rows[1]["counts"]["messages"] == 0


def test_old_names_of_times_are_understood_and_told(command: Command, tmp_path: Path) -> None:
    times = ("--begin", "2026-11-20T10:45:40Z", "--end", "1795171545000")
    ran = command.run("export", *named(TIER), "--to", tmp_path, *times)
    assert ran.code == 0
    assert "--begin is now --from" in ran.err
    assert "--end is now --until" in ran.err


def test_messages_come_out_into_a_delta_table(command: Command, tmp_path: Path) -> None:
    words = ("export", *named(TIER), "--format", "delta", "--to", tmp_path / "lake", "--json")
    assert [command.run(*words).rows[1]["counts"]["messages"] for _ in range(2)] == [533, 0]
    found = deltalake.DeltaTable(tmp_path / "lake").to_pyarrow_table()
    assert messages_in(found) == tier_messages(golden_config())
    ran = command.run(*words[:-1], "--columns", "body")
    ran.refused(2, "was exported with other settings")


def test_messages_come_out_into_an_iceberg_table(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"{tmp_path}"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # as a new process reads it
    words = ("export", *named(TIER), "--format", "iceberg", "--catalog", "lake", "--json")
    words = (*words, "--table", "messages.golden")
    opened: list[SqlCatalog] = []
    closed: list[SqlCatalog] = []
    begin, end = SqlCatalog.__init__, SqlCatalog.close

    def counted_begin(self: SqlCatalog, *args: Any, **given: Any) -> None:
        opened.append(self)
        begin(self, *args, **given)

    def counted_end(self: SqlCatalog) -> None:
        closed.append(self)
        end(self)

    monkeypatch.setattr(SqlCatalog, "__init__", counted_begin)
    monkeypatch.setattr(SqlCatalog, "close", counted_end)
    assert [command.run(*words).rows[1]["counts"]["messages"] for _ in range(2)] == [533, 0]
    assert opened
    assert closed == opened
    catalog = pyiceberg.catalog.load_catalog("lake")
    found = catalog.load_table("messages.golden").scan().to_arrow()
    catalog.close()
    assert messages_in(found) == tier_messages(golden_config())


def test_wrong_words_are_told_in_one_line(command: Command, tmp_path: Path) -> None:
    for words, told in (
        ((), "Name a directory or a URL with --to"),
        (("--format", "iceberg", "--to", tmp_path), "which table? Name it with --table"),
        (("--to", tmp_path, "--table", "a.b"), "--table is of --format iceberg"),
        (("--to", tmp_path, "--from", "soon"), "'--from': 'soon' is no time"),
        (("--to", tmp_path, "--columns", "bodi"), "columns: 'bodi' cannot be exported"),
        (("--to", tmp_path, "--columns", ""), "columns: '' cannot be exported"),
        (("--to", tmp_path, "--topic", "Silver"), "no topic is called 'Silver'"),
        (("--to", tmp_path, "--on-corrupt", "maybe"), "'maybe'"),
    ):
        ran = command.run("export", *named(TIER), *words)
        assert ran.code == (3 if "Silver" in words else 2), words
        assert ran.out == ""
        assert told in ran.err
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        ([], []),
        ([AuditKind.STOPPED], ["resume TOPIC QUEUE"]),
        ([VerifyKind.KEY_MISSING, VerifyKind.INDEX_SLOT], ["reindex"]),
        ([AuditKind.ORPHANED], ["audit --repair"]),
        (
            [VerifyKind.BODY_CRC, AuditKind.STOPPED],
            ["resume TOPIC QUEUE", "restore the named segments"],
        ),
        (
            [VerifyKind.KEY_UNFOUNDED, VerifyKind.BODY_CRC],
            ["restore the named segments", "reindex"],
        ),
        ([VerifyKind.LOG_AHEAD], []),
    ],
)
def test_each_finding_leads_to_the_verb_that_mends_it(
    kinds: list[FindingKind], told: list[str]
) -> None:
    findings = tuple(
        Finding(
            severity=kind.severity,
            kind=kind,
            where="b/t/0",
            detail="",
            repairable=kind.severity is Severity.LEFTOVER,
        )
        for kind in kinds
    )
    report = JobReport(job="verify", state=JobState.DONE, findings=findings)
    lines = list(after_findings(report))
    assert len(lines) == len(told)
    assert all(words in line for words, line in zip(told, lines, strict=True))


def scrubbing(*words: object) -> tuple[list[str], str]:
    """What `verify --continuous` prints until its first pass ends, and after Ctrl-C."""
    with interruptible():
        process = started("verify", *words, "--continuous")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stdout:
            lines.append(line.decode().rstrip("\n"))
            if '"what": "report"' in lines[-1] or lines[-1].startswith("read "):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
    assert process.returncode == ExitCode.INTERRUPTED
    return lines, said


def test_more_failures_than_a_report_has_room_for_are_told_to_be_more() -> None:
    failures = (ItemFailure(error="E", text="no"),) * FAILURES_MAX
    for count, text in ((1, "1 item"), (2, "2 items"), (100, "100 or more items")):
        report = JobReport(job="export", state=JobState.INCOMPLETE, failures=failures[:count])
        with pytest.raises(CommandError, match=f"export: {text} failed, the first: no"):
            end_with(report)


def test_a_scrub_prints_each_pass_until_it_is_interrupted(tmp_path: Path) -> None:
    before = picture(TIER)
    options = (*named(TIER, store_path=TIER / "store"), "--rate", 100_000_000)
    report, state = tmp_path / "report.json", tmp_path / "state.json"
    lines, said = scrubbing(*options, "--state", state, "--report", report, "--metrics-port", 0)
    assert lines == ["read 533 messages, 1,279 keys, 1,324 entries: nothing is wrong"]
    page, interrupted = said.splitlines()
    assert page.startswith("tieredstore: note: metrics: http://127.0.0.1:")
    assert interrupted == "tieredstore: interrupted; nothing was changed"
    assert json.loads(report.read_text())["counts"]["messages"] == 533
    assert json.loads(state.read_text())["found"] == {}
    assert picture(TIER) == before


def test_a_scrub_prints_what_it_finds_as_it_finds_it(root: Path) -> None:
    path = segment_file(root, "GoldBB/0", "CONSUME_QUEUE", 400)
    data = bytearray(path.read_bytes())
    data[19] ^= 1
    path.write_bytes(data)
    options = (*named(root, store_path=root / "store"), "--rate", 100_000_000)
    lines, _ = scrubbing(*options)
    assert lines[0].startswith("damage: tags-code: ")
    assert lines[1:] == ["read 533 messages, 1,279 keys, 1,324 entries; found: 1 tags-code"]
    lines, _ = scrubbing(*options, "--json")
    found, report = map(json.loads, lines)
    assert (found["what"], found["kind"], found["queue_offset"]) == ("finding", "tags-code", 20)
    assert report["findings"] == [{name: found[name] for name in found if name != "what"}]


def test_a_scrub_takes_no_engine_and_its_options_are_of_nothing_else(command: Command) -> None:
    tier = named(TIER)
    for words in (("--threads", 2), ("--dry-run",), ("--processes", 2), ("--engine", "spark")):
        command.run("verify", *tier, "--continuous", *words).refused(2, "--engine")
    for words in (("--rate", 5), ("--pause", 5), ("--state", "x"), ("--metrics-port", 0)):
        command.run("verify", *tier, *words).refused(2, "of --continuous")
    for pause in (0, 10**12):  # the system's own clock cannot wait so long
        command.run("verify", *tier, "--continuous", "--pause", pause).refused(2, "--pause")


def test_a_scrub_that_could_not_be_resumed_does_not_begin(command: Command, tmp_path: Path) -> None:
    words = ("verify", *named(TIER), "--continuous", "--state")
    command.run(*words, tmp_path / "no" / "state.json").refused(3, "--state", "no such directory")
    command.run(*words, tmp_path).refused(5, "--state", "a directory")


def test_a_port_that_is_taken_is_named(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = command.run("verify", *named(TIER), "--continuous", "--metrics-port", port)
    ran.refused(2, f"--metrics-port {port}")
