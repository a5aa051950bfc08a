"""Safe file operations: atomic JSON, room reserved before it is written, and paths that stay inside their folder."""

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

# Larger or deeper metadata was not written by us; reading it could exhaust memory or the stack.
MAX_JSON_BYTES = 16 * 2**20
MAX_JSON_DEPTH = 64

# The checksum stands at the very end and covers all other bytes, so every change is detected.
_CHECKSUM = re.compile(rb'"checksum": "([0-9a-f]{8})"\n\}\n\Z')
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp\Z")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

PathLike = str | os.PathLike[str]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with a checksum so that at any instant the old or the new file is there, whole."""
    text = json.dumps({**content, "checksum": "00000000"}, indent=1).encode() + b"\n"
    at = text.rindex(b"00000000")
    with replacing(path) as file:
        file.write(text[:at] + b"%08x" % zlib.crc32(text) + text[at + 8 :])


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end; at any instant the old or the new one is there, whole.

    With `durable`, also after a power cut. A full disk is an OSError with the path and both figures.
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
    """Remove what a killed `replacing` has left in a folder."""
    for path in folder.iterdir():
        if is_temporary(path):
            path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a path is the temporary file of a `replacing` that is running or was killed."""
    return _TEMPORARY.match(path.name) is not None


def read_json(path: PathLike, *, checksum: bool) -> dict[str, Any]:
    """Read a JSON object; a StorageCorruptedError names the file and what is wrong with it.

    The checksum is compared where there is one. Without `checksum` there need not be: files of the reference
    implementation have none.
    """
    fd, size = open_sized(path)
    try:
        if size > MAX_JSON_BYTES:
            raise StorageCorruptedError(
                f"{path}: more than {MAX_JSON_BYTES} bytes, which is the most that metadata has"
            )
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
    """Whether a file ends as `write_json` leaves it, with a checksum, which is not compared."""
    fd, size = open_sized(path)
    try:
        return _CHECKSUM.search(os.pread(fd, 32, max(0, size - 32))) is not None
    finally:
        os.close(fd)


def json_field(
    content: dict[str, Any], name: str, kind: type, path: PathLike, *, least: int = 0, **default: Any
) -> Any:
    """A field of exactly this type, and at least `least` if it is a number; a StorageCorruptedError otherwise.

    The default, where one is given, if the field is missing or null.
    """
    value: Any = content.get(name)
    if value is None and default:
        return default["default"]
    value_type: type = type(value)  # and no subtype: True is no number here
    if value_type is not kind:
        raise StorageCorruptedError(f"{path}: field {name!r} is {value!r:.100}, wanted {kind.__name__}")
    if kind is int and not least <= value < 2**62:
        raise StorageCorruptedError(f"{path}: field {name!r} is {value!r:.100}, wanted a number from {least}")
    return value


def format_version(content: dict[str, Any], path: PathLike, newest: int, **default: Any) -> int:
    """The format version of a file; an UnsupportedFormatError if this release does not know it yet."""
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
    """Remove temporary folders that dead processes, or this one, have left while replacing a folder."""
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
        pass  # it is there, but not ours
    return True


def replace_folder(new: Path, target: Path) -> None:
    """Move a folder to a path, and replace the folder there; at any instant one of them is there, whole.

    Where the system cannot exchange two folders at once, there is none for an instant, and the old one lies beside it.
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


def _exchange(one: Path, other: Path) -> bool:
    import ctypes  # slow to import, and seldom needed

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    at_folder, exchange = -100, 2
    return rename(at_folder, os.fsencode(one), at_folder, os.fsencode(other), exchange) == 0


def open_regular(path: PathLike, *, writable: bool, create: bool = False) -> int:
    """The descriptor of a file that belongs to a stored buffer; a StorageCorruptedError unless it is a plain file.

    A link, symbolic or hard, may lead to a file outside the folder, and opening a pipe would block for ever. With
    `create` a file that is missing is made.
    """
    return _open_regular(path, (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0))[0]


def open_sized(path: PathLike) -> tuple[int, int]:
    """`open_regular` to read, with the size of the file in bytes."""
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
            f"{path}: the file has another name elsewhere (a hard link), so it may not be the buffer's own; "
            f"make a copy of the folder in which every file is one of its own"
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
    """A path on this machine; a ValueError for a URL, which would otherwise be the name of a local folder."""
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
    """Make a folder to be filled, or take an empty one; if filling it fails, it is as it was before.

    A new one survives a power cut, with its parents. A FileExistsError if there is anything in it.
    """
    folder = Path(path)
    missing = [parent for parent in folder.parents if not parent.exists()]
    was_there = folder.is_dir() and not any(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=was_there)
    except FileExistsError as error:
        raise FileExistsError(error.errno, "it is there already: give another path", str(folder)) from None
    try:
        for made in [folder, *missing]:
            sync_folder(made.parent)
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for part in folder.iterdir():
                remove(part)
            if not was_there:
                folder.rmdir()
        raise


def did_you_mean_path(path: Path) -> str:
    """The end of an error message about a missing path: the name beside it that is nearest; empty if none is near."""
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
    """Raise an OSError if an open file was deleted or replaced: what is written to it would be lost."""
    own, what = os.fstat(fd), "replaced"
    try:
        there = os.stat(path)
    except OSError:
        if own.st_nlink:
            return  # the folder has another name by now, and the file is in it
        what = "deleted"
    else:
        if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
            return
    raise OSError(errno.ENOENT, f"the file was {what} while it was being written; what was written to it is lost", path)


def reserve(fd: int, start: int, stop: int, path: Path | None) -> None:
    """Make sure that the bytes [start, stop) of a file can be written: a full disk is an OSError now, not a SIGBUS."""
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
    """The same error with the path and both figures."""
    free = f", {shutil.disk_usage(path.parent).free} are free" if path is not None and path.parent.exists() else ""
    what = f"{error.strerror}: {nbytes} bytes are needed{free}"
    return OSError(error.errno, what, None if path is None else str(path))


def check_disk(folder: Path, nbytes: int) -> None:
    """Raise an OSError with both figures unless `nbytes` are free on the disk of the folder."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if nbytes > free:
        why = os.strerror(errno.ENOSPC)
        raise OSError(errno.ENOSPC, f"{why}: {nbytes} bytes are needed, {free} are free", str(folder))


def check_memory(nbytes: int, what: str) -> None:
    """Raise a MemoryError with both figures unless this machine has `nbytes` of memory available."""
    available = _available_memory()
    if available is not None and nbytes > available:
        raise MemoryError(f"{what}: {nbytes} bytes are needed, {available} are available")


def _available_memory() -> int | None:
    """The bytes of available memory; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def contained(folder: Path, relative: Any) -> Path:
    """A path that metadata gives, if it stays inside its folder; a StorageCorruptedError otherwise."""
    if not isinstance(relative, str) or not 0 < len(relative) <= 255 or "\0" in relative or "\\" in relative:
        raise StorageCorruptedError(f"{folder}: {relative!r} is not the name of a file in the folder")
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
    except (RuntimeError, UnicodeEncodeError) as error:  # links in a circle, and characters that no name has
        raise StorageCorruptedError(f"{folder}: {relative!r} is not the name of a file in the folder") from error
    if Path(relative).is_absolute() or root not in path.parents:
        raise StorageCorruptedError(f"{folder}: {relative!r} leads out of the folder")
    return path
