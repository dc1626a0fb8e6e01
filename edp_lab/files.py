"""Write files and folders atomically, read files with clear errors if they are damaged, and locate the folders "data"
and "notebooks"."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edp_lab
from edp_lab.errors import UsageError, check_once, hint_of, writing

if TYPE_CHECKING:
    from torch import Tensor

CARRIED = Path(edp_lab.__file__).resolve().parent / "_carried"  # exists only in a wheel
PARTIAL = ".partial-"  # prefix of files and folders that are being written


def comes_with(folder: str) -> Path:
    """Path of the folder "data" or "notebooks": inside the package in a wheel, next to the package in a checkout."""
    return (CARRIED if CARRIED.is_dir() else CARRIED.parents[1]) / folder


def user_cache() -> Path:
    """The folder ``edp_lab`` in the user's cache ($XDG_CACHE_HOME, otherwise ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edp_lab"


def write_whole(
    path: Path, content: bytes, hint: str = "free some space, or give another path", mode: int = 0o666
) -> None:
    """Write a file atomically: `path` has its complete old or new content, however the process ends.

    The content is first written to a new file in the same folder. The file's name begins with `PARTIAL` and is unique,
    which avoids conflicts with other processes and existing files.

    Args:
        path: the file; its folder is created if needed.
        mode: permissions, before the umask is applied.

    Raises:
        UsageError: the file cannot be written (the message ends in `hint`), or `path` is not a file.
    """
    with writing(path, hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = regular(path).with_name(f"{PARTIAL}{path.name[:40]}-{secrets.token_hex(8)}")
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()  # frees space on a full disk
            raise


def writable(folder: Path, hint: str) -> Path:
    """Return the folder if it is writable or can be created; it is created only when something is written to it.

    Raises:
        UsageError: the folder is not writable; the message ends in `hint`.
    """
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    with writing(there if there.is_file() else folder, hint), tempfile.TemporaryFile(dir=there):
        with suppress(FileNotFoundError):
            folder.lstat()  # fails if a name is too long
        return folder


def check_new(folder: Path) -> None:
    """Raise UsageError if the folder exists and is not empty, or cannot be created."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already: choose another output folder, or remove it")
    writable(folder, "choose another output folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Context manager for a scratch folder that becomes `folder` if the block succeeds, and is removed if it fails.

    Raises:
        UsageError: at the start, as for `check_new`; later, if the disk is full.
    """
    check_new(folder)
    with writing(folder, "free some space, or choose another output folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=PARTIAL) as scratch:
            inside = Path(scratch, folder.name)
            inside.mkdir()
            yield inside
            if folder.exists():
                folder.rmdir()
            os.replace(inside, folder)


def given_path(path: str | Path) -> Path:
    """Expand ~ in a path given by the user; UsageError if it names the home of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path} names the home of a user unknown on this machine: give the full path") from None


def regular(path: Path) -> Path:
    """Return the path; UsageError if it is a folder, a pipe or a device (reading from those might never end)."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'a pipe or a device'}: give a file")
    return path


def read_bytes(path: Path, most: float = math.inf) -> bytes:
    """Read a file, decompressed if it is a ``.gz``; UsageError if it cannot be read or has over `most` bytes."""
    try:
        with gzip.open(regular(path)) if path.suffix == ".gz" else regular(path).open("rb") as file:
            content = file.read(-1 if most == math.inf else int(most) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): {hint_of(error)}"
        ) from error
    if len(content) > most:
        raise UsageError(f"{path} has more than {most:,} bytes, which is the limit: give a sample of its lines")
    return content


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Convert pairs of names and values to a dict; UsageError if a name occurs twice."""
    check_once([name for name, _ in pairs])
    return dict(pairs)


def read_json(path: Path) -> Any:
    """Read a JSON file; UsageError if it cannot be read, is not JSON, or contains a duplicate name."""
    content = read_bytes(path)
    try:
        return json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # also raised for a number with thousands of digits
        raise UsageError(f"{path} is damaged: it is not JSON ({error})") from error


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Parse a safetensors file: a JSON header and raw numbers, which contain no code that could be executed.

    Raises:
        UsageError: the bytes are not a complete safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged: it is not a complete safetensors file ({error})") from error


def sealed(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """A copy of `content` with its checksum under `key`."""
    return {**content, key: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def unsealed(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """A copy without the checksum added by `sealed`; ValueError if it is missing or does not match."""
    if not isinstance(content, Mapping):
        raise ValueError("it is not a JSON object")
    content_alone = {name: value for name, value in content.items() if name != key}
    if sealed(content_alone, key) != content:
        raise ValueError("its checksum differs")
    return content_alone
