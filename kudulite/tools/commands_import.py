"""The command import-kudu: tables that were exported from a Kudu cluster, all at once.

    EXPORTS/<folder>/definition/part-…        JSON in the form of `kudu table create`
    EXPORTS/<folder>/data/part-….parquet      the rows, as Spark has written them

`examples/import_from_kudu.py export` makes such a directory of a whole cluster, with Spark 3. It
writes the definition last, so a folder without one is of an export that was interrupted.

A table is filled in a hidden directory and gets its name when it has all its rows. So a command
that was interrupted is run again as it is: the tables that are there are recognised by the id of
their import, which is of the files of the export, and are left as they are.

**Source**: Kudu tools/tool.proto, CreateTablePB, for the form of a definition.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

import kudulite
from kudulite.errors import NotFoundError, SchemaError, TableExistsError, UsageError
from kudulite.model.schema import AUTO_INCREMENTING_ID
from kudulite.shown.progress import byte_text
from kudulite.storage.storage_error import arrow_errors
from kudulite.table.present import listing
from kudulite.table.table_names import table_folder
from kudulite.table.table_store import TableStore
from kudulite.tools.addresses import address_of, connect, environment_of
from kudulite.tools.choice import Choice
from kudulite.tools.commands_measure import Definition, read_definition
from kudulite.tools.outcomes import (
    Processes,
    figure_outcomes,
    outcomes_in_processes,
    print_outcomes,
)
from kudulite.tools.output import AsJson
from kudulite.upkeep.statistics import live_row_count

_BATCH_ROWS = 65_536


def import_kudu(
    exports: Annotated[
        Path,
        typer.Argument(
            metavar="EXPORTS",
            exists=True,
            file_okay=False,
            help="The directory that the export of a cluster has written, or of one table.",
        ),
    ],
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="The directory of tables, or s3://bucket/prefix.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done with each table.")
    ] = False,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Make tables of the export of a Kudu cluster, with columns, keys, partitions and rows.

    Run it again after an interruption: tables that are there already are left as they are.
    """
    choice = Choice([str(folder) for folder in _folders(exports)])
    if dry_run:
        work = partial(_planned, root=root)
        outcomes = figure_outcomes(work, choice, "rehearsal of the import", None)
    else:
        work = partial(_imported, root=root)
        outcomes = outcomes_in_processes(work, choice, "import of tables", processes)
    print_outcomes(outcomes, choice, _columns, noun="export", as_json=as_json)


def _folders(exports: Path) -> list[Path]:
    """Return the folders of the tables of an export. Raises NotFoundError."""
    if (exports / "definition").is_dir():
        return [exports]
    found = sorted(path for path in exports.iterdir() if (path / "data").is_dir())
    if not found:
        raise NotFoundError(
            f"{exports} is not the export of a Kudu cluster: no folder in it has data/ and"
            " definition/; examples/import_from_kudu.py writes one"
        )
    return found


@dataclass(frozen=True)
class _Export:
    """The export of one table."""

    folder: Path
    name: str
    definition: Definition
    files: tuple[pq.FileMetaData, ...]
    paths: tuple[Path, ...]

    @staticmethod
    def read(folder: Path) -> _Export:
        """Read the definition and the metadata of all files. Raises UsageError, CorruptionError."""
        parts = sorted((folder / "definition").glob("part-*"))
        if len(parts) != 1:
            raise UsageError(
                f"{folder}: the export of this table is not complete: expected one file"
                f" definition/part-…, found {len(parts)}; export it again"
            )
        definition = read_definition(parts[0])
        if not definition.name:
            raise UsageError(f"{parts[0]}: the definition has no table_name")
        paths = tuple(sorted((folder / "data").glob("*.parquet")))
        files = []
        for path in paths:
            with arrow_errors(path, "not a Parquet file"):
                files.append(pq.read_metadata(path))
        found = _Export(folder, definition.name, definition, tuple(files), paths)
        found.check_columns()
        return found

    def check_columns(self) -> None:
        """Raise SchemaError unless each file has the columns of the definition."""
        expected = set(self.definition.schema.names)
        for path, file in zip(self.paths, self.files, strict=True):
            names = set(file.schema.to_arrow_schema().names)
            if names != expected:
                raise SchemaError(
                    f"{path} has not the columns of the definition of table {self.name!r}: missing"
                    f" {', '.join(sorted(expected - names)) or 'none'}, unknown"
                    f" {', '.join(sorted(names - expected)) or 'none'}"
                )

    @property
    def row_count(self) -> int:
        """The rows of all files."""
        return sum(file.num_rows for file in self.files)

    @property
    def import_id(self) -> str:
        """The id of the import of these files, whose names are of one job of Spark."""
        pairs = zip(self.paths, self.files, strict=True)
        text = "\n".join(f"{path.name} {file.num_rows}" for path, file in pairs)
        return f"import-kudu {self.name} {zlib.crc32(text.encode()):08x}"

    @property
    def summary(self) -> dict[str, Any]:
        """Figures and partitions of the table, without its rows."""
        schema = self.definition.schema
        partition = self.definition.options["partitioning"].build(schema)
        return {
            "table": self.name,
            "rows": self.row_count,
            "bytes": sum(path.stat().st_size for path in self.paths),
            "columns": len(schema.names),
            "primary_key": schema.key_names,
            "partitions": partition.describe_all(),
        }

    def batches(self) -> pa.RecordBatchReader | None:
        """Return all rows, None of an empty table, of which Spark may have written no file."""

        def read() -> Iterator[pa.RecordBatch]:
            for path in self.paths:
                with arrow_errors(path, "not a Parquet file"):
                    yield from pq.ParquetFile(path).iter_batches(_BATCH_ROWS)

        if not self.row_count:
            return None
        return pa.RecordBatchReader.from_batches(self.files[0].schema.to_arrow_schema(), read())


def _planned(folder: str, *, root: str) -> dict[str, Any]:
    """Return what an import would do. Raises the errors that are known before rows are read."""
    export = _Export.read(Path(folder))
    action = "is there already" if _is_there(export, root) else "would be made"
    return {"action": action, **export.summary}


def _imported(folder: str, *, root: str) -> dict[str, Any]:
    """Make the table of an export, unless it is there already."""
    export = _Export.read(Path(folder))
    if _is_there(export, root):
        return {"action": "is there already", **export.summary}
    client = connect(root)
    staging = client.new_staging()
    try:
        client.publish_table(_filled(staging, export))
    finally:
        client.delete_directory(staging.root.name)
    return {"action": "made", **export.summary}


def _is_there(export: _Export, root: str) -> bool:
    """Whether the import of an export is done. Raises TableExistsError for another table."""
    address = address_of(root)
    folder = table_folder(address.path, export.name)
    store = TableStore(folder, environment_of(address))
    if not store.chain.exists():
        return False
    if export.import_id in listing(store).applications:
        return True
    raise TableExistsError(
        f"{folder} exists with {live_row_count(store):,} rows, and is not of this import; drop or"
        " rename it, or import into another directory"
    )


def _filled(staging: kudulite.Client, export: _Export) -> kudulite.Table:
    """Make the table of an export in a directory, with all its rows."""
    definition = export.definition
    table = staging.create_table(export.name, definition.schema, **definition.options)
    if definition.history_seconds is not None:
        alterer = staging.new_table_alterer(table)
        table = alterer.set_history_retention(definition.history_seconds).alter()
    rows = export.batches()
    if rows is None:
        rows = pa.RecordBatchReader.from_batches(definition.schema.arrow_schema(), iter(()))
    # An insert gives new ids; an upsert keeps those that rows of a key that is not unique have.
    has_ids = AUTO_INCREMENTING_ID in definition.schema.names
    write = table.upsert if has_ids else table.insert
    write(rows, application_id=export.import_id, application_version=1, message="import from Kudu")
    return table


def _columns(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "table": found["table"],
        "action": found["action"],
        "rows": found["rows"],
        "bytes": byte_text(found["bytes"]),
        "columns": found["columns"],
        "key": ", ".join(found["primary_key"]),
        "partitions": "; ".join(found["partitions"]) or "one tablet",
    }
