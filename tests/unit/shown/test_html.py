"""A notebook shows an object as small HTML tables, in which nothing of the data is markup."""

import html.parser

import pyarrow as pa
import pytest

import kudulite
from kudulite.shown.html import CELL_CHARACTERS_MAX

EVIL = "<script>alert('x')</script>&\"'"


class Cells(html.parser.HTMLParser):
    """The tags of a page, checked for balance, and the text of its cells and titles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.cells, self._open = set(), [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        """Open a tag; cells collect their text."""
        assert attrs in ([], [("style", "text-align:right")])
        self.tags.add(tag)
        self._open.append(tag)
        if tag in ("td", "th", "b"):
            self.cells.append("")

    def handle_endtag(self, tag):
        """Close the tag that was opened last."""
        assert self._open.pop() == tag

    def handle_data(self, data):
        """Text stands only in cells and titles."""
        assert self._open and self._open[-1] in ("td", "th", "b")
        self.cells[-1] += data


@pytest.fixture
def table(tmp_path) -> kudulite.Table:
    """A table in whose names, defaults, comments and cells there is markup."""
    columns = [
        kudulite.column("k", kudulite.int64),
        kudulite.column(EVIL, kudulite.string, default=EVIL, comment=EVIL),
        kudulite.column("t", kudulite.unixtime_micros),
        kudulite.column("raw", kudulite.binary),
    ]
    client = kudulite.connect(tmp_path, background_maintenance=False)
    partitioning = kudulite.Partitioning().add_hash_partitions(["k"], 2)
    made = client.create_table("a<b>&c", kudulite.schema(columns, "k"), partitioning)
    made.insert({"k": [1234567], EVIL: [EVIL], "raw": [b"<i>"]})
    return made


def test_every_object_is_a_balanced_page_without_foreign_tags(table):
    """Tables, schemas, scans, changes and statistics; text arrives as it was, escaped."""
    changes = table.changes(table.current_timestamp() - 10_000_000_000_000, images="both")
    pages = [x._repr_html_() for x in (table, table.schema, table.scan(), changes)]
    for page in [*pages, table.statistics._repr_html_()]:
        assert Cells(page).tags <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in page and "<i>" not in page
    for page in pages:
        assert any(EVIL in cell for cell in Cells(page).cells)


def test_a_table_shows_its_columns_partitions_and_first_rows(table):
    """At most five rows; numbers have groups of digits, and NULL is not the text of None."""
    cells = Cells(table._repr_html_()).cells
    assert cells[:3] == ["kudulite table a<b>&c", "path", str(table.path)[: len(cells[2])]]
    assert cells[cells.index("rows") + 1] == "1"
    assert "hash(k) × 2" in cells and "unixtime_micros" in cells and "1,234,567" in cells
    assert cells[-4:] == ["1,234,567", EVIL, "NULL", "b'<i>'"]
    table.insert({"k": range(100)})
    assert table._repr_html_().count("<tr>") < 25 and "\n" not in repr(table)


def test_changes_show_their_time_and_their_version(table):
    """The version is the HybridTime that a read at a moment takes."""
    start = table.current_timestamp()
    stamp = table.delete([{"k": 1234567}]).timestamp
    cells = Cells(table.changes(start)._repr_html_()).cells
    assert str(stamp.to_datetime()) in cells and f"{int(stamp):,}" in cells
    assert table.changes(start).to_pylist()[0]["_commit_version"] == stamp


def test_an_empty_result_is_a_header(table):
    """And a scan of no columns is an empty table."""
    names = Cells(table.scan(["k", "t"], where=table["k"] < 0)._repr_html_()).cells
    assert names == ["k (int64)", "t (timestamp[us, tz=UTC])"]
    assert Cells(table.scan(columns=[])._repr_html_()).cells == []
    start = table.current_timestamp()
    assert len(Cells(table.changes(start)._repr_html_()).cells) == 7


def test_long_cells_are_cut_and_moments_outside_of_python_are_text(tmp_path):
    """A notebook stays small, and shows every value that a column can hold."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    schema = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    made = client.create_table("t", schema, primary_key="k")
    far = pa.array([(1 << 62)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    made.insert(pa.table({"k": ["x" * 500], "t": far}))
    key, moment = Cells(made.scan()._repr_html_()).cells[-2:]
    assert len(key) == CELL_CHARACTERS_MAX and key.endswith("x…")
    assert moment == f"{1 << 62} µs"


def test_statistics_show_every_figure(table):
    """By name; the mark as a time."""
    figures = table.statistics
    cells = Cells(figures._repr_html_()).cells
    assert cells[::2] == list(vars(figures))
    assert cells[-1] == str(figures.ancient_history_mark)
