"""The numeric columns of a job: what the model, the device, the cluster, the layout and the software decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.database.cluster import Cluster
from gpucalc.database.defaults import defaults
from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.models.model import Model

UNKNOWN_HOST_BYTES = 1e15  # a node that does not state its memory refuses nothing
HGX_DOMAIN = 16  # larger scale-up domains are racks


def model_columns(model: Model) -> dict[str, float]:
    """The model's shape and counts as columns; an encoder's layers count as layers."""
    layers = model.layers + model.encoder_layers
    attention = model.attention_layers + model.encoder_layers
    full_layers = model.attention_layers - model.window_layers
    own = model.attention_parameters * full_layers + model.window_attention_parameters * model.window_layers
    own += model.cross_attention_parameters
    encoder_mlp = model.mlp_parameters * model.encoder_layers
    own += max(model.encoder_parameters - encoder_mlp, 0)
    dense = model.dense_layers + model.encoder_layers
    counted = own + model.linear_mixer_parameters * model.linear_layers + model.mlp_parameters * dense
    moe = model.router_parameters + model.shared_expert_parameters + model.parameters_per_expert * model.experts
    counted += model.moe_layers * moe + model.norm_parameters * layers
    counted += model.parameters_embedding + model.parameters_head
    return {
        "layers": float(layers),
        "hidden": float(model.hidden),
        "heads": float(model.heads or 1),
        "kv_heads": float(model.kv_heads or 1),
        "head_dim": float(model.head_dim or 1),
        "v_head_dim": float(model.v_head_dim or model.head_dim or 1),
        "ffn_hidden": float(model.ffn_hidden),
        "gated": float(model.gated_mlp),
        "vocab": float(model.vocab),
        "tied_embeddings": float(model.tied_embeddings),
        "causal": float(model.causal),
        "attention_layers": float(attention),
        "latent_layers": float(attention if model.is_mla else 0),
        "window": float(model.window),
        "window_layers": float(model.window_layers),
        "linear_layers": float(model.linear_layers),
        "linear_mixer_parameters": float(model.linear_mixer_parameters),
        **scan_columns(model),
        "dense_layers": float(dense),
        "moe_layers": float(model.moe_layers),
        "experts": float(model.experts),
        "experts_per_token": float(model.experts_per_token),
        "expert_ffn_hidden": float(model.expert_ffn_hidden),
        "shared_expert_ffn_hidden": float(model.shared_expert_ffn_hidden),
        "expert_bias": float(bool(model.blueprint and model.blueprint.expert_bias)),
        "q_lora_rank": float(model.q_lora_rank),
        "kv_lora_rank": float(model.kv_lora_rank),
        "qk_rope_head_dim": float(model.qk_rope_head_dim),
        "attention_parameters": own / max(attention, 1),
        "dense_mlp_parameters": float(model.mlp_parameters),
        "shared_expert_parameters": float(model.shared_expert_parameters),
        "expert_parameters": float(model.parameters_per_expert),
        "router_parameters": float(model.router_parameters),
        "norm_parameters": float(model.norm_parameters),
        "embedding_parameters": float(model.parameters_embedding),
        "head_parameters": float(model.parameters_head),
        "other_parameters": float(max(model.parameters_total - counted, 0)),
        "matmul_parameters_active": float(model.matmul_parameters_active),
    }


SCAN_CHUNK = {"mamba2": 128.0, "delta": 64.0}  # tokens of a chunk as the mixers' kernels cut a sequence


def scan_columns(model: Model) -> dict[str, float]:
    """Widths of the scan of a mixer that runs in chunks; zero where there is none."""
    mixer = model.blueprint.linear
    chunk = SCAN_CHUNK.get(mixer.kind, 0.0) if mixer is not None else 0.0
    if mixer is None or not chunk:
        return dict.fromkeys(("scan_inner", "scan_state", "scan_groups", "scan_chunk"), 0.0)
    return {
        "scan_inner": float(mixer.heads * mixer.head_dim),
        "scan_state": float(mixer.state or mixer.key_dim),
        "scan_groups": float(mixer.groups),
        "scan_chunk": chunk,
    }


def device_columns(device: Device, precision: str, db: Database) -> dict[str, float]:
    """Peaks, memory and kernel constants, those of 16-bit products with the prefix `half_`."""
    half = precision if precision in {"fp32", "tf32"} else device.default_precision
    assumed = defaults(db, "training")
    matrix = kernel_constants(device, precision, db)
    sixteen = kernel_constants(device, half, db)
    attention = {n: v for n, v in sixteen.items() if n.startswith(("attention_", "decode_"))}
    products = {f"half_{n}": v for n, v in sixteen.items() if n.startswith("gemm_") or n in _PRODUCT_FACTS}
    return {
        **matrix,
        **attention,
        **products,
        "peak": device.precision_peak(precision),
        "half_peak": device.precision_peak(half),
        "memory_bandwidth": device.memory_bandwidth,
        "usable_bytes": device.usable_bytes,
        "host_bandwidth": (device.host_bandwidth or assumed["host_bandwidth"].value) * assumed["host_share"].value,
    }


_PRODUCT_FACTS = ("element_bytes", "output_bytes")


def cluster_columns(cluster: Cluster, db: Database) -> dict[str, float]:
    """Links, network and their constants."""
    constants = collective_constants(cluster, db)
    return {
        **constants,
        "isolated_link_efficiency": constants["link_efficiency"],
        "gpus_per_host": float(min(cluster.n_gpus, cluster.gpus_per_node)),
        "host_memory_bytes": cluster.node.host_memory_bytes or UNKNOWN_HOST_BYTES,
    }


def layout_columns(cells: Mapping[str, Any], codes: Mapping[str, int]) -> dict[str, float]:
    """The layout, of which the codes of the axes are known, and the batch as numbers."""
    return {
        **{name: float(code) for name, code in codes.items()},
        **{name: float(cells[name]) for name in ("global_batch", "seq_len")},
        "parameter_copies": float(SCHEDULES[cells["schedule"]].stages_held),
    }
