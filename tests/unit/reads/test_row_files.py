"""Rows of files: every value is loaded exactly, or refused by file, column and row."""

import bz2
import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite.reads import row_files
from tests.support.command_line import error, output

BIG, UNSIGNED, HUGE = 2**53 + 1, 2**64 - 1, 2**90 + 1


def write(path: Path, text: str | bytes) -> Path:
    """A file with a text or bytes."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def loaded(tmp_path: Path, file: Path, *options: object) -> kudulite.Table:
    """A new table, with the key `id`, of the rows of a file."""
    path = tmp_path / "db" / f"t{len(list(tmp_path.rglob('manifest')))}"
    output("load", path, file, "--primary-key", "id", *options)
    return kudulite.open_table(path)


def refusal(tmp_path: Path, file: Path, *options: object) -> str:
    """The message with which a new table of a file is refused; nothing is left."""
    message = error("load", tmp_path / "db" / "bad", file, "--primary-key", "id", *options)
    assert not (tmp_path / "db" / "bad").exists()
    return message


def column(table: kudulite.Table, name: str) -> tuple[str, list]:
    """The type and the cells of a column, in the order of the key."""
    cells = table.scan([name], ordered=True).to_arrow()[name].to_pylist()
    return str(table.schema.column(name).type), cells


# texts of a column in CSV: its type, and its cells
CSV_COLUMNS = {
    "post codes": (["01234", "99999"], "string", ["01234", "99999"]),
    "quoted codes": (['"007"', '"100"'], "string", ["007", "100"]),
    "phones": (["+49301234", "49301234"], "string", ["+49301234", "49301234"]),
    "integers": (["-5", str(BIG)], "int64", [-5, BIG]),
    "unsigned": (["1", str(UNSIGNED)], "decimal(20, 0)", [1, UNSIGNED]),
    "more than 64 bits": (["1", str(HUGE)], "decimal(38, 0)", [1, HUGE]),
    "more than 38 digits": (["1", "9" * 40], "string", ["1", "9" * 40]),
    "spaces": ([" 7", "7"], "string", [" 7", "7"]),
    "minus zero": (["-0", "1"], "double", [-0.0, 1.0]),
    "prices": (["19.99", "-0.5"], "double", [19.99, -0.5]),
    "points": ([".5", "5."], "double", [0.5, 5.0]),
    "exponents": (["1e3", "2.5E-3"], "double", [1000.0, 0.0025]),
    "too large exponents": (["1e999", "1"], "string", ["1e999", "1"]),
    "repr of doubles": (["0.30000000000000004", "1"], "double", [0.1 + 0.2, 1.0]),
    "many digits": (["0.12345678901234567891", "1.5"], "decimal(38, 20)",
                    [Decimal("0.12345678901234567891"), Decimal("1.5")]),
    "large and a fraction": ([str(BIG), "0.5"], "decimal(38, 1)", [Decimal(BIG), Decimal("0.5")]),
    "fractions with zeros before": (["00.5", "1.5"], "string", ["00.5", "1.5"]),
    "booleans": (["true", "False"], "bool", [True, False]),
    "yes and no": (["yes", "no"], "string", ["yes", "no"]),
    "bits": (["1", "0"], "int64", [1, 0]),
    "dates": (["2026-11-21", "0001-01-01"], "date", [date(2026, 11, 21), date(1, 1, 1)]),
    "moments": (["2026-11-21 10:00:00", "2026-11-21T10:00:00.000001"], "timestamp_ntz",
                [datetime(2026, 11, 21, 10), datetime(2026, 11, 21, 10, 0, 0, 1)]),
    "zones": (["2026-11-21T10:00:00+02:00", "2026-11-21T10:00:00Z"], "unixtime_micros",
              [datetime(2026, 11, 21, 8, tzinfo=UTC), datetime(2026, 11, 21, 10, tzinfo=UTC)]),
    "with and without a zone": (["2026-11-21T10:00:00", "2026-11-21T10:00:00Z"], "string",
                                ["2026-11-21T10:00:00", "2026-11-21T10:00:00Z"]),
    "nanoseconds": (["2026-11-21T10:00:00.123456789", "2026-11-21T10:00:00"], "string",
                    ["2026-11-21T10:00:00.123456789", "2026-11-21T10:00:00"]),
    "times of day": (["10:30:00", "23:59:59"], "string", ["10:30:00", "23:59:59"]),
    "NA": (["NA", "5"], "string", ["NA", "5"]),
    "null": (["null", "None"], "string", ["null", "None"]),
    "nan beside numbers": (["inf", "1.5"], "double", [float("inf"), 1.5]),
    "nan alone": (["nan", "NaN"], "string", ["nan", "NaN"]),
    "hexadecimal": (["0x10", "10"], "string", ["0x10", "10"]),
    "empty cells": (["", "5"], "int64", [None, 5]),
    "an empty column": (["", ""], "string", [None, None]),
    "empty texts": (['""', "x"], "string", ["", "x"]),
    "lines in a text": (['"a\nb"', "c"], "string", ["a\nb", "c"]),
}  # fmt: skip


def test_a_column_of_csv_has_a_type_that_keeps_all_its_cells(tmp_path, monkeypatch):
    """In whichever block the cell is that decides."""
    header = ",".join(["id", *(f"c{n}" for n in range(len(CSV_COLUMNS)))])
    rows = [",".join([str(at), *(c[0][at] for c in CSV_COLUMNS.values())]) for at in (0, 1)]
    file = write(tmp_path / "a.csv", "\n".join([header, *rows]))
    for block_bytes in (1 << 20, 1000):
        monkeypatch.setattr(row_files, "BLOCK_BYTES", block_bytes)
        table = loaded(tmp_path, file)
        for number, (name, (_, kind, cells)) in enumerate(CSV_COLUMNS.items()):
            found = column(table, f"c{number}")
            assert (found[0], found[1]) == (kind, cells), name
            if kind == "double":
                assert repr(found[1]) == repr(cells), name  # -0.0


def test_a_type_that_is_given_is_taken(tmp_path):
    """Whatever the cells look like; a type with a comma, too. Others are found out."""
    file = write(tmp_path / "a.csv", "id,code,price,n\n1,100,1.5,1\n2,200,2.25,2\n")
    table = loaded(tmp_path, file, "--types", "code=string,price=decimal(9,2)", "--types", "n=int8")
    assert column(table, "code") == ("string", ["100", "200"])
    assert column(table, "price") == ("decimal(9, 2)", [Decimal("1.50"), Decimal("2.25")])
    assert column(table, "n")[0] == "int8"
    message = refusal(tmp_path, file, "--types", "x=int8")
    assert "'x', which the files do not have; their columns are id, code, price, n" in message
    assert "expected NAME=TYPE" in refusal(tmp_path, file, "--types", "code")
    assert "unknown column type" in refusal(tmp_path, file, "--types", "code=text")
    message = refusal(tmp_path, file, "--types", "price=decimal(9,1)")
    assert f"{file}: column 'price', row 2: '2.25' is no decimal(9, 1)" in message
    assert "new table" in error("load", table.path, file, "--types", "code=string")


@pytest.mark.parametrize("block_bytes", [1 << 20, 64])
def test_a_cell_that_does_not_fit_is_named(tmp_path, monkeypatch, block_bytes: int):
    """By file, column and row; of rows that are too long or too short, too."""
    monkeypatch.setattr(row_files, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(row_files, "BATCH_ROWS", 3)
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    fields = [("id", pa.int64()), ("n", pa.int8()), ("s", pa.string()), ("at", pa.timestamp("us"))]
    table = client.create_table("t", pa.schema(fields), primary_key="id")
    good = [f"{at},{at},x,2026-01-01T00:00:0{at}" for at in range(8)]
    for bad, what in (
        ("8,300,x,", "column 'n', row 9: '300' is no int8"),
        ("8,1.0,x,", "column 'n', row 9: '1.0' is no int8"),
        ("8,NA,x,", "column 'n', row 9: 'NA' is no int8"),
        ("8,1,x,2026-01-01T00:00:00.1234567", "column 'at', row 9: '2026"),
        ("8,1,x,2026-01-01T00:00:00+01:00", "column 'at', row 9: '2026"),
        ("8,1,x", "row 9: 3 cells, and the header has 4"),
        ("8,1,x,,", "row 9: 5 cells, and the header has 4"),
    ):
        file = write(tmp_path / "a.csv", "\n".join(["id,n,s,at", *good, bad, *good]))
        assert f"cannot read {file}: {what}" in error("load", table.path, file)
    file = write(tmp_path / "a.csv", "\n".join(["id,n,s,at", *good]).encode() + b"\n8,1,M\xfc,\n")
    message = error("load", table.path, file)
    assert "column 's', row 9: b'M\\xfc' is no UTF-8" in message and "--encoding latin-1" in message
    lines = [json.dumps({"id": at, "n": at}) for at in range(8)]
    for bad, what in (
        ('{"id": 8, "n": 300}', "column 'n', row 9: 300 is no int8"),
        ('{"id": 8, "n": "1"}', "column 'n', row 9: \"1\" is no int8"),
        (f'{{"id": {UNSIGNED}}}', f"column 'id', row 9: {UNSIGNED} is no int64"),
        ('{"id": 8, "at": "noon"}', "column 'at', row 9: \"noon\" is no timestamp_ntz"),
        ('{"id": 8, "id": 9}', "row 9: the key 'id' is there twice"),
        ('{"id": 8', "row 9: "),
        ("[8]", "row 9: expected an object, found [8]"),
    ):
        file = write(tmp_path / "a.json", "\n".join([*lines, bad, *lines]))
        assert f"cannot read {file}: {what}" in error("load", table.path, file)
    assert (table.scan().count(), table.version) == (0, 1)


def test_encodings(tmp_path):
    """UTF-8 with a mark and UTF-16 are found out; others are given, for CSV and JSON."""
    text = "id,name\n1,Müller\n"
    line = '{"id": 1, "name": "Müller"}\n'
    for encoding, options in {
        "utf-8": (),
        "utf-8-sig": (),
        "utf-16": (),
        "latin-1": ("--encoding", "latin-1"),
        "cp1252": ("--encoding", "cp1252"),
    }.items():
        for name, content in (("a.csv", text), ("a.json", line)):
            file = write(tmp_path / name, content.encode(encoding))
            assert column(loaded(tmp_path, file, *options), "name") == ("string", ["Müller"])
    for name, content, where in (
        ("a.csv", text, "column 'name', row 1: b'M\\xfcller' is no UTF-8"),
        ("a.csv", "id,Müller\n1,2\n", "the header: b'M\\xfcller' is no UTF-8"),
        ("a.json", line, "line 1: "),
    ):
        file = write(tmp_path / name, content.encode("latin-1"))
        message = refusal(tmp_path, file)
        assert f"{file}: {where}" in message and "--encoding latin-1" in message
    assert "'klingon' is unknown" in refusal(tmp_path, file, "--encoding", "klingon")


def test_compressed_files_and_empty_ones(tmp_path):
    """By the ending of the name; a file without a header is refused."""
    for name, pack in (("a.csv.gz", gzip.compress), ("b.csv.bz2", bz2.compress)):
        file = write(tmp_path / name, pack(b"id,code\n1,007\n"))
        assert column(loaded(tmp_path, file), "code") == ("string", ["007"])
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"id": 1, "n": 1.5}\n'))
    assert column(loaded(tmp_path, file), "n") == ("double", [1.5])
    assert "is empty: a CSV file begins" in refusal(tmp_path, write(tmp_path / "e.csv", ""))
    file = write(tmp_path / "h.csv", "id,a\n")
    assert loaded(tmp_path, file, "--types", "id=int64").schema.names == ["id", "a"]
    assert "cannot read" in refusal(tmp_path, write(tmp_path / "x.csv.gz", b"no gzip"))


def test_headers_that_name_no_column_or_one_twice(tmp_path):
    """They are refused with the option to type, also pandas' index without a name."""
    frame = pd.DataFrame({"id": [1, 2], "code": ["007", "008"]}, index=[5, 6])
    file = write(tmp_path / "a.csv", frame.to_csv())
    message = refusal(tmp_path, file)
    assert "column 1 has no name" in message and "--skip ''" in message
    table = loaded(tmp_path, file, "--skip", "")
    assert column(table, "code") == ("string", ["007", "008"])
    message = error("upsert", table.path, file)
    assert "column 1 has no name" in message
    output("upsert", table.path, file, "--skip", "")
    frame.to_parquet(tmp_path / "a.parquet")
    message = error("upsert", table.path, tmp_path / "a.parquet")
    assert "'__index_level_0__' is none of the table's" in message
    assert "--skip '__index_level_0__'" in message
    output("upsert", table.path, tmp_path / "a.parquet", "--skip", "__index_level_0__")
    file = write(tmp_path / "b.csv", "id,a,a\n1,2,3\n")
    assert "two columns have the name 'a'" in refusal(tmp_path, file)
    assert loaded(tmp_path, file, "--skip", "a").schema.names == ["id"]


# -- JSON


def test_numbers_of_json_are_exact(tmp_path):
    """Beyond 64 bits, and in the types of the table; texts of digits stay texts."""
    lines = [
        {"id": 1, "u": 1, "f": 1, "d": 0.5, "code": "007", "b": True, "day": "2026-11-21"},
        {"id": 2, "u": UNSIGNED, "f": 2.5, "d": BIG, "code": "8", "b": None, "day": "2026-11-22"},
    ]
    file = write(tmp_path / "a.json", "\n".join(map(json.dumps, lines)))
    table = loaded(tmp_path, file)
    assert [str(c.type) for c in table.schema] == [
        "int64", "decimal(20, 0)", "double", "decimal(38, 1)", "string", "bool", "date",
    ]  # fmt: skip
    assert table.get(2)["u"] == UNSIGNED and table.get(2)["d"] == BIG
    digits = "0.1234567890123456789"
    file = write(tmp_path / "a.json", f'{{"id": 1, "x": {digits}}}')
    assert column(loaded(tmp_path, file), "x")[1] == [Decimal(digits)]


def test_texts_and_numbers_in_one_column_of_json_are_texts_if_the_types_say_so(tmp_path):
    """Otherwise they are refused with both rows; digits stay as they are written."""
    file = write(tmp_path / "a.json", '{"id": 1, "code": 100}\n{"id": 2, "code": "007"}\n')
    message = refusal(tmp_path, file)
    assert "column 'code' has values of several kinds: number in row 1 of" in message
    assert "text in row 2 of" in message and "--types 'code=string'" in message
    table = loaded(tmp_path, file, "--types", "code=string")
    assert column(table, "code") == ("string", ["100", "007"])
    file = write(tmp_path / "b.json", '{"id": 3, "code": 1.50}\n{"id": 4, "code": null}\n')
    output("upsert", table.path, file)
    assert column(table, "code")[1] == ["100", "007", "1.50", None]


ARRAY_FILES = {
    "one array": '[{"id": 1, "a": "x,]"}, {"id": 2}]',
    "an array over lines": '\n[\n  {"id": 1,\n   "a": "x,]"},\n  {"id": 2}\n]\n',
    "objects over lines": '{\n "id": 1,\n "a": "x,]"\n}\n{\n "id": 2\n}\n',
    "lines": '{"id": 1, "a": "x,]"}\r\n\r\n{"id": 2}',
}


@pytest.mark.parametrize("name", ARRAY_FILES)
def test_json_files_of_any_form_are_loaded(tmp_path, monkeypatch, name: str):
    """One array, objects over several lines, and one in each line."""
    for block_bytes in (1 << 20, 16):
        monkeypatch.setattr(row_files, "BLOCK_BYTES", block_bytes)
        file = write(tmp_path / "a.json", ARRAY_FILES[name])
        assert column(loaded(tmp_path, file), "a") == ("string", ["x,]", None])
    if "array" in name:
        file = write(tmp_path / "a.json", ARRAY_FILES[name].rstrip().rstrip("]"))
        assert "does not end with ]" in refusal(tmp_path, file)


def test_columns_that_begin_with_nothing(tmp_path):
    """NULL and empty arrays show no type; later rows do, or a type has to be given."""
    lines = ['{"id": 1, "a": null, "l": []}', '{"id": 2, "a": 1.5, "l": [1, null]}']
    table = loaded(tmp_path, write(tmp_path / "a.json", "\n".join(lines)))
    assert column(table, "a") == ("double", [None, 1.5])
    assert column(table, "l") == ("array(int64)", [[], [1, None]])
    file = write(tmp_path / "b.json", lines[0])
    message = refusal(tmp_path, file)
    assert "all arrays are empty" in message and "--types 'l=array(string)'" in message
    table = loaded(tmp_path, file, "--types", "l=array(string)")
    assert (column(table, "a"), column(table, "l")[1]) == (("string", [None]), [[]])
    file = write(tmp_path / "c.json", '{"id": 1, "o": {"x": 1}}')
    assert "column 'o', row 1 of" in refusal(tmp_path, file)
    assert loaded(tmp_path, file, "--skip", "o").schema.names == ["id"]


@pytest.mark.parametrize("block_bytes", [1 << 20, 20])
def test_a_json_object_sets_the_columns_whose_keys_it_has(tmp_path, monkeypatch, block_bytes: int):
    """In `upsert`, and in `load` of a table with defaults; null sets NULL."""
    monkeypatch.setattr(row_files, "BLOCK_BYTES", block_bytes)
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column("a", kudulite.string, default="d"),
        kudulite.column("b", kudulite.int64, default=5),
    ]
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    table = client.create_table("t", kudulite.schema(columns, "id"))
    lines = ['{"id": 1, "a": "x"}', '{"id": 2, "b": null}', '{"id": 3, "a": null, "b": 1}']
    output("load", table.path, write(tmp_path / "a.json", "\n".join(lines)))
    assert column(table, "a")[1] == ["x", "d", None]
    assert column(table, "b")[1] == [5, None, 1]
    lines = ['{"id": 1, "b": 9}', '{"id": 2, "a": "y"}', '{"id": 3, "a": null}']
    others = write(tmp_path / "b.json", '{"id": 4}')
    output("upsert", table.path, write(tmp_path / "a.json", "\n".join(lines)), others)
    assert column(table, "a")[1] == ["x", "y", None, "d"]
    assert column(table, "b")[1] == [9, None, 1, 5]


# -- several files, and other commands


def test_files_with_other_columns_are_not_written_in_part(tmp_path):
    """Every column of every file is written, or the files are refused."""
    table = loaded(tmp_path, write(tmp_path / "a.csv", "id,a,b\n1,2,3\n"))
    more = write(tmp_path / "b.csv", "id,a\n2,3\n")
    message = error("upsert", table.path, tmp_path / "a.csv", more)
    assert f"{more} has no column 'b', and other files have" in message
    message = error("upsert", table.path, write(tmp_path / "c.csv", "id,x\n1,2\n"))
    assert "column 'x' is none of the table's, which are id, a, b" in message
    later = '{"id": 5}\n' * 3 + '{"id": 6, "x": 1}\n'
    message = error("upsert", table.path, write(tmp_path / "d.json", later))
    assert "column 'x' is none of the table's" in message
    output("delete", table.path, write(tmp_path / "e.csv", "x,id\n\xff,1\n"))
    assert table.scan().count() == 0


def test_types_are_those_of_all_files(tmp_path):
    """The second file may have the cell that decides."""
    files = [
        write(tmp_path / "a.csv", "id,code\n1,100\n"),
        write(tmp_path / "b.csv", "id,code\n2,007\n"),
    ]
    output("load", tmp_path / "db" / "t", *files, "--primary-key", "id")
    table = kudulite.open_table(tmp_path / "db" / "t")
    assert column(table, "code") == ("string", ["100", "007"])


def test_create_finds_the_same_types(tmp_path):
    """With the options of `load`."""
    file = write(tmp_path / "a.csv", "id,code,n\n1,007,1\n".encode("utf-16"))
    arguments = ["--like", file, "--primary-key", "id", "--types", "n=int8"]
    output("create", tmp_path / "db" / "t", *arguments)
    table = kudulite.open_table(tmp_path / "db" / "t")
    assert [str(c.type) for c in table.schema] == ["int64", "string", "int8"]
    message = error("create", tmp_path / "db" / "u", "id:int64", *arguments[2:])
    assert "--types, --encoding and --skip are for --like FILE" in message


def test_parquet_keeps_its_types_or_is_refused(tmp_path):
    """A type that no column has is named with its column."""
    rows = pa.table({"id": [1], "u": pa.array([UNSIGNED], pa.uint64())})
    pq.write_table(rows, tmp_path / "a.parquet")
    message = refusal(tmp_path, tmp_path / "a.parquet")
    assert "column 'u': Arrow type uint64" in message and "--skip 'u'" in message
    assert loaded(tmp_path, tmp_path / "a.parquet", "--skip", "u").schema.names == ["id"]
    table = loaded(tmp_path, tmp_path / "a.parquet", "--types", "u=decimal(20,0)")
    assert column(table, "u")[1] == [UNSIGNED]
