"""A disk that forgets: what a power failure may leave of a folder, at every step of some work.

The double stands below the engine, at the calls of the system: within `recording` each change of
the folder (create, write, truncate, link, rename, unlink, mkdir, rmdir, fsync) also happens in a
model in memory. So it sees a lost fsync wherever it is lost, also in `fs/` itself. At the end the
model must equal the folder, byte for byte, which shows that no write took another way. Pools of
threads work in the caller's thread meanwhile, so that a run has the same events each time.

    bytes    a file has its bytes of its last fsync; each later write is kept, dropped, or torn
    names    a folder has its names of its last fsync; later changes of different names are kept
             or dropped independently, those of one name in their order
    renames  change both names or none, and are durable after an fsync of the target's folder

A file whose bytes were never synced is empty, or has holes of zeros. This is weaker than any
journaling file system, and what POSIX promises.

**Threads**: any; events are recorded one by one, under a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kudulite.storage import local_storage

SECTOR_BYTES = 512
# The ways in which a power failure treats changes that are not durable.
MODES = ("nothing", "names", "bytes", "all", "chance")


class FileNode:
    """A file: its bytes, those of its last fsync, and the writes since."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable, self.content = durable, bytearray(durable)
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at an offset; zeros fill a hole."""
        self.pending.append((offset, data))
        _put(self.content, offset, data)

    def cut(self, length: int) -> None:
        """Shorten or lengthen the file."""
        self.pending.append((length, None))
        _put(self.content, length, None)

    def sync(self) -> None:
        """Make all bytes durable."""
        self.durable, self.pending = bytes(self.content), []

    def after_loss(self, mode: str, chance: random.Random) -> bytes:
        """The bytes that are left."""
        if not self.pending or mode in ("nothing", "names"):
            return self.durable
        if mode in ("bytes", "all"):
            return bytes(self.content)
        content = bytearray(self.durable)
        for offset, data in self.pending:
            fate = chance.choice(("lost", "cut", "sectors", "kept", "kept"))
            if fate == "lost":
                continue
            if data is None or fate == "kept":
                _put(content, offset, data)
            elif fate == "cut":
                _put(content, offset, data[: chance.randrange(len(data) + 1)])
            else:
                for start in range(0, len(data), SECTOR_BYTES):
                    if chance.random() < 0.5:
                        _put(content, offset + start, data[start : start + SECTOR_BYTES])
        return bytes(content)


def _put(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    content.extend(bytes(max(0, offset - len(content))))
    if data is not None:
        content[offset : offset + len(data)] = data


class FolderNode:
    """A folder: its names, and those that are durable."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | FolderNode


@dataclass(frozen=True, eq=False)
class NameChange:
    """One step's changes of names, all or none; an fsync of `home` makes it durable."""

    home: FolderNode
    changes: tuple[tuple[FolderNode, str, Node | None], ...]

    @property
    def slots(self) -> list[tuple[int, str]]:
        """The names that it changes."""
        return [(id(folder), name) for folder, name, _ in self.changes]


@dataclass(frozen=True)
class DiskState:
    """Folders and files, by relative path, as a power failure before an event may leave them.

    `acknowledged` is how often the work had acknowledged something before.
    """

    event: int
    mode: str
    acknowledged: int
    folders: tuple[str, ...]
    files: dict[str, bytes]

    @property
    def digest(self) -> bytes:
        """A checksum of everything."""
        found = hashlib.blake2b(repr(self.folders).encode())
        for name in sorted(self.files):
            found.update(f"{name}\0{len(self.files[name])}\0".encode() + self.files[name])
        return found.digest()

    def write_to(self, root: Path) -> None:
        """Make the state a real folder."""
        root.mkdir()
        for name in self.folders:
            (root / name).mkdir()
        for name, content in self.files.items():
            (root / name).write_bytes(content)


class ForgetfulDisk:
    """The model of one folder, whose content at the beginning is durable.

    `events` are (operation, relative paths…). Before every event, and at `acknowledge`, `on_step`
    is called with the operation; a test takes states there, or dies.
    """

    def __init__(self, root: Path, on_step: Callable[[ForgetfulDisk, str], object]) -> None:
        self.root = Path(os.path.abspath(root))
        self.events: list[tuple[str, ...]] = []
        self.acknowledged = 0
        self._on_step = on_step
        self._pending: list[NameChange] = []
        self._nodes: dict[int, Node] = {}  # by the number of the real file
        self._device = os.stat(self.root).st_dev
        self._top = self._loaded(self.root)
        self._lock = threading.RLock()

    def _loaded(self, path: Path) -> Node:
        found = path.stat()
        if not path.is_dir():
            # Hard links of one file are one node.
            return self._nodes.setdefault(found.st_ino, FileNode(path.read_bytes()))
        node = FolderNode()
        node.names = {child.name: self._loaded(child) for child in path.iterdir()}
        node.durable = dict(node.names)
        self._nodes[found.st_ino] = node
        return node

    # -- events

    @contextlib.contextmanager
    def step(self, operation: str, *paths: str) -> Iterator[None]:
        """One change: states before it are taken, then the caller makes it, and the model follows.

        An error of the change leaves the model as it was.
        """
        with self._lock:
            self._on_step(self, operation)
            yield
            self.events.append((operation, *(os.path.relpath(path, self.root) for path in paths)))

    def acknowledge(self) -> None:
        """The work has promised something to its user: no state after this may lack it."""
        with self._lock:
            self.acknowledged += 1
            self._on_step(self, "acknowledge")

    def node_of(self, descriptor: int) -> Node | None:
        """The file or folder that a descriptor has open; None where it is not below the root."""
        found = os.fstat(descriptor)
        return self._nodes.get(found.st_ino) if found.st_dev == self._device else None

    def node_at(self, path: str) -> Node:
        """The file or folder of a path."""
        folder, name = self.place(path)
        return folder.names[name]

    def place(self, path: str) -> tuple[FolderNode, str]:
        """The folder of a path, and the name in it."""
        node = self._top
        *folders, name = os.path.relpath(path, self.root).split(os.sep)
        for part in folders:
            node = node.names[part]
        return node, name

    def add(self, path: str, node: Node) -> None:
        """A new name for a node."""
        folder, name = self.place(path)
        self._nodes[os.stat(path, follow_symlinks=False).st_ino] = node
        folder.names[name] = node
        self._pending.append(NameChange(folder, ((folder, name, node),)))

    def drop(self, path: str) -> None:
        """A name is removed."""
        folder, name = self.place(path)
        del folder.names[name]
        self._pending.append(NameChange(folder, ((folder, name, None),)))

    def move(self, source: str, target: str) -> None:
        """A name becomes another one, which may exist."""
        old, old_name = self.place(source)
        new, new_name = self.place(target)
        node = old.names.pop(old_name)
        new.names[new_name] = node
        changes = ((old, old_name, None), (new, new_name, node))
        self._pending.append(NameChange(new, changes))

    def exchange(self, one: str, other: str) -> None:
        """Two names are exchanged."""
        first, second = self.place(one), self.place(other)
        nodes = first[0].names[first[1]], second[0].names[second[1]]
        first[0].names[first[1]], second[0].names[second[1]] = nodes[1], nodes[0]
        changes = ((*first, nodes[1]), (*second, nodes[0]))
        self._pending.append(NameChange(second[0], changes))

    def sync(self, node: Node) -> None:
        """Make bytes or names durable."""
        if isinstance(node, FileNode):
            node.sync()
            return
        kept: list[NameChange] = []
        for group in self._groups():
            last = max((n for n, change in enumerate(group) if change.home is node), default=-1)
            for change in group[: last + 1]:
                _apply(change, lambda folder: folder.durable)
            kept += group[last + 1 :]
        self._pending = [change for change in self._pending if change in set(kept)]

    def _groups(self) -> list[list[NameChange]]:
        """Changes that have a name in common, in their order."""
        groups: list[list[NameChange]] = []
        for change in self._pending:
            slots = set(change.slots)
            touched = [g for g in groups if any(slots.intersection(c.slots) for c in g)]
            groups = [g for g in groups if not any(g is t for t in touched)]
            joined = {c for group in touched for c in group} | {change}
            groups.append([c for c in self._pending if c in joined])
        return groups

    # -- states

    def after_loss(self, mode: str, seed: str) -> DiskState:
        """Return a state that a power failure may leave now.

        `mode` is one of MODES: nothing of what is not durable, all names, all bytes, and so on.
        """
        chance = random.Random(seed)
        left: dict[int, dict[str, Node]] = {}

        def names_of(folder: FolderNode) -> dict[str, Node]:
            return left.setdefault(id(folder), dict(folder.durable))

        for group in self._groups():
            count = {"nothing": 0, "bytes": 0}.get(mode, len(group))
            if mode == "chance":
                count = chance.choice([0, len(group), chance.randrange(len(group) + 1)])
            for change in group[:count]:
                _apply(change, names_of)
        folders: list[str] = []
        files: dict[str, bytes] = {}

        def walk(folder: FolderNode, prefix: str) -> None:
            for name, node in sorted(names_of(folder).items()):
                if isinstance(node, FileNode):
                    files[prefix + name] = node.after_loss(mode, chance)
                else:
                    folders.append(prefix + name)
                    walk(node, f"{prefix}{name}/")

        walk(self._top, "")
        return DiskState(len(self.events), mode, self.acknowledged, tuple(folders), files)

    def check_equals_folder(self) -> None:
        """Raise AssertionError where something was changed that the double has not seen."""
        state = self.after_loss("all", "")
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("*")}
        assert found.keys() == {*state.folders, *state.files}
        for name, content in state.files.items():
            assert found[name].read_bytes() == content, name


def _apply(change: NameChange, names_of: Callable[[FolderNode], dict[str, Node]]) -> None:
    for folder, name, node in change.changes:
        if node is None:
            names_of(folder).pop(name, None)
        else:
            names_of(folder)[name] = node


@dataclass
class StateTaker:
    """Takes the different states before every step but writes: each mode once, some by chance.

    A write needs no states of its own: what is left of it by chance is seen at the next step.
    """

    by_chance: int
    seed: int
    states: list[DiskState] = field(default_factory=list)
    _known: set[tuple[bytes, int]] = field(default_factory=set)

    def __call__(self, disk: ForgetfulDisk, operation: str) -> None:
        """Take those that were not taken before."""
        if operation == "write":
            return
        modes = [*MODES[:-1], *MODES[-1:] * self.by_chance]
        for number, mode in enumerate(modes):
            state = disk.after_loss(mode, f"{self.seed}-{len(disk.events)}-{number}")
            if (key := (state.digest, state.acknowledged)) not in self._known:
                self._known.add(key)
                self.states.append(state)


def recorded_states(
    root: Path, work: Callable[[ForgetfulDisk], object], *, by_chance: int = 2, seed: int = 0
) -> tuple[list[DiskState], list[tuple[str, ...]]]:
    """Run `work`, which changes only the folder `root`; returns its states and its events.

    The end of the work is its last acknowledgement.
    """
    taker = StateTaker(by_chance, seed)
    disk = ForgetfulDisk(root, taker)
    with recording(disk):
        work(disk)
        disk.acknowledge()
    return taker.states, disk.events


def some_of(states: list[DiskState], count: int | None, seed: int) -> list[DiskState]:
    """All states, or so many: the first where all was acknowledged, then others by chance."""
    if count is None:
        return states
    last = [state for state in states if state.acknowledged == states[-1].acknowledged]
    chosen = last[: max(2, count // 4)]
    rest = [state for state in states if state.acknowledged < states[-1].acknowledged]
    return chosen + random.Random(seed).sample(rest, min(len(rest), count - len(chosen)))


# -- the calls of the system


class _RecordedFile(io.FileIO):
    """A new file whose writes are recorded."""

    def __init__(self, disk: ForgetfulDisk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk, self._path = disk, path

    def write(self, data: Any) -> int:
        """Write, and remember what was written."""
        content = bytes(memoryview(data).cast("B"))
        with self._disk.step("write", self._path):
            node, offset = self._disk.node_of(self.fileno()), self.tell()
            assert isinstance(node, FileNode)
            length = super().write(content)
            node.write(offset, content[:length])
        return length


@contextlib.contextmanager
def recording(disk: ForgetfulDisk) -> Iterator[None]:
    """Record all changes of the disk's folder by this process, one after the other."""
    hooks = _Hooks(disk)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link"):
            patch.setattr(os, name, hooks.of_names(name, getattr(os, name)))
        for name in ("fsync", "fdatasync", "pwrite", "ftruncate"):
            patch.setattr(os, name, hooks.of_descriptors(name, getattr(os, name)))
        exchange = hooks.of_names("exchange", local_storage.exchange_names)
        patch.setattr(local_storage, "exchange_names", exchange)
        patch.setattr(io, "open", hooks.opening(io.open))
        patch.setattr(ThreadPoolExecutor, "map", lambda _, work, items: map(work, items))
        yield
    disk.check_equals_folder()


class _Hooks:
    """Stand in for functions of `os`; outside the disk's folder they are as ever."""

    def __init__(self, disk: ForgetfulDisk) -> None:
        self._disk = disk
        self._prefix = f"{disk.root}{os.sep}"

    def _is_below(self, path: str) -> bool:
        return path.startswith(self._prefix)

    def of_names(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        """A function of one or two paths."""
        disk = self._disk
        follow = {
            "mkdir": lambda path: disk.add(path, FolderNode()),
            "rename": disk.move,
            "replace": disk.move,
            "exchange": disk.exchange,
            "link": lambda source, target: disk.add(target, disk.node_at(source)),
        }.get(name, disk.drop)
        operation = {"remove": "unlink", "replace": "rename"}.get(name, name)

        def hooked(*arguments: Any, dir_fd: int | None = None, **options: Any) -> None:
            count = 2 if name in ("rename", "replace", "link", "exchange") else 1
            paths = [_path(argument, dir_fd) for argument in arguments[:count]]
            if dir_fd is not None:
                options["dir_fd"] = dir_fd
            if not any(map(self._is_below, paths)):
                return call(*arguments, **options)
            with disk.step(operation, *paths):
                call(*arguments, **options)
                follow(*paths)
            return None

        return hooked

    def of_descriptors(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of an open file, or of a folder."""
        disk = self._disk
        operation = {"fdatasync": "fsync", "pwrite": "write", "ftruncate": "truncate"}

        def hooked(descriptor: int, *arguments: Any) -> Any:
            node, path = disk.node_of(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
            if node is None or not self._is_below(f"{path}{os.sep}"):
                return call(descriptor, *arguments)
            with disk.step(operation.get(name, name), path):
                result = call(descriptor, *arguments)
                if name in ("fsync", "fdatasync"):
                    disk.sync(node)
                else:
                    assert isinstance(node, FileNode)
                    if name == "pwrite":
                        node.write(arguments[1], bytes(arguments[0])[:result])
                    else:
                        node.cut(arguments[0])
            return result

        return hooked

    def opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function that opens files, of which those that are created are recorded."""
        disk = self._disk

        def hooked(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wxa+"):
                return call(file, mode, buffering, *rest, **more)
            path = _path(file)
            if not self._is_below(path):
                return call(file, mode, buffering, *rest, **more)
            assert set(mode) <= set("xwb") and "b" in mode, f"{path}: opened with {mode}"
            with disk.step("create", path):
                raw = _RecordedFile(disk, path, mode.replace("b", ""))
                disk.add(path, FileNode())
            return raw if buffering == 0 else io.BufferedWriter(raw)

        return hooked


def _path(given: Any, dir_fd: int | None = None) -> str:
    """A path as a call of the system means it."""
    folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
    return os.path.normpath(os.path.join(folder, os.fspath(given)))
