"""edp_lab: an interactive course on differentially private training of language-understanding models.

Importing this package is cheap and does not import torch; import the layer you need, for instance
``from edp_lab.privacy import Mechanism`` or ``from edp_lab.corpora.catalog import load_corpus``.
"""

import sys

# jsonschema, which plotly and nbformat import, would spend two seconds on its grammar of addresses; nobody needs it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

__version__ = "0.1.0"
