"""Safe file operations: atomic JSON, reserved room before writes, and paths that stay inside their folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from unienv_interface.utils.words import did_you_mean

from .storage import StorageCorruptedError, UnsupportedFormatError

# UniEnv writes no larger or deeper metadata; reading such a file could exhaust memory or the stack.
MAX_JSON_BYTES = 16 * 2**20
MAX_JSON_DEPTH = 64

# The checksum at the end of a file covers all other bytes, so every change is detected.
_CHECKSUM = re.compile(rb'"checksum": "([0-9a-f]{8})"\n\}\n\Z')
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp\Z")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

PathLike = str | os.PathLike[str]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with a checksum, atomically: readers find the old or the new file, complete."""
    text = json.dumps({**content, "checksum": "00000000"}, indent=1).encode() + b"\n"
    start = text.rindex(b"00000000")
    with replacing(path) as file:
        file.write(text[:start] + b"%08x" % zlib.crc32(text) + text[start + 8 :])


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that atomically replaces `path` at the end of the block.

    With `durable`, the new file survives a power cut. A full disk is an OSError with the path, and the bytes needed and
    free.
    """
    temporary, nbytes = path.with_name(f".{path.name}.{os.getpid()}.tmp"), 0
    try:
        with open(temporary, "wb") as file:
            try:
                yield file
            finally:
                nbytes = file.tell()
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise no_room(error, nbytes, path) from None
        raise
    if durable:
        sync_folder(path.parent)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder."""
    for path in folder.iterdir():
        if is_temporary(path):
            path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a path is a temporary file of `replacing`."""
    return _TEMPORARY.match(path.name) is not None


def read_json(path: PathLike, *, checksum: bool) -> dict[str, Any]:
    """Read a JSON object; a StorageCorruptedError names the file and its fault.

    A checksum in the file is always compared. With `checksum=False` the file may have none, as files of the reference
    implementation.
    """
    fd, size = open_sized(path)
    try:
        if size > MAX_JSON_BYTES:
            raise StorageCorruptedError(f"{path}: {size} bytes, metadata has at most {MAX_JSON_BYTES}")
        text = os.pread(fd, size, 0)
    finally:
        os.close(fd)
    checksum_match = _CHECKSUM.search(text)
    if checksum_match is not None:
        start, stop = checksum_match.span(1)
        if b"%08x" % zlib.crc32(text[:start] + b"00000000" + text[stop:]) != checksum_match[1]:
            raise StorageCorruptedError(f"{path}: the checksum does not match, the file was changed or damaged")
    try:
        _check_depth(text, path)
        content = json.loads(text)
    except StorageCorruptedError:
        raise
    except ValueError as error:
        raise StorageCorruptedError(f"{path}: not JSON, {error}") from error
    if not isinstance(content, dict):
        raise StorageCorruptedError(f"{path}: {type(content).__name__}, wanted an object")
    if checksum_match is None and (checksum or "checksum" in content or "format_version" in content):
        raise StorageCorruptedError(f"{path}: the checksum at its end is missing, the file was changed or damaged")
    content.pop("checksum", None)
    return content


def ends_with_checksum(path: PathLike) -> bool:
    """Whether a file ends with a checksum of `write_json`, without comparing it."""
    fd, size = open_sized(path)
    try:
        return _CHECKSUM.search(os.pread(fd, 32, max(0, size - 32))) is not None
    finally:
        os.close(fd)


def json_field(
    content: dict[str, Any], name: str, kind: type, path: PathLike, *, least: int = 0, **default: Any
) -> Any:
    """Return a field of exactly this type, and at least `least` if a number; a StorageCorruptedError otherwise.

    A missing field, or null, gives the `default` if passed.
    """
    value: Any = content.get(name)
    if value is None and default:
        return default["default"]
    value_type: type = type(value)  # no subclass: True is no number
    if value_type is not kind:
        raise StorageCorruptedError(f"{path}: field {name!r} is {value!r:.100}, wanted {kind.__name__}")
    if kind is int and not least <= value < 2**62:
        raise StorageCorruptedError(f"{path}: field {name!r} is {value!r:.100}, wanted a number from {least}")
    return value


def format_version(content: dict[str, Any], path: PathLike, newest: int, **default: Any) -> int:
    """Return the format version of a file; an UnsupportedFormatError if it is newer than this release."""
    version: int = json_field(content, "format_version", int, path, **default)
    if version > newest:
        raise UnsupportedFormatError(f"{path}: format version {version}, this release reads up to {newest}")
    return version


def _check_depth(text: bytes, path: PathLike) -> None:
    depth = 0
    for char in text.translate(None, delete=_ALL_BUT_BRACKETS):
        depth += 1 if char in b"[{" else -1
        if depth > MAX_JSON_DEPTH:
            raise StorageCorruptedError(f"{path}: nested deeper than {MAX_JSON_DEPTH} levels")


_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def remove_leftovers(target: Path) -> None:
    """Remove temporary folders of `replace_folder` that belong to dead processes or to this one."""
    name = re.compile(re.escape(f".{target.name}.") + r"([0-9]+)(?:\.old)?\.tmp\Z")
    for path in target.parent.iterdir():
        leftover = name.match(path.name)
        if leftover is not None and (int(leftover[1]) == os.getpid() or not _is_alive(int(leftover[1]))):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


def replace_folder(new: Path, target: Path) -> None:
    """Move a folder to a path and atomically replace the folder at this path.

    On a system that cannot exchange two folders, the path is missing for an instant, with the old folder beside it.
    """
    if target.exists():
        if not _exchange(new, target):
            old = target.with_name(f".{target.name}.{os.getpid()}.old.tmp")
            os.rename(target, old)
            os.rename(new, target)
            new = old
        sync_folder(target.parent)
        shutil.rmtree(new)
    else:
        os.rename(new, target)
        sync_folder(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; return False if the system cannot."""
    import ctypes  # slow to import, and seldom needed

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    at_folder, exchange = -100, 2
    return rename(at_folder, os.fsencode(first), at_folder, os.fsencode(second), exchange) == 0


def open_regular(path: PathLike, *, writable: bool, create: bool = False) -> int:
    """Open a file of a stored buffer and return its descriptor; a StorageCorruptedError unless it is a plain file.

    A symbolic or hard link may lead to a file outside the folder, and opening a pipe would block for ever. With
    `create`, a missing file is created.
    """
    return _open_regular(path, (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0))[0]


def open_sized(path: PathLike) -> tuple[int, int]:
    """Open a file for reading as `open_regular` does; return its descriptor and its size in bytes."""
    fd, status = _open_regular(path, os.O_RDONLY)
    return fd, status.st_size


def _open_regular(path: PathLike, access: int) -> tuple[int, os.stat_result]:
    try:
        fd = os.open(path, access | _SAFELY, 0o600)
    except FileNotFoundError:
        raise StorageCorruptedError(f"{path}: the file is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise StorageCorruptedError(f"{path}: not a plain file") from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise StorageCorruptedError(f"{path}: not a plain file")
    if status.st_nlink > 1:
        os.close(fd)
        raise StorageCorruptedError(
            f"{path}: the file has another name elsewhere (a hard link), so it may belong to another buffer; "
            f"copy the folder without hard links, and open the copy"
        )
    return fd, status


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def local_path(path: PathLike) -> Path:
    """Convert a path on this machine; a ValueError for a URL, which would otherwise name a local folder."""
    text = os.fspath(path)
    scheme = re.match(r"([a-z][a-z0-9+.-]+):/", text, re.IGNORECASE)
    if scheme is not None and scheme[1].lower() == "file":
        raise ValueError(f"{text!r} is a URL: give the path, {re.sub('/+', '/', text[5:])!r}")
    if scheme is not None:
        raise ValueError(
            f"{text!r} is a URL, and buffers lie in local folders: copy the folder here first, with the tools of "
            f"{scheme[1]}:// or a mounted file system, and give the path of the copy"
        )
    return Path(text)


@contextlib.contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """Create a folder, or take an empty one, and restore its former state if the block fails.

    A new folder and its parents survive a power cut. A FileExistsError if the folder is not empty.
    """
    folder = Path(path)
    missing = [parent for parent in folder.parents if not parent.exists()]
    was_there = folder.is_dir() and not any(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=was_there)
    except FileExistsError as error:
        raise FileExistsError(error.errno, "it exists already: give another path", str(folder)) from None
    try:
        for created in [folder, *missing]:
            sync_folder(created.parent)
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                remove(entry)
            if not was_there:
                folder.rmdir()
        raise


def did_you_mean_path(path: Path) -> str:
    """Suggest for an error message the name nearest to a missing path in its folder; empty if none is near."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(path.name, names)


def remove(path: Path) -> None:
    """Remove a file or a folder; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_in_place(fd: int, path: Path) -> None:
    """Raise an OSError if an open file was deleted or replaced: writes to it would be lost."""
    opened, event = os.fstat(fd), "replaced"
    try:
        named = os.stat(path)
    except OSError:
        if opened.st_nlink:
            return  # the folder was renamed, and still contains the file
        event = "deleted"
    else:
        if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
            return
    raise OSError(errno.ENOENT, f"the file was {event} while it was being written; the new data is lost", path)


def reserve(fd: int, start: int, stop: int, path: Path | None) -> None:
    """Reserve the bytes [start, stop) of a file: a full disk is an OSError here, not a SIGBUS on writing."""
    if stop <= start:
        return
    try:
        os.posix_fallocate(fd, start, stop - start)
    except OSError as error:
        raise no_room(error, stop - start, path) from None


def resize(fd: int, nbytes: int, path: Path | None) -> None:
    """Set the size of a file; new bytes are a hole of zeros."""
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        raise no_room(error, nbytes, path) from None


def no_room(error: OSError, nbytes: int, path: Path | None) -> OSError:
    """Make the same error with the path, and the bytes needed and free."""
    free = f", {shutil.disk_usage(path.parent).free} are free" if path is not None and path.parent.exists() else ""
    text = f"{error.strerror}: {nbytes} bytes are needed{free}"
    return OSError(error.errno, text, None if path is None else str(path))


def check_disk(folder: Path, nbytes: int) -> None:
    """Raise an OSError unless `nbytes` are free on the disk of the folder, which need not exist yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if nbytes > free:
        reason = os.strerror(errno.ENOSPC)
        raise OSError(errno.ENOSPC, f"{reason}: {nbytes} bytes are needed, {free} are free", str(folder))


def check_memory(nbytes: int, what: str) -> None:
    """Raise a MemoryError unless this machine has `nbytes` of memory available; `what` names their use."""
    available = _available_memory()
    if available is not None and nbytes > available:
        raise MemoryError(f"{what}: {nbytes} bytes are needed, {available} are available")


def _available_memory() -> int | None:
    """Return the bytes of available memory; None if the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def contained(folder: Path, relative: Any) -> Path:
    """Resolve a path from metadata; a StorageCorruptedError unless it stays inside the folder."""
    if not isinstance(relative, str) or not 0 < len(relative) <= 255 or "\0" in relative or "\\" in relative:
        raise StorageCorruptedError(f"{folder}: {relative!r} is not the name of a file in the folder")
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
    except (RuntimeError, UnicodeEncodeError) as error:  # circular links, and characters that no file name can have
        raise StorageCorruptedError(f"{folder}: {relative!r} is not the name of a file in the folder") from error
    if Path(relative).is_absolute() or root not in path.parents:
        raise StorageCorruptedError(f"{folder}: {relative!r} leads out of the folder")
    return path
