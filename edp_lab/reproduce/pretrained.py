"""What networks start from in the tables: text and weights that have nothing to do with the corpus at hand.

The paper's CLC reads published fastText vectors, its BERT was pretrained on Wikipedia (section 4.2). Nothing here is
private, and all methods start alike: else a sound run, which may not read words off its training set, would differ from
SGD in more than its noise.

In a table's settings a start is a name, of `layers_of`, `words_of` or `VECTORS`; it becomes a folder (`made`) only when
something is trained, so that a finished run is found without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from edp_lab.corpora import load_corpus
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.models.bert import load_bert
from edp_lab.models.files import new_folder
from edp_lab.models.vectors import WordVectors
from edp_lab.training.pretraining import pretrain_vectors, shorten_bert
from edp_lab.training.result_cache import content_key, content_of
from edp_lab.training.run_folder import digest

if TYPE_CHECKING:
    from edp_lab.reproduce.run_cache import Inputs

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # 384 wide; pretrained on Wikipedia, among others
FINE_TUNING = 2e-4  # BERT's learning rate from there
PUBLIC = ("atis", "snips", "nlu-eval")  # each is text that is not to be protected, where another one is
TEXT_SEED, GENERATED = 14586, 20_000
LOUDER = 8.0  # brings the encoder's numbers, .06 in size, to that of embeddings that are learnt; a power of 2 is exact
LAYERS, WORDS = "encoder", "words"  # kinds of starts, before a colon
VECTORS = "vectors:"  # fastText, of text that has nothing to do with the corpus at hand


def layers_of(encoder: str, layers: int) -> str:
    """The start that is the first layers of a published encoder, a hub name or a folder."""
    return f"{LAYERS}:{layers}:{encoder}"


def words_of(encoder: str) -> str:
    """The start that is an encoder's vectors of whole words, before it reads them in context, for the CLC."""
    return f"{WORDS}:{encoder}"


def content(start: str | None, corpus: str, inputs: Inputs) -> str | None:
    """A digest of what a run on `corpus` starts from, the same wherever it lies and whoever made it.

    Raises:
        UsageError: an encoder is not at hand, and `inputs` know nothing of it.
    """
    kind, _, rest = (start or "").partition(":")
    if kind == LAYERS:
        layers, _, name = rest.partition(":")
        return content_key(["pretraining"], kind, layers, inputs.encoder(name))
    if kind == WORDS:
        return content_key(["pretraining"], kind, inputs.encoder(rest))
    if start == VECTORS:
        return content_key(["pretraining"], kind, [inputs.corpus(name) for name in _others(corpus, inputs)])
    return None if start is None else content_of(start)


def made(start: str | None, corpus: str, folder: Path, inputs: Inputs) -> str | None:
    """A start as `TrainConfig.pretrained` has it: made in `folder`, unless it is there.

    Args:
        inputs: those at hand.

    Raises:
        UsageError: the encoder cannot be loaded, or has fewer layers.
    """
    kind, _, rest = (start or "").partition(":")
    if kind not in (LAYERS, WORDS) and start != VECTORS:
        return start
    path = folder / f"{kind}-{(content(start, corpus, inputs) or '')[:16]}"
    if not path.is_dir():
        if kind == LAYERS:
            layers, _, name = rest.partition(":")
            with _blamed(name):
                shorten_bert(name, int(layers), path)
        elif kind == WORDS:
            _save_words(rest, path)
        else:
            corpora = [generate(GENERATED, TEXT_SEED), *map(load_corpus, _others(corpus, inputs))]
            pretrain_vectors([u.tokens for one in corpora for u in one.utterances], path)
    return str(path)


def _others(corpus: str, inputs: Inputs) -> Sequence[str]:
    return [name for name in PUBLIC if name != corpus and inputs.has(name)]


def _save_words(name: str, folder: Path) -> None:
    with _blamed(name):
        bert, tokenizer = load_bert(name)
    matrix = LOUDER * bert.embeddings.word_embeddings.weight.detach()
    pieces = sorted((number, piece) for piece, number in tokenizer.get_vocab().items())
    whole = [(n, piece) for n, piece in pieces if not piece.startswith("##") and not _special(piece)]
    with new_folder(folder) as inside:
        WordVectors(tuple(piece for _, piece in whole), matrix[[n for n, _ in whole]]).save(inside)


def _special(piece: str) -> bool:
    return len(piece) > 1 and piece.startswith("[") and piece.endswith("]")


def encoder_at_hand(name: str) -> bool:
    """Whether a published encoder can be read without a network."""
    try:
        return Path(name).expanduser().exists() or isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


@cache
def encoder_content(name: str) -> str:
    """A digest of an encoder's weights, pieces and shape, not of the files in which they lie.

    Raises:
        UsageError: it cannot be loaded.
    """
    with _blamed(name):
        bert, tokenizer = load_bert(name)
    shape = [bert.config.num_attention_heads, bert.config.hidden_act, bert.config.layer_norm_eps]
    return digest(dict(bert.named_parameters()), json.dumps([shape, sorted(tokenizer.get_vocab().items())]).encode())


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """What goes wrong inside is an encoder's fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"the public encoder {name!r} cannot be used: give --encoder a folder that holds a BERT, or a hub name and "
            f"a network ({error})"
        ) from error
