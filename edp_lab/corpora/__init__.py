"""Corpora: what they are, how to read, find, fetch and split them. Importing this does not import torch."""

from edp_lab.corpora.catalog import CorpusInfo, Progress, data_folders, fetch, list_corpora, load_corpus
from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.corpora.splits import Split, split

__all__ = [
    "Corpus",
    "CorpusInfo",
    "Progress",
    "Split",
    "Utterance",
    "data_folders",
    "fetch",
    "list_corpora",
    "load_corpus",
    "split",
]
