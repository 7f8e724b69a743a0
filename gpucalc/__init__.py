"""gpucalc: which parallel layout fits a GPU cluster, how fast it is, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucalc.api import (
        Cluster,
        Evaluation,
        Explanation,
        Model,
        PlanResult,
        Prediction,
        comm,
        evaluate,
        explain,
        plan,
    )
    from gpucalc.core.errors import DataError, InfeasibleError, UsageError

__version__ = "0.1.0"

# What a program imports; loaded on first use, so that the command line starts without it.
_API = (
    "Cluster",
    "Evaluation",
    "Explanation",
    "Model",
    "PlanResult",
    "Prediction",
    "comm",
    "evaluate",
    "explain",
    "plan",
)
_HOMES = {**dict.fromkeys(_API, "api"), **dict.fromkeys(("DataError", "InfeasibleError", "UsageError"), "core.errors")}

__all__ = [
    "Cluster",
    "DataError",
    "Evaluation",
    "Explanation",
    "InfeasibleError",
    "Model",
    "PlanResult",
    "Prediction",
    "UsageError",
    "comm",
    "evaluate",
    "explain",
    "plan",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"gpucalc.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
