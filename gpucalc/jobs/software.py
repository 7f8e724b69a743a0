"""What a software profile decides of a job: bytes of each state, what operations keep and move, what overlaps.

Stated cells win over the profile's defaults; everything is a number of `software_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.database.profiles import Profile
from gpucalc.database.records import Device
from gpucalc.formulas.gathering import quantised_copy_bytes
from gpucalc.formulas.optimizer_step import update_traffic
from gpucalc.jobs.tuning import (
    LOW_PRECISION,
    MASTER_BYTES,
    MOMENTS,
    QUANTISED,
    adapter_state_bytes,
    frozen_weight_bytes,
    quantisation_of,
    tuning_columns,
)
from gpucalc.models.model import Model

COUNTERS = ("allocated", "reserved", "nvidia-smi")
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
ADAPTER_OPERATIONS = 1.6  # host operations of a layer with adapters over those of a plain one
SCALED = ("mxfp8", "nvfp4", "mxfp4")  # formats with a scale per block, which keep rows and columns apart
KEPT_INPUT_BYTES = {
    "fp8": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}  # one layout: columns
FOUR_BIT_BYTES = {"nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}  # an element with its share of a scale
SINGLE = ("fp32", "tf32")


def stated(cells: Mapping[str, Any], profile: Profile, name: str) -> Any:
    """A cell, or the profile's default for it."""
    value = cells.get(name)
    return profile.defaults[name] if value is None else value


def is_pure(precision: str, profile: Profile) -> bool:
    """Whether weights, gradients and moments are all in 16 bit, without a master copy."""
    return precision == "bf16-true" or (precision == "bf16" and bool(profile.values["pure_16bit"]))


def gradient_bytes(cells: Mapping[str, Any], profile: Profile) -> tuple[float, float]:
    """Bytes of a gradient as it is kept, and as it is reduced.

    Under loss scaling (fp16) both are 16-bit unless stated; a profile may keep further copies.
    """
    precision = cells["precision"]
    if precision in SINGLE:
        return 4.0, 4.0
    if is_pure(precision, profile):
        return 2.0, 2.0
    default = "fp16" if precision == "fp16" else profile.defaults["gradient_dtype"]
    reduced = cells.get("gradient_dtype") or default
    kept = cells.get("grad_accum_dtype") or cells.get("gradient_dtype")
    if not kept:
        kept = "fp16" if precision == "fp16" else profile.defaults.get("grad_accum_dtype", reduced)
    return DTYPE_BYTES[kept] * (1 + profile.values["gradient_copies"]), DTYPE_BYTES[reduced]


def holds_fp8(cells: Mapping[str, Any], profile: Profile) -> bool:
    """Whether weights of 8-bit products are held and gathered in 8 bit; recipes of 4-bit products keep 16 bit."""
    if cells["precision"] not in LOW_PRECISION:
        return False
    if cells.get("fp8_params") is not None:
        return bool(cells["fp8_params"])
    return bool(profile.defaults["fp8_params"]) and cells["precision"] not in FOUR_BIT_BYTES


def state_columns(cells: Mapping[str, Any], model: Model, profile: Profile) -> dict[str, float]:
    """Bytes per parameter: weight, gradient, optimizer, what an update moves and holds, what the host keeps."""
    constants, precision, trains = profile.values, cells["precision"], cells["method"] == "full"
    single, pure = precision in SINGLE, is_pure(precision, profile)
    kept, reduced = gradient_bytes(cells, profile)
    moments = MOMENTS[cells["optimizer"]][1 if pure else 0]
    # The parameter is its own master copy: in fp32, in pure 16-bit recipes, and where FSDP shards fp32 parameters.
    own = single or pure or (bool(constants["fp32_parameters"]) and trains)
    weight = 4.0 if own and not pure else 2.0
    master = 0.0 if own else MASTER_BYTES
    copy = 0.0
    if trains and not single and not pure:  # an fp32 copy of 16-bit gradients
        copy = constants["fp32_gradient_copy_fp16"] if precision == "fp16" else constants["fp32_gradient_copy"]
    resident = weight + (constants["autocast_bytes"] if own and not pure and not single else 0.0)
    if not trains:
        resident = frozen_weight_bytes(cells, model, 4.0 if single else 2.0)
    moving = MOMENTS[cells["optimizer"].removeprefix("paged-")][1 if pure else 0]
    traffic = float(update_traffic(kept, weight if own else master, moving, 0.0 if own else 2.0))
    low = precision in LOW_PRECISION
    copies = float(
        quantised_copy_bytes(
            float(low),
            float(holds_fp8(cells, profile)),
            float(precision in SCALED),
            1.0,
            copy_bytes=FOUR_BIT_BYTES.get(precision, 1.0),
        )
    )
    moves = constants["offload_moves_gradients"]
    return {
        "weight_bytes": resident,
        "gradient_bytes": kept,
        "gradient_comm_bytes": reduced,
        "optimizer_bytes": moments + master + copy,
        "optimizer_traffic": traffic + 3 * kept * constants["unfused_clip"],
        "step_transient_bytes": constants["step_transient"] if not pure else constants["step_transient"] / 2,
        "half_gradient_bytes": constants["half_gradients"] if trains and not single else 0.0,
        # fp32 parameters are cast to 8 bit for each pass; nothing is cached.
        "quantised_copy_bytes": copies - 2.0 if low and trains and not own else 0.0,
        "transfer_bytes": kept + 2.0,
        "offload_parameters": float(bool(cells.get("offload_parameters"))),
        "host_bytes": moments + master + copy + (kept if moves else 0.0),
    }


def loss_columns(cells: Mapping[str, Any], profile: Profile) -> dict[str, float]:
    """How the loss treats the logits: bytes each, traffic each, whether they are sharded, chunked or never whole."""
    kernel = cells.get("loss_kernel") or profile.defaults["loss_kernel"]
    if cells.get("chunked_loss") is not None and not cells.get("loss_kernel"):
        if cells["chunked_loss"]:
            kernel = "chunked" if kernel not in {"chunked", "linear"} else kernel
        elif kernel in {"chunked", "linear"}:
            kernel = "eager"
    constants = profile.values
    return {
        "logit_bytes": constants[f"logit_bytes_{kernel}"],
        "logit_traffic": constants[f"logit_traffic_{kernel}"],
        "fused_linear_loss": float(kernel == "linear"),
        "vocab_parallel_loss": float(bool(stated(cells, profile, "vocab_parallel_loss"))),
    }


def activation_columns(cells: Mapping[str, Any], profile: Profile, tuning: Mapping[str, float]) -> dict[str, float]:
    """Which operations are fused, and which products keep their inputs: trained ones, and those beside adapters."""
    constants, precision = profile.values, cells["precision"]
    trains = tuning["trains_base"]
    everything = trains or (constants["quantised_keeps_inputs"] and tuning["dequantises"])
    attention = any(tuning[f"lora_on_{name}"] for name in ("query", "key", "value"))
    low = precision in LOW_PRECISION
    adapted = sum(tuning[f"lora_on_{name}"] for name in ("query", "key", "value", "output"))
    attention_8bit = low and stated(cells, profile, "attention_precision") == "fp8"
    flash = cells["flash_attention"] != "no"
    return {
        **{name: float(bool(stated(cells, profile, name))) for name in ("fused_norm", "fused_gate", "fused_rope")},
        "feeds_mixer": float(bool(everything or attention)),
        "feeds_output": float(bool(trains)),  # an 8-bit copy of its input, which 16-bit adapters do not need
        "feeds_mlp": float(bool(everything or tuning["lora_on_mlp"])),
        "feeds_down": float(bool(everything or tuning["lora_on_mlp"])),
        "adapted": adapted + 3.0 * tuning["lora_on_mlp"],
        # Adapters beside 8-bit products keep the 16-bit input.
        "input_bytes": KEPT_INPUT_BYTES[precision] if low and trains else 2.0,
        "attention_bytes": 1.0 if attention_8bit else 2.0,
        "attention_low_precision": float(attention_8bit),
        "repeats_kv": constants["repeats_kv"] * (not flash),
    }


def software_columns(
    cells: Mapping[str, Any], model: Model, device: Device, profile: Profile, *, rack: bool
) -> dict[str, float]:
    """The profile's constants, and what they decide with precision, optimizer and method: bytes, flags, factors.

    `rack`: the scale-up domain is a rack, for which a profile may capture layers in CUDA graphs by default.
    """
    constants, method, precision = profile.values, cells["method"], cells["precision"]
    single, pure = precision in SINGLE, is_pure(precision, profile)
    tuning = tuning_columns(cells)
    # Loss scaling needs fp32 adapters.
    small = pure or (bool(constants["adapters_16bit"]) and precision != "fp16" and not single)
    kernel = cells["flash_attention"]
    kernel = profile.defaults["flash_kernel"] if kernel in {"yes", "no"} else kernel
    graphs = cells.get("cuda_graphs") or profile.defaults["cuda_graphs_rack" if rack else "cuda_graphs"]
    experts = cells.get("expert_kernel") or profile.defaults["expert_kernel"]
    four_bit = {}
    if precision in {"nvfp4", "mxfp4"}:
        four_bit = {f"gemm_{n}": constants[f"fp4_gemm_{n}"] for n in ("efficiency", "k_half")}
    cast = constants["cast_share_mx" if precision.startswith(("mx", "nv")) else "cast_share"]
    states = state_columns(cells, model, profile)
    gathered = 4.0 if single else states["weight_bytes"] if tuning["dequantises"] else 2.0
    if method == "full" and holds_fp8(cells, profile):
        gathered = 1.0
    integer = method != "full" and quantisation_of(cells) in {"int4", "int8"} and quantisation_of(cells) in QUANTISED
    return {
        **constants,
        **four_bit,
        **states,
        **loss_columns(cells, profile),
        **tuning,
        **activation_columns(cells, profile, tuning),
        "cast_share": cast,
        **rates_beside_compute(constants),
        "weight_comm_bytes": gathered,
        "adapter_ratio": constants["lora_operations"] if "lora" in method else ADAPTER_OPERATIONS,
        "orthogonalises": float(cells["optimizer"] == "muon"),
        "low_precision": float(precision in LOW_PRECISION),
        "adapter_state_bytes": adapter_state_bytes(cells["optimizer"], pure=small)
        + constants["adapter_temporary_bytes"],
        "base_sharded": float(not integer),
        "flash": float(cells["flash_attention"] != "no"),
        "tp_overlap": float(bool(stated(cells, profile, "tp_overlap"))),
        "dp_overlap": float(bool(stated(cells, profile, "dp_overlap"))),
        "graph_layers": float(graphs != "no"),
        "graph_steps": float(graphs == "full"),
        "experts_apart": float(experts == "loop"),
        "experts_padded": float(experts == "padded"),
        "all_gathers_tokens": float((cells.get("dispatcher") or profile.defaults["dispatcher"]) == "allgather"),
        "layers_first": float(cells.get("layers_first") or 0),
        "layers_last": float(cells.get("layers_last") or 0),
        "expert_imbalance": float(cells.get("expert_imbalance") or 1.0),
        "serial_gap_seconds": profile.of_generation("serial_gap_seconds", device),
        "kernel_generation": profile.of_generation(f"flash_rate_{kernel}", device),
        "full_head_dim": 1.0 if kernel == "fa1" else 128.0,  # FlashAttention 1 is no slower for small heads
        **power_columns(device, profile),
        "dropout": float(cells["dropout"]),
        "counter": float(COUNTERS.index(cells["mem_counter"])),
        "fragmentation": constants["reserved_factor"],
        "resting_bytes": 0.0,  # models beside the policy, which only some questions hold
        "resting_share": 0.0,
        "host_memory_bandwidth": profile.of_generation("host_memory_bandwidth", device),
    }


def rates_beside_compute(constants: Mapping[str, float]) -> dict[str, float]:
    """What collectives keep of links and cards beside the compute of a training step, under the formulas' names."""
    link, network = constants["training_link_efficiency"], constants["training_network_efficiency"]
    cards = {"network_efficiency": network, "exchange_card_share": network}
    return {"link_efficiency": link, "through_link_efficiency": link, **cards}


def power_columns(device: Device, profile: Profile) -> dict[str, float]:
    """The watts that the board has per FLOP/s over those of its architecture's reference, and the clock held there.

    A part whose peak is cut by more than its power limit holds its full clock.
    """
    watts = profile.of_generation_alone("reference_watts", device)
    peak = profile.of_generation_alone("reference_peak", device)
    share = 1.0
    if watts and peak and device.tdp_watts:
        here = device.precision_peak(device.default_precision)
        share = (device.tdp_watts / here) / (watts.value / peak.value)
    return {
        "power_share": share,
        "clock_at_reference": profile.of_generation("sustained_clock", device, "_other"),
    }
