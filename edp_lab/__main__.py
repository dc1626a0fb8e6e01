"""Entry point of ``edp-lab`` and ``python -m edp_lab``; bad input prints a one-sentence error and exits with 2."""

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
    rich_markup_mode=None,  # Rich's table would leave 18 of 80 columns for the help texts
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A course and laboratory on differentially private training of language-understanding models.\n\n"
    "Start with: edp-lab train --corpus smart-home --epsilon 8 --out runs/private\n\n"
    "Output files and folders (including parent folders) are created when the first result is written.",
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
    """Run the command line. Exit status: 0 success, 1 failure, 2 bad input or machine fault, 130 interrupted.

    For bad input and machine faults, print a one-sentence error message instead of a traceback.
    """
    if "RANK" not in os.environ:  # a rank that waits for another would never run a handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
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
    except (OSError, UsageError) as error:  # the output could not be delivered
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python flushes again at exit
        status = 1
        if not isinstance(error, BrokenPipeError):  # a closed pipe is not an error: the reader has stopped
            error_message = error_message or sentence(error)
    if error_message:
        print(f"error: {shown(error_message)}", file=sys.stderr)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
