"""Report: the figures of `object_store.py compare` as text."""

from __future__ import annotations

from typing import Any

from remote.steps import STEPS
from remote.traffic import EXPRESS, STANDARD

# step and what it costs so often
PRICED = {"commit_warm": "1,000 commits", "key_warm": "1,000 point reads"}
BASELINE = "kudulite"


def text(results: dict[str, Any]) -> str:
    """Return the whole report."""
    machine = results["machine"]
    parts = [
        f"{results['rows']:,} rows × 10 columns, {machine['cores']} cores,"
        f" {machine['memory_gb']} GB, Python {machine['python']}"
    ]
    stores = results["stores"]
    parts[0] += "".join(
        f"\n- {found['title']}: {found['versions']}; {found['settings']}"
        for found in stores.values()
    )
    for place, by_store in results["places"].items():
        parts.append(f"## {place}")
        parts += [_table(by_store, stores), _kinds(by_store, stores), _prices(by_store, stores)]
        parts.append(_errors(by_store, stores))
    parts += [f"Left out: {note}" for note in results["left_out"]]
    return "\n\n".join(filter(None, parts))


def _table(by_store: dict[str, Any], stores: dict[str, Any]) -> str:
    """Return a line for each step, with the ratio of kudulite to the fastest other store."""
    head = ["seconds · requests · rounds · MB up · MB down", *_titles(by_store, stores)]
    rows = [[label, *map(_cell, figures)] for label, figures in _steps(by_store)]
    if BASELINE in by_store and len(by_store) > 1:
        head.append(f"{BASELINE} / best")
        own = list(by_store).index(BASELINE)
        for row, (_, figures) in zip(rows, _steps(by_store), strict=True):
            seconds = [(found or {}).get("seconds") for found in figures]
            others = [one for one in (*seconds[:own], *seconds[own + 1 :]) if one is not None]
            is_known = seconds[own] is not None and others
            row.append(f"{seconds[own] / min(others):.2f} ×" if is_known else "–")
    return lines(head, rows)


def _kinds(by_store: dict[str, Any], stores: dict[str, Any]) -> str:
    """Return a line for each step: the requests by kind."""
    rows = []
    for label, figures in _steps(by_store):
        kinds = [(found or {}).get("kinds", {}) for found in figures]
        cells = [", ".join(f"{n:.3g} {kind}" for kind, n in one.items()) for one in kinds]
        if any(cells):
            rows.append([label, *cells])
    return lines(["requests by kind", *_titles(by_store, stores)], rows) if rows else ""


def _steps(by_store: dict[str, Any]) -> list[tuple[str, list[dict[str, Any] | None]]]:
    """Return label and figures by store of each step that a store has."""
    return [
        (label, [steps.get(step) for steps in by_store.values()])
        for step, label in STEPS.items()
        if any(step in steps for steps in by_store.values())
    ]


def _titles(by_store: dict[str, Any], stores: dict[str, Any]) -> list[str]:
    return [stores[name]["title"] for name in by_store]


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    if "error" in found:
        return "none" if found["error"].startswith("NotImplementedError") else "error"
    parts = [f"{found['seconds']:.3g} s"]
    if found["requests"]:
        parts += [f"{found['requests']:.3g}", f"{found['rounds']:.3g}"]
        parts += [f"{found['mb_up']:.3g}", f"{found['mb_down']:.3g}"]
    return " · ".join(parts)


def _prices(by_store: dict[str, Any], stores: dict[str, Any]) -> str:
    """Return the dollars of requests, and of bytes where they cost."""
    rows = []
    for step, label in PRICED.items():
        for prices in (STANDARD, EXPRESS):
            found = [
                steps.get(step, {}).get("dollars_per_1000", {}).get(prices.title)
                for steps in by_store.values()
            ]
            if any(found):
                cells = ["–" if dollars is None else f"${dollars:.2g}" for dollars in found]
                rows.append([f"{label}, {prices.title}", *cells])
    return lines(["list price", *_titles(by_store, stores)], rows) if rows else ""


def _errors(by_store: dict[str, Any], stores: dict[str, Any]) -> str:
    found = [
        f"- {stores[name]['title']}, {STEPS.get(step, step)}: {figures['error']}"
        for name, steps in by_store.items()
        for step, figures in steps.items()
        if "error" in figures
    ]
    return "\n".join(found) or "All answers are those of the model."


def lines(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown, padded so that it can be read as text."""
    cells = [head, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in [head, rule, *rows]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
