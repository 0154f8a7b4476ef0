"""Commands that show a directory of tables in the browser, or write the same to a file: ui, report.

They need the packages of the extra `ui`, and say so where one is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from kudulite.errors import NotSupportedError
from kudulite.tools.addresses import check_is_directory, connect, storage_options_of
from kudulite.tools.output import output_file

_PACKAGES = ("starlette", "jinja2", "markupsafe", "uvicorn")

Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="A directory of tables, or s3://bucket/prefix.")
]
Sets = Annotated[
    str | None,
    typer.Option(metavar="SETS", help="Show the backups of each table, which are in SETS/TABLE."),
]


@contextlib.contextmanager
def _packages_of_the_pages() -> Iterator[None]:
    """Raise NotSupportedError that says what to install in place of an error of an import."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise NotSupportedError(
            f"the pages need {error.name}, which is not installed; run:"
            " pip install 'kudulite[ui,sql]', or in a checkout pip install '.[ui,sql]'"
        ) from error


def ui(
    root: Root,
    host: Annotated[
        str, typer.Option(help="The address to listen at; one that others reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 is a free one.", min=0, max=65535)] = 8420,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="KUDULITE_UI_TOKEN",
            help="Each visitor has to give it. Other users of the machine see options in the list"
            " of processes: set it in the environment.",
        ),
    ] = None,
    allow_maintenance: Annotated[
        bool, typer.Option("--allow-maintenance", help="Also flush, maintain and compact.")
    ] = False,
    backups: Sets = None,
    query_seconds: Annotated[
        float, typer.Option(help="A query ends after so long.", min=0.1, max=3600)
    ] = 30.0,
) -> None:
    """Show the tables of a directory in the browser, until Ctrl-C; it only reads."""
    check_is_directory(root)
    with _packages_of_the_pages():
        import kudulite.ui as pages
        from kudulite.ui.access import LOOPBACK_HOSTS, is_loopback
        from kudulite.ui.server import check_address, listening_socket, serve
    check_address(host, token)
    application = pages.app(
        connect(root),
        backups=backups,
        storage_options={} if backups is None else storage_options_of(backups),
        # Where a token is needed, a page of another site cannot get in under any name.
        hosts=LOOPBACK_HOSTS if is_loopback(host) else ("*",),
        token=token,
        allow_maintenance=allow_maintenance,
        query_seconds=query_seconds,
    )
    with listening_socket(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        print(f"{root} at http://{shown}:{listener.getsockname()[1]}/, until Ctrl-C", flush=True)
        serve(application, listener)


def report(
    root: Root,
    output: Annotated[str, typer.Option(help="The HTML file, or its address.")],
    backups: Sets = None,
) -> None:
    """Write the pages about the tables of a directory to one HTML file."""
    check_is_directory(root)
    with _packages_of_the_pages():
        import kudulite.ui as pages
    options = {} if backups is None else storage_options_of(backups)
    text = pages.report(connect(root), backups=backups, storage_options=options)
    content = text.encode()
    with output_file(output) as sink:
        sink.write(content)
    print(f"{output}: {len(content):,} bytes")
