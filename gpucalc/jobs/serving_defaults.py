"""What a serving question leaves open, filled as the checkpoint and the engine would, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.formulas.serving_memory import static_share
from gpucalc.jobs.formats import CACHE_FORMATS, FORMATS, format_named

if TYPE_CHECKING:
    from gpucalc.database.engines import Engine
    from gpucalc.database.records import Device
    from gpucalc.models.model import Model

WIDE = 4  # tensor-parallel ranks from which an engine captures larger graphs
STATED = "stated"


@dataclass(frozen=True)
class Defaults:
    """Values of what may be left open, and why each is what it is."""

    cells: dict[str, str]  # formats of weights and cache
    columns: dict[str, float]  # budgets and the share of the memory
    reasons: dict[str, str]


def with_defaults(cells: Mapping[str, Any], model: Model, device: Device, engine: Engine) -> Defaults:
    """The formats, budgets and share of a question. UsageError for a format that is unknown."""
    precision, why_precision = _precision(cells, model, device)
    cache, why_cache = _cache(cells, model, engine)
    columns, reasons = _budgets(cells, device, engine)
    share, why_share = _share(cells, device, engine, columns)
    columns["memory_share"] = share
    columns["driver_reserve"] = engine.values["driver_reserve"] if _drivers_total(device) else 0.0
    reasons = {"precision": why_precision, "kv_precision": why_cache, **reasons, "memory_share": why_share}
    return Defaults({"precision": precision, "kv_precision": cache}, columns, reasons)


def _drivers_total(device: Device) -> bool:
    """Whether the memory that the database states is the driver's total, not what CUDA reports of the card."""
    return device.usable_basis != "reported"


def stated_format(cells: Mapping[str, Any], name: str) -> str:
    """A format cell; empty where it is empty or says "auto"."""
    text = str(cells.get(name) or "").strip()
    return "" if text.casefold() == "auto" else text


def _precision(cells: Mapping[str, Any], model: Model, device: Device) -> tuple[str, str]:
    if stated := stated_format(cells, "precision"):
        return format_named(stated), STATED
    if model.weight_format in FORMATS:
        return model.weight_format, f"quantization_config of the checkpoint ({model.quantization})"
    return device.default_precision, "the checkpoint states no quantization_config"


def _cache(cells: Mapping[str, Any], model: Model, engine: Engine) -> tuple[str, str]:
    if stated := stated_format(cells, "kv_precision"):
        return format_named(stated, "kv_precision", CACHE_FORMATS), STATED
    if model.cache_format in CACHE_FORMATS:
        return model.cache_format, "the checkpoint has scales for it"
    return "bf16", "engines keep 16 bit beside weights of any format unless told otherwise"


def _budgets(cells: Mapping[str, Any], device: Device, engine: Engine) -> tuple[dict[str, float], dict[str, str]]:
    """Tokens of a pass, sequences of a batch and the largest captured batch."""
    values, reasons = {"graph_batch": 0.0}, {}
    budget = engine.budget(device)
    for name in ("chunk_tokens", "max_seqs"):
        own = getattr(budget, name) if budget else 0
        if cells.get(name) is not None:
            values[name], reasons[name] = float(cells[name]), STATED
        elif budget and own:
            values[name], reasons[name] = float(own), budget.why
        else:
            constant = engine.constants[name]
            values[name], reasons[name] = constant.value, f"{engine.name}: {constant.why}"
    if budget:
        wide = int(cells.get("tp") or 1) >= WIDE
        values["graph_batch"] = float(budget.graph_batch_wide if wide else budget.graph_batch)
    return values, reasons


def _share(cells: Mapping[str, Any], device: Device, engine: Engine, budgets: Mapping[str, float]) -> tuple[float, str]:
    if cells.get("memory_share") is not None:
        return float(cells["memory_share"]), STATED
    reserve = engine.values["driver_reserve"]
    if engine.memory_rule == "static" and budgets["graph_batch"]:
        ranks = {name: float(cells.get(name) or 1) for name in ("tp", "pp", "attention_dp")}
        found = static_share(
            usable_bytes=device.usable_bytes + (0.0 if _drivers_total(device) else reserve),
            chunk_tokens=budgets["chunk_tokens"],
            graph_batch=budgets["graph_batch"],
            draft_tokens=float(cells.get("draft_tokens") or 0),
            **ranks,
        )
        return float(found), f"{engine.name}: what its rule leaves beside prompts, graphs and ranks"
    constant = engine.constants["memory_share"]
    return constant.value, f"{engine.name}: {constant.why}"
