"""edp_lab: an interactive course on differentially private training of language-understanding models.

Importing this package is cheap and does not import torch; import the layer you need, for instance
``from edp_lab.privacy import Mechanism`` or ``from edp_lab.corpora import load_corpus``.
"""

__version__ = "0.1.0"
