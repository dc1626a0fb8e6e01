"""How options are declared and checked. A string beside a type is the help: ``Annotated[int, "Devices N."]``."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from edp_lab.errors import UsageError, writing
from edp_lab.files import write_whole

S = TypeVar("S")
Number = TypeVar("Number", int, float)
Command = Callable[..., None]

FLAGS = {"clip_norm": "clip", "num_devices": "gpus", "understudy_method": "understudy"}  # fields: options

AlphaMax = Annotated[float, "Largest layer scale alpha, as printed."]
AsPrinted = Annotated[bool, "Algorithm 1 verbatim instead of the sound mechanism."]
BatchSize = Annotated[int, "Utterances per step, over all devices."]
Clip = Annotated[float, "Clip norm C."]
Corpus = Annotated[str, "A name from `edp-lab data list`, or a path."]
Delta = Annotated[float, "Delta of (epsilon, delta): a slack that should be well below 1/n."]
Epochs = Annotated[int, "Passes over the training set."]
Gpus = Annotated[int, "Devices N."]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
MicroBatchSize = Annotated[int, "Utterances that share one clipped gradient; 1 is per-example DP-SGD."]
RunFolder = Annotated[Path, typer.Option("--run", help="Folder of a run: the --out of edp-lab train.")]
Size = Annotated[str, "paper, medium or small."]


# ---- Declaring -------------------------------------------------------------------------------------------------------


class App(typer.Typer):
    """Typer, where a string is the help of its parameter, and a switch that is off has no ``--no-`` form."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        register = super().command(name, **settings)

        def add(command: Command) -> Command:
            own = inspect.signature(command, eval_str=True).parameters.values()
            command.__signature__ = inspect.Signature([*map(_option, own)])  # type: ignore[attr-defined]
            return register(command)

        return add


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, *notes = get_args(parameter.annotation) or (parameter.annotation,)
    if not (notes and isinstance(notes[0], str)):
        return parameter
    switch = [f"--{parameter.name.replace('_', '-')}"] if parameter.default is False else []
    return parameter.replace(annotation=Annotated[kind, typer.Option(*switch, help=notes[0])])


def options_of(settings: type) -> Callable[[Command], Command]:
    """Where a command ends in ``*, one: ..., **options``: an option for each field of the dataclass, then that one.

    Fields that the command declares itself are left out. `chosen` makes the dataclass of what was given.
    """
    types = get_type_hints(settings, include_extras=True)

    def expand(command: Command) -> Command:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        declared, keyword = {one.name for one in own}, inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(option_name(field.name), keyword, default=field.default, annotation=types[field.name])
            for field in fields(settings)
            if field.name not in declared
        ]
        first, last = ([one for one in own if (one.kind is keyword) == at_end] for at_end in (False, True))
        command.__signature__ = inspect.Signature([*first, *more, *last])  # type: ignore[attr-defined]
        return command

    return expand


def option_name(field: str) -> str:
    return FLAGS.get(field, field)


def given(ctx: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def chosen(ctx: typer.Context, settings: type[S], **more: Any) -> S:
    """The dataclass, its fields filled with the options that stand for them, and with what else is known."""
    names = {field.name: option_name(field.name) for field in fields(settings)}  # type: ignore[arg-type]
    return settings(**{field: ctx.params[name] for field, name in names.items() if name in ctx.params} | more)


# ---- Checking --------------------------------------------------------------------------------------------------------


def numbers(option: str, text: str, example: str, kind: type[Number] = int) -> tuple[Number, ...]:  # type: ignore[assignment]
    """
    Raises:
        UsageError: not numbers of that kind, with commas between.
    """
    try:
        return tuple(kind(number) for number in text.split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} is {text!r}: give {what} with commas between, such as {example}") from None


def commas(*texts: str) -> list[str]:
    """The names in options that take several with commas between."""
    return [name.strip() for text in texts for name in text.split(",")]


def check_seed(seed: int) -> None:
    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")


def check_file(out: Path | None) -> None:
    """
    Raises:
        UsageError: no such file can be written; told before the work.
    """
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UsageError(f"{out} cannot be written: give --out a file in a folder that exists")


def output_folder(out: Path, option: str = "--out") -> Path:
    """The folder as an absolute path; it need not exist, and is not created.

    Raises:
        UsageError: nothing can be written there.
    """
    out = out.resolve()
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    with writing(out, f"choose another {option}"), tempfile.TemporaryFile(dir=there):
        return out


def write_text(path: Path, text: str, cure: str = "choose another --out") -> None:
    """The whole file or nothing.

    Raises:
        UsageError: it cannot be written.
    """
    write_whole(path.resolve(), text.encode(), cure)
