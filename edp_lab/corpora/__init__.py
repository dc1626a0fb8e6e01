"""Corpora: what they are, how to read, find, fetch and split them. Importing this does not import torch."""

from edp_lab.corpora.catalog import CorpusInfo, data_folders, fetch, list_corpora, load_corpus
from edp_lab.corpora.corpus import Corpus, Split, Utterance, split

__all__ = [
    "Corpus", "CorpusInfo", "Split", "Utterance", "data_folders", "fetch", "list_corpora",
    "load_corpus", "split",
]  # fmt: skip
