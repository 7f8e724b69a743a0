"""How many examples Hypothesis draws: a few as a rule, four times as many before a release, more when asked.

`HYPOTHESIS_PROFILE=deep pytest` draws what a test states, the default a quarter of it, `thorough` twenty times as many
and others at each run.
"""

from __future__ import annotations

import os

from hypothesis import settings

USUAL = 60  # of a test that states no number
DEPTH = {"gpucalc": 0.25, "deep": 1.0, "thorough": 20.0}
NAME = os.environ.get("HYPOTHESIS_PROFILE", "gpucalc")


def examples(stated: int = USUAL) -> int:
    """The number of examples of a test that states `stated`, in the profile of this run."""
    return max(round(stated * DEPTH[NAME]), 1)


def load() -> None:
    """Register the profiles and load the one of this run."""
    for name in DEPTH:
        settings.register_profile(name, deadline=None, max_examples=examples(), derandomize=name != "thorough")
    settings.load_profile(NAME)
