"""Shared settings of the tests: one named Hypothesis profile, numbers that may not go wrong silently."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("gpucalc", deadline=None, max_examples=60, derandomize=True)  # the same examples every time
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gpucalc"))
