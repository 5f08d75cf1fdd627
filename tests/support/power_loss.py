"""A disk in memory that forgets what was not synced, when its power is lost.

It knows two images: what programs see, and what is on the platters. A write, a truncation and
a change of a directory are seen at once; on the platters they are after a sync of that file,
or of that directory. Without one they may be there whole, in part or not at all, and later ones
may be there without earlier ones of the same file, which leaves zeros. With a `sector_size` each sector
of a file is as it was, or as one of the changes of it left it, whatever became of the others; so for all
sectors together any mixture is possible, and a part of a change is not only its beginning.

A sync of the file system keeps the data of all files; of names it says nothing here, though real
ones keep these too. Where it fails each file with changes was written, or lost them, or has them in
memory still. An error is told once to each open file of what lost something, and once to each handle
on the file system, as Linux does: also where a sync of one file met it first.

An ext4 tells nobody of what its sync of everything loses, neither then nor when the file is synced
later: so real ones do where blocks cannot be allocated, and before Linux 6.13 once they have given
up. `OWN` is an xfs, which tells.

Changes of directories stay in order within each directory, and a rename from one into another
is there in both or in none, as journaling file systems have it. A sync of a file says nothing
of its name.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bottomless_server.node.core.file_systems import FileSystem

Before = Callable[[str, Path], None]
"""Called before each operation with its name and the path it goes to; what it raises happens
in its place."""
OWN: Final = FileSystem("xfs", is_own=True, kernel=(6, 1))
SHARED: Final = FileSystem("xfs", is_own=False, kernel=(6, 1))
SILENT: Final = FileSystem("ext4", is_own=True, kernel=(6, 18))


@dataclass(eq=False)
class _Errors:
    """Errors of a file or of a file system, and who was told of them."""

    count: int = 0
    told: int = 0
    """Up to which somebody was told: who comes later is told of the rest."""

    def tell(self, heard: int) -> bool:
        """Whether there is one that whoever heard of so many was not told of."""
        news = heard < self.count
        self.told = max(self.told, self.count)
        return news


@dataclass(eq=False)
class _File:
    path: Path
    data: bytearray = field(default_factory=bytearray)
    kept: bytearray = field(default_factory=bytearray)
    """On the platters."""
    pending: "list[tuple[int, bytes] | int]" = field(default_factory=list)
    """Writes at positions, and sizes that it was cut to, since the last sync."""
    errors: _Errors = field(default_factory=_Errors)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.kept, change)
        self.pending.clear()


@dataclass(eq=False)
class _Directory:
    path: Path
    names: "dict[str, _File | _Directory]" = field(default_factory=dict)
    kept: "dict[str, _File | _Directory]" = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Renaming:
    """One change of directories: names that go and names that come, all of them or none."""

    gone: tuple[_Directory, str] | None
    come: "tuple[_Directory, str, _File | _Directory] | None"

    @property
    def touched(self) -> list[_Directory]:
        return [side[0] for side in (self.gone, self.come) if side is not None]

    def keep(self) -> None:
        if self.gone is not None:
            self.gone[0].kept.pop(self.gone[1], None)
        if self.come is not None:
            self.come[0].kept[self.come[1]] = self.come[2]


class PowerLossDisk:
    """File calls as ingest makes them. `root` is there, and durable, from the beginning."""

    def __init__(
        self,
        root: Path,
        before: Before = lambda _, __: None,
        lies_on: FileSystem | None = SHARED,
        *,
        sector_size: int | None = None,
    ) -> None:
        self.before = before
        self.sector_size = sector_size
        self.lies_on = lies_on
        self.forgotten_count = 0
        """Unsynced changes that were lost in part or whole, over all power losses."""
        self._top = Path(root.anchor)
        self._root = _Directory(self._top)
        self._journal: list[_Renaming] = []
        self._open: dict[int, _File] = {}
        self._heard: dict[int, int] = {}
        """Errors that each open file or handle was told of."""
        self._handles: dict[int, Path] = {}
        self._errors = _Errors()
        self._chance = random.Random(1)
        self._next_fd = 1_000_000
        for path in (*reversed(root.parents), root):
            self.make_dir(path)
        for change in self._journal:
            change.keep()
        self._journal = []

    def open(self, path: Path, *, create: bool = False) -> int:
        self.before("create" if create else "open", path)
        directory = self._directory(path.parent)
        found = directory.names.get(path.name)
        if create:
            if found is not None:
                raise _error(errno.EEXIST, path)
            found = _File(path)
            self._change(_Renaming(None, (directory, path.name, found)))
        if found is None:
            raise _error(errno.ENOENT, path)
        if isinstance(found, _Directory):
            raise _error(errno.EISDIR, path)
        self._next_fd += 1
        self._open[self._next_fd] = found
        self._heard[self._next_fd] = found.errors.told
        return self._next_fd

    def open_dir(self, path: Path) -> int:
        self.before("open_dir", path)
        self._directory(path)
        self._next_fd += 1
        self._handles[self._next_fd] = path
        self._heard[self._next_fd] = self._errors.told
        return self._next_fd

    def close(self, fd: int) -> None:
        if self._handles.pop(fd, None) is None:
            self.file(fd)
            del self._open[fd]
        del self._heard[fd]

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        file = self.file(fd)
        self.before("pwritev", file.path)
        data = b"".join(parts)
        _apply(file.data, (position, data))
        file.pending.append((position, data))
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        file = self.file(fd)
        self.before("pread", file.path)
        return bytes(file.data[position : position + size])

    def fdatasync(self, fd: int) -> None:
        file = self.file(fd)
        try:
            self.before("fdatasync", file.path)
        except OSError:
            self._lose(file)
            file.errors.tell(0)
            self._heard[fd] = file.errors.count
            raise
        file.sync()
        if file.errors.tell(self._heard[fd]):
            self._heard[fd] = file.errors.count
            raise _error(errno.EIO, file.path)

    def syncfs(self, fd: int) -> None:
        if fd not in self._handles:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            self.before("syncfs", self._handles[fd])
        except OSError:
            tells = self.lies_on is None or self.lies_on.kind != "ext4"
            for file in self.changed_files():
                fate = self._chance.randrange(3)
                if fate == 0:
                    self._lose(file, told=tells)
                elif fate == 1:
                    file.sync()
            if not tells:
                return
            self._heard[fd] = self._errors.count
            self._errors.tell(0)
            raise
        for file in self.changed_files():
            file.sync()
        if self._errors.tell(self._heard[fd]):
            self._heard[fd] = self._errors.count
            raise _error(errno.EIO, self._handles[fd])

    def file_system(self, _: Path) -> FileSystem | None:
        return self.lies_on

    @property
    def open_count(self) -> int:
        """Files and handles that are open."""
        return len(self._heard)

    def lose_writes(self, path: Path) -> None:
        """The system tries to write what a file has in memory, on its own account, and fails."""
        found = self._find(path)
        assert isinstance(found, _File)
        self._lose(found)

    def _lose(self, file: _File, *, told: bool = True) -> None:
        # Its pages count as clean from now on, whatever of them was written.
        file.pending.clear()
        file.errors.count += told
        self._errors.count += told

    def changed_files(self) -> list[_File]:
        """Files with changes that are not on the platters, also such as have no name any more."""
        found = {id(file): file for file in self._open.values()}
        folders: list[_Directory] = [self._root]
        for folder in folders:
            for node in (*folder.names.values(), *folder.kept.values()):
                if isinstance(node, _File):
                    found[id(node)] = node
                elif node not in folders:
                    folders.append(node)
        return [file for file in found.values() if file.pending]

    def fsync_dir(self, path: Path) -> None:
        directory = self._directory(path)
        self.before("fsync_dir", path)
        left = []
        for change in self._journal:
            if directory in change.touched:
                change.keep()
            else:
                left.append(change)
        self._journal = left

    def truncate(self, fd: int, size: int) -> None:
        file = self.file(fd)
        self.before("truncate", file.path)
        _apply(file.data, size)
        file.pending.append(size)

    def rename(self, old: Path, new: Path) -> None:
        self.before("rename", new)
        source, target = self._directory(old.parent), self._directory(new.parent)
        found = source.names.get(old.name)
        if found is None:
            raise _error(errno.ENOENT, old)
        if isinstance(target.names.get(new.name), _Directory):
            raise _error(errno.ENOTEMPTY, new)
        self._change(_Renaming((source, old.name), (target, new.name, found)))
        found.path = new

    def unlink(self, path: Path) -> None:
        self.before("unlink", path)
        directory = self._directory(path.parent)
        if not isinstance(directory.names.get(path.name), _File):
            raise _error(errno.ENOENT, path)
        self._change(_Renaming((directory, path.name), None))

    def size(self, fd: int) -> int:
        return len(self.file(fd).data)

    def make_dir(self, path: Path) -> None:
        if self._find(path) is None:
            self.before("make_dir", path)
            parent = self._directory(path.parent)
            self._change(_Renaming(None, (parent, path.name, _Directory(path))))

    def remove_dir(self, path: Path) -> None:
        self.before("remove_dir", path)
        if self._directory(path).names:
            raise _error(errno.ENOTEMPTY, path)
        self._change(_Renaming((self._directory(path.parent), path.name), None))

    def names(self, path: Path) -> list[str]:
        found = self._find(path)
        return list(found.names) if isinstance(found, _Directory) else []

    def on_platters(self, path: Path) -> dict[str, bytes]:
        """The files of a directory as they are after a loss of power that leaves nothing unsynced."""
        node: _File | _Directory | None = self._root
        for part in path.relative_to(self._root.path).parts:
            node = node.kept.get(part) if isinstance(node, _Directory) else None
        if not isinstance(node, _Directory):
            return {}
        return {name: bytes(one.kept) for name, one in node.kept.items() if isinstance(one, _File)}

    def end_processes(self) -> None:
        """Whoever had files open is gone; what they wrote is still seen."""
        self._close_all()

    def lose_power(self, chance: random.Random) -> None:
        """Only what is on the platters is left, and of the rest what chance brought there."""
        self._close_all()
        blocked: list[_Directory] = []
        for change in self._journal:
            held = any(directory in blocked for directory in change.touched)
            if held or chance.random() < 0.5:
                blocked += change.touched
                self.forgotten_count += 1
            else:
                change.keep()
        self._journal = []
        self._forget(self._root, chance, set())

    def lose_all(self) -> None:
        """Another disk, on which nothing is, lies in the place of this one."""
        self._close_all()
        self._journal = []
        self._root.names.clear()
        self._root.kept.clear()

    def _close_all(self) -> None:
        self._open.clear()
        self._handles.clear()
        self._heard.clear()

    def _forget(self, directory: _Directory, chance: random.Random, seen: set[int]) -> None:
        directory.names = dict(directory.kept)
        for name, node in directory.names.items():
            node.path = directory.path / name
            if isinstance(node, _Directory):
                self._forget(node, chance, seen)
            elif id(node) not in seen:
                seen.add(id(node))
                self._settle(node, chance)

    def _settle(self, file: _File, chance: random.Random) -> None:
        """Let each unsynced change reach the platters whole, in part, or not at all."""
        if self.sector_size is not None and file.pending:
            self._settle_sectors(file, chance, self.sector_size)
        for change in file.pending:
            fate = chance.randrange(3)
            if fate == 0:
                _apply(file.kept, change)
            elif fate == 1 and not isinstance(change, int):
                position, data = change
                _apply(file.kept, (position, data[: chance.randint(0, len(data))]))
                self.forgotten_count += 1
            else:
                self.forgotten_count += 1
        file.pending.clear()
        file.data = bytearray(file.kept)
        # Who would tell of them forgot them with everything else.
        file.errors.tell(0)
        self._errors.tell(0)

    def _settle_sectors(self, file: _File, chance: random.Random, size: int) -> None:
        """Let each sector be what it was, or what any of the changes made of it, and the size too.

        A cut is there with those before it, or it is not: it leaves no zeros by itself, and what it took
        away does not come back.
        """
        cut_count = chance.randint(0, sum(isinstance(one, int) for one in file.pending))
        versions, last_cut = [bytes(file.kept)], 0
        for change in file.pending:
            if isinstance(change, int):
                if not cut_count:
                    continue
                cut_count -= 1
                last_cut = len(versions)
                versions = [version[:change] for version in versions]
            image = bytearray(versions[-1])
            _apply(image, change)
            versions.append(bytes(image))
        end = chance.choice(sorted({len(version) for version in versions[last_cut:]}))
        kept = bytearray()
        for start in range(0, end, size):
            stop = min(start + size, end)
            sectors = {version[start:stop].ljust(stop - start, b"\0") for version in versions}
            kept += chance.choice(sorted(sectors))
        self.forgotten_count += kept != versions[-1]
        file.kept[:] = kept
        file.pending.clear()

    def _change(self, change: _Renaming) -> None:
        if change.gone is not None:
            del change.gone[0].names[change.gone[1]]
        if change.come is not None:
            change.come[0].names[change.come[1]] = change.come[2]
        self._journal.append(change)

    def _find(self, path: Path) -> _File | _Directory | None:
        node: _File | _Directory | None = self._root
        for name in path.relative_to(self._top).parts:
            node = node.names.get(name) if isinstance(node, _Directory) else None
        return node

    def _directory(self, path: Path) -> _Directory:
        found = self._find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOTDIR, path)
        return found

    def file(self, fd: int) -> _File:
        if fd not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[fd]


def _apply(image: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del image[change:]
        image.extend(bytes(change - len(image)))
        return
    position, data = change
    image.extend(bytes(max(position - len(image), 0)))
    image[position : position + len(data)] = data


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
