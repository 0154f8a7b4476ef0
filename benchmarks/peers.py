"""kudulite beside DuckDB, delta-rs, Lance, pyiceberg, SQLite and plain Parquet, on the same rows.

    python benchmarks/peers.py [--rows 5000000] [--quick] [--only STORE …] [--steps STEP …]
                               [--json FILE] [--chart FILE.svg] [--read FILE]

Every store does the same steps in a process of its own, in an empty folder that is removed. Every
result is compared with the expected one (stores/workload.py). Prints the machine, the versions and
a table in Markdown, with the ratio to kudulite beside each time. `--read` prints the table and
draws the chart of an earlier `--json`. A run with `--only` keeps the figures of other stores that
an existing `--json` file has, if they are of the same machine and as many rows.

The peers are no dependencies of the project; those that are not installed are left out:

    pip install duckdb polars deltalake pylance pyiceberg sqlalchemy
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from stores.chart import write_chart
from stores.report import markdown
from stores.steps import SECONDS_PER_STEP, STEPS, StepRun, read_single_rows, run_native
from stores.store import Store
from stores.workload import Workload, make_workload, read_plan

# name: module and class
STORES = {
    "kudulite": ("kudulite_store", "KuduliteStore"),
    "kudulite-1": ("kudulite_store", "OneTabletStore"),
    "duckdb": ("duckdb_store", "DuckdbStore"),
    "sqlite": ("sqlite_store", "SqliteStore"),
    "delta": ("delta_store", "DeltaStore"),
    "lance": ("lance_store", "LanceStore"),
    "pyiceberg": ("iceberg_store", "IcebergStore"),
    "parquet": ("parquet_store", "ParquetStore"),
}
QUICK_ROWS = 100_000
QUICK_SECONDS = 0.4


def store_class(name: str) -> type[Store]:
    """Return the class of a store. Raises ImportError if a package of it is not installed."""
    module, class_name = STORES[name]
    return getattr(importlib.import_module(f"stores.{module}"), class_name)


def machine() -> dict[str, Any]:
    """Return cores, memory and Python."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 2**30),
        "python": platform.python_version(),
    }


# -- one store, in its own process


def run_store(args: argparse.Namespace) -> None:
    """Run the steps of one store; prints a line of JSON for each."""
    store = store_class(args.store)(args.folder)
    seconds = QUICK_SECONDS if args.quick else SECONDS_PER_STEP
    if args.cold or args.native:
        plan = read_plan(args.workload)
        if args.cold:
            read_single_rows(store, plan, args.cold, seconds)
        else:
            run_native(store, plan, args.native, seconds)
        return
    run = StepRun(store, Workload(args.workload), args.steps, seconds)
    run.run([sys.executable, *sys.argv])


def measure_store(name: str, root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run a store in a process of its own; return its figures by step."""
    folder = root / name / "store"
    folder.mkdir(parents=True)
    command = [sys.executable, __file__, "--store", name, "--folder", str(folder)]
    command += ["--workload", str(root / "workload"), "--steps", *args.steps]
    command += ["--quick"] if args.quick else []
    figures: dict[str, Any] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr))
        reader.start()
        timer = threading.Timer(args.limit, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    found = json.loads(line)
                    figures.setdefault(found.pop("step"), {}).update(found)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
        reader.join()
    if process.returncode < 0:
        figures["end"] = {"error": f"stopped after {args.limit} seconds"}
    elif process.returncode:
        figures["end"] = {"error": "".join(errors[-3:]).strip()}
    shutil.rmtree(root / name)
    return figures


# -- all stores


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all chosen stores one after the other; return what `--json` writes."""
    results: dict[str, Any] = {"machine": machine(), "rows": args.rows}
    results["stores"] = dict.fromkeys(STORES)
    if args.json and args.json.exists():
        earlier = json.loads(args.json.read_text())
        if all(earlier[part] == results[part] for part in ("machine", "rows")):
            results["stores"] |= earlier["stores"]
    root = Path(tempfile.mkdtemp(prefix="kudulite-peers-", dir=args.directory))
    try:
        (root / "workload").mkdir()
        make_workload(root / "workload", args.rows, args.in_key_order)
        for name in args.only:
            try:
                found = store_class(name)
                versions = found.versions()
            except (ImportError, PackageNotFoundError) as error:
                print(f"{name} is left out, because it is not installed: {error}.", file=sys.stderr)
                continue
            print(f"{name} …", file=sys.stderr, flush=True)
            results["stores"][name] = {
                "title": found.title,
                "versions": versions,
                "settings": found.settings,
                "steps": measure_store(name, root, args),
            }
            write_json(args.json, results)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    results["stores"] = {name: found for name, found in results["stores"].items() if found}
    return results


def write_json(path: Path | None, results: dict[str, Any]) -> None:
    """Write the figures so far, so that a run that is stopped has not been for nothing."""
    if path is not None:
        stores = {name: found for name, found in results["stores"].items() if found}
        path.write_text(json.dumps(results | {"stores": stores}, indent=1) + "\n")


def parsed_arguments() -> argparse.Namespace:
    """Return the arguments; those of the process of one store are not shown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, few repeats")
    parser.add_argument("--only", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--in-key-order", action="store_true", help="load rows in key order")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each store")
    parser.add_argument("--directory", type=Path, help="where the temporary folder is made")
    parser.add_argument("--cpu", action="store_true", help="print processor time: a busy machine")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--chart", type=Path, help="draw the times to this SVG file")
    parser.add_argument("--read", type=Path, help="read the figures of an earlier run instead")
    for hidden in ("--folder", "--workload"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", choices=STORES, help=argparse.SUPPRESS)
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    parser.add_argument("--native", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.rows = min(args.rows, QUICK_ROWS)
    return args


def main() -> int:
    """Parse arguments and run; returns 1 if any result is wrong or missing."""
    args = parsed_arguments()
    if args.store:
        run_store(args)
        return 0
    # As an exception, so that the temporary folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    results = json.loads(args.read.read_text()) if args.read else measure(args)
    print(markdown(results, args.cpu))
    if args.chart:
        write_chart(args.chart, results)
    steps = [found["steps"] for found in results["stores"].values()]
    return int(any("error" in figures for found in steps for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
