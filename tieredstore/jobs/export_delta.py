"""A Delta table that an export appends to, partitioned by topic and day.

* If the table was read as version N, a commit makes version N + 1 or is refused: no commit is
  retried before the table is read again. After an error, the version tells whether we or another
  writer committed: only then is the table read again.
* The commit has a `txn` entry for the application `tieredstore`. The entry's number names
  `_tieredstore/offsets/<number>.json`, which is written first and has the offsets. The entry
  outlives compaction, checkpoints and clean-ups of the log, and vacuum leaves folders with `_`
  alone. The offsets are also in the commit's own metadata as `tieredstore.offsets`. RESTORE of an
  older version keeps the entry: what it took away is not exported again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import randbits
from typing import Any, Final

from tieredstore.model.extras import brought_by

with brought_by("delta"):
    import pyarrow as pa

from tieredstore.jobs.export_ledger import (
    Ledger,
    StagedFile,
    StagedRange,
    TableChangedError,
    cleaning_up,
)
from tieredstore.jobs.export_parquet import commit_numbers
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
)

APPLICATION: Final = "tieredstore"
OFFSETS: Final = "_tieredstore/offsets"
PARTITIONS: Final = (pa.field("topic", pa.string()), pa.field("day", pa.date32()))
NUMBERS_KEPT: Final = 16  # of the newest commits: another run may be about to read one
_VERSION: Final = re.compile(r"\d{20}\.(json|checkpoint\.[^#]+)")  # `#1`: of a killed writer
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_CHANCE_BITS: Final = 32
_EXPIRY: Final = "delta.setTransactionRetentionDuration"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaTarget:
    """A Delta table at a path or URL."""

    def __init__(self, target: ExportTarget, options: TargetOptions, schema: pa.Schema) -> None:
        if escape := _ESCAPE.search(target.url):  # deltalake would put the log elsewhere
            text = (
                f"target: {target.url!r} has a {escape[0]}, which deltalake takes for another sign"
            )
            raise InvalidConfigError(text)
        self.name = target.url
        self.target = target
        self._options = _storage(options) if "://" in target.url else {}
        self._schema = pa.schema([*schema, *PARTITIONS])
        self._opened: Any = None
        self._version = -1

    def exists(self) -> bool:
        # Not by deltalake: it blocks all threads of the process while it asks a bucket.
        return any(_VERSION.fullmatch(name) for name in self.target.names("_delta_log"))

    def make(self) -> None:
        delta = _delta()
        try:
            if "://" not in self.name:
                Path(self.name).mkdir(parents=True, exist_ok=True)
            delta.DeltaTable.create(
                self.name,
                self._schema,
                mode="error",
                partition_by=[field.name for field in PARTITIONS],
                storage_options=self._options,
                commit_properties=delta.CommitProperties(max_commit_retries=0),
            )
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            if not self.exists():
                raise self._failed(error, "create") from error

    def read(self) -> Ledger:
        delta = _delta()
        if not self.exists():
            if commit_numbers(self.target):  # a vacuum of the table would delete their files
                raise InvalidConfigError(
                    f"target: {self.name} has an export to Parquet; export to another one"
                )
            return Ledger()
        try:
            self._opened = delta.DeltaTable(self.name, storage_options=self._options)
            self._version = self._opened.version()
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._failed(error, "read") from error
        self._refuse_other_shape()
        number = self._opened.transaction_version(APPLICATION)
        if number is None:
            return Ledger()
        place = f"{OFFSETS}/{number}.json"
        data = self.target.read(place)
        if data is None:
            raise MetadataError(f"{self.name}/{place}", "it is gone, and had the offsets")
        try:
            return Ledger.of(f"{self.name}/{place}", json.loads(data))
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"{self.name}/{place}", str(error)) from error

    def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
        delta = _delta()
        # Two runs may make the same commit: a random part of the number gives each its own file.
        number = after.commits << _CHANCE_BITS | randbits(_CHANCE_BITS)
        self.target.put(f"{OFFSETS}/{number}.json", (json.dumps(after.row()) + "\n").encode())
        actions = [
            _added(each.topic, file, self._schema.names) for each in ranges for file in each.files
        ]
        properties = delta.CommitProperties(
            custom_metadata={
                "tieredstore.run": after.runs[-1],
                "tieredstore.offsets": after.packed(),
            },
            max_commit_retries=0,
            app_transactions=[delta.Transaction(APPLICATION, number)],
        )
        try:
            self._opened.create_write_transaction(
                actions,
                "append",
                self._schema,
                [field.name for field in PARTITIONS],
                commit_properties=properties,
            )
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            if self._is_changed():
                raise TableChangedError from error
            raise self._failed(error, "append to") from error
        with cleaning_up():
            self._drop_older(after.commits)

    def _is_changed(self) -> bool:
        """Whether there is a newer version than the one that was read; it may be ours."""
        delta = _delta()
        try:
            now = delta.DeltaTable(self.name, storage_options=self._options).version()
        except (delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._failed(error, "read") from error
        return bool(now != self._version)

    def _drop_older(self, commits: int) -> None:
        for name in self.target.names(OFFSETS):
            number = name.removesuffix(".json")
            if number.isdecimal() and int(number) >> _CHANCE_BITS <= commits - NUMBERS_KEPT:
                self.target.delete(f"{OFFSETS}/{name}")

    def _refuse_other_shape(self) -> None:
        partitions = list(self._opened.metadata().partition_columns)
        wanted = [field.name for field in PARTITIONS]
        if partitions != wanted:
            raise InvalidConfigError(
                f"target: {self.name} is partitioned by {', '.join(partitions) or 'nothing'}, "
                f"and is to be by {' and '.join(wanted)}"
            )
        held = {field.name: field.type for field in self._opened.schema().fields}
        for field in _delta().Schema.from_arrow(self._schema).fields:
            if field.name not in held:
                raise InvalidConfigError(f"target: {self.name} has no column {field.name!r}")
            # Nobody else compares types: a commit only names files, and then readers fail on them.
            if held[field.name] != field.type:
                raise InvalidConfigError(
                    f"target: column {field.name!r} of {self.name} is"
                    f" {held[field.name].to_json()}, and is to be {field.type.to_json()}"
                )
        if _EXPIRY in self._opened.metadata().configuration:
            raise InvalidConfigError(
                f"target: {self.name} has {_EXPIRY}: it would forget what was exported"
            )

    def _failed(self, error: Exception, operation: str) -> BackendError:
        text = " ".join(str(error).split())
        if isinstance(error, OSError) and not isinstance(error, PermissionError):
            return BackendUnavailableError(self.name, operation, text)
        return BackendRefusedError(self.name, operation, text)


def _added(topic: str, file: StagedFile, columns: Sequence[str]) -> Any:
    from deltalake.transaction import AddAction

    day = None if file.day is None else f"{(_EPOCH + timedelta(days=file.day)).date()}"
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    if "queue_offset" in columns:
        least["queue_offset"], most["queue_offset"] = file.offsets
    if file.times is not None and "store_time" in columns:  # in milliseconds, rounded outwards
        least["store_time"], most["store_time"] = _time(file.times[0]), _time(file.times[1] + 999)
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": most}
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={"topic": topic, "day": day},
        modification_time=0 if file.times is None else file.times[1] // 1000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _time(micros: int) -> str:
    # Not with strftime: it writes the year 1 as 1, which readers cannot parse as a time.
    moment = _EPOCH + timedelta(microseconds=micros)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _storage(options: TargetOptions) -> dict[str, str]:
    given = {
        "aws_endpoint_url": options.endpoint,
        "aws_region": options.region,
        "aws_access_key_id": options.access_key,
        "aws_secret_access_key": options.secret_key,
        "aws_session_token": options.session_token,
        "aws_allow_http": "true" if options.endpoint.startswith("http://") else "",
        "aws_conditional_put": "etag",
    }
    return {name: value for name, value in given.items() if value}


def _delta() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        text = "Delta needs deltalake: pip install 'tieredstore[delta]'"
        raise InvalidConfigError(text) from error
    return deltalake
