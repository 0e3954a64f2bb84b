"""What `tieredstore local info` tells: gathered as one object, shown as JSON or as tables.

What lives here: the names of these facts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tieredstore.cli.output import write_table
from tieredstore.cli.times import shown_time
from tieredstore.local.files import SIZE_SETTINGS
from tieredstore.local.index_file import IndexFile
from tieredstore.local.reader import LocalReader
from tieredstore.local.record_scan import Damage
from tieredstore.model.values import QueueKey

Facts = dict[str, Any]


def gathered(reader: LocalReader) -> Facts:
    log_files = reader.log.queue.files
    facts = reader.log_facts()
    queue_rows = [_queue(reader, key, facts.log_end) for key in reader.queues()]
    queues_end = max((row["max_log_offset"] for row in queue_rows), default=0)
    return {
        "directory": str(reader.files.root),
        "sizes": {name: getattr(reader.config, name) for name in SIZE_SETTINGS},
        "sizes_written_down": reader.files.sizes.exists(),
        "min_log_offset": reader.min_log_offset(),
        "max_log_offset": facts.log_end,
        "confirmed_offset": reader.confirmed_offset(),
        "earliest_timestamp": reader.earliest_time(),
        "commit_log": {
            "file_count": len(log_files),
            "first_file": log_files[0].start_offset if log_files else None,
            "last_file": log_files[-1].start_offset if log_files else None,
            "gaps": [{"begin": gap.start, "end": gap.end} for gap in reader.log.queue.gaps],
        },
        "queues": queue_rows,
        "checkpoint": asdict(reader.checkpoint.values),
        "index_files": [_index_file(file) for file in reader.index.files],
        "recovery": {
            "abort_file": facts.abnormal,
            "checked_from": facts.checked_from,
            "torn_tail": None if facts.torn is None else _damage(facts.torn),
            "damages": [_damage(damage) for damage in facts.damages],
            "log_bytes_behind_queues": max(0, facts.log_end - queues_end),
            "units_behind_log_end": sum(row["units_behind_log_end"] for row in queue_rows),
            "damaged_index_files": [str(error) for error in reader.index.damages],
        },
    }


def _queue(reader: LocalReader, key: QueueKey, log_end: int) -> Facts:
    queue = reader.queue(*key)
    assert queue is not None
    return {
        "topic": key.topic,
        "queue_id": key.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "max_log_offset": queue.last_log_end,
        "file_count": queue.file_count,
        "earliest_timestamp": (
            reader.earliest_time(*key) if queue.min_offset < queue.max_offset else None
        ),
        "units_behind_log_end": _units_behind(reader, key, log_end),
    }


def _units_behind(reader: LocalReader, key: QueueKey, log_end: int) -> int:
    """How many messages the queue names that the log does not hold: a crash tore them."""
    queue = reader.queue(*key)
    assert queue is not None
    offset = queue.max_offset
    while offset > queue.min_offset and queue.unit(offset - 1).log_offset >= log_end:
        offset -= 1
    return queue.max_offset - offset


def _index_file(file: IndexFile) -> Facts:
    return {
        "file": file.name,
        "size": file.path.stat().st_size,
        **asdict(file.header),
        "item_count": file.header.item_count,
        "full": file.is_full,
    }


def _damage(damage: Damage) -> Facts:
    return {
        "path": damage.path,
        "position": damage.position,
        "log_offset": damage.log_offset,
        "reason": damage.reason,
        "resumed_at": damage.resumed_at,
    }


def write_tables(facts: Facts) -> None:
    earliest = facts["earliest_timestamp"]
    store = {
        "directory": facts["directory"],
        "log offsets": f"{facts['min_log_offset']} to {facts['max_log_offset']}",
        "earliest message": "-" if earliest is None else shown_time(earliest),
        "commit log files": facts["commit_log"]["file_count"],
        **{name.replace("_", " "): size for name, size in facts["sizes"].items()},
    }
    write_table("store", ("fact", "value"), store.items())
    _write_rows("queues", facts["queues"])
    _write_rows("index files", facts["index_files"])
    _write_rows("checkpoint", [facts["checkpoint"]])
    recovery = facts["recovery"]
    shown = [(name.replace("_", " "), _short(value)) for name, value in recovery.items()]
    write_table("what a recovery would find", ("fact", "value"), shown)


def _write_rows(title: str, rows: list[Facts]) -> None:
    names = list(rows[0]) if rows else []
    write_table(
        title, [name.replace("_", " ") for name in names], ([*row.values()] for row in rows)
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"at {value['log_offset']}: {value['reason']} ({value['path']})"
    if isinstance(value, list):
        return "; ".join(map(_short, value)) or "none"
    return "none" if value is None else str(value)
