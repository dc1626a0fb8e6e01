"""Models of the joint task (one intent per utterance, one BIO tag per word): the CLC and BERT."""

from edp_lab.models.factory import KINDS, build_model, load_model, save_model, seeded
from edp_lab.models.intent_slot import IntentSlotModel, Prediction
from edp_lab.models.vectors import WordVectors, load_vectors, train_vectors

__all__ = [
    "KINDS",
    "IntentSlotModel",
    "Prediction",
    "WordVectors",
    "build_model",
    "load_model",
    "load_vectors",
    "save_model",
    "seeded",
    "train_vectors",
]
