"""A `python -m sglang.launch_server` command as a serving row (srt/arg_groups/fields, parallel_hook.py of 0.5.23)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.read import _engine
from gpucalc.launch.read._settings import Settings
from gpucalc.launch.target import Source

TABLE = "sglang"
ALIASES = {
    "--tensor-parallel-size": "--tp-size",
    "--tp": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--pp": "--pp-size",
    "--data-parallel-size": "--dp-size",
    "--dp": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--expert-parallel-size": "--ep-size",
    "--ep": "--ep-size",
    "--model": "--model-path",
}
CACHE = {"auto": None, "bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
WEIGHTS = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "awq_marlin": "int4", "gptq_marlin": "int4",
           "w8a8_fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8", "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4",
           "w4afp8": "int4"}  # fmt: skip
DTYPES = {"auto": None, "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells of a serving row that a command means, and remarks."""
    s, _ = _engine.settings_of(text, TABLE, "SGLang", given, {"sglang.launch_server", "sglang"}, ALIASES)
    model = _engine.model_of(s.text("--model-path"), s)
    group, replicas = s.integer("--tp-size", 1), s.integer("--dp-size", 1)
    attention = s.integer("--attn-dp-size", 1)
    if s.flag("--enable-dp-attention") and attention == 1:
        # The older form: the replicas are attention ranks inside the tensor parallel group.
        attention, replicas = replicas, 1
    if group % attention:
        s.problems.append(f"--attn-dp-size {attention} does not divide --tp-size {group}")
    chunk, running = s.get("--chunked-prefill-size"), s.integer("--max-running-requests")
    chunk = None if str(chunk) == "-1" else s.integer("--chunked-prefill-size")
    cells: dict[str, Any] = {
        "framework": "sglang",
        "model": model,
        "tp": max(1, group // attention),
        "pp": s.integer("--pp-size", 1),
        "dp": replicas * attention,
        "attention_dp": attention,
        "ep": s.integer("--ep-size", 1),
        # Both are counted over the attention ranks, among which the server divides them.
        "max_seqs": max(1, running // attention) if running else None,
        "chunk_tokens": max(1, chunk // attention) if chunk else None,
        "memory_share": _engine.share_of(s, "--mem-fraction-static"),
        "kv_precision": CACHE.get(s.word("--kv-cache-dtype", CACHE, "auto")),
        "precision": _engine.weights_of(s, WEIGHTS, DTYPES),
        "draft_tokens": _draft(s),
    }
    if s.word("--disaggregation-mode", ("null", "prefill", "decode"), "null") != "null":
        s.problems.append("one side of prefill and decode workers: state both with gpucalc serve")
    return _engine.finished(s, cells, "--context-length")


def _draft(s: Settings) -> int | None:
    """Tokens drafted: those of a step less the one that is always right."""
    if s.get("--speculative-algorithm") is None:
        return None
    drafts, steps = s.integer("--speculative-num-draft-tokens"), s.integer("--speculative-num-steps")
    return max(1, drafts - 1) if drafts else steps


SOURCE = Source(("sglang", "sgl"), read, "a sglang.launch_server command", "serving")
