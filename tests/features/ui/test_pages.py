"""The pages in the browser: each shows its part of a table, and what to do where it cannot."""

import datetime
import html
import io
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import kudulite
import kudulite.ui
from kudulite.ui import pages, row_view
from kudulite.ui.query_view import FILE_ROWS_MAX

SCHEMA = pa.schema([("city", pa.string()), ("n", pa.int64()), ("load", pa.float64())])
NAME = "<img src=x>&'\""
TEXT = "<script>alert(1)</script>"
PAGES = ("", "/rows", "/changes", "/history", "/upkeep", "/memory", "/checks")

Browser = Callable[..., TestClient]


@pytest.fixture
def client(tmp_path: Path) -> kudulite.Client:
    """A directory of its own."""
    return kudulite.connect(tmp_path / "warehouse", background_maintenance=False)


@pytest.fixture
def browser(client: kudulite.Client) -> Browser:
    """A function that opens the pages with options of `app`."""

    def opened(**options: object) -> TestClient:
        application = kudulite.ui.app(client, **options)
        return TestClient(application, base_url="http://localhost", follow_redirects=False)

    return opened


def metrics(client: kudulite.Client, name: str = "metrics", count: int = 130) -> kudulite.Table:
    """A table with two tablets, an update, a delete, a tag, and rows in memory."""
    table = client.create_table(
        name, SCHEMA, primary_key=["city", "n"], hash_partitions=[(["city"], 2)]
    )
    table.insert([{"city": f"c{n % 3}", "n": n, "load": float(n)} for n in range(count)])
    table.flush()
    table.update(where="n = 3", set={"load": "99.5"})
    table.tag("noon")
    table.delete(where="n = 4")
    return table


def path_of(name: str, rest: str = "") -> str:
    """The path of a table's page."""
    return f"/table/{quote(name, safe='')}{rest}"


def text_of(page: str) -> str:
    """The text of a page, as it is read."""
    body = re.sub(r"(?s)<(style|head|svg).*?</\1>", "", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def good(browser: TestClient, path: str) -> str:
    """The text of a page that is shown."""
    answer = browser.get(path)
    assert answer.status_code == 200, text_of(answer.text)
    return text_of(answer.text)


def bad(browser: TestClient, path: str, status: int) -> str:
    """The text of a page that says what is wrong; never a trace."""
    answer = browser.get(path)
    assert answer.status_code == status, text_of(answer.text)
    assert "Traceback" not in answer.text
    return text_of(answer.text)


def link(page: str, text: str) -> str:
    """The address of the first link with a text."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{text}</a>', page)
    assert found is not None
    return html.unescape(found[1])


def test_the_directory_shows_what_needs_a_person_first(client, browser):
    """Damaged tables, then those to act on, then the others by name; none hides another."""
    for name in ("a", "b", "c"):
        metrics(client, name)
    damage_manifests(client.root / "c")
    text = good(browser(), "/")
    assert text.index("c damaged") < text.index("a good 129") < text.index("b good 129")
    assert "damaged 1" in text
    assert "kudulite restore" in text


def test_an_empty_directory_says_how_to_make_a_table(browser):
    """The query box and the metrics work there, too."""
    assert "kudulite create" in good(browser(), "/")
    assert "no tables to query" in good(browser(), "/sql")
    assert "kudulite_tables_unreadable 0" in browser().get("/metrics").text
    assert "1 row" in good(browser(), "/sql?q=SELECT+1")


def test_backups_are_shown_and_missing_ones_are_to_be_watched(client, browser, tmp_path):
    """A set belongs to a table by its id, as in `kudulite list --long --backups`."""
    table, sets = metrics(client), tmp_path / "sets"
    metrics(client, "other")
    kudulite.backup(table, sets / "metrics")
    shown = browser(backups=str(sets))
    text = good(shown, "/")
    assert f"no backup in {sets}/other" in text
    assert text.index("other watch") < text.index("metrics good")
    assert "All backups are whole" in good(shown, path_of("metrics", "/checks?run=backups"))
    assert "There is no backup of this table" in good(shown, path_of("other", "/checks"))
    (data,) = sorted((sets / "metrics").rglob("*.parquet"))[:1]
    data.write_bytes(data.read_bytes()[:-7])
    assert "1 damaged" in good(shown, path_of("metrics", "/checks?run=backups"))


def test_the_page_of_a_table_has_all_of_its_parts(client, browser):
    """Columns, key, partitions, skew, figures, tags, versions with their rows."""
    metrics(client)
    text = good(browser(), path_of("metrics"))
    for part in (
        *("primary key city, n", "hash(city) × 2", "past stays readable for 1 week"),
        *("times the rows of an average one", "live row count 129", "noon", "130 inserted"),
        *("update 1 updated", "1 deleted", "base data only", "first key"),
    ):
        assert part in text or part in browser().get(path_of("metrics")).text, part


def test_rows_are_paged_by_key(client, browser):
    """All rows once, in order, also where rows before the page are deleted meanwhile."""
    table = metrics(client)
    page, found = browser().get(path_of("metrics", "/rows?where=load+%3E+-1")).text, []
    for turn in range(10):
        found += re.findall(r"history\?key=(c\d)&amp;key=(\d+)", page)
        if "Next page" not in page:
            break
        if turn == 0:
            table.delete(where="city = 'c0'")
        page = browser().get(link(page, "Next page")).text
    expected = sorted((f"c{n % 3}", n) for n in range(130) if n != 4)
    assert [(city, int(n)) for city, n in found] == expected


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 100])
def test_the_last_page_has_no_next_one(client, count):
    """Also if it is full."""
    table = client.create_table("t", SCHEMA, primary_key=["n"])
    table.insert(
        pa.table({"city": ["x"] * count, "n": range(count), "load": [0.0] * count}, SCHEMA)
    )
    after, found = [], []
    while after is not None:
        page = row_view.rows_page(table, "", "", after)
        found += page.rows
        after = page.after
    assert [row[0] for row in found] == [*range(count)]


def test_rows_of_a_moment_have_its_columns(client, browser):
    """A tag, a version and the present; the next page is of the same moment."""
    table = metrics(client)
    noon = table.tags["noon"]
    alterer = client.new_table_alterer(table)
    alterer.alter_column("load", rename_to="weight")
    alterer.alter()
    table.update(where="n = 3", set={"weight": "7"})
    then = good(browser(), path_of("metrics", f"/rows?where=n+%3D+3&at={quote(str(noon))}"))
    assert "load double" in then and "99.5" in then
    assert "weight double" in good(browser(), path_of("metrics", "/rows?where=n+%3D+3"))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/rows?where=lod+%3E+1", "load"),
        ("/rows?where=load+%3E%3E+1", "BETWEEN"),
        ("/rows?at=1999-01-01T00:00:00Z", "before"),
        ("/rows?at=yesterday", "yesterday"),
        ("/rows?at=2999-01-01T00:00:00Z", "2999"),
        ("/rows?after=x", "the primary key is (city, n)"),
        ("/rows?after=x&after=y", "key column 'n'"),
        ("/changes?start=1999-01-01T00:00:00Z", "before"),
        ("/changes?start=never", "never"),
        ("/history?key=a", "the primary key is (city, n)"),
        ("/history?key=a&key=99999999999999999999", "key column 'n'"),
    ],
)
def test_a_wrong_filter_moment_or_key_says_what_to_do(client, browser, path, says):
    """The form is there again, with what was typed."""
    metrics(client)
    assert says in bad(browser(), path_of("metrics", path), 400)


def test_the_difference_of_two_moments_marks_changed_cells(client, browser):
    """One change of each key, with the row before an update."""
    table = metrics(client)
    start = str(table.versions()[-2].timestamp)
    page = browser().get(path_of("metrics", f"/changes?start={quote(start)}")).text
    text = text_of(page)
    assert "update preimage" in text and "update postimage" in text and "delete" in text
    (changed,) = re.findall(r'<td class="changed">\s*([^<]*?)\s*</td>', page)
    assert changed == "99.5"
    end = quote(str(table.current_timestamp()))
    assert "Nothing differs" in good(browser(), path_of("metrics", f"/changes?start={end}"))


def test_many_changes_are_cut_and_say_so(client, browser):
    """An update is never without its row before."""
    table = client.create_table("t", SCHEMA, primary_key=["n"])
    table.insert([{"city": "x", "n": n, "load": 0.0} for n in range(500)])
    start = quote(str(table.current_timestamp()))
    table.update(where="n >= 0", set={"load": "1"})
    page = browser().get(path_of("t", f"/changes?start={start}")).text
    assert "kudulite changes" in text_of(page)
    assert page.count('class="update_preimage"') == page.count('class="update_postimage"') == 100


def test_the_history_of_a_key_has_its_writer(client, browser):
    """Oldest first; a key that never was has none."""
    metrics(client)
    text = good(browser(), path_of("metrics", "/history?key=c0&key=3"))
    assert text.index("3.0") < text.index("99.5")
    assert "@" in text
    assert "no such row" in good(browser(), path_of("metrics", "/history?key=nobody&key=3"))


def test_keys_of_every_type_come_back_from_their_texts(client):
    """The links of rows lead to the history of just these rows."""
    row = {
        "i": -(2**63),
        "s": "a/b & <c>\n",
        "b": b"\x00\xff",
        "flag": True,
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC),
        "day": pa.scalar(20000, pa.date32()).as_py(),
    }
    kinds = [
        pa.int64(),
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.timestamp("us", "UTC"),
        pa.date32(),
    ]
    schema = pa.schema(list(zip(row, kinds, strict=True)))
    keys = [name for name in row if name != "flag"]
    table = client.create_table("t", schema, primary_key=keys)
    table.insert([row])
    page = row_view.rows_page(table, "", "", [])
    assert row_view.history_page(table, page.keys[0]).rows[0].cells == page.rows[0]


def test_every_text_of_a_table_is_escaped(client, browser):
    """Names of tables and columns, cells, comments, messages and tags hold HTML here."""
    schema = pa.schema([("k", pa.int64()), (TEXT, pa.string())])
    table = client.create_table(NAME, schema, primary_key="k", comment=TEXT, owner=TEXT)
    table.insert([{"k": 1, TEXT: TEXT}])
    start = quote(str(table.current_timestamp()))
    table.upsert([{"k": 1, TEXT: f"{TEXT}2"}])
    table.tag(TEXT)
    shown = browser()
    paths = [path_of(NAME, rest) for rest in PAGES]
    paths += [
        "/",
        "/sql",
        path_of(NAME, f"/changes?start={start}"),
        path_of(NAME, "/history?key=1"),
    ]
    paths += [f"/sql?q={quote(f'SELECT * FROM {quoted(NAME)}')}"]
    paths += [path_of(NAME, f"/rows?where={quote(TEXT)}"), f"/table/{quote(TEXT, safe='')}"]
    paths += [f"/sql?q={quote(TEXT)}", path_of(NAME, f"/history?key={quote(TEXT)}")]
    for path in paths:
        page = shown.get(path).text
        assert "<script" not in page and "<img" not in page, path
    assert TEXT in good(shown, path_of(NAME, "/rows"))
    report = kudulite.ui.report(client)
    assert "<script" not in report and "<img" not in report
    assert TEXT in text_of(report)


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"{}"'.format(name.replace('"', '""'))


def damage_manifests(folder: Path) -> None:
    """Make a table unreadable."""
    for path in (folder / "manifest").iterdir():
        path.write_bytes(b"{")


def test_a_damaged_table_shows_what_to_do_on_every_page(client, browser):
    """Damage is no trace, and other tables are shown."""
    metrics(client), metrics(client, "other")
    damage_manifests(client.root / "metrics")
    shown = browser()
    assert "manifest" in good(shown, path_of("metrics", "/checks?run=table"))
    for rest in PAGES[:-1]:
        text = bad(shown, path_of("metrics", rest), 500)
        assert "manifest" in text and "kudulite restore" in text, rest
    good(shown, path_of("other"))
    assert 'table_readable{table="metrics"' in shown.get("/metrics").text
    assert "kudulite_tables_unreadable 1" in shown.get("/metrics").text
    assert "1 problem" not in good(shown, path_of("other", "/checks?run=table"))


def test_damaged_rows_leave_the_rest_of_a_table_readable(client, browser):
    """The check names the file, the rows say so, and the page of the table is whole."""
    table = metrics(client)
    table.compact()
    for path in table.path.rglob("*.parquet"):
        content = bytearray(path.read_bytes())
        content[8 : len(content) // 2] = bytes(len(content) // 2 - 8)
        path.write_bytes(content)
    client = kudulite.connect(client.root, background_maintenance=False)
    shown = TestClient(kudulite.ui.app(client), base_url="http://localhost")
    assert "live row count 129" in good(shown, path_of("metrics"))
    assert ".parquet" in bad(shown, path_of("metrics", "/rows"), 500)
    text = good(shown, path_of("metrics", "/checks?run=table"))
    assert "problem" in text and ".parquet" in text


def test_a_table_that_is_deleted_while_its_page_is_open(client, browser):
    """Its pages say so and how it comes back; the page kept nothing open."""
    metrics(client)
    shown = browser(allow_maintenance=True)
    page = shown.get(path_of("metrics", "/upkeep")).text
    client.soft_delete_table("metrics", 3600)
    for rest in PAGES:
        assert "recall" in bad(shown, path_of("metrics", rest), 404)
    fields = {"form_token": form_token(page), "action": "flush"}
    assert shown.post(path_of("metrics", "/upkeep"), data=fields).status_code == 404
    assert "Deleted tables that can be recalled" in good(shown, "/")


def form_token(page: str) -> str:
    """The token of the form of a page."""
    return re.findall(r'name="form_token" value="([^"]+)"', page)[0]


def test_queries_are_shown_and_saved(client, browser):
    """As a page, as CSV and as Parquet; the moment holds for all tables."""
    table = metrics(client)
    query = "/sql?q=SELECT+city,+count(*)+AS+c+FROM+metrics+GROUP+BY+city+ORDER+BY+city"
    shown = browser()
    assert "c0 44" in good(shown, query) and "3 rows" in good(shown, query)
    as_csv = shown.get(f"{query}&format=csv")
    assert pa.csv.read_csv(io.BytesIO(as_csv.content))["c"].to_pylist() == [44, 42, 43]
    assert 'filename="query.csv"' in as_csv.headers["content-disposition"]
    assert pq.read_table(io.BytesIO(shown.get(f"{query}&format=parquet").content)).num_rows == 3
    assert "c1 43" in good(shown, f"{query}&at={quote(str(table.tags['noon']))}")
    assert "known are csv, parquet" in bad(shown, f"{query}&format=xlsx", 400)
    assert "no table 'metric'" in bad(shown, "/sql?q=FROM+metric", 404)
    assert "syntax error" in bad(shown, "/sql?q=SELEC+1", 400)


def test_a_result_that_is_cut_says_so_and_a_file_is_never_cut(client, browser, monkeypatch):
    """A page has a thousand rows; a file that would have more than its limit is refused."""
    shown = browser()
    assert "the first ones of more" in good(shown, "/sql?q=FROM+range(1001)")
    assert "1,000 rows, in" in good(shown, "/sql?q=FROM+range(1000)")
    text = bad(shown, f"/sql?q=FROM+range({FILE_ROWS_MAX + 1})&format=csv", 400)
    assert "more than 1,000,000 rows" in text
    nested = "/sql?q=SELECT+[1]+AS+l&format=csv"
    assert "CSV cannot hold rows or arrays within rows: l" in bad(shown, nested, 400)


@pytest.mark.parametrize("form", ["{}", "EXPLAIN ANALYZE {}", "SELECT ({})"])
def test_a_query_ends_after_its_time(browser, form):
    """With what to do, also if it runs while it is planned; and the pages answer again."""
    shown = browser(query_seconds=3)
    query = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"
    path = f"/sql?q={quote(form.format(query))}"
    assert "was ended after 3 seconds" in bad(shown, path, 400)
    good(shown, "/sql?q=SELECT+1")


def test_an_empty_text_is_a_key(client, browser):
    """Its link leads to its history, and the page after it begins behind it."""
    table = client.create_table("t", SCHEMA, primary_key=["city", "n"])
    table.insert([{"city": "", "n": n, "load": 0.0} for n in range(60)])
    page = browser().get(path_of("t", "/rows")).text
    assert "insert" in good(browser(), link(page, "history"))
    assert "no more rows" in good(browser(), link(page, "Next page"))


def test_upkeep_shows_what_would_run_and_runs_it_when_allowed(client, browser):
    """The form's page says when the work has ended."""
    table = client.create_table("t", SCHEMA, primary_key=["n"])
    for turn in range(6):
        table.upsert([{"city": "x", "n": n * 7 + turn, "load": 0.0} for n in range(50)])
        table.flush()
    shown = browser(allow_maintenance=True)
    page = shown.get(path_of("t", "/upkeep")).text
    assert "merging compaction" in text_of(page) and "look into fewer" in text_of(page)
    fields = {"form_token": form_token(page), "action": "maintain"}
    answer = shown.post(path_of("t", "/upkeep"), data=fields)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/table/t/upkeep?done=maintain",
    )
    text = good(shown, answer.headers["location"])
    assert "maintain has ended" in text and "Nothing is worth its cost" in text
    assert "merging compaction version" in text


def test_memory_has_rows_of_the_log_and_charts(client, browser):
    """A look is a sample; the page looks again by itself."""
    table = metrics(client)
    table.flush()
    session = client.new_session()
    session.apply(table.new_upsert({"city": "new", "n": 1, "load": 0.0}))
    session.flush()
    shown = browser()
    page = shown.get(path_of("metrics", "/memory")).text
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "rows in memory 1" in text_of(page)
    assert page.count("<polyline") == 8


def test_the_pages_can_be_mounted_under_a_prefix(client):
    """Links, forms and redirects have the prefix."""
    metrics(client)
    pages_of_it = kudulite.ui.app(client, hosts=("example.org",), allow_maintenance=True)
    service = Starlette(routes=[Mount("/ops/tables", pages_of_it)])
    shown = TestClient(service, base_url="http://example.org", follow_redirects=False)
    page = shown.get("/ops/tables/table/metrics/upkeep").text
    assert all(
        found.startswith("/ops/tables/") for found in re.findall(r'(?:href|action)="([^"]*)', page)
    )
    answer = shown.post(
        "/ops/tables/table/metrics/upkeep",
        data={"form_token": form_token(page), "action": "flush"},
    )
    assert answer.headers["location"] == "/ops/tables/table/metrics/upkeep?done=flush"


def test_an_unexpected_error_is_a_page_without_a_trace(client, browser, monkeypatch, caplog):
    """The log has the trace."""
    metrics(client)

    def fails(table: kudulite.Table) -> None:
        raise RuntimeError("a secret of the program")

    monkeypatch.setattr(pages, "table_view", fails)
    answer = browser().get(path_of("metrics"))
    assert answer.status_code == 500
    assert "secret" not in answer.text and "log of the server" in answer.text
    assert "a secret of the program" in caplog.text


@pytest.mark.full
def test_a_thousand_tables_are_one_page(client, browser):
    """Empty tables, so that the test is short."""
    for number in range(1000):
        client.create_table(f"t{number:04}", SCHEMA, primary_key=["n"])
    text = good(browser(), "/")
    assert "tables 1,000" in text and "t0999" in text


def test_the_report_is_one_file_that_links_nowhere_else(client):
    """It has each table, damaged ones with what is wrong."""
    metrics(client), metrics(client, "bad")
    damage_manifests(client.root / "bad")
    text = kudulite.ui.report(client)
    assert set(re.findall(r'href="([^"]*)"', text)) == {"#", "#table-metrics", "#table-bad"}
    assert "src=" not in text and "url(" not in text and "@import" not in text
    assert "This table cannot be read" in text_of(text) and "130 inserted" in text_of(text)
