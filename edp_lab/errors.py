"""The one exception that means "the user can mend this": bad input, said in one sentence."""


class UsageError(ValueError):
    """Bad input. The message is one sentence that names the culprit and the cure.

    The command line prints it as ``error: ...`` and exits with status 2; a panel shows it in its error box.
    """
