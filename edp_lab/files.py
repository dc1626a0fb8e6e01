"""Files and folders that appear whole or not at all, readers that say plainly when one is damaged, and where what
comes with edp_lab is: the folders data and notebooks."""

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

CARRIED = Path(edp_lab.__file__).resolve().parent / "_carried"  # only in a wheel
PARTIAL = ".partial-"  # begins the names of files and folders that are being written


def comes_with(folder: str) -> Path:
    """The folder "data" or "notebooks": inside the package if it came as a wheel, else beside it, in a checkout."""
    return (CARRIED if CARRIED.is_dir() else CARRIED.parents[1]) / folder


def user_cache() -> Path:
    """``edp_lab`` in the user's cache folder ($XDG_CACHE_HOME, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edp_lab"


def write_whole(
    path: Path, content: bytes, hint: str = "make room there, or give another path", mode: int = 0o666
) -> None:
    """Write a file so that `path` holds its old or its new content, never a part, however the process ends.

    Meanwhile the content grows in a new file beside it, whose name begins with `PARTIAL`: neither another process that
    writes the same nor anything that lies there gets in the way.

    Args:
        path: of a folder that is made if need be.
        mode: the permissions, less those that the umask takes.

    Raises:
        UsageError: it cannot be written, where the sentence ends in `hint`, or is no file.
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
                partial.unlink()  # a full disk should not stay full
            raise


def writable(folder: Path, hint: str) -> Path:
    """The folder itself, which need not exist: whatever writes an output makes it, but not before there is something.

    Raises:
        UsageError: nothing can be written there; ends in `hint`.
    """
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    with writing(there if there.is_file() else folder, hint), tempfile.TemporaryFile(dir=there):
        with suppress(FileNotFoundError):
            folder.lstat()  # a name that is too long
        return folder


def check_new(folder: Path) -> None:
    """UsageError if the folder exists and is not empty, or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already: choose another output folder, or remove it")
    writable(folder, "choose another output folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` where the block ends well, and disappears where it does not.

    Raises:
        UsageError: at once, see `check_new`; later, if the disk is full.
    """
    check_new(folder)
    with writing(folder, "make room there, or choose another output folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=PARTIAL) as scratch:
            inside = Path(scratch, folder.name)
            inside.mkdir()
            yield inside
            if folder.exists():
                folder.rmdir()
            os.replace(inside, folder)


def given_path(path: str | Path) -> Path:
    """A path that somebody gave, where ~ is their home; UsageError if it is of a user who is not known here."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path} names the home of a user unknown on this machine: give the full path") from None


def regular(path: Path) -> Path:
    """The path itself; UsageError if it is a pipe or a device, which might never end, or a folder."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'a pipe or a device'}: give a file")
    return path


def read_bytes(path: Path, most: float = math.inf) -> bytes:
    """The content of a file, unpacked where its name ends in ``.gz``; UsageError if unreadable or over `most` bytes."""
    try:
        content = path.read_bytes() if (size := regular(path).stat().st_size) <= most else b""
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): {hint_of(error)}"
        ) from error
    if (size := max(size, len(content))) > most:
        raise UsageError(f"{path} has {size:,} bytes, and at most {most:,} are read: give a sample of its lines")
    return content


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Names and values; UsageError if a name is there twice."""
    check_once([name for name, _ in pairs])
    return dict(pairs)


def read_json(path: Path) -> Any:
    """A JSON file; UsageError if it cannot be read, is no JSON, or gives a name twice."""
    content = read_bytes(path)
    try:
        return json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        raise UsageError(f"{path} is damaged: it is not JSON ({error})") from error


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file: a JSON header and raw numbers, so that nothing in it runs.

    Raises:
        UsageError: the bytes are not a whole safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged: it is not a whole safetensors file ({error})") from error


def sealed(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """With a checksum of it all under `key`."""
    return {**content, key: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def unsealed(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """Without the checksum that `sealed` put there; ValueError if there is none, or it differs."""
    if not isinstance(content, Mapping):
        raise ValueError("it holds no fields")
    content_alone = {name: value for name, value in content.items() if name != key}
    if sealed(content_alone, key) != content:
        raise ValueError("its checksum differs")
    return content_alone
