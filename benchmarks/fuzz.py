"""Coverage-guided fuzzing of every parser of bytes, by atheris.

    python benchmarks/fuzz.py [--only NAME] [--seconds 60] [--folder /dev/shm]

The parsers are those of tests/support/parsers.py. Each runs in a process of its own. The contents
that reach new branches of kudulite's own code are kept and changed further. A parser must return or
raise a KuduliteError. Any other error, a hang of ten seconds, and the end of the process are
findings: the command prints the content that causes them and ends with an error.

The fuzzer is no dependency of the project:

    pip install atheris
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

HANG_SECONDS = 10
MEMORY_MB = 4096
# The last line of libFuzzer that has counts.
_COUNTS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+)")


def fuzz(name: str, folder: Path, seconds: int) -> None:
    """Fuzz one parser in this process, which ends with the fuzzer."""
    import atheris

    with atheris.instrument_imports(include=["kudulite"]):
        from tests.support.parsers import parsers

    parser = parsers(folder / "work")[name]
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, sample in enumerate(parser.samples):
        (corpus / str(number)).write_bytes(sample)
    limits = [f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", "-max_len=16384"]
    found = f"-artifact_prefix={folder}/"
    command = [sys.argv[0], str(corpus), f"-max_total_time={seconds}", found, *limits]
    atheris.Setup(command, parser.survive)
    atheris.Fuzz()


def run_all(args: argparse.Namespace) -> int:
    """Fuzz the chosen parsers one after the other; return how many had a finding."""
    from tests.support.parsers import parsers

    with tempfile.TemporaryDirectory(prefix="kudulite-fuzz-", dir=args.folder) as folder:
        names = [name for name in parsers(Path(folder)) if args.only in name]
    failed, total = 0, 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="kudulite-fuzz-", dir=args.folder) as folder:
            command = [sys.executable, __file__, "--parser", name, "--folder", folder]
            command += ["--seconds", str(args.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            counts = _COUNTS.findall(done.stderr)
            runs, branches = counts[-1] if counts else (0, 0)
            total += int(runs)
            print(f"{name:<16}{int(runs):>12,} contents, {int(branches):>6,} branches", flush=True)
            if done.returncode:
                failed += 1
                print(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
                for path in Path(folder).glob("*-*"):
                    if path.is_file():
                        print(f"{path.name}: {path.read_bytes()!r}")
    print(f"{total:,} contents, {failed} of {len(names)} parsers with a finding")
    return failed


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a text in the names of the parsers to run")
    parser.add_argument("--seconds", type=int, default=60, help="for each parser")
    parser.add_argument("--folder", type=Path, help="where files are made (default: the system's)")
    parser.add_argument("--parser", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.parser:
        fuzz(args.parser, args.folder, args.seconds)
    else:
        sys.exit(run_all(args) > 0)


if __name__ == "__main__":
    main()
