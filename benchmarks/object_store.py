"""Tables on an object store: kudulite beside delta-rs and Lance, with a delay for each request.

    python benchmarks/object_store.py compare [--rows 500000] [--delays 30 100] [--repeat 3]
        [--stores kudulite delta lance] [--directory] [--json FILE] [--read FILE]
    python benchmarks/object_store.py writers [--processes 16] [--seconds 60] [--rows 100000]
        [--delays 30] [--stores kudulite] [--directory] [--json FILE]
    python benchmarks/object_store.py proxy

    compare    open, look for a newer version, scan, aggregate, one key, many keys, a range,
               commits, changes, appends, an upsert of 10 % and a list of 100 tables, and the price
               of 1,000 commits and 1,000 point reads (steps.py and traffic.py in remote/)
    writers    processes that commit batches of 1 to 100 rows to one table (remote/writers.py)
    proxy      checks the proxy, and measures its own cost

The store is a server that speaks S3, SeaweedFS, on loopback. Before it is a proxy that adds the
delay to each request and counts requests, bytes, and *rounds*: requests that came after the answer
of an earlier one. proxy.py and traffic.py in remote/ say exactly what is counted. Real stores also
have a limited bandwidth, TLS, and delays that differ: here, seconds above rounds × delay are those
of processors, which the stores share with the server. Every answer is compared with a model, and
the command ends with an error if one is wrong. `--directory` uses a folder instead, without proxy.

A table has ten columns; kudulite's has eight hash tablets. Temporary files are made in --folder.
The server is in the extra `test`. The other stores are no dependencies of the project; those that
are not installed are left out, with a note:

    pip install deltalake pylance
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import machine
from remote.model import Model
from remote.proxy import ProxyControl, RunningProxy, running_proxy
from remote.proxy_check import check_proxy, measure_cost
from remote.report import lines, text
from remote.steps import STORES, Setup, run_all, store_class
from remote.store import Place, RemoteStore
from remote.writers import Crowd, load_for, run_writers

from tests.support.object_server import ObjectServer, object_server

# figure: label and format
WRITER_FIGURES = {
    "commits": ("commits", "{:,.0f}"),
    "seconds": ("seconds up to the last", "{:.0f}"),
    "commits_per_second": ("commits/s", "{:,.1f}"),
    "rows_per_second": ("rows/s", "{:,.0f}"),
    "wait_median": ("median wait", "{:.3f} s"),
    "wait_99": ("99 % of waits", "{:.3f} s"),
    "wait_longest": ("longest wait", "{:.3f} s"),
    "wait_longest_by_median": ("longest / median", "{:.1f}"),
    "turns_of_others": ("longest wait in commits of others", "{:,.0f}"),
    "commits_of_slowest_writer": ("commits of the slowest writer", "{:,.0f}"),
    "commits_of_fastest_writer": ("commits of the fastest writer", "{:,.0f}"),
    "conflicts": ("refused and repeated", "{:,.0f}"),
    "requests_per_commit": ("requests a commit", "{:.1f}"),
    "dollars_per_1000": ("dollars for 1,000 commits", "{:.4f}"),
    "rows_verified": ("rows compared with the model", "{:,.0f}"),
}


@dataclass(frozen=True)
class Site:
    """Where all stores of one run are: a folder, or a bucket behind a proxy with a delay."""

    title: str
    url: str
    proxy: RunningProxy | None = None

    def place(self, store: str) -> Place:
        """Return the place of the tables of one store."""
        return Place(f"{self.url}/{store}", None if self.proxy is None else self.proxy.endpoint)

    @property
    def control_port(self) -> int | None:
        """The control port of the proxy."""
        return None if self.proxy is None else self.proxy.control_port


def note(text: str) -> None:
    """Print what is being done."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def sites(args: argparse.Namespace, folder: Path) -> Iterator[Iterator[Site]]:
    """Yield the sites of a run, one for each delay, or one directory."""
    if args.directory:
        (folder / "tables").mkdir()
        yield iter([Site("a directory", str(folder / "tables"))])
        return
    with object_server(folder / "server") as server, proxy_before(server) as proxy:
        control = ProxyControl(proxy.control_port)

        def with_delays() -> Iterator[Site]:
            for delay in args.delays:
                control.set_delay(delay / 1e3)
                url = f"s3://{server.bucket}/{delay:g}"
                yield Site(f"{delay:g} ms for each request", url, proxy)

        yield with_delays()
        control.close()


@contextmanager
def proxy_before(server: ObjectServer) -> Iterator[RunningProxy]:
    """Run a proxy before an object server."""
    address = urlsplit(server.endpoint)
    assert address.hostname is not None and address.port is not None
    with running_proxy(address.hostname, address.port) as proxy:
        yield proxy


def installed_stores(names: list[str]) -> tuple[dict[str, type[RemoteStore]], list[str]]:
    """Return the classes of the stores that are installed, and a note for each other one."""
    found, left_out = {}, []
    for name in names:
        try:
            found[name] = store_class(name)
            found[name].versions()
        except (ImportError, PackageNotFoundError) as error:
            found.pop(name, None)
            how = "pip install deltalake pylance"
            left_out.append(f"{name}, which is not installed ({error}); {how}")
            note(f"left out: {left_out[-1]}")
    return found, left_out


# -- commands


def compare(args: argparse.Namespace, folder: Path) -> bool:
    """Run all steps of all stores, and print the figures; returns whether all is right."""
    if args.read:
        results = json.loads(args.read.read_text())
        print(text(results))
        return True
    stores, left_out = installed_stores(args.stores)
    results = {"machine": machine(), "rows": args.rows, "left_out": left_out, "places": {}}
    results["stores"] = {
        name: {"title": one.title, "versions": one.versions(), "settings": one.settings}
        for name, one in stores.items()
    }
    with sites(args, folder) as found:
        for site in found:
            by_store = results["places"][site.title] = {}
            for name in stores:
                model = folder / f"{name}.npy"
                # Room for the new rows of the upsert and of the appends.
                Model.create(model, args.rows * 102 // 100 + 100_000)
                place = site.place(name)
                setup = Setup(name, place, model, args.rows, args.repeat, site.control_port)
                by_store[name] = run_all(setup, lambda step, n=name: note(f"{n}: {step}"))
                write_json(args.json, results)
    print(text(results))
    found_by_store = [one for by in results["places"].values() for one in by.items()]
    return not any(is_wrong(name, steps) for name, steps in found_by_store)


def is_wrong(store: str, steps: dict[str, dict[str, Any]]) -> bool:
    """Whether an answer was wrong, or kudulite had an error; others may refuse a step."""
    errors = [figures["error"] for figures in steps.values() if "error" in figures]
    return any("WrongAnswerError" in error or store == "kudulite" for error in errors)


def writers(args: argparse.Namespace, folder: Path) -> bool:
    """Run writers of each store, and print the figures; returns whether all is right."""
    stores, left_out = installed_stores(args.stores)
    results: dict[str, Any] = {"machine": machine(), "processes": args.processes}
    results |= {"left_out": left_out, "places": {}}
    with sites(args, folder) as found:
        for site in found:
            by_store = results["places"][site.title] = {}
            for name in stores:
                note(f"{name}: {args.processes} writers, {site.title}")
                by_store[name] = writers_of(name, args, site, folder)
                write_json(args.json, results)
            print(writers_text(site, {stores[name].title: by_store[name] for name in by_store}))
            for name, one in by_store.items():
                for error in one["errors"]:
                    print(f"{stores[name].title}: {error}")
    return not any(one["errors"] for by in results["places"].values() for one in by.values())


def writers_text(site: Site, found: dict[str, dict[str, Any]]) -> str:
    """Return the figures of the writers of each store, by its title."""
    rows = [
        [label, *(form.format(one[key]) if key in one else "–" for one in found.values())]
        for key, (label, form) in WRITER_FIGURES.items()
    ]
    return lines([site.title, *found], rows)


def writers_of(name: str, args: argparse.Namespace, site: Site, folder: Path) -> dict[str, Any]:
    """Load a table, and run the writers of one store on it; an error is among the figures."""
    crowd = Crowd(name, site.place(f"writers/{name}"), args.processes, args.seconds)
    control = None if site.control_port is None else ProxyControl(site.control_port)
    try:
        model = load_for(crowd, folder / "writers.npy", args.rows)
        return run_writers(crowd, model, control)
    except Exception as error:
        return {"errors": [f"{type(error).__name__}: {error}"]}
    finally:
        if control is not None:
            control.close()


def proxy(args: argparse.Namespace, folder: Path) -> bool:
    """Check the proxy, and print what it costs."""
    for line in check_proxy():
        print(line, flush=True)
    with object_server(folder / "server") as server, proxy_before(server) as running:
        print("\n".join(measure_cost(server.endpoint, running.endpoint, server.bucket)))
    return True


def write_json(path: Path | None, results: dict[str, Any]) -> None:
    """Write the figures so far, so that a run that is stopped has not been for nothing."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> int:
    """Parse arguments and run; returns 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands: dict[str, tuple[Callable[[argparse.Namespace, Path], bool], dict[str, Any]]] = {
        "compare": (compare, {"rows": 500_000, "delays": [30.0], "stores": list(STORES)}),
        "writers": (writers, {"rows": 100_000, "delays": [30.0], "stores": ["kudulite"]}),
        "proxy": (proxy, {}),
    }
    for name, (run, defaults) in commands.items():
        summary = str(run.__doc__).splitlines()[0]
        one = names.add_parser(name, help=summary, description=summary)
        one.add_argument("--folder", type=Path, help="where temporary files are (the system's)")
        if not defaults:
            continue
        one.add_argument("--rows", type=int, default=defaults["rows"])
        one.add_argument("--delays", nargs="+", type=float, default=defaults["delays"], help="ms")
        one.add_argument("--stores", nargs="+", choices=STORES, default=defaults["stores"])
        one.add_argument("--directory", action="store_true", help="a folder, not an object store")
        one.add_argument("--json", type=Path, help="write the figures to this file")
        if name == "compare":
            one.add_argument("--repeat", type=int, default=3)
            one.add_argument("--read", type=Path, help="print the figures of an earlier --json")
        else:
            one.add_argument("--processes", type=int, default=16)
            one.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    # As an exception, so that the server and the temporary folder end with the command.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="kudulite-objects-", dir=args.folder) as folder:
        return int(not commands[args.command][0](args, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
