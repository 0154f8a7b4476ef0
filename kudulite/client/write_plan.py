"""Write plan: the options of a write of batches, checked, and what they are on a version.

**Invariants**: a plan has no rows and holds no version, so it may be used again on a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kudulite.chain.manifest import Manifest
from kudulite.chain.schema_history import moved_names
from kudulite.errors import ConflictError, OptionError
from kudulite.model.aliases import Moment, WriteOptions
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.types import is_unicode
from kudulite.table.snapshot import choose_snapshot
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState
from kudulite.tablet.operation import Operation, WriteSpec, parse_operation

WRITE_OPTIONS = tuple(sorted(WriteOptions.__annotations__))
MESSAGE_BYTES_MAX = 500
# Options of other stores, and the way here.
_ADD_COLUMN = "schema_evolution=True adds the columns that the table lacks"
_METHODS = "insert, upsert and overwrite are methods"
_PARTITIONS = "partitions are given to create_table"
_OTHER_WORDS = {
    **dict.fromkeys(("schema_mode", "mergeSchema", "merge_schema"), _ADD_COLUMN),
    **dict.fromkeys(("mode", "if_exists"), _METHODS),
    **dict.fromkeys(("partition_by", "partition_cols"), _PARTITIONS),
}


@dataclass(frozen=True)
class WritePlan:
    """The checked options of a write, as `Table.new_bulk_write` explains them.

    `operation` is None with a column of operations.
    """

    operation: Operation | None
    columns: Sequence[str] | None
    operation_column: str | None
    ordering_column: str | None
    ignore_null: bool
    overwrite: bool
    application_id: str | None
    application_version: int | None
    read_at: int | None
    message: str
    skips_unchanged: bool

    @staticmethod
    def of(
        store: TableStore,
        operation: str = "upsert",
        *,
        columns: Sequence[str] | None = None,
        operation_column: str | None = None,
        ordering_column: str | None = None,
        ignore_null: bool = False,
        overwrite: bool = False,
        application_id: str | None = None,
        application_version: int | None = None,
        read_at: Moment | None = None,
        message: str | None = None,
        unchanged: str | None = None,
    ) -> WritePlan:
        """Check options. Raises OptionError, TimestampError."""
        _check_message(store.name, message)
        check_flags(store.name, ignore_null=ignore_null, overwrite=overwrite)
        _check_unchanged(store.name, unchanged)
        check_application(store.name, application_id, application_version)
        if read_at is not None:
            read_at = choose_snapshot(store, read_at, may_be_ancient=True)
        return WritePlan(
            None if operation_column is not None else parse_operation(operation),
            columns,
            operation_column,
            ordering_column,
            ignore_null,
            overwrite,
            application_id,
            application_version,
            read_at,
            message or "",
            unchanged is not None,
        )

    @property
    def name(self) -> str:
        """The name of the operation in the record of the write."""
        return "apply" if self.operation is None else self.operation.label

    def state(
        self, store: TableStore, manifest: Manifest, write_id: str, owner: str | None = None
    ) -> WriteState:
        """Return the write on a version. Raises SchemaError, OptionError, ConflictError."""
        spec = WriteSpec.build(
            manifest.schema,
            list(manifest.schema.names if self.columns is None else self.columns),
            table=store.name,
            operation=self.operation,
            ignore_null=self.ignore_null,
            ordering_column=self.ordering_column,
            is_overwrite=self.overwrite,
            read_at=self.read_at,
        )
        _check_not_moved(store.name, manifest, spec)
        return WriteState(
            table_id=manifest.table_id,
            base_version=manifest.version,
            base_crc32=manifest.file_crc32,
            write_id=write_id,
            spec=replace(spec, skips_unchanged=self.skips_unchanged),
            operation_column=self.operation_column,
            application_id=self.application_id,
            application_version=self.application_version,
            owner=owner,
            message=self.message,
        )


def _check_not_moved(table: str, manifest: Manifest, spec: WriteSpec) -> None:
    """Raise ConflictError for rows that were read when a name meant another column."""
    if spec.read_at is None or spec.read_at >= manifest.schema_since:
        return
    moved = moved_names(manifest.schema_at(spec.read_at), manifest.schema)
    for name in (*manifest.schema.key_names, *spec.value_columns):
        if name in moved:
            raise ConflictError(
                f"table {table!r}: the rows to write were read at"
                f" {format_timestamp(spec.read_at)}, and their column {name!r} {moved[name]};"
                " read them again and write again"
            )


def check_application(table: str, application_id: object, version: Any) -> None:
    """Raise OptionError unless a text and a number below 2^63 name a version, or nothing does."""
    if application_id is None and version is None:
        return
    is_text = isinstance(application_id, str) and is_unicode(application_id)
    is_number = isinstance(version, int) and not isinstance(version, bool)
    if not is_text or not is_number or not -(1 << 63) <= version < 1 << 63:
        raise OptionError(
            f"table {table!r}: a write has an application_id, a text, and an application_version, a"
            f" whole number of 64 bits, or neither; found {application_id!r} and {version!r}"
        )


def _check_message(table: str, message: object) -> None:
    """Raise OptionError for a message of a write that a version cannot have."""
    if message is None:
        return
    is_text = isinstance(message, str) and is_unicode(message)
    if not is_text or len(str(message).encode()) > MESSAGE_BYTES_MAX:
        shown = repr(message) if len(repr(message)) < 60 else f"{repr(message)[:60]}…"
        raise OptionError(
            f"table {table!r}: a message is a text of at most {MESSAGE_BYTES_MAX} bytes, not"
            f" {shown}"
        )


def check_flags(table: str, **flags: object) -> None:
    """Raise OptionError for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"table {table!r}: {name} is True or False, not {value!r}")


def _check_unchanged(table: str, unchanged: object) -> None:
    """Raise OptionError for another value than "skip"."""
    if unchanged not in (None, "skip"):
        raise OptionError(f"table {table!r}: unchanged is 'skip' or left out, not {unchanged!r}")


def check_options(table: str, options: Mapping[str, object]) -> None:
    """Raise OptionError for an option that no write has."""
    for name in options:
        if name not in WRITE_OPTIONS:
            what = f"option {name!r} of a write"
            raise unknown_option(table, what, WRITE_OPTIONS, _OTHER_WORDS.get(name))


def unknown_option(table: str, what: str, known: Iterable[str], advice: str | None) -> OptionError:
    """Return the error for a name that a call does not have; `advice` is the way here."""
    end = f"; {advice}" if advice else ""
    return OptionError(f"table {table!r}: unknown {what}; known: {', '.join(known)}{end}")
