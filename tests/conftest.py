"""Shared settings of the tests: examples of Hypothesis, and compiled modules for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

import profiles

profiles.load()

# Where writing compiled modules beside the sources is forbidden, each process would compile the package again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parent.parent / ".pytest_cache" / "pycache")
