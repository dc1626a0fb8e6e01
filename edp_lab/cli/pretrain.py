"""``edp-lab pretrain``: word vectors for the CLC, or BERT, from text that is not to be protected."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from edp_lab.training.pretraining import Progress

TEXT_SEED = 14586  # of the default text; the embedded corpus has another


def pretrain(
    out: Annotated[Path, typer.Option(help="New folder, to be given to edp-lab train --pretrained.")],
    model: Annotated[str, typer.Option(help="clc (fastText word vectors) or bert (masked language model).")] = "bert",
    text: Annotated[
        str | None,
        typer.Option(
            help="A corpus (name or path) or a .txt file with one sentence a line; never the text that a "
            "private run is to protect. (default: smart-home utterances generated for this purpose)"
        ),
    ] = None,
    utterances: Annotated[int, typer.Option(min=1, help="How many to generate without --text.")] = 20_000,
    published: Annotated[
        str | None,
        typer.Option(
            help="Instead of training: the first --layers layers of this BERT, a hub name or folder, such as "
            "sentence-transformers/all-MiniLM-L6-v2."
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of --published.")] = 4,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = 10,
    size: Annotated[
        str,
        typer.Option(help="paper (BERT 4 layers, 312 wide; vectors 100) or small (2 layers, 64 wide; vectors 50)."),
    ] = "paper",
    seed: Annotated[int, typer.Option(help="Initial weights, order, masks.")] = 0,
) -> None:
    """Pretrain on separate text, where published word vectors or BERT weights cannot be had.

    BERT learns to guess masked word pieces (Devlin et al. 2019). At the paper's size, 20,000 short utterances
    take about a minute per epoch on two cores; word vectors take seconds. Nothing here is private. Where the hub can
    be reached, --published brings a published encoder down to the paper's four layers.
    """
    from edp_lab.models.bert import BertSize
    from edp_lab.models.vectors import DIMENSIONS
    from edp_lab.training.config import SIZES
    from edp_lab.training.pretraining import pretrain_bert, pretrain_vectors, shorten_bert

    if model not in ("clc", "bert"):
        raise UsageError(f"unknown model {model!r}: choose clc or bert")
    if published is not None:
        if model != "bert":
            raise UsageError("--published takes a BERT: drop --model clc (published word vectors need no change)")
        shorten_bert(published, layers, out)
        print(out)
        return
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}: choose one of {', '.join(SIZES)}")
    sentences = read_sentences(text, utterances)
    if model == "bert":
        shape = BertSize(**SIZES[size]["bert"])
        pretrain_bert(sentences, out, epochs=epochs, seed=seed, size=shape, progress=_Lines())
    else:
        columns = SIZES[size]["clc"].get("word", DIMENSIONS)
        pretrain_vectors(sentences, out, size=columns, epochs=epochs, seed=seed)
    print(out)


def read_sentences(text: str | None, utterances: int) -> list[tuple[str, ...]]:
    """The tokens of each sentence of a ``.txt`` file or a corpus; without `text`, of generated utterances.

    Raises:
        UsageError: the file cannot be read or is not UTF-8, or the corpus cannot be loaded.
    """
    if text is None:
        from edp_lab.corpora.smart_home import generate

        return [u.tokens for u in generate(utterances, TEXT_SEED).utterances]
    if not text.endswith(".txt"):
        from edp_lab.corpora import load_corpus

        return [u.tokens for u in load_corpus(text).utterances]
    try:
        lines = Path(text).expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{text} cannot be read ({error.strerror}): give a .txt file or a corpus") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{text} is not UTF-8 text (byte {error.start}): convert it") from error
    return [tuple(words) for line in lines if (words := line.split())]


class _Lines:
    """One line per epoch on standard error."""

    def __init__(self) -> None:
        self._before = time.monotonic()

    def __call__(self, p: Progress) -> None:
        now = time.monotonic()
        sys.stderr.write(f"epoch {p.epoch:>3}/{p.epochs}  loss {p.loss:.3f}  {now - self._before:.1f} s\n")
        sys.stderr.flush()
        self._before = now
