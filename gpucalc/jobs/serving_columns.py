"""The numeric columns of a serving question: model, formats on a device, cluster, layout and load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.network import collective_constants, exchange_constants
from gpucalc.jobs.formats import CACHE_FORMATS, FORMATS, KERNELS, product_peak, products_of
from gpucalc.jobs.serving_sides import side_columns

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.models.model import Model

PARTS = ("attention", "mlp", "expert", "head")  # kinds of products that may have formats of their own
PRODUCT_CONSTANTS = (
    "gemm_efficiency",
    "gemm_wave_exponent",
    "gemm_k_half",
    "gemm_l2_miss_penalty",
    "gemm_memory_efficiency",
    "gemm_l2_read_ratio",
    "gemm_launch_seconds",
    "output_bytes",
)
SPARSE_KEYS = 2048.0  # keys that DeepSeek sparse attention keeps for a query (DeepSeek-V3.2, GLM-5)
DEFAULT_ACCEPTANCE = 0.7
EXCHANGES = {"decode": "deepep_low_latency", "prefill": "deepep_normal"}


def model_extras(model: Model) -> dict[str, float]:
    """What serving reads of a model beside the columns that it shares with training."""
    blueprint = model.blueprint
    heads = float(blueprint.index_heads) if blueprint else 0.0
    return {
        "state_bytes_per_sequence": float(model.state_bytes_per_sequence),
        "index_heads": heads,
        "index_dim": float(blueprint.index_dim) if blueprint else 0.0,
        "sparse_keys": SPARSE_KEYS if heads else 0.0,
        "vision_parameters": float(model.vision_parameters),
        "kv_bytes_16": float(model.kv_bytes_per_token),
        "kv_bytes_16_windowed": float(model.kv_bytes_per_token_windowed),
    }


def part_formats(name: str, model: Model) -> dict[str, str]:
    """The format of each kind of product when a model's weights are held in `name`.

    Heads stay in 16 bit, and so does what the checkpoint leaves so where it is served in its own format. Formats for
    experts leave the rest of a mixture in 16 bit; 4-bit floating-point mixtures with latent attention keep that
    attention in 16 bit, as their publishers do.
    """
    form = FORMATS[name]
    sixteen = "fp32" if name == "fp32" else "bf16"
    mixture = model.is_moe
    rest = sixteen if form.experts_only and mixture else name
    attention = sixteen if name == "nvfp4" and mixture and model.is_mla else rest
    mlp = attention if name == "nvfp4" and mixture and model.is_mla else rest
    found = {"attention": attention, "mlp": mlp, "expert": name, "head": sixteen}
    own = model.plain_parts if name == model.weight_format else ()
    return found | dict.fromkeys(own, sixteen)


def format_columns(
    device: Device, cells: Mapping[str, Any], model: Model, db: Database, notes: list[str]
) -> dict[str, float]:
    """Bytes, peaks and kernel constants of each kind of product in its format, and of the cache."""
    half = device.default_precision
    sixteen = kernel_constants(device, half, db)
    columns = {name: v for name, v in sixteen.items() if name.startswith(("attention_", "decode_"))}
    columns |= {name: sixteen[name] for name in ("memory_efficiency", "kernel_launch_seconds", "compute_units")}
    columns["l2_bytes"] = sixteen["l2_bytes"]
    columns["clock"] = device.clock_hz or 0.0
    columns["half_peak"] = device.precision_peak(half)
    columns["memory_bandwidth"] = device.memory_bandwidth
    columns["usable_bytes"] = device.usable_bytes
    for part, name in part_formats(cells["precision"], model).items():
        name = half if name == "bf16" else name
        precision, expanded = products_of(device, name)
        constants = kernel_constants(device, KERNELS.get(precision, precision), db)
        columns |= {f"{part}_{n}": constants[n] for n in PRODUCT_CONSTANTS}
        columns[f"{part}_peak"] = product_peak(device, precision)
        columns[f"{part}_element_bytes"] = FORMATS[name].bytes
        columns[f"{part}_expanded"] = float(expanded)
        columns[f"{part}_fp4"] = float(precision == "nvfp4")
        if expanded and part in {"mlp", "expert"}:
            notes.append(
                f"{name} weights are expanded to {precision} on {device.key}: bytes of {name}, peak of {precision}"
            )
    columns["kv_bytes"] = CACHE_FORMATS[cells["kv_precision"]]
    return columns


def cluster_columns(cluster: Cluster, db: Database) -> dict[str, float]:
    """Rates of links and networks, and constants of collectives and of exchanges of tokens."""
    columns = collective_constants(cluster, db)
    for phase, kernel in EXCHANGES.items():
        for direction in ("dispatch", "combine"):
            found = exchange_constants(cluster, kernel, direction, db)
            columns |= {f"{phase}_{direction}_{name}": constant.value for name, constant in found.items()}
    return columns


def load_columns(cells: Mapping[str, Any], model: Model) -> dict[str, float]:
    """Layout, lengths and load."""
    draft = float(cells.get("draft_tokens") or 0)
    chance = cells.get("acceptance")
    return {
        **{name: float(cells[name]) for name in ("n_gpus", "tp", "pp", "dp", "ep", "attention_dp", "isl", "osl")},
        **side_columns(cells),
        "concurrency": float(cells.get("concurrency") or 0),
        "rate": float(cells.get("rate") or 0),
        "open_loop": float(cells.get("rate") is not None),
        "fills": float(cells.get("concurrency") is None and cells.get("rate") is None),
        "prefix_hit": float(cells.get("prefix_hit") or 0),
        "draft_tokens": draft,
        "acceptance": float(chance) if chance is not None else DEFAULT_ACCEPTANCE if draft else 0.0,
        "accepted_tokens": float(cells.get("accepted_tokens") or 0),
        "accepted_stated": float(cells.get("accepted_tokens") is not None),
        "draft_cost": float(cells.get("draft_cost") or 1.0 / model.layers),
        "waves": float(cells.get("waves") or 0),
        "eager": float(bool(cells.get("eager"))),
    }
