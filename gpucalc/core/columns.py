"""One record per column of the data contract: what a cell may hold, what empty means, how it is shown.

The row schema (`INPUT`), the predictions (`PREDICTED`) and what each kind of `eval` reads and appends
(`KINDS`) stand here once; readers, options, documents and tables are driven by these records.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError, shown, suggestion
from gpucalc.core.vocabulary import (
    ATTENTION_PRECISIONS,
    CP_KINDS,
    CUDA_GRAPHS,
    DISPATCHERS,
    EXPERT_KERNELS,
    FITS,
    FLASH_KINDS,
    GRADIENT_DTYPES,
    LIBRARIES,
    LOSS_KERNELS,
    MEM_COUNTERS,
    METHODS,
    MODES,
    NETS,
    NETWORK_PRECISIONS,
    OPTIMIZERS,
    PLACEMENTS,
    QUANTISATIONS,
    RECOMPUTES,
    SCHEDULES,
    SCOPES,
)

LARGEST = 1e15  # nothing that a cell of the schema counts comes near it
MOST_GPUS = 1_000_000  # of one job, in every command
SMALLEST = 1e-15  # nor is anything that it measures so small

_YES = {"yes", "true", "1", "1.0", "y"}
_NO = {"no", "false", "0", "0.0", "n"}
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8"}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Column:
    """One column: its type, limits and unit, how people see it, and what an empty cell means.

    kind: text, int, number, share (0.5 or 50%, below 1), size (GiB), choice, flag (yes/no) or month
    (YYYY-MM). `scale` is the unit of `units.scale_for` in which a table scales the whole column; "" leaves it alone.
    """

    name: str
    kind: str
    description: str
    default: str = ""
    choices: Sequence[str] = ()
    unit: str = ""
    heading: str = ""
    scale: str = ""
    minimum: float = 0
    maximum: float = LARGEST
    decimals: int = 3

    @property
    def title(self) -> str:
        """What stands above the column in a table, without the unit."""
        return self.heading or self.name.removeprefix("pred_").replace("_", " ")

    @property
    def accepts(self) -> str:
        """What a cell may hold, for documents and errors."""
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "int" and self.maximum < LARGEST:
            return f"{self.minimum:g} to {self.maximum:,.0f}"
        return {"flag": "yes, no", "month": "YYYY-MM", "size": "number, 24GB"}.get(self.kind, self.kind)


def _int(name: str, description: str, default: str, heading: str = "", minimum: int = 1, **more: Any) -> Column:
    return Column(name, "int", description, default, heading=heading, minimum=minimum, **more)


def _flag(name: str, description: str, default: str, heading: str = "") -> Column:
    return Column(name, "flag", description, default, heading=heading)


def _choice(name: str, choices: Sequence[str], description: str, default: str, heading: str = "") -> Column:
    return Column(name, "choice", description, default, choices, heading=heading)


# What states a model that is no decoder, or a question about one.
NETWORK_COLUMNS = (
    _choice("mode", MODES, "a training step, one forward, or the whole way to a picture or clip", "training"),
    Column("task", "text", "what is learnt; pre-training adds the masked-language head", "not known"),
    Column("params_m", "number", "millions of parameters", "the preset's", minimum=0),
    Column("gmac", "number", "10^9 multiply-accumulates of one forward of one sample", "the preset's", minimum=0),
    Column("mact", "number", "10^6 elements that one forward of one sample writes", "the preset's", minimum=0),
    _choice("net", NETS, "kind of a net that three numbers state", "conv"),
    Column("sample", "text", "unit of rates: image, pair, sequence, token ...", "the preset's"),
    Column("resolution", "text", "pixels, HxW or DxHxW", "the preset's"),
    _int("frames", "pixel frames of a clip", "the preset's, else 1"),
    _int("effective_len", "mean length where padding is removed", "seq_len"),
    _int("dec_len", "tokens of the decoder of an encoder-decoder", "the preset's"),
    _int("text_tokens", "text tokens of a diffusion model or of CLIP", "the preset's"),
    _int(
        "images_per_sample", "images in a sample of a vision-language model", "1 with a resolution, else 0", minimum=0
    ),
    _int("steps", "denoising steps", "the preset's"),
    _flag("cfg", "classifier-free guidance: two forwards a step", "the preset's"),
    _choice("scope", SCOPES, "the whole pipeline, or the denoising steps alone", "full"),
    _flag("latents_cached", "autoencoder and text encoder have run before the training", "yes"),
    _flag("ema", "one more copy of the weights, averaged over steps", "no"),
    Column("trained", "text", "the part that learns: all, denoiser, projector, llm+projector ...", "all"),
    _int("tables", "embedding tables", "the preset's"),
    Column("table_rows_m", "number", "millions of rows of all tables", "the preset's", minimum=0),
    _int("embedding_dim", "width of a row", "the preset's"),
    Column("hotness", "number", "rows that a sample looks up in all", "the preset's", minimum=0),
    _int("ulysses", "ranks that split a sequence by heads in generation", "1"),
    _int("ring", "ranks that pass keys and values around in generation", "1"),
    _int("cfg_parallel", "groups that share the two forwards of guidance", "1", maximum=2),
    _int("pipefusion", "stages of a displaced pipeline in generation", "1"),
    _int("grad_accum", "micro-steps of one training step", "1"),
    _flag("compile", "compiled by torch.compile or XLA", "the stack's"),
    _flag("channels_last", "tensors in NHWC", "the stack's"),
)
NETWORK_INPUT = tuple(column.name for column in NETWORK_COLUMNS)

INPUT_COLUMNS = (
    Column("id", "text", "name of the row", "none; carried through"),
    Column("model", "text", "preset, or path to a config.json", "the shape columns alone"),
    _choice("method", METHODS, "what is trained", "full"),
    _int("layers", "transformer layers", "the model's"),
    _int("hidden", "width of the residual stream", "the model's"),
    _int("heads", "query heads", "the model's"),
    _int("kv_heads", "key and value heads", "the model's, else heads"),
    _int("head_dim", "size of one head", "the model's, else hidden/heads"),
    _int("ffn_hidden", "width of the dense MLP", "the model's, else 4·hidden"),
    _int("vocab", "size of the vocabulary", "the model's, else 51,200 with a warning"),
    _int("seq_len", "tokens of one sequence", "must be stated", "seq"),
    _flag("gated_mlp", "SwiGLU-type MLP with three matrices", "the model's, else no"),
    _flag("tied_embeddings", "input and output embedding are one matrix", "the model's, else as not gated"),
    _int("experts", "experts of a mixture layer; 0 is dense", "the model's, else dense", minimum=0),
    _int("experts_per_token", "experts that see one token", "the model's", minimum=0),
    _int("expert_ffn_hidden", "width of one expert", "the model's", minimum=0),
    _int("shared_experts", "experts that see every token", "the model's", minimum=0),
    Column("gpu", "text", "key of the hardware database, or an alias", "must be stated"),
    _int("n_gpus", "GPUs of the job", "tp·pp·dp·cp", "GPUs", maximum=MOST_GPUS),
    _int("gpus_per_node", "GPUs of one node", "the node's", "GPUs/node"),
    Column(
        "inter_node_gbps_per_gpu",
        "number",
        "network rate per GPU, one direction",
        "the node's",
        unit="Gb/s",
        heading="network",
        minimum=0,
    ),
    Column(
        "gpu_memory_gib",
        "size",
        "memory of one GPU in total as its driver reports it; 24GB and 24GiB mean the card of that name",
        "the GPU's",
        unit="GiB",
        heading="GPU memory",
    ),
    Column("node", "text", "node of the hardware database", "the GPU's usual one"),
    _int("domain", "GPUs of one scale-up domain, at most the node's", "the node's"),
    _int("nics_per_node", "network cards of one node", "the node's, for the GPUs that are used of it"),
    Column("topology", "text", "shape of the network between nodes", "the node's"),
    Column("torus_sides", "text", "sides of a torus, such as 4x4x8: chips of a slice, or nodes", "the most compact"),
    Column(
        "oversubscription",
        "number",
        "bandwidth below a pod of the network over that above; 1 is full bisection",
        "the topology's",
        minimum=1,
    ),
    _choice("placement", PLACEMENTS, "how the nodes of a job lie in the pods of the network", "consecutive"),
    _choice(
        "collective_library",
        LIBRARIES,
        "NCCL's kind, or one that gathers in and between domains at once, as MSCCL++ and XLA do",
        "nccl; hierarchical on TPUs",
    ),
    _flag("in_switch_reduction", "the network's switches add up all-reduces (SHARP)", "no"),
    _int("tp", "tensor parallel ranks", "1"),
    _int("pp", "pipeline stages", "1"),
    _int("dp", "data parallel replicas", "n_gpus/(tp·pp·cp)"),
    _int("cp", "context parallel ranks", "1"),
    _int("ep", "expert parallel ranks", "1"),
    _int("etp", "tensor parallel ranks of the experts", "tp if ep ≤ dp·cp, else 1"),
    _int("vpp", "model chunks of one pipeline stage", "the profile's"),
    _int("layers_first", "layers of the first pipeline stage, where it differs", "an even share"),
    _int("layers_last", "layers of the last pipeline stage, where it differs", "an even share"),
    _choice(
        "schedule", SCHEDULES, "order of the micro-batches in the pipeline", "none, 1f1b or interleaved by pp, vpp"
    ),
    _choice("cp_kind", CP_KINDS, "how context parallel ranks exchange keys and values", "ring"),
    _int("zero_stage", "what is sharded over data parallel ranks; 3 is FSDP", "the profile's", "ZeRO", 0, maximum=3),
    _int("shard_group", "ranks over which ZeRO or FSDP shards", "dp·cp"),
    _flag("sequence_parallel", "activations between the matrix products sharded over tp", "the profile's", "SP"),
    _int("micro_batch", "sequences of one replica and micro-step", "1", "micro-batch"),
    _int("global_batch", "sequences of one step", "dp·micro_batch", "batch"),
    _choice("recompute", RECOMPUTES, "activations computed again in the backward pass", "the least that fits"),
    _int("recompute_layers", "layers of one stage that are fully recomputed", "all, with recompute full", minimum=0),
    _flag("offload_optimizer", "optimizer state held in host memory", "no"),
    _flag("offload_parameters", "sharded parameters held in host memory", "no"),
    _flag("offload_activations", "activations held in host memory", "no"),
    _choice("optimizer", OPTIMIZERS, "optimizer, which sets the state held per parameter", "adam"),
    _int("lora_rank", "rank of the adapters of method lora or qlora", "16", "rank"),
    Column("lora_targets", "text", "adapted projections: qv, attention, all, or q k v o mlp joined by +", "attention"),
    _choice("quantisation", QUANTISATIONS, "how the frozen base of an adapter method is stored", "nf4-dq with qlora"),
    _flag("train_embeddings", "embedding and head train beside the adapters", "no"),
    _flag("optimizer_in_backward", "each layer is updated in the backward pass and its gradients freed", "no"),
    _flag("chunked_loss", "the loss runs over chunks of tokens, so that whole logits are never held", "the profile's"),
    _choice("grad_accum_dtype", ("bf16", "fp32"), "type in which gradients are accumulated", "the profile's"),
    _choice("precision", NETWORK_PRECISIONS, "type of the matrix products", "bf16; fp16 before Ampere"),
    _choice("flash_attention", FLASH_KINDS, "attention kernel", "the profile's at software_date"),
    _flag("fused_norm", "norms fused into one pass", "the profile's"),
    _flag("fused_gate", "a gated MLP's activation and product are one kernel", "the profile's"),
    _flag("fused_rope", "the rotary embedding is one kernel that works on the fused projection", "the profile's"),
    _choice("loss_kernel", LOSS_KERNELS, "how the loss is computed from the logits", "the profile's at software_date"),
    _flag("vocab_parallel_loss", "the loss works on logits sharded over tp, never gathering them", "the profile's"),
    _choice(
        "gradient_dtype",
        GRADIENT_DTYPES,
        "type in which gradients are reduced and, unless stated, kept",
        "the profile's",
    ),
    _flag("fp8_params", "weights of 8-bit products are held and gathered in 8 bit", "the profile's"),
    _choice("attention_precision", ATTENTION_PRECISIONS, "type of the attention's own products", "the profile's"),
    _choice("cuda_graphs", CUDA_GRAPHS, "what is launched as captured graphs", "the profile's"),
    _flag("tp_overlap", "tensor-parallel traffic runs in chunks beside the products", "the profile's"),
    _flag("dp_overlap", "gradients are reduced beside the backward pass", "the profile's"),
    Column("expert_imbalance", "number", "tokens of the most loaded expert rank over the mean", "1", minimum=1),
    _choice("expert_kernel", EXPERT_KERNELS, "how the local experts' products are launched", "the profile's"),
    _choice("dispatcher", DISPATCHERS, "how tokens reach the ranks of their experts", "the profile's"),
    _int("mtp_layers", "layers of multi-token prediction after the last", "the model's", minimum=0),
    _flag("dropout", "dropout masks are kept", "no"),
    Column("framework", "text", "software, which selects a documented profile", "megatron-core"),
    Column("software_date", "month", "month of the software", "today"),
    _choice("mem_counter", MEM_COUNTERS, "counter that the predicted peak memory stands for", "reserved"),
    *NETWORK_COLUMNS,
    Column("notes", "text", "what the settings of the row say that is not modelled", "none; carried through"),
    Column("measured_step_time_s", "number", "measured time of a step; read by validate", unit="s", minimum=0),
    Column("measured_peak_mem_gib", "number", "measured peak memory; read by validate", unit="GiB", minimum=0),
    _flag("measured_oom", "the run ended out of memory; read by validate", ""),
)

KERNEL_COLUMNS = (
    Column("dtype", "text", "type of the operands", "must be stated"),
    _int("m", "rows of the product", "must be stated"),
    _int("n", "columns of the product", "must be stated"),
    _int("k", "inner dimension of the product", "must be stated"),
    Column("phase", "text", "prefill_causal or decode", "must be stated"),
    _int("batch", "sequences", "must be stated"),
    _int("seqlen", "tokens of one sequence, or of its cache", "must be stated"),
    _int("nodes", "nodes of the group", "must be stated"),
    Column("fabric", "text", "network link of the database", "the node's"),
    Column("op", "text", "collective operation", "must be stated"),
    _int("bytes", "size as nccl-tests counts it", "must be stated"),
    Column("kernel", "text", "deepep_normal or deepep_low_latency", "must be stated"),
    _int("gpus", "GPUs of the group", "must be stated"),
    _int("topk", "experts that see one token", "must be stated"),
    _int("tokens_per_gpu", "tokens that one GPU sends", "must be stated"),
)


def _out(name: str, description: str, heading: str, unit: str = "", scale: str = "", decimals: int = 3) -> Column:
    return Column(name, "number", description, unit=unit, heading=heading, scale=scale, decimals=decimals, minimum=0)


def _ranged(name: str, description: str, heading: str, unit: str = "", decimals: int = 3) -> tuple[Column, ...]:
    """A figure and the ends of its range; the unit stays the last part of the names."""
    stem, _, last = name.rpartition("_")
    return tuple(
        _out(f"{stem}{end}_{last}", f"{said}{description}", f"{heading}{tag}", unit, decimals=decimals)
        for end, said, tag in (("", "", ""), ("_low", "least: ", " low"), ("_high", "most: ", " high"))
    )


PREDICTED_COLUMNS = (
    Column("layout", "text", "the layout as a label", heading="layout"),
    _out("pred_step_time_s", "time of one optimizer step", "step", "s", "s"),
    _out("pred_step_time_low_s", "lower end of the 80 % band", "step low", "s", "s"),
    _out("pred_step_time_high_s", "upper end of the 80 % band", "step high", "s", "s"),
    _out("pred_tokens_per_s_per_gpu", "tokens trained per second and GPU", "tokens/s/GPU", decimals=0),
    _out("pred_mfu_pct", "model FLOPs over the dense peak", "MFU", "%", decimals=1),
    _out("pred_hfu_pct", "executed FLOPs over the dense peak", "HFU", "%", decimals=1),
    _out("pred_peak_mem_gib", "peak memory of the worst GPU", "memory/GPU", "GiB", decimals=1),
    Column("pred_fit", "choice", "whether the worst GPU holds it", choices=FITS, heading="fit"),
    Column("pred_recompute", "text", "recompute used; full:12 is 12 layers of a stage", heading="recompute"),
    Column("pred_error", "text", "every reason why the row cannot be evaluated", heading="error"),
    Column("pred_notes", "text", "what was taken, and why no plan lists the layout", heading="notes"),
    _out("pred_time_us", "time of the operation", "time", "µs", decimals=2),
    _out("pred_tflops", "rate reached", "rate", "TFLOP/s", decimals=1),
    Column("pred_bound", "text", "what limits it: compute, memory or launch", heading="bound"),
    _out("pred_busbw_GBps", "bus bandwidth as nccl-tests counts it", "bus bandwidth", "GB/s", decimals=2),
    Column("pred_algorithm", "text", "algorithm chosen", heading="algorithm"),
    _out("pred_dispatch_us", "time to send tokens to their experts", "dispatch", "µs", decimals=1),
    _out("pred_combine_us", "time to bring them back", "combine", "µs", decimals=1),
    _out("pred_ttft_ms", "mean time to the first token under the stated load", "TTFT loaded", "ms", decimals=1),
    _out("pred_ttft_unloaded_ms", "time to the first token of a lone request", "TTFT alone", "ms", decimals=1),
    _out("pred_tpot_ms", "mean time between tokens, without the first", "TPOT", "ms", decimals=2),
    _out("pred_output_tok_s_total", "output tokens per second of all GPUs", "output tok/s", decimals=0),
    _out("pred_samples_per_s_low", "lower end of the 80 % band", "low", decimals=1),
    _out("pred_samples_per_s_high", "upper end of the 80 % band", "high", decimals=1),
    _out("pred_latency_s", "time of one request from prompt to picture or clip", "latency", "s", "s"),
    _out("pred_latency_low_s", "lower end of the 80 % band", "latency low", "s", "s"),
    _out("pred_latency_high_s", "upper end of the 80 % band", "latency high", "s", "s"),
    _out("pred_gmac", "10^9 multiply-accumulates of one forward of one sample", "GMAC", decimals=2),
    _out("pred_params_m", "millions of parameters", "parameters", "M", decimals=2),
    _out("pred_kv_tokens", "tokens that the cache of one attention rank holds", "KV tokens", decimals=0),
    *_ranged("pred_samples_per_s", "samples per second of all accelerators", "samples/s", decimals=1),
    _out("pred_utilisation_pct", "of their time accelerators compute", "computing", "%", decimals=1),
    Column("pred_limiter", "text", "what limits reading first", heading="first limit"),
    *_ranged("pred_node_kw", "power of a node under the load", "node", "kW"),
    _out("pred_site_mw", "power of the site", "site", "MW"),
    _out("pred_run_kwh", "energy of a run of the stated duration", "run", "kWh"),
    *_ranged("pred_days", "the whole run", "days", "days", decimals=2),
    *_ranged("pred_goodput_pct", "useful share of the time", "goodput", "%", decimals=2),
    *_ranged("pred_mtbf_h", "time between interruptions", "MTBF", "h", decimals=2),
    _out("pred_energy_mwh", "electricity of the run", "energy", "MWh", decimals=1),
    _out("pred_cost_usd", "GPUs of the run", "cost", "USD", decimals=0),
    *_ranged("pred_rate_tflops", "rate of all GPUs", "rate", "TFLOP/s", decimals=1),
    _out("pred_run_time_s", "time of a run that fills the device memory", "run time", "s", decimals=1),
    *_ranged("pred_makespan_days", "until the last frame is done", "makespan", "days", decimals=3),
    Column("pred_bottleneck", "text", "side that limits the rate: prefill or decode", heading="limited by"),
)

INPUT: dict[str, Column] = {c.name: c for c in INPUT_COLUMNS}
PREDICTED: dict[str, Column] = {c.name: c for c in PREDICTED_COLUMNS}
COLUMNS: dict[str, Column] = {c.name: c for c in (*KERNEL_COLUMNS, *INPUT_COLUMNS, *PREDICTED_COLUMNS)}

_DENSE_SHAPE = "layers hidden heads kv_heads head_dim ffn_hidden vocab gated_mlp tied_embeddings"
SHAPE = tuple(f"{_DENSE_SHAPE} experts experts_per_token expert_ffn_hidden shared_experts".split())
MEASURED = ("measured_step_time_s", "measured_peak_mem_gib", "measured_oom")


def _with_range(name: str) -> tuple[str, ...]:
    return tuple(column.name for column in _ranged(name, "", ""))


# What a network's row has beside the predictions of a training row.
NETWORK_PREDICTIONS = (
    *("pred_samples_per_s", "pred_samples_per_s_low", "pred_samples_per_s_high"),
    *("pred_latency_s", "pred_latency_low_s", "pred_latency_high_s", "pred_gmac", "pred_params_m", "pred_bound"),
)
TRAINING_PREDICTIONS = tuple(c.name for c in PREDICTED_COLUMNS[1:11])
KINDS: dict[str, tuple[str, ...]] = {
    "training": (*TRAINING_PREDICTIONS, "pred_notes"),
    "gemm": ("pred_time_us", "pred_tflops", "pred_bound", "pred_error"),
    "attention": ("pred_time_us", "pred_bound", "pred_error"),
    "collective": ("pred_time_us", "pred_busbw_GBps", "pred_algorithm", "pred_error"),
    "alltoall": ("pred_dispatch_us", "pred_combine_us", "pred_error"),
    "posttraining": (
        "pred_peak_mem_gib",
        "pred_tokens_per_s_per_gpu",
        "pred_step_time_s",
        "pred_fit",
        "pred_error",
    ),
    "serving": (
        "pred_ttft_ms",
        "pred_ttft_unloaded_ms",
        "pred_tpot_ms",
        "pred_output_tok_s_total",
        "pred_kv_tokens",
        "pred_bottleneck",
        "pred_fit",
        "pred_error",
    ),
    "mixed": tuple(
        f"pred_{name}"
        for name in (
            *("step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s_per_gpu", "mfu_pct"),
            *("peak_mem_gib", "fit", "recompute", "error"),
        )
    ),
    "storage": (*_with_range("pred_samples_per_s"), "pred_utilisation_pct", "pred_limiter", "pred_error"),
    "power": (*_with_range("pred_node_kw"), "pred_site_mw", "pred_run_kwh", "pred_error"),
    "run": (
        *(n for name in ("pred_days", "pred_goodput_pct", "pred_mtbf_h") for n in _with_range(name)),
        *("pred_energy_mwh", "pred_cost_usd", "layout", "pred_error"),
    ),
    "hpl": (*_with_range("pred_rate_tflops"), "pred_run_time_s", "pred_error"),
    "hpcg": (*_with_range("pred_rate_tflops"), "pred_error"),
    "render": (*_with_range("pred_makespan_days"), "pred_bound", "pred_error"),
}


def _number(column: Column, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{column.name} is {shown(text)}, expected a number")
    value = float(text)
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise UsageError(f"{column.name} is {shown(text)}, which is too large (at most {LARGEST:g})")
    return value


_SIZE = re.compile(r"([\d.]+)\s*(g|gb|gib|mb|mib)?", re.IGNORECASE)


def _size(column: Column, text: str) -> float:
    """GiB of a memory as cards are named: their GB are GiB, and MiB are what a driver prints."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{column.name} is {shown(text)}, expected a size such as 24GB")
    value = _number(column, match[1]) / (1024 if (match[2] or "").casefold().startswith("m") else 1)
    if not 0.25 <= value <= 10_000:
        raise UsageError(f"{column.name} is {shown(text)}, expected 0.25 to 10,000 GiB, such as 24GB")
    return value


def _whole(column: Column, text: str) -> int:
    value = _number(column, text)
    if value != int(value):
        raise UsageError(f"{column.name} is {shown(text)}, expected a whole number such as {max(1, round(value))}")
    if not column.minimum <= value <= column.maximum:
        most = f" to {column.maximum:,.0f}" if column.maximum < LARGEST else " or more"
        raise UsageError(f"{column.name} is {shown(text)}, expected {column.minimum:g}{most}")
    return int(value)


def _chosen(column: Column, text: str) -> str:
    folded = text.casefold().replace("_", "-")
    word = _ALIASES.get(folded, folded)
    if word in column.choices:
        return word
    if "yes" in column.choices and folded in _YES | _NO:
        return "yes" if folded in _YES else "no"
    raise UsageError(f"{column.name} is {shown(text)}{suggestion(word, column.choices, 1)}")


def _answer(column: Column, text: str) -> bool:
    if text.casefold() in _YES:
        return True
    if text.casefold() in _NO:
        return False
    raise UsageError(f"{column.name} is {shown(text)}, expected yes or no")


def _share(column: Column, text: str) -> float:
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{column.name} is {shown(text)}, expected a share below 1, such as 0.5 or 50%")
    return value


def _month(column: Column, text: str) -> str:
    match = re.fullmatch(r"(\d{4})-(\d{2})(?:-\d{2})?", text)
    if not match or not 1 <= int(match[2]) <= 12:
        raise UsageError(f"{column.name} is {shown(text)}, expected a month such as 2025-06")
    return f"{match[1]}-{match[2]}"


def parse_cell(column: Column | str, text: str) -> Any:
    """The value of a cell: int, float, bool (flag) or str, or None for an empty one.

    Raises UsageError with one sentence for a value that the column does not take.

    >>> parse_cell("tp", "8.0"), parse_cell("sequence_parallel", "TRUE"), parse_cell("precision", "BF16")
    (8, True, 'bf16')
    >>> parse_cell("schedule", "1F1B "), parse_cell("recompute", "")
    ('1f1b', None)
    >>> parse_cell(Column("hit", "share", ""), "50%")
    0.5
    """
    record = COLUMNS[column] if isinstance(column, str) else column
    text = text.strip()
    if not text:
        return None
    match record.kind:
        case "int":
            return _whole(record, text)
        case "number":
            value = _number(record, text)
            if value <= 0:
                raise UsageError(f"{record.name} is {shown(text)}, expected more than 0")
            if value < record.minimum:
                raise UsageError(f"{record.name} is {shown(text)}, expected {record.minimum:g} or more")
            if value < SMALLEST:
                raise UsageError(f"{record.name} is {shown(text)}, which is too small (at least {SMALLEST:g})")
            return value
        case "size":
            return _size(record, text)
        case "choice":
            return _chosen(record, text)
        case "flag":
            return _answer(record, text)
        case "month":
            return _month(record, text)
        case "share":
            return _share(record, text)
        case _:
            return text


@functools.lru_cache(maxsize=64)
def _stated(header: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a header that a job reads, in the order of the schema."""
    return tuple(name for name in INPUT if name in header)


def parse_row(
    record: Mapping[str, str], parsed: dict[tuple[str, str], Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The stated cells of the row schema, typed, and a sentence for each that is wrong.

    Unknown and empty columns are left out; `recompute` also takes "full:12" and "auto". `parsed` keeps what texts
    mean from one row of a batch to the next.

    >>> parse_row({"tp": "2", "recompute": "full:12", "mine": "x", "dp": "", "pp": "0"})
    ({'tp': 2, 'recompute': 'full', 'recompute_layers': 12}, ["pp is '0', expected 1 or more"])
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    layers = ""
    for name in _stated(tuple(record)):
        text = record[name]
        if not text:
            continue
        column = INPUT[name]
        if parsed is not None and (known := parsed.get((name, text))) is not None:
            values[name] = known
            continue
        try:
            if name == "recompute":
                text = text.strip().casefold()
                if text == "auto":
                    continue
                text, _, layers = text.partition(":")
            value = parse_cell(column, text)
            if value is not None:
                values[name] = value
            if name == "recompute" and layers:
                values["recompute_layers"] = parse_cell("recompute_layers", layers)
            elif parsed is not None:
                parsed[name, record[name]] = value
        except UsageError as error:
            problems.extend(error.problems)
    return values, problems


def parts_of(flag: str, text: str, of: str = "name") -> list[str]:
    """The parts of a list parted by commas, blanks around them dropped.

    Raises UsageError where nothing is named; `of` is what the list holds.

    >>> parts_of("--gpu", "h100, l40s,")
    ['h100', 'l40s']
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{flag} is {shown(text)}, which holds no {of}")
    return parts


def cell_text(value: Any) -> str:
    """A typed value as the text of a cell, at full precision.

    >>> cell_text(True), cell_text(0.1), cell_text(None), cell_text(8)
    ('yes', '0.1', '', '8')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else ""
    if hasattr(value, "item"):  # a numpy scalar, without importing numpy
        return cell_text(value.item())
    return str(value)


def parse_setting(pair: str) -> tuple[str, Any]:
    """One `--set key=value`: the column and its typed value.

    >>> parse_setting("tp=8")
    ('tp', 8)
    """
    name, equals, text = pair.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name or not text.strip():
        raise UsageError(f"--set {shown(pair)} is not key=value; write for example --set tp=8")
    if name not in INPUT or name in MEASURED:
        settable = [n for n in INPUT if n not in MEASURED]
        hint = suggestion(name, settable, otherwise="; any column of the row schema can be set")
        raise UsageError(f"--set: unknown column {shown(name)}{hint}")
    return name, parse_cell(INPUT[name], text)
