"""``edp-lab``, or ``python -m edp_lab``: parse, call, print. Bad input ends with one sentence and status 2."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings

import typer

from edp_lab import __version__
from edp_lab.cli.account import account
from edp_lab.cli.attack import attack_app, audit_app
from edp_lab.cli.compare import compare
from edp_lab.cli.course import course_app
from edp_lab.cli.reproduce import reproduce_app, three_phase
from edp_lab.cli.terminal import App, shown
from edp_lab.cli.train import data_app, evaluate, predict, pretrain, train
from edp_lab.errors import UsageError, sentence

app = App(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its table leaves 18 of 80 columns for the words
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Differentially private training of language-understanding models, as a course and a laboratory.\n\n"
    "Start with: edp-lab train --corpus smart-home --epsilon 8 --out runs/private\n\n"
    "Output files and folders, and their parent folders, are created with the first result.",
)
app.add_typer(course_app, name="course")
app.add_typer(data_app, name="data")
app.add_typer(attack_app, name="attack")
app.add_typer(audit_app, name="audit")
app.add_typer(reproduce_app, name="reproduce")
for command in (train, evaluate, predict, compare, account, pretrain, three_phase):
    app.command()(command)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"edp-lab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point. Exit status: 0 done, 1 failed, 2 bad input or a fault of the machine, 130 interrupted.

    Bad input and faults of the machine end here in one sentence.
    """
    if "RANK" not in os.environ:  # a rank that waits for another would not come to run a handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as after Ctrl-C, nothing half-done is left
    warnings.formatwarning = lambda message, *_, **__: f"note: {message}\n"
    status: str | int | None = 0
    error_message = None
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        app(prog_name="edp-lab")
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        error_message = sentence(error)
        if error_message is None:
            raise
    try:
        if sys.stdout:
            sys.stdout.flush()
    except (OSError, UsageError) as error:  # what was printed has not arrived
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again when it ends
        status = 1
        if not isinstance(error, BrokenPipeError):  # which is no fault: the reader has closed the pipe
            error_message = error_message or sentence(error)
    if error_message:
        print(f"error: {shown(error_message)}", file=sys.stderr)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
