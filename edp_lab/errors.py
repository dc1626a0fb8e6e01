"""Error messages for bad input and machine faults. Each is one sentence that names the cause and gives a hint."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

# Messages about machine faults from the Rust libraries for weights and tokenizers, which raise their own exceptions.
RUST = re.compile(r"\(os error \d+\)|\bOs \{ code: \d+.*?message: \"(?P<why>[^\"]*)")
ROOM = "free some space there, then try again"
HINTS = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "check the path",
    errno.EMFILE: "allow more open files (ulimit -n)",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its permissions, or give another path"),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP), "give another path"),
}
_type_hints: Callable[[type], dict[str, Any]] = cache(get_type_hints)  # half a millisecond, which delays sliders


class UsageError(ValueError):
    """Raised for bad input. The message is one sentence that names the cause and gives a hint.

    The command line prints it as ``error: ...`` and exits with status 2; a panel shows it in its error box.
    """


def check_whole(name: str, value: int, least: float, most: float | None = None) -> None:
    """Raise UsageError unless the value is an integer from `least` to `most`."""
    if not isinstance(value, Integral) or value < least or (most is not None and value > most):
        bounds = f", at least {least}" if most is None else f" from {least} to {most:,}"
        raise UsageError(f"{name} is {value}: it must be a whole number{bounds}")


def check_types(settings: Any) -> None:
    """Raise UsageError unless each field of a dataclass has its declared type; a boolean does not count as a number.

    Only fields declared as booleans, numbers or text are checked, including optional ones. Bounds of numbers are
    checked elsewhere.
    """
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "nothing"}
    for name, declared in _type_hints(type(settings)).items():
        value, kinds = getattr(settings, name), get_args(declared) if isinstance(declared, UnionType) else (declared,)
        if not all(kind in words for kind in kinds):
            continue
        boolean = isinstance(value, bool)
        fits = {
            bool: boolean,
            int: isinstance(value, Integral) and not boolean,
            float: isinstance(value, Real) and not boolean,
            str: isinstance(value, str),
            NoneType: value is None,
        }
        if not any(fits[kind] for kind in kinds):
            raise UsageError(f"{name} is {value!r}: it must be {' or '.join(words[kind] for kind in kinds)}")


def check_once(names: Sequence[Any], what: str = "") -> None:
    """Raise UsageError if a name occurs twice; `what` is a prefix of the message, such as "run "."""
    if len({*names}) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UsageError(f"{what}{twice!r} is given twice: give each once")


def sentence(error: BaseException) -> str | None:
    """Error message for bad input or a machine fault; None if the error is a bug in the library."""
    match error:
        case UsageError():
            return str(error)
        case OSError():
            if error.errno is None:  # a library cannot be loaded; its message is long
                return f"{str(error).split('. ')[0]}: fix this, or allow more memory, then try again"
            return f"{'a file' if error.filename is None else error.filename}: {why(error)}: {hint_of(error)}"
        case RuntimeError() if "Symlink loop" in str(error):  # from pathlib, before Python 3.13
            return f"{error}: give another path"
        case MemoryError():
            return f"out of memory{f' ({error})' if str(error) else ''}: request less at a time or close other programs"
    return None


def why(error: BaseException) -> str | None:
    """The operating system's reason for an error, such as "No space left on device", or None."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    match = RUST.search(str(error))
    return match and (match["why"] or str(error))


def hint_of(error: Exception) -> str:
    return HINTS.get(getattr(error, "errno", None) or 0, "fix this, then try again")


@contextmanager
def writing(what: object, hint: str) -> Iterator[None]:
    """Raise UsageError if the block cannot write its file or folder, for example because the disk is full."""
    try:
        yield
    except (UsageError, BrokenPipeError):  # BrokenPipeError only means that the reader has closed the pipe
        raise
    except Exception as error:
        if reason := why(error):
            raise UsageError(f"{what} cannot be written ({reason}): {hint}") from error
        raise
