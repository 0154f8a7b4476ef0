"""Source paths: files with rows, where rows are asked for.

    table.upsert("rows.parquet")                        one file
    table.upsert([Path("a.csv"), "b.csv"])              several, in this order, in one commit
    table.upsert("exports/*.json"), ("exports")         those of a pattern or of a folder, by name
    client.create_table("t", data="rows.csv", primary_key="id")

The format is that of a file's name. CSV and JSON are read with the types of the table's columns,
those of a new table with the types that all rows show; see row_files.py and row_types.py.

A folder that is a table of another format, or has partitions as folders, is refused: its files
alone are not its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import glob, has_magic
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa

from kudulite.chain.folder import has_table_files
from kudulite.errors import OptionError
from kudulite.model.column_cast import cast_to_column
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType
from kudulite.reads.row_files import FileOptions, RowFile, columns_of_files, row_file
from kudulite.reads.row_types import columns_of_new_table
from kudulite.storage.local_storage import LocalStorage
from kudulite.tablet.operation import mask_of

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

# A folder that tables of another format have, and the source to give for such a table.
_OTHER_TABLES = {
    "_delta_log": "a Delta table; give deltalake.DeltaTable(path)",
    "_versions": "a Lance dataset; give lance.dataset(path)",
    "metadata": "an Iceberg table; give the rows that pyiceberg reads",
}


def batches_of_paths(
    data: Paths, schema: Schema, table: str
) -> tuple[list[str], Iterator[pa.Table]]:
    """Return (column names, batches) of files, as `arrow_batches` does. Raises OptionError."""
    files = _files_of(data, table)
    columns, masked = columns_of_files(files, schema, [c.name for c in schema.value_columns])
    types = {column.name: column.type for column in schema}
    read = [name for name in columns if name in types]

    def batches() -> Iterator[pa.Table]:
        for file in files:
            for rows in file.batches(types, read, masked):
                yield rows if len(files) == 1 else _in_types(rows, types, table)

    return [*columns, *map(mask_of, masked)], batches()


def _in_types(rows: pa.Table, types: Mapping[str, ColumnType], table: str) -> pa.Table:
    """Return rows in the types of a table's columns: Parquet files may have others each."""
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    for name in columns.keys() & types.keys():
        columns[name] = cast_to_column(columns[name], types[name], column=name, table=table)
    return pa.table(columns)


def schema_of_paths(data: Paths, table: str) -> pa.Schema:
    """Return the columns of a new table for files; all rows are read. Raises OptionError."""
    columns = columns_of_new_table(_files_of(data, table)).items()
    return pa.schema([pa.field(name, kind.arrow, is_null) for name, (kind, is_null) in columns])


def _files_of(data: Paths, table: str) -> list[RowFile]:
    """Return the files that a path or several mean, at least one. Raises OptionError."""
    paths = [data] if isinstance(data, str | PathLike) else data
    try:
        found = [file for path in paths for file in _expanded(fspath(path))]
        return [row_file(file, FileOptions()) for file in found]
    except OptionError as error:
        raise OptionError(f"table {table!r}: {error}") from error


def _expanded(text: str) -> list[Path]:
    """Return the files of a path, a pattern or a folder, in the order of their names."""
    path = Path(text).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return _files_in(path)
    if "://" in text:
        raise OptionError(
            f"{text!r}: files are read from folders of this machine; give what another library"
            " reads from there, such as pyarrow.dataset.dataset(…) or polars.scan_parquet(…)"
        )
    found = sorted(Path(each) for each in glob(str(path))) if has_magic(text) else []
    if not found:
        what = "no file has a name of this pattern" if has_magic(text) else "there is no such file"
        raise OptionError(
            f"{text!r}: {what}; a text where rows are expected is the path of a file, and rows or"
            ' keys are given as in [{"id": 1}]'
        )
    return [file for each in found for file in (_files_in(each) if each.is_dir() else [each])]


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder. Raises OptionError for one whose files are not its rows."""
    if has_table_files(LocalStorage(), folder):
        raise OptionError(
            f"{folder} is a kudulite table; give kudulite.open_table({str(folder)!r})"
        )
    inside = sorted(path for path in folder.iterdir() if path.name[0] not in "._")
    for name, advice in _OTHER_TABLES.items():
        if (folder / name).is_dir():
            raise OptionError(f"{folder} is {advice}")
    if folders := [path.name for path in inside if path.is_dir()]:
        raise OptionError(
            f"{folder} has folders in it, such as {folders[0]}; give the paths of the files, or"
            f' pyarrow.dataset.dataset({str(folder)!r}, partitioning="hive") for columns in the'
            " names of folders"
        )
    if not inside:
        raise OptionError(f"{folder} is a folder without files")
    return inside
