"""Commands that write to a table: load, upsert, delete, loadgen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import kudulite
from kudulite.errors import OptionError
from kudulite.tools.arguments import AsJson, TablePath, names_of
from kudulite.tools.loadgen import LoadSettings, generate_load
from kudulite.tools.output import Progress, print_fields, print_json
from kudulite.tools.row_files import FileFormat, read_rows, schema_of_files

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE…", exists=True, dir_okay=False, readable=True)
]
GivenFormat = Annotated[
    FileFormat | None, typer.Option("--format", help="Without it: as the files' names end.")
]
PrimaryKey = Annotated[
    str | None, typer.Option(help="Make the table, with this key: names, separated by commas.")
]
HashPartitions = Annotated[
    str | None, typer.Option(help="Of the table that is made: `a:4; b,c:8`.")
]
RangePartitions = Annotated[
    str | None,
    typer.Option(help='Of the table that is made: {"columns": […], "bounds": [[low, high], …]}.'),
]


def load(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    primary_key: PrimaryKey = None,
    hash_partitions: HashPartitions = None,
    range_partitions: RangePartitions = None,
    as_json: AsJson = False,
) -> None:
    """Insert the rows of files, all or none; a key that is there already is an error.

    A table that was made for them goes again where they cannot be loaded.
    """
    if primary_key is None:
        if hash_partitions is not None or range_partitions is not None:
            raise OptionError("partitions are of a new table, which needs --primary-key")
        _write(kudulite.open_table(path), "insert", files, file_format, as_json)
        return
    table = _made_table(path, files, file_format, primary_key, hash_partitions, range_partitions)
    try:
        _write(table, "insert", files, file_format, as_json)
    except BaseException:
        client = kudulite.connect(table.path.parent, background_maintenance=False)
        client.delete_table(table.name, if_version=1)  # unless somebody has written to it
        raise


def upsert(
    path: TablePath, files: Files, file_format: GivenFormat = None, as_json: AsJson = False
) -> None:
    """Insert the rows of files, or set their cells where the key is there, all or none."""
    _write(kudulite.open_table(path), "upsert", files, file_format, as_json)


def delete(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    ignore: Annotated[bool, typer.Option(help="Keys that are absent are no error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the rows whose keys are in files, all or none; other columns are ignored."""
    operation = "delete_ignore" if ignore else "delete"
    _write(kudulite.open_table(path), operation, files, file_format, as_json)


def loadgen(
    path: TablePath,
    seconds: Annotated[float, typer.Option(help="End after so long.", min=0)] = 10.0,
    rows: Annotated[int | None, typer.Option(help="End after so many rows.", min=1)] = None,
    rate: Annotated[
        float, typer.Option(help="Rows a second at most; 0 is as many as can be.", min=0)
    ] = 0.0,
    batch_rows: Annotated[int, typer.Option(help="Rows of one write.", min=1)] = 1000,
    keys: Annotated[int, typer.Option(help="Different keys.", min=1)] = 1_000_000,
    deletes: Annotated[float, typer.Option(help="Share of deletes.", min=0, max=1)] = 0.05,
    sessions: Annotated[
        bool, typer.Option(help="Write row by row, and flush after each --batch-rows.")
    ] = False,
    tablets: Annotated[int, typer.Option(help="Of a table that is made.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Of the random rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write random rows for a while, and say how fast; makes the table where there is none."""
    settings = LoadSettings(
        seconds=seconds,
        row_count_max=rows,
        rows_per_second=rate,
        batch_rows=batch_rows,
        key_count=keys,
        delete_share=deletes,
        uses_sessions=sessions,
        tablet_count=tablets,
        seed=seed,
    )
    with Progress(f"writing to {path}") as progress:
        found = asdict(generate_load(path, settings, progress.say))
    if as_json:
        print_json(found)
    else:
        print_fields({n: f"{v:,.6g}" if isinstance(v, float) else v for n, v in found.items()})


def _made_table(
    path: str,
    files: Sequence[Path],
    file_format: FileFormat | None,
    primary_key: str,
    hash_partitions: str | None,
    range_partitions: str | None,
) -> kudulite.Table:
    place = Path(path).absolute()
    client = kudulite.connect(place.parent, background_maintenance=False)
    try:
        bounds = None if range_partitions is None else json.loads(range_partitions)
    except ValueError as error:
        raise OptionError(f"--range-partitions {range_partitions!r} is not JSON: {error}") from None
    return client.create_table(
        place.name,
        schema_of_files(files, file_format),
        primary_key=names_of(primary_key),
        hash_partitions=_hash_partitions(hash_partitions),
        range_partitions=bounds,
    )


def _hash_partitions(text: str | None) -> list[tuple[list[str], int]] | None:
    """Return `a:4; b,c:8` as a list of columns and bucket counts. Raises OptionError."""
    if text is None:
        return None
    found = []
    for part in text.split(";"):
        names, _, count = part.rpartition(":")
        if not names.strip() or not count.strip().isdigit():
            raise OptionError(f"--hash-partitions {text!r}: expected `a:4` or `a:4; b,c:8`")
        found.append((names_of(names) or [], int(count)))
    return found


def _write(
    table: kudulite.Table,
    operation: str,
    files: Sequence[Path],
    file_format: FileFormat | None,
    as_json: bool,
) -> None:
    """Write all files in one commit."""
    schema = table.schema
    first = schema_of_files(files, file_format).names
    is_delete = operation.startswith("delete")
    columns = [name for name in first if not is_delete or name in schema.key_names]
    write = table.new_bulk_write(operation, columns=columns)
    count = 0

    def counted(batches: Iterable[pa.Table], progress: Progress) -> Iterator[pa.Table]:
        nonlocal count
        for batch in batches:
            yield batch
            count += batch.num_rows
            progress.say(f"writing to {table.name}: {count:,} rows")

    try:
        with Progress(f"writing to {table.name}") as progress:
            staged = [
                write.stage(counted(read_rows(path, file_format, schema), progress), index)
                for index, path in enumerate(files)
            ]
            result = write.commit(staged)
    except BaseException:
        write.abort()
        raise
    _print_result(result, as_json)


def _print_result(result: kudulite.WriteResult, as_json: bool) -> None:
    counts: dict[str, Any] = {
        name: getattr(result, name) for name in ("inserted", "updated", "deleted", "ignored")
    }
    if as_json:
        print_json({**counts, "timestamp": result.timestamp, "version": result.version})
    else:
        said = [f"{count:,} {name}" for name, count in counts.items() if count]
        print(f"{', '.join(said) or 'nothing changed'}; version {result.version}")
