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
        parts.append(_table(by_store, stores))
        if priced := _prices(by_store, stores):
            parts.append(priced)
        parts.append(_errors(by_store, stores))
    parts += [f"Left out: {note}" for note in results["left_out"]]
    return "\n\n".join(parts)


def _table(by_store: dict[str, Any], stores: dict[str, Any]) -> str:
    """Return a line for each step: seconds · requests · rounds · MB up · MB down."""
    rows = [
        [label, *(_cell(steps.get(step)) for steps in by_store.values())]
        for step, label in STEPS.items()
        if any(step in steps for steps in by_store.values())
    ]
    titles = [stores[name]["title"] for name in by_store]
    head = ["seconds · requests · rounds · MB up · MB down", *titles]
    return lines(head, rows)


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
    titles = [stores[name]["title"] for name in by_store]
    return lines(["list price", *titles], rows) if rows else ""


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
