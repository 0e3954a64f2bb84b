"""An Iceberg table that an export appends to, partitioned by topic and by day of the store time.

* The offsets are packed in the snapshot's property `tieredstore.offsets` and, set in the same step,
  in the table's: the first is rolled back with the table, the second remains when the snapshot has
  expired. Offsets of thousands of queues are in a file that both name instead, because every commit
  rewrites the properties of all snapshots.
* A commit that lost a race is not retried before the table is read again. After an error, the
  table's metadata tell whether we or another writer committed: only then is the table read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from tieredstore.model.extras import brought_by

with brought_by("iceberg"):
    import pyarrow as pa

from tieredstore.jobs.export_ledger import (
    Ledger,
    StagedRange,
    TableChangedError,
    cleaning_up,
)
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
)

OFFSETS: Final = "tieredstore.offsets"
RUN: Final = "tieredstore.run"
SEQUENCE: Final = "tieredstore.sequence"
"""In the table's properties: the number of the snapshot that their offsets belong to."""
INLINE_MAX: Final = 16 << 10  # bytes of packed offsets, of about 1500 queues
FILES_KEPT: Final = 16  # of the newest commits: another run may be about to name one
_FOLDER: Final = "_tieredstore/offsets"
_FILE: Final = "file:"  # the colon does not occur in Base64
_NUMBERED: Final = re.compile(r"(\d{20})-[0-9a-f]{16}\.packed")
_PARTITIONS: Final = (("topic", "identity"), ("store_time", "day"))
_RETRIES: Final = "commit.retry.num-retries"
_HADOOPS: Final = re.compile("file:/(?!/)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The catalogue with the table: its name in pyiceberg's settings, and overrides for them."""

    name: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


class IcebergTarget:
    """A table of a catalogue, `namespace.table`."""

    def __init__(
        self, name: str, catalog: Catalog, options: TargetOptions, schema: pa.Schema
    ) -> None:
        if "." not in name.strip("."):
            raise InvalidConfigError(f"target: {name!r} is no table: namespace.table")
        self.name = name
        self._options = options
        self._schema = schema
        given = {**_storage(options), **catalog.properties}
        load_catalog = _load_catalog()
        try:
            self._catalog = load_catalog(catalog.name, **given)
        except (ValueError, ImportError) as error:
            text = " ".join(str(error).split())
            raise InvalidConfigError(f"catalog: {catalog.name}: {text}") from error
        except Exception as error:  # each kind of catalogue has its own client and errors
            raise self._failed(error, "open the catalogue of") from error
        self._table: Any = None

    def close(self) -> None:
        """Release what the catalogue's client holds, such as a connection."""
        self._catalog.close()

    @property
    def target(self) -> ExportTarget:
        # Hadoop, and so Spark, writes `file:/` for `file:///`.
        return ExportTarget(_HADOOPS.sub("file:///", self._loaded().location()), self._options)

    def exists(self) -> bool:
        try:
            return bool(self._catalog.table_exists(self.name))
        except Exception as error:
            raise self._failed(error, "look for") from error

    def make(self) -> None:
        from pyiceberg.transforms import DayTransform, IdentityTransform

        # If two runs make the namespace at once, one is refused, and tries again with the table.
        for is_last in (False, True):
            try:
                self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
                making = self._catalog.create_table_transaction(self.name, self._schema)
                with making, making.update_spec() as spec:
                    spec.add_field("topic", IdentityTransform(), "topic")
                    if "store_time" in self._schema.names:
                        spec.add_field("store_time", DayTransform(), "day")
                return
            except Exception as error:
                if self.exists():
                    return
                if is_last:
                    raise self._failed(error, "create") from error

    def read(self) -> Ledger:
        if not self.exists():
            return Ledger()
        self._table = self._load()
        self._refuse_other_shape()
        metadata = self._table.metadata
        snapshots = {each.snapshot_id: each for each in metadata.snapshots}
        snapshot = snapshots.pop(metadata.current_snapshot_id, None)
        oldest = None
        while snapshot is not None:
            text = _offsets_of(snapshot)
            if text:
                return self._unpacked(f"{self.name}, snapshot {snapshot.snapshot_id}", text)
            oldest, snapshot = snapshot, snapshots.pop(snapshot.parent_snapshot_id, None)
        text = metadata.properties.get(OFFSETS)
        if oldest is None or oldest.sequence_number == 1 or not text:
            return Ledger()  # empty, or rolled back to the very first snapshot
        # Others may have committed since: then only their snapshots are newer than ours was.
        if oldest.sequence_number < _number(metadata.properties.get(SEQUENCE)):
            raise MetadataError(self.name, "it was rolled back behind all that has its offsets")
        return self._unpacked(self.name, text)

    def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
        table = self._table
        # Set in this copy only: a retry of pyiceberg would add the files to a changed table.
        table.metadata.properties[_RETRIES] = "0"
        was = table.metadata_location
        location = table.location().rstrip("/")
        paths = [f"{location}/{file.path}" for each in ranges for file in each.files]
        packed = self._packed(after)
        try:
            transaction = table.transaction()
            number = table.metadata.last_sequence_number + 1
            transaction.set_properties({OFFSETS: packed, SEQUENCE: str(number)})
            transaction.add_files(
                paths,
                snapshot_properties={OFFSETS: packed, RUN: after.runs[-1]},
                check_duplicate_files=False,
            )
            transaction.commit_transaction()
        except Exception as error:
            if self._load().metadata_location != was:
                raise TableChangedError from error
            raise self._failed(error, "append to") from error
        with cleaning_up():
            self._drop_older(table.metadata, after.commits)

    def _packed(self, ledger: Ledger) -> str:
        packed = ledger.packed()
        if len(packed) <= INLINE_MAX:
            return packed
        path = f"{_FOLDER}/{ledger.commits:020d}-{token_hex(8)}.packed"
        self.target.put(path, packed.encode())
        return _FILE + path

    def _unpacked(self, place: str, text: str) -> Ledger:
        if text.startswith(_FILE):
            folder, _, name = text.removeprefix(_FILE).rpartition("/")
            if folder != _FOLDER or not _NUMBERED.fullmatch(name):
                raise MetadataError(place, f"its offsets are in {text!r}, which is none of ours")
            data = self.target.read(f"{folder}/{name}")
            if data is None:
                raise MetadataError(f"{place}: {folder}/{name}", "it is gone, and had the offsets")
            text = data.decode("latin-1")
        return Ledger.unpacked(place, text)

    def _drop_older(self, metadata: Any, commits: int) -> None:
        """Remove files of offsets that no snapshot and no run needs."""
        needed = {_offsets_of(each) for each in metadata.snapshots}
        for name in self.target.names(_FOLDER):
            found = _NUMBERED.fullmatch(name)
            if found is None or int(found[1]) > commits - FILES_KEPT:
                continue
            path = f"{_FOLDER}/{name}"
            if _FILE + path not in needed:
                self.target.delete(path)

    def _load(self) -> Any:
        try:
            return self._catalog.load_table(self.name)
        except Exception as error:
            raise self._failed(error, "read") from error

    def _loaded(self) -> Any:
        if self._table is None:
            self._table = self._load()
        return self._table

    def _refuse_other_shape(self) -> None:
        held = {field.name for field in self._table.schema().fields}
        missing = [name for name in self._schema.names if name not in held]
        if missing:
            raise InvalidConfigError(f"target: {self.name} has no column {missing[0]!r}")
        self._refuse_other_types()
        if self._table.metadata.format_version < 2:
            raise InvalidConfigError(
                f"target: {self.name} is of format 1, whose snapshots have no order: upgrade it"
            )
        for field_ in self._table.spec().fields:
            column = self._table.schema().find_column_name(field_.source_id)
            if (column, str(field_.transform)) not in (
                ("topic", "identity"),
                ("store_time", "day"),
            ):
                raise InvalidConfigError(
                    f"target: {self.name} is partitioned by {field_.transform}({column}), and is "
                    "to be by topic and day(store_time), or less"
                )

    def _refuse_other_types(self) -> None:
        """pyiceberg would refuse them once all is staged, and print a table."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.schema import index_by_id

        held = self._table.schema()
        try:
            ours = pyarrow_to_schema(self._schema, name_mapping=held.name_mapping)
        except ValueError as error:  # it lacks a part of a list or map
            raise InvalidConfigError(f"target: {self.name} has other columns: {error}") from error
        mine = index_by_id(ours)
        numbers = [*(each.field_id for each in held.fields), *mine]
        for number in dict.fromkeys(numbers):
            theirs, here = held.find_field(number), mine.get(number)
            name = held.find_column_name(number)
            if theirs.required and (here is None or not here.required):
                raise InvalidConfigError(
                    f"target: column {name!r} of {self.name} is NOT NULL: drop that"
                )
            if here is not None and not _fits(here.field_type, theirs.field_type):
                raise InvalidConfigError(
                    f"target: column {name!r} of {self.name} has the type "
                    f"{theirs.field_type}, and is to have {here.field_type}"
                )

    def _failed(self, error: Exception, operation: str) -> BackendError:
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, _unavailable()) and not isinstance(error, PermissionError):
            return BackendUnavailableError(self.name, operation, text)
        return BackendRefusedError(self.name, operation, text)


def _fits(ours: Any, theirs: Any) -> bool:
    """Whether Iceberg reads our type as theirs. Parts of lists and maps have types of their own."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote

    if not ours.is_primitive or ours == theirs:
        return type(ours) is type(theirs)
    try:
        promote(ours, theirs)
    except ResolveError:
        return False
    return True


def _offsets_of(snapshot: Any) -> str | None:
    summary = snapshot.summary
    found: str | None = summary and summary.additional_properties.get(OFFSETS)
    return found


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,19}", text) else 0


def _storage(options: TargetOptions) -> dict[str, str]:
    given = {
        "s3.endpoint": options.endpoint,
        "s3.region": options.region,
        "s3.access-key-id": options.access_key,
        "s3.secret-access-key": options.secret_key,
        "s3.session-token": options.session_token,
    }
    return {name: value for name, value in given.items() if value}


def _load_catalog() -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        text = "Iceberg needs pyiceberg: pip install 'tieredstore[iceberg]'"
        raise InvalidConfigError(text) from error
    return load_catalog


def _unavailable() -> tuple[type[Exception], ...]:
    from pyiceberg import exceptions

    return (
        OSError,
        exceptions.CommitFailedException,
        exceptions.CommitStateUnknownException,
        exceptions.ServerError,
        exceptions.ServiceUnavailableError,
    )
