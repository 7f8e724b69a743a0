"""Shared settings of the tests: Hypothesis profiles, and compiled modules for the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("gpucalc", deadline=None, max_examples=60, derandomize=True)  # the same examples every time
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gpucalc"))

# Where writing compiled modules beside the sources is forbidden, each process would compile the package again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parent.parent / ".pytest_cache" / "pycache")
