"""The numeric columns of a job: what the model, the device, the cluster, the layout and the software decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.database.cluster import Cluster
from gpucalc.database.defaults import defaults
from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.network import collective_constants
from gpucalc.database.profiles import Profile
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.jobs.tuning import (
    LOW_PRECISION,
    adapter_state_bytes,
    frozen_weight_bytes,
    moments_traffic,
    optimizer_bytes,
    tuning_columns,
)
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.models.model import Model

COUNTERS = {"allocated": "allocated", "reserved": "reserved", "nvidia-smi": "device"}
ADAPTER_OPERATIONS = 1.6  # host operations of a layer with adapters over those of a plain one
WHOLE_LOGIT_BYTES = 10.0  # 16-bit logits, fp32 copy and gradient
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
    return collective_constants(cluster, db)


def layout_columns(cells: Mapping[str, Any], codes: Mapping[str, int]) -> dict[str, float]:
    """The layout, of which the codes of the axes are known, and the batch as numbers."""
    return {
        **{name: float(code) for name, code in codes.items()},
        **{name: float(cells[name]) for name in ("global_batch", "seq_len")},
        "parameter_copies": float(SCHEDULES[cells["schedule"]].stages_held),
    }


def software_columns(
    cells: Mapping[str, Any], model: Model, device: Device, profile: Profile, *, rack: bool
) -> dict[str, float]:
    """The profile's constants, and what they decide with precision, optimizer and method: bytes, flags, factors.

    `rack`: the scale-up domain is a rack, whose recipes capture expert layers in CUDA graphs.
    """
    constants, method, precision = profile.values, cells["method"], cells["precision"]
    single = precision in {"fp32", "tf32"}
    kind = "fp16" if precision == "fp16" else "bf16"
    gradient = constants[f"gradient_bytes_{kind}"]
    communicated = constants[f"gradient_comm_bytes_{kind}"]
    if cells.get("grad_accum_dtype"):
        gradient = communicated = 4.0 if cells["grad_accum_dtype"] == "fp32" else 2.0
    pure = not single and (precision == "bf16-true" or (precision == "bf16" and bool(constants["pure_16bit"])))
    weight = 4.0 if single else 2.0
    if single:
        gradient = communicated = 4.0
    elif pure:
        gradient = communicated = 2.0
    optimizer = optimizer_bytes(cells["optimizer"], pure=pure, single=single)
    trains = method == "full"
    tuning = tuning_columns(cells)
    # Loss scaling needs fp32 adapters.
    small = pure or (bool(constants["adapters_16bit"]) and precision != "fp16" and not single)
    if not trains:
        weight = frozen_weight_bytes(cells, model, weight)
    logit = constants["logit_bytes"]
    if cells.get("chunked_loss") is not None:
        logit = min(logit, constants["chunked_logit_bytes"]) if cells["chunked_loss"] else max(logit, WHOLE_LOGIT_BYTES)
    kernel = cells["flash_attention"]
    kernel = profile.defaults["flash_kernel"] if kernel in {"yes", "no"} else kernel
    counter = COUNTERS[cells["mem_counter"]]
    alone = cells["n_gpus"] == 1
    fused = cells.get("fused_norm")
    factor = constants["activation_factor"]
    if not trains:
        kept_inputs = constants["quantised_keeps_inputs"] and tuning["dequantises"]
        frozen = "frozen_activation_factor_fp8" if precision in LOW_PRECISION else "frozen_activation_factor"
        factor *= 1.0 if kept_inputs else constants[frozen]
    four_bit = {}
    if precision in {"nvfp4", "mxfp4"}:
        four_bit = {f"gemm_{n}": constants[f"fp4_gemm_{n}"] for n in ("efficiency", "k_half")}
    cast = constants["cast_share_mx" if precision.startswith(("mx", "nv")) else "cast_share"]
    return {
        **constants,
        **four_bit,
        "cast_share": cast,
        "activation_factor": factor,
        "link_efficiency": constants["training_link_efficiency"],
        "through_link_efficiency": constants["training_link_efficiency"],
        "network_efficiency": constants["training_network_efficiency"],
        "exchange_card_share": constants["training_network_efficiency"],
        "weight_bytes": weight,
        "weight_comm_bytes": 4.0 if single else weight if tuning["dequantises"] else 2.0,
        "adapter_ratio": constants["lora_operations"] if "lora" in method else ADAPTER_OPERATIONS,
        "gradient_bytes": gradient,
        "gradient_comm_bytes": communicated,
        "optimizer_bytes": optimizer,
        "optimizer_traffic": constants["optimizer_traffic"] + moments_traffic(cells["optimizer"]),
        "transfer_bytes": gradient + weight,
        "orthogonalises": float(cells["optimizer"] == "muon"),
        "low_precision": float(precision in LOW_PRECISION),
        **tuning,
        "adapter_state_bytes": adapter_state_bytes(cells["optimizer"], pure=small)
        + constants["adapter_temporary_bytes"],
        "logit_bytes": logit,
        "flash": float(cells["flash_attention"] != "no"),
        "expert_host_ratio": constants["expert_host_ratio" if rack else "expert_host_ratio_hgx"],
        "serial_gap_seconds": profile.of_generation("serial_gap_seconds", device),
        "kernel_generation": profile.of_generation(f"flash_rate_{kernel}", device),
        "full_head_dim": 1.0 if kernel == "fa1" else 128.0,  # FlashAttention 1 is not slower for small heads
        "unfused_norm_share": constants["unfused_share"] if fused is None else float(not fused),
        **power_columns(device, profile),
        "dropout": float(cells["dropout"]),
        "counter_factor": constants[f"{counter}_factor"],
        "counter_fixed": constants["device_fixed_alone" if counter == "device" and alone else f"{counter}_fixed"],
    }


def power_columns(device: Device, profile: Profile) -> dict[str, float]:
    """The board's power limit over the reference of its architecture, and the clock held there."""
    reference = profile.of_generation_alone("reference_watts", device)
    share = device.tdp_watts / reference.value if reference and device.tdp_watts else 1.0
    return {
        "power_share": share,
        "clock_at_reference": profile.of_generation("sustained_clock", device, "_other"),
    }
