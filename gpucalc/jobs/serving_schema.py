"""Columns of serving rows: what a cell may hold and what empty means; one record each, as in `gpucalc.columns`."""

from __future__ import annotations

from gpucalc.core.columns import Column

MODEL_CELLS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_hidden",
    "vocab",
    "gated_mlp",
    "experts",
    "experts_per_token",
    "expert_ffn_hidden",
    "shared_experts",
)
CLUSTER_CELLS = ("gpu", "n_gpus", "gpus_per_node", "inter_node_gbps_per_gpu", "gpu_memory_gib")


def _int(name: str, description: str, default: str, minimum: int = 1) -> Column:
    return Column(name, "int", description, default, minimum=minimum)


def _share(name: str, description: str, default: str) -> Column:
    return Column(name, "share", description, default)


SERVING_COLUMNS = (
    _int("tp", "tensor parallel ranks of one replica", "1"),
    _int("pp", "pipeline stages of one replica", "1"),
    _int("dp", "attention data-parallel ranks times replicas", "n_gpus/(tp·pp)"),
    _int("ep", "ranks over which the experts are spread whole", "1"),
    _int("attention_dp", "data-parallel attention ranks that share one set of experts", "dp in a mixture, else 1"),
    Column("precision", "text", "format of the weights", "the checkpoint's, else bf16; fp16 before Ampere"),
    Column("kv_precision", "text", "format of the cache", "the checkpoint's scheme, else 16 bit"),
    Column("isl", "number", "mean tokens of a prompt", "must be stated"),
    Column("osl", "number", "mean tokens of an answer", "must be stated"),
    Column(
        "concurrency",
        "number",
        "requests in the system, over all replicas (closed loop)",
        "as many as fit, unless rate is stated",
    ),
    Column("rate", "number", "requests per second that arrive, over all replicas (open loop)", "closed loop"),
    Column("waves", "number", "requests sent over concurrency, the first wave all at once", "steady state, no burst"),
    Column("framework", "text", "engine: vllm, sglang, trtllm", "neutral"),
    Column("framework_version", "text", "version of the engine, such as 0.19", "the one its constants were fitted to"),
    _int("chunk_tokens", "most tokens of prompts in one pass", "the engine's on that card"),
    _int("max_seqs", "most sequences of one attention rank", "the engine's on that card"),
    _share("prefix_hit", "share of the prompt found in the cache", "0"),
    _share("memory_share", "share of the memory that the engine may use", "the engine's on that card"),
    Column("eager", "flag", "no captured graphs: a step takes at least its launches", "no"),
    _int("draft_tokens", "tokens drafted ahead of each verification", "0", 0),
    _share("acceptance", "probability that a drafted token is accepted", "0.7 when tokens are drafted"),
    Column("accepted_tokens", "number", "mean drafted tokens accepted a verification", "by acceptance", minimum=0),
    _share("draft_cost", "time of one drafted token over that of a step", "one layer's share"),
    _int("prefill_gpus", "GPUs of the same layout that only prefill; the others decode", "0", 0),
    *(
        _int(f"{side}_{name}", f"{text} that {side}s" if name != "workers" else f"workers that only {side}", "1")
        for side in ("prefill", "decode")
        for name, text in (
            ("tp", "tensor-parallel ranks of attention in one worker"),
            ("attention_dp", "data-parallel attention ranks, which share its experts, of one worker"),
            ("ep", "ranks over which whole experts are spread in one worker"),
            ("workers", ""),
        )
    ),
)
RECORDS = {c.name: c for c in SERVING_COLUMNS}

OUTPUT_COLUMNS = (
    Column("layout", "text", "the layout as a label", heading="layout"),
    Column("concurrency", "number", "requests in the system", heading="requests", decimals=0),
    Column("rate", "number", "requests per second that arrive", unit="1/s", heading="rate", decimals=2),
    Column(
        "pred_tok_s_per_user", "number", "output tokens per second of one request", heading="tok/s/user", decimals=1
    ),
    Column("pred_tok_s_per_gpu", "number", "output tokens per second of one GPU", heading="tok/s/GPU", decimals=0),
    Column(
        "pred_max_concurrency", "number", "most requests of full length that fit", heading="most requests", decimals=0
    ),
    Column("pred_decode_batch", "number", "sequences that one rank decodes together", heading="batch/rank", decimals=0),
    Column("pred_bottleneck", "text", "side that limits the rate: prefill or decode", heading="limited by"),
    Column("pred_weights_gib", "number", "weights on one GPU", unit="GiB", heading="weights/GPU", decimals=1),
    Column("pred_cost_per_million", "number", "money per million output tokens", heading="cost/M tokens", decimals=2),
    Column(
        "pred_saturation_rate",
        "number",
        "rate at which the queue grows without end",
        unit="1/s",
        heading="saturates at",
        decimals=2,
    ),
)
