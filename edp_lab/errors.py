"""The one exception that means "the user can mend this": bad input, said in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(ValueError):
    """Bad input. The message is one sentence that names the culprit and the cure.

    The command line prints it as ``error: ...`` and exits with status 2; a panel shows it in its error box.
    """


@contextmanager
def writing(what: object, cure: str) -> Iterator[None]:
    """Where the block's file or folder cannot be written, as on a full disk, say so by a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what} cannot be written ({error.strerror}): {cure}") from error
