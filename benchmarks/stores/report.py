"""Report: the figures of all stores as tables in Markdown, with the ratio to kudulite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# (step, label)
TIMES = (
    ("load", "load, rows in random order"),
    ("upsert", "upsert of 10 %"),
    ("update", "update of one column in 5 %"),
    ("delete", "delete of 1 %"),
    ("single", "one row, durable"),
    ("commits", "a commit of 100 random rows"),
    ("keys_clean", "10,000 rows by key, clean"),
    ("keys_dirty", "the same, dirty"),
    ("range_clean", "range of 1,000 keys, clean, first read"),
    ("range_clean_again", "the same ranges again"),
    ("range_dirty", "range of 1,000 keys, dirty, first read"),
    ("range_dirty_again", "the same ranges again"),
    ("series", "1,000 times of one series"),
    ("get_clean_cold", "`get` in a new process, first read of a key"),
    ("get_clean_warm", "`get` of the same keys again"),
    ("get_dirty_cold", "`get` in a new process, dirty"),
    ("get_dirty_warm", "`get` of the same keys again, dirty"),
    ("aggregate_clean", "aggregate of 3 columns, clean"),
    ("aggregate_dirty", "aggregate of 3 columns, dirty"),
    ("aggregate_past", "the same as of before the upsert"),
    ("changes_update", "changes of the update"),
    ("changes_all", "changes of all three writes"),
)
# The steps of the chart; reads are those after the writes.
SHORT = (
    ("load", "load, random order"),
    ("upsert", "upsert of 10 %"),
    ("update", "one column in 5 % of the rows"),
    ("delete", "delete of 1 %"),
    ("single", "one row, durable"),
    ("keys_dirty", "10,000 rows by key"),
    ("range_dirty", "range of 1,000 keys"),
    ("series", "1,000 times of one series"),
    ("get_dirty_warm", "one row by key, again"),
    ("aggregate_dirty", "aggregate of 3 columns"),
    ("aggregate_past", "the same as of before the writes"),
    ("changes_all", "all changes of the three writes"),
)
NATIVE = (("clean", "clean"), ("dirty", "dirty"), ("past", "as of before the upsert"))
BASELINE = "kudulite"


def markdown(results: dict[str, Any], is_processor_time: bool = False) -> str:
    """Return the whole report."""
    if is_processor_time:
        results = _with_processor_time(results)
    stores = results["stores"]
    parts = [_head(results)]
    if stores:
        if short := _best_rows(stores):
            parts.append(_lines(["work", BASELINE, "the fastest of the others"], short))
        parts.append(_table(stores, _time_rows(stores) + _size_rows(stores)))
    if any(step.startswith("native_") for step in steps_of(stores, BASELINE)):
        parts.append(_native_table(steps_of(stores, BASELINE)))
    errors = [
        f"- {found['title']}, {step}: {figures['error']}"
        for found in stores.values()
        for step, figures in found["steps"].items()
        if "error" in figures
    ]
    parts.append("\n".join(errors) if errors else "All results are as expected.")
    return "\n\n".join(parts)


def steps_of(stores: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the figures of a store by step; none if it was not measured."""
    return stores[name]["steps"] if name in stores else {}


def seconds_of(steps: dict[str, Any], step: str) -> float | None:
    """Return the seconds of a step that was measured, and whose result was right."""
    figures = steps.get(step, {})
    return None if "error" in figures else figures.get("seconds")


def peak_bytes(steps: dict[str, Any]) -> int | None:
    """Return the highest memory of all steps."""
    return max((f["peak_bytes"] for f in steps.values() if "peak_bytes" in f), default=None)


def time_text(seconds: float) -> str:
    """Return seconds or milliseconds with two or three significant digits."""
    if seconds < 0.9995:
        return f"{_rounded(seconds * 1e3)} ms"
    return f"{_rounded(seconds)} s"


def _ratio_text(ratio: float) -> str:
    """Return a ratio with two or more significant digits."""
    return f"{ratio:.2g} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def _rounded(number: float) -> str:
    digits = 3 if number < 0.01 else 2 if number < 1 else 1 if number < 10 else 0
    return f"{number:.{digits}f}"


def _with_processor_time(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with processor seconds in the place of elapsed ones."""
    stores = {}
    for name, found in results["stores"].items():
        steps = {
            step: figures | ({"seconds": figures["cpu_seconds"]} if "seconds" in figures else {})
            for step, figures in found["steps"].items()
        }
        stores[name] = found | {"steps": steps}
    return results | {"stores": stores}


def _head(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"{results['rows']:,} rows × 10 columns, {machine['cores']} cores,"
        f" {machine['memory_gb']} GB, Python {machine['python']}",
        "",
    ]
    for found in results["stores"].values():
        lines.append(f"- {found['title']}: {found['versions']}; {found['settings']}")
    return "\n".join(lines)


def _table(stores: dict[str, Any], rows: list[list[str]]) -> str:
    titles = [found["title"] for found in stores.values()]
    return _lines(["step", *titles], rows)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _time_rows(stores: dict[str, Any]) -> list[list[str]]:
    rows = []
    for step, label in TIMES:
        base = seconds_of(steps_of(stores, BASELINE), step)
        cells = [_time_cell(found["steps"], step, base) for found in stores.values()]
        if any(cell != "–" for cell in cells):
            rows.append([label, *cells])
    return rows


def _best_rows(stores: dict[str, Any]) -> list[list[str]]:
    """Return a line of each step of the chart: kudulite, and the store that is faster than others.

    A kudulite table of another layout is not one of the others.
    """
    rows = []
    others = {name: found for name, found in stores.items() if not name.startswith(BASELINE)}
    for step, label in SHORT:
        own = seconds_of(steps_of(stores, BASELINE), step)
        times = {
            found["title"]: seconds
            for found in others.values()
            if (seconds := seconds_of(found["steps"], step)) is not None
        }
        if own is None or not times:
            continue
        title = min(times, key=lambda title: times[title])
        ratio = _ratio_text(times[title] / own)
        rows.append([label, time_text(own), f"{title} {time_text(times[title])} ({ratio})"])
    return rows


def _time_cell(steps: dict[str, Any], step: str, base: float | None) -> str:
    seconds = seconds_of(steps, step)
    if seconds is None:
        return "error" if "error" in steps.get(step, {}) else "–"
    if base is None or seconds == base:
        return time_text(seconds)
    return f"{time_text(seconds)} ({_ratio_text(seconds / base)})"


def _size_rows(stores: dict[str, Any]) -> list[list[str]]:
    def row(label: str, of: Callable[[dict[str, Any]], int | None]) -> list[str]:
        sizes = [of(found["steps"]) for found in stores.values()]
        return [label, *("–" if size is None else f"{size / 1e6:,.0f} MB" for size in sizes)]

    def beyond(steps: dict[str, Any]) -> int | None:
        peak = peak_bytes(steps)
        return None if peak is None else peak - steps["caller"]["bytes"]

    return [
        row("peak memory, all steps", peak_bytes),
        row("the same without the rows of the caller", beyond),
        row("on disk after the load", lambda steps: steps.get("size_clean", {}).get("bytes")),
        row("on disk after the three writes", lambda s: s.get("size_dirty", {}).get("bytes")),
    ]


def _native_table(steps: dict[str, Any]) -> str:
    """Return kudulite's aggregate by three engines; plain Parquet has the same rows, rewritten."""
    head = ["aggregate of 3 columns", "scan to Arrow", "`to_duckdb`", "DuckDB `read_parquet`"]
    head += ["ratio", "`to_polars`", "Polars `scan_parquet`", "ratio"]
    rows = []
    for name, label in NATIVE:
        works = ("arrow", "to_duckdb", "read_parquet", "to_polars", "scan_parquet")
        found = [seconds_of(steps, f"native_{name}_{work}") for work in works]
        if None in found:
            continue
        arrow, *pairs = found
        cells = [label, time_text(arrow)]
        for own, plain in (pairs[:2], pairs[2:]):
            cells += [time_text(own), time_text(plain), f"{own / plain:.2f} ×"]
        rows.append(cells)
    return _lines(head, rows)
