"""Requests that are refused: other sites, no token, paths outside, SQL that does more than read."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import kudulite
import kudulite.ui

TOKEN = "0123456789abcdef-token"


@pytest.fixture
def client(tmp_path: Path) -> kudulite.Client:
    """A directory with one table."""
    found = kudulite.connect(tmp_path / "warehouse", background_maintenance=False)
    table = found.create_table(
        "t", kudulite.schema([kudulite.column("k", "int64")], primary_key="k")
    )
    table.insert([{"k": 1}])
    return found


def opened(client: kudulite.Client, **options: object) -> TestClient:
    """The pages, as a browser of this machine sees them."""
    application = kudulite.ui.app(client, **options)
    return TestClient(application, base_url="http://localhost:8420", follow_redirects=False)


def test_only_names_of_this_machine_are_answered(client):
    """A site that lets its own name lead to this machine gets nothing."""
    shown = opened(client)
    for host in ("localhost", "127.0.0.1:8420", "[::1]:8420", "LOCALHOST:1"):
        assert shown.get("/", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""):
        assert shown.get("/", headers={"host": host}).status_code == 403, host
    named = opened(client, hosts=("Tables.Example",))
    assert named.get("/", headers={"host": "tables.example"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9999", "https://localhost:8420"]
)
def test_pages_of_another_origin_are_refused(client, origin):
    """Also those of another port of this machine."""
    shown = opened(client, allow_maintenance=True)
    for path in ("/", "/table/t/rows", "/sql?q=SELECT+1", "/metrics"):
        assert shown.get(path, headers={"origin": origin}).status_code == 403
    answer = shown.post("/table/t/upkeep", data={"action": "flush"}, headers={"origin": origin})
    assert answer.status_code == 403


def test_other_sites_begin_no_costly_work(client):
    """A link to a page is followed, a query in an image or a frame is not run."""
    shown = opened(client)
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site}
        assert shown.get("/table/t", headers=headers).status_code == 200
        for path in ("/sql?q=SELECT+1", "/table/t/checks?run=table", "/table/t/rows?where=k+%3E+0"):
            assert shown.get(path, headers=headers).status_code == 403, path
    headers = {"sec-fetch-site": "same-origin"}
    assert shown.get("/sql?q=SELECT+1", headers=headers).status_code == 200


def test_every_answer_has_the_headers_that_keep_scripts_out(client):
    """Errors and refusals, too."""
    shown = opened(client)
    for path in ("/", "/style.css", "/nothing", "/table/none", "/metrics", "/sql?q=x"):
        headers = shown.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_a_token_opens_the_pages(client):
    """As a header, in the form, or once in the address; the cookie is not the token."""
    shown = opened(client, token=TOKEN)
    for path in ("/", "/table/t", "/sql?q=SELECT+1", "/metrics", "/table/t/upkeep", "/nothing"):
        assert shown.get(path).status_code == 401, path
    assert shown.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert shown.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert shown.get("/?token=wrong").status_code == 401
    assert shown.post("/login", data={"token": "wrong"}).status_code == 401
    assert shown.get("/").status_code == 401
    answer = shown.get(f"/table/t?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/table/t")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
    assert shown.get("/table/t").status_code == 200
    other = opened(client, token=TOKEN)
    other.cookies = shown.cookies
    assert other.get("/").status_code == 401, "of another process"
    assert other.post("/login", data={"token": TOKEN}).status_code == 303
    assert other.get("/").status_code == 200


def test_a_short_token_is_refused(client):
    """With how to make a good one."""
    with pytest.raises(kudulite.UsageError, match=r"at least 16.*token_urlsafe"):
        kudulite.ui.app(client, token="secret")


def test_pages_only_read_unless_maintenance_is_allowed(client):
    """No form and no request changes a table."""
    shown = opened(client)
    assert '<form class="bar" method="post"' not in shown.get("/table/t/upkeep").text
    assert shown.post("/table/t/upkeep", data={"action": "flush"}).status_code == 403
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        assert shown.request(method, "/table/t").status_code in (403, 405), method


def test_maintenance_needs_the_token_of_its_form(client):
    """Another site cannot read it."""
    shown = opened(client, allow_maintenance=True)
    for fields in ({"action": "flush"}, {"action": "flush", "form_token": "guess"}, {}):
        assert shown.post("/table/t/upkeep", data=fields).status_code == 400
    (token,) = re.findall(r'form_token" value="([^"]+)', shown.get("/table/t/upkeep").text)
    fields = {"action": "drop", "form_token": token}
    assert "known are flush, maintain, compact" in shown.post("/table/t/upkeep", data=fields).text
    assert shown.post("/table/t/upkeep", data=fields | {"action": "flush"}).status_code == 303
    assert shown.post("/table/t/upkeep", content=b"a=" + b"x" * 100_000).status_code == 413
    assert shown.post("/table/t/upkeep", content=b"&" * 500).status_code == 413
    assert shown.post("/table/t/upkeep", content=b"\xff=\xfe").status_code == 400


@pytest.mark.parametrize(
    "name", ["..", ".", "../secret", "..%2fsecret", "%2e%2e%2fsecret", "%00", "a%00b", ".hidden",
             "%2fetc%2fpasswd", "x" * 300, "%ff", "..%5csecret"],
)  # fmt: skip
def test_no_path_leads_out_of_the_directory(client, name):
    """A table beside the directory, and files of the system, cannot be named."""
    other = kudulite.connect(client.root.parent, background_maintenance=False)
    other.create_table("secret", client["t"].schema).insert([{"k": 4711}])
    shown = opened(client)
    for rest in ("", "/rows", "/checks"):
        answer = shown.get(f"/table/{name}{rest}")
        # A client resolves `..` itself.
        assert answer.status_code in (400, 404) or answer.url.path == "/", answer.text
        assert "4711" not in answer.text and "Traceback" not in answer.text


def test_a_symbolic_link_leads_nowhere(client):
    """A table behind a link is not opened, neither by its page nor by SQL."""
    place = client.root.parent / "elsewhere"
    other = kudulite.connect(place, background_maintenance=False)
    other.create_table("secret", client["t"].schema).insert([{"k": 4711}])
    (client.root / "link").symlink_to(place / "secret")
    (client.root / "folder").symlink_to(place)
    shown = opened(client)
    for path in (
        *("/", "/table/link", "/table/link/rows", "/sql", "/metrics", "/sql?q=FROM+link"),
        *('/sql?q=FROM+"folder"."secret"', "/sql?q=SHOW+TABLES", "/sql?q=FROM+LINK"),
    ):
        answer = shown.get(path)
        assert "4711" not in answer.text
        if "link" in path or "folder" in path:
            assert answer.status_code in (400, 404), path
    assert f"kudulite ui {place}" in shown.get("/table/link").text
    assert "4711" not in kudulite.ui.report(client)


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "COPY t TO '{folder}/out.parquet'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "FROM read_blob('{folder}/warehouse/t/**')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '{folder}/a.db' AS a",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO t VALUES (2)",
        "DELETE FROM t",
        "DROP VIEW t",
        "EXPORT DATABASE '{folder}/export'",
        "SELECT 1; COPY (SELECT 1) TO '{folder}/out.csv'",
        "WITH a AS (SELECT 1) INSERT INTO t SELECT 2",
        "CALL pragma_version()",
        "SELECT getenv('PATH')",
        "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
        "FROM sniff_csv('/etc/passwd')",
    ],
)
def test_sql_that_reads_files_or_writes_is_refused(client, query, tmp_path):
    """The page says so; nothing is written, and no line of a file is shown."""
    before = sorted(tmp_path.rglob("*"))
    text = query.format(folder=tmp_path)
    shown = opened(client)
    for form in ("", "&format=csv", "&format=parquet"):
        answer = shown.get(f"/sql?q={quote(text)}{form}")
        assert answer.status_code in (400, 404), answer.text
        assert "root:" not in answer.text and "Traceback" not in answer.text
    assert sorted(tmp_path.rglob("*")) == before
    assert client["t"].to_arrow().to_pylist() == [{"k": 1}]
