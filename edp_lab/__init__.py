"""edp_lab: an interactive course on differentially private training of language-understanding models.

Importing this package is fast and does not import torch. Import the layer that you need, for example
``from edp_lab.privacy import Mechanism`` or ``from edp_lab.corpora.catalog import load_corpus``.
"""

import sys

# plotly and nbformat import jsonschema, which would spend two seconds on a URL grammar that we do not need.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

__version__ = "0.1.0"
