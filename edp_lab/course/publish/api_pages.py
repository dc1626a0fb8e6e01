"""The package's reference as web pages with a search box, by pdoc; they load nothing from elsewhere."""

from __future__ import annotations

import warnings
from pathlib import Path

import edp_lab
from edp_lab.errors import UsageError


def module_names() -> list[str]:
    """Every module of the package, private ones and ``__main__`` left out, as ``edp_lab.privacy.mechanism``."""
    root = Path(edp_lab.__file__).parent
    parts = [path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.py"))]
    named = [parts[:-1] if parts[-1] == "__init__" else parts for parts in parts]
    return [".".join(parts) for parts in named if not any(part.startswith("_") for part in parts)]


def write_api(out: Path) -> Path:
    """Write a page for each module, ``search.js`` and ``index.html`` into `out`; return the index.

    A module that cannot be imported, because what it needs is not installed, has no page.

    Raises:
        UsageError: pdoc is not installed.
    """
    try:
        import pdoc
        import pdoc.doc
        import pdoc.render
    except ImportError:
        raise UsageError("the reference pages are made by pdoc: pip install -c constraints.txt pdoc") from None

    pdoc.render.configure(docformat="google", search=True, footer_text=f"edp_lab {edp_lab.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of annotations that only a type checker can read
        pdoc.pdoc(*_importable(module_names()), output_directory=out)
    return out / "index.html"


def _importable(names: list[str]) -> list[str]:
    import pdoc.extract

    found = []
    for name in names:
        try:
            pdoc.extract.load_module(name)
        except RuntimeError:  # whatever the import raised
            continue
        found.append(name)
    return found
