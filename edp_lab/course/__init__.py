"""The notebooks: their panels, figures, exercises and checks (`kit`, a room each), and how they are run and shown."""

import sys

# jsonschema, which plotly and nbformat import, would spend two seconds on its grammar of addresses; nobody needs it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
