"""The pages of a directory of tables as an ASGI application: its routes, and what they answer.

    /                      the directory         /sql       a query box, results as CSV and Parquet
    /table/NAME            one table             /metrics   OpenMetrics text of all tables
    …/rows …/changes …/history …/upkeep …/memory …/checks

An application is made by `kudulite.ui.app` and mounted under any prefix. A page reads what it shows
when it is asked for, in a thread, and keeps nothing open afterwards: so no page keeps a table from
being deleted, compacted or collected. Each error is a page that says what to do; the trace of an
unexpected one is in the log of the process.

**Threads**: any number of requests at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote

import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    NotFoundError,
    RetryableError,
    StorageError,
    UsageError,
)
from kudulite.ui.access import COOKIE, HEADERS, LOOPBACK_HOSTS, Access, Refusal
from kudulite.ui.directory_view import BackupPlace, directory_metrics, directory_view
from kudulite.ui.open_directory import OpenDirectory, damage_of, what_to_do
from kudulite.ui.query_view import MEDIA_TYPES, SECONDS_DEFAULT, query_file, query_page
from kudulite.ui.rendering import rendered, style_sheet
from kudulite.ui.row_view import changes_page, history_page, rows_page
from kudulite.ui.samples import Samples
from kudulite.ui.table_view import REASONS, checks_view, table_view, tablets_view, upkeep_view

_BODY_BYTES_MAX, _FIELDS_MAX = 64 << 10, 20
_REFRESH_SECONDS = 5
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# A request with one of these reads as much as it is asked to.
_COSTLY = frozenset({"q", "run", "where", "start"})

Form = Mapping[str, str]
Work = Callable[[Request, Form], Response]

_log = logging.getLogger(__name__)


def app(
    client: Client,
    *,
    backups: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    hosts: Sequence[str] = LOOPBACK_HOSTS,
    token: str | None = None,
    allow_maintenance: bool = False,
    query_seconds: float = SECONDS_DEFAULT,
) -> Starlette:
    """Return pages about the tables of a client's directory, as an ASGI application.

    It can be mounted under any prefix. `backups` is a directory, or an address with
    `storage_options`, that has the backup set of each table under the table's name. Requests are
    answered under the names `hosts`, without ports; "*" is any name, for a service that checks them
    itself. With a `token`, each request needs it. The pages only read, and with `allow_maintenance`
    can flush, maintain and compact, too. A query ends after `query_seconds`.

    Raises UsageError for a token of fewer than 16 characters.
    """
    place = None if backups is None else BackupPlace(backups, storage_options or {})
    access = Access.of(hosts, token, allow_maintenance)
    return Starlette(routes=_Pages(OpenDirectory(client), place, access, query_seconds).routes())


class _Pages:
    """The pages of one directory."""

    def __init__(
        self,
        directory: OpenDirectory,
        backups: BackupPlace | None,
        access: Access,
        query_seconds: float,
    ) -> None:
        self.directory = directory
        self.backups = backups
        self.access = access
        self.query_seconds = query_seconds
        self.samples = Samples()

    def routes(self) -> list[Route]:
        """Return the routes, each with its page."""
        found = [
            self._route("/", self._directory),
            self._route("/style.css", self._style, is_open=True),
            self._route("/login", self._login, methods=("GET", "POST"), is_open=True),
            self._route("/metrics", self._metrics),
            self._route("/sql", self._sql),
        ]
        of_table: dict[str, Callable[[Request, Table], Response]] = {
            "": self._table,
            "/rows": self._rows,
            "/changes": self._changes,
            "/history": self._history,
            "/memory": self._memory,
            "/checks": self._checks,
        }
        found += [
            self._route(f"/table/{{name}}{path}", self._of_table(page))
            for path, page in of_table.items()
        ]
        upkeep = self._route("/table/{name}/upkeep", self._upkeep, methods=("GET", "POST"))
        other = self._route("/{path:path}", self._unknown)
        return [*found, upkeep, other]

    # -- how a request is answered

    def _route(
        self, path: str, work: Work, *, methods: Sequence[str] = ("GET",), is_open: bool = False
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            form: Form | None = {}
            if request.method == "POST":
                form = await _form_of(request)
            return await run_in_threadpool(self._answer, request, form, work, is_open)

        return Route(path, endpoint, methods=list(methods))

    def _answer(self, request: Request, form: Form | None, work: Work, is_open: bool) -> Response:
        """Answer a request, also one that is refused or ends with an error."""
        try:
            response = self._allowed(request, form, work, is_open)
        except KuduliteError as error:
            response = self._error_page(request, _status_of(error), str(error), what_to_do(error))
        except (pa.ArrowException, OSError) as error:
            found = damage_of(error)
            response = self._error_page(request, 500, str(found), what_to_do(found))
        except Exception:
            # A page without its cause; the log has it. Nothing is hidden from the operator.
            _log.exception("the page %s has ended with an error", request.url.path)
            text = "an unexpected error, whose trace is in the log of the server; please report it"
            response = self._error_page(request, 500, text)
        response.headers.update(HEADERS)
        return response

    def _allowed(self, request: Request, form: Form | None, work: Work, is_open: bool) -> Response:
        """Answer a request, or say why it is refused."""
        given = request.query_params.get("token", "")
        is_costly = not _COSTLY.isdisjoint(request.query_params)
        refusal = self.access.refusal(
            request, is_costly=is_costly, is_open=is_open or self.access.is_token(given)
        )
        if refusal is None and form is None:
            refusal = Refusal(
                413, f"a form has at most {_FIELDS_MAX} fields and {_BODY_BYTES_MAX:,} bytes"
            )
        if refusal is not None and refusal.status == 401:
            return self._page(request, "login.html", 401, title="Token", problem=refusal.message)
        if refusal is not None:
            return self._error_page(request, refusal.status, refusal.message)
        if self.access.is_token(given):
            return self._with_cookie(request, str(request.url.remove_query_params("token").path))
        assert form is not None
        return work(request, form)

    def _page(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        text = rendered(
            template,
            base=_base_of(request),
            place=str(self.directory.root),
            allow_maintenance=self.access.allow_maintenance,
            form_token=self.access.form_token,
            has_backups=self.backups is not None,
            **{"refresh": 0, "table_name": "", "page": "", **values},
        )
        return HTMLResponse(text, status)

    def _error_page(
        self, request: Request, status: int, message: str, remedy: str = ""
    ) -> HTMLResponse:
        name = request.path_params.get("name", "")
        title = "Not found" if status == 404 else "Refused" if status == 403 else "Not possible"
        if status >= 500:
            title = "Cannot be read"
        return self._page(
            request,
            "error.html",
            status,
            title=title,
            is_damaged=status >= 500,
            message=message,
            remedy=remedy,
            about=name,
        )

    def _of_table(self, page: Callable[[Request, Table], Response]) -> Work:
        """Return the work of a page of one table, which is opened anew for each request."""

        def work(request: Request, form: Form) -> Response:
            return page(request, self.directory.table(request.path_params["name"]))

        return work

    # -- the pages

    def _style(self, request: Request, form: Form) -> Response:
        return Response(style_sheet(), media_type="text/css")

    def _unknown(self, request: Request, form: Form) -> Response:
        raise NotFoundError(
            "there is no such page; the first page lists the tables and their pages"
        )

    def _login(self, request: Request, form: Form) -> Response:
        if self.access.token is None or self.access.is_token(form.get("token", "")):
            return self._with_cookie(request, f"{_base_of(request)}/")
        problem = "this is not the token that the server was started with" if form else ""
        status = 401 if form else 200
        return self._page(request, "login.html", status, title="Token", problem=problem)

    def _with_cookie(self, request: Request, path: str) -> Response:
        response = RedirectResponse(path, 303)
        if self.access.token is not None:
            is_encrypted = request.url.scheme == "https"
            response.set_cookie(
                COOKIE,
                self.access.cookie,
                path=f"{_base_of(request)}/",
                httponly=True,
                samesite="strict",
                secure=is_encrypted,
            )
        return response

    def _directory(self, request: Request, form: Form) -> Response:
        view = directory_view(self.directory, self.backups)
        return self._page(request, "directory.html", title="Tables", view=view, page="directory")

    def _metrics(self, request: Request, form: Form) -> Response:
        return Response(directory_metrics(self.directory), media_type=_OPENMETRICS)

    def _sql(self, request: Request, form: Form) -> Response:
        query, at = request.query_params.get("q", ""), request.query_params.get("at", "")
        form_name = request.query_params.get("format", "")
        values: dict[str, Any] = {"query": query, "at": at, "result": None, "problem": ""}
        status = 200
        try:
            if query.strip() and form_name:
                return self._file(query, at, form_name)
            if query.strip():
                values["result"] = query_page(self.directory, query, at, self.query_seconds)
        except UsageError as error:  # the query is shown again, with what is wrong with it
            values["problem"], status = str(error), _status_of(error)
        values["tables"] = self.directory.list_tables()
        return self._page(
            request,
            "sql.html",
            status,
            title="Query",
            page="sql",
            seconds=self.query_seconds,
            **values,
        )

    def _file(self, query: str, at: str, form_name: str) -> Response:
        content = query_file(self.directory, query, at, self.query_seconds, form_name)
        headers = {"Content-Disposition": f'attachment; filename="query.{form_name}"'}
        return Response(content, media_type=MEDIA_TYPES[form_name], headers=headers)

    def _table(self, request: Request, table: Table) -> Response:
        return self._table_page(request, table, "table.html", "table", view=table_view(table))

    def _rows(self, request: Request, table: Table) -> Response:
        given = request.query_params
        where, at = given.get("where", ""), given.get("at", "")
        values: dict[str, Any] = {"where": where, "at": at, "rows": None, "problem": ""}
        status = 200
        try:
            values["rows"] = rows_page(table, where, at, given.getlist("after"))
        except UsageError as error:
            if isinstance(error, NotFoundError) and not self.directory.client.table_exists(
                table.name
            ):
                raise
            values["problem"], status = str(error), 400
        return self._table_page(request, table, "rows.html", "rows", status, **values)

    def _changes(self, request: Request, table: Table) -> Response:
        start, end = request.query_params.get("start", ""), request.query_params.get("end", "")
        values: dict[str, Any] = {"start": start, "end": end, "changes": None, "problem": ""}
        status = 200
        try:
            values["changes"] = changes_page(table, start, end) if start else None
        except UsageError as error:
            values["problem"], status = str(error), 400
        return self._table_page(
            request, table, "changes.html", "changes", status, versions=table.versions(), **values
        )

    def _history(self, request: Request, table: Table) -> Response:
        texts = request.query_params.getlist("key")
        values: dict[str, Any] = {"texts": texts, "history": None, "problem": ""}
        status = 200
        try:
            values["history"] = history_page(table, texts) if texts else None
        except UsageError as error:
            values["problem"], status = str(error), 400
        columns = table.schema.key_columns
        return self._table_page(
            request, table, "history.html", "history", status, key_columns=columns, **values
        )

    def _memory(self, request: Request, table: Table) -> Response:
        statistics = table.statistics
        return self._table_page(
            request,
            table,
            "memory.html",
            "memory",
            statistics=statistics,
            tablets=tablets_view(table),
            charts=self.samples.add(table.id, statistics),
            metrics=table.metrics,
            refresh=_REFRESH_SECONDS,
        )

    def _checks(self, request: Request, table: Table) -> Response:
        run = request.query_params.get("run", "")
        view = checks_view(table, self.backups, run=run)
        return self._table_page(request, table, "checks.html", "checks", view=view)

    def _upkeep(self, request: Request, form: Form) -> Response:
        table = self.directory.table(request.path_params["name"])
        if request.method == "POST":
            action = self._maintained(table, form)
            path = f"{_base_of(request)}/table/{quote(table.name, safe='')}/upkeep?done={action}"
            return RedirectResponse(path, 303)
        done = request.query_params.get("done", "")
        return self._table_page(
            request,
            table,
            "upkeep.html",
            "upkeep",
            view=upkeep_view(table),
            reasons=REASONS,
            done=done if done in _ACTIONS else "",
        )

    def _maintained(self, table: Table, form: Form) -> str:
        """Do the work that a form asks for, and return its name. Raises UsageError."""
        if not self.access.is_form_token(form.get("form_token", "")):
            raise UsageError("the form is not of this server's pages; open the page again and send")
        action = form.get("action", "")
        if action not in _ACTIONS:
            raise UsageError(f"no work {action!r}; known are {', '.join(_ACTIONS)}")
        _ACTIONS[action](table)
        return action

    def _table_page(
        self,
        request: Request,
        table: Table,
        template: str,
        page: str,
        status: int = 200,
        **values: Any,
    ) -> Response:
        title = f"{table.name}"
        return self._page(
            request, template, status, title=title, table_name=table.name, page=page, **values
        )


_ACTIONS: dict[str, Callable[[Table], object]] = {
    "flush": Table.flush,
    "maintain": Table.maintain,
    "compact": Table.compact,
}


def _base_of(request: Request) -> str:
    """Return the prefix under which the application is mounted, empty at the top."""
    return quote(request.scope.get("root_path", "").rstrip("/"))


async def _form_of(request: Request) -> Form | None:
    """Return the fields of a form, None of one that is longer than any of these pages."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            return None
    if body.count(b"&") >= _FIELDS_MAX:
        return None
    fields = parse_qs(body.decode("utf-8", "replace"))
    return {name: values[-1] for name, values in fields.items()}


def _status_of(error: KuduliteError) -> int:
    """Return the status of the page of an error."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, RetryableError):
        return 503
    return 500 if isinstance(error, CorruptionError | StorageError) else 400
