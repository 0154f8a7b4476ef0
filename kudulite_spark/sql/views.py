"""Views of Spark SQL's catalog: each is a text beside the tables of its namespace.

    db/t/          a table                  {"format": 1, "query": "SELECT …", "schema": …,
    db/v.view      a view, as JSON:          "namespace": ["db"], "settings": {…}, …}

The text is what Spark needs to analyse the query again: the query, the columns with comments, the
catalog and the namespace in which its names are resolved, and the settings of the session that made
it. Spark reads views of a catalog from version 4.3 on (java/CatalogWithViews.java).

A table and a view have one set of names. A statement checks that the other has none of this name;
of two statements at once both may succeed, and then the table is the one that is found. To rename a
view is to write the new file and to remove the old one: a crash in between leaves both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import kudulite
from kudulite.errors import CorruptionError, TableExistsError, TableNotFoundError, UsageError
from kudulite_spark.options import Place

NO_NAMESPACE, NO_VIEW, VIEW_EXISTS = "NoNamespace", "NoView", "ViewExists"
FORMAT = 1

View = dict[str, Any]


class Refused(Exception):
    """An answer that is no result, of a kind that the catalog knows."""


def namespace(place: Place) -> kudulite.Client:
    """Return the client of a namespace."""
    try:
        place.table()
    except TableNotFoundError:
        with suppress(TableNotFoundError):
            return place.client(create=False)
    raise Refused(NO_NAMESPACE)


def read_view(place: Place) -> View:
    """Return a view in the form that the catalog reads. Raises TableNotFoundError, CorruptionError.

    Maps come with a list of their names, and empty lists are left out."""
    text = place.parent.client(create=False).read_view(place.name)
    try:
        view = json.loads(text)
        if view.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        view["settingNames"] = list(view["settings"])
        view["propertyNames"] = list(view["properties"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(
            f"view {place.path!r}: the file is no view that this kudulite reads ({error}); upgrade,"
            " or write it again with CREATE OR REPLACE VIEW"
        ) from error
    return {name: value for name, value in view.items() if value != []}


def check_no_view(place: Place) -> None:
    """Raise TableExistsError if a view has the name that a table is to get."""
    views: list[str] = []
    with suppress(UsageError):  # no namespace, which the statement itself reports
        views = place.parent.client(create=False).list_views()
    if place.name in views:
        raise TableExistsError(f"{place.path!r} is a view; DROP VIEW makes its name free")


def _create(place: Place, question: View) -> View:
    """Write a view; the kind is create, replace or createOrReplace."""
    client, kind = namespace(place.parent), question["kind"]
    if client.table_exists(place.name):
        raise Refused(VIEW_EXISTS)
    if kind == "replace" and place.name not in client.list_views():
        raise Refused(NO_VIEW)
    text = json.dumps({"format": FORMAT, **question["view"]}, indent=2, ensure_ascii=False)
    try:
        client.write_view(place.name, text + "\n", replace=kind != "create")
    except TableExistsError:
        raise Refused(VIEW_EXISTS) from None
    return {}


def _drop(place: Place, question: View) -> View:
    try:
        place.parent.client(create=False).delete_view(place.name)
    except TableNotFoundError:
        raise Refused(NO_VIEW) from None
    return {}


def _rename(place: Place, question: View) -> View:
    target = place.of(question["to"])
    client = namespace(target.parent)
    try:
        text = place.parent.client(create=False).read_view(place.name)
    except TableNotFoundError:
        raise Refused(NO_VIEW) from None
    if client.table_exists(target.name):
        raise Refused(VIEW_EXISTS)
    try:
        client.write_view(target.name, text)
    except TableExistsError:
        raise Refused(VIEW_EXISTS) from None
    return _drop(place, question)


VIEW_ANSWERS: dict[str, Callable[[Place, View], View]] = {
    "createView": _create,
    "dropView": _drop,
    "renameView": _rename,
    "views": lambda place, question: {"names": namespace(place).list_views()},
}
