"""A `vllm serve` command as a serving row (vllm/engine/arg_utils.py, config/parallel.py of 0.33)."""

from __future__ import annotations

import json
from typing import Any

from gpucalc.launch.read import _engine
from gpucalc.launch.read._settings import Settings
from gpucalc.launch.target import Source

TABLE = "vllm"
# Formats of the cache and of the weights by the engine's words; what the checkpoint decides is left open.
CACHE = {"auto": None, "bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
WEIGHTS = {
    "fp8": "fp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "bitsandbytes": "int4",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "modelopt": "fp8",
}
DTYPES = {"auto": None, "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32"}
SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
         "-ep": "--enable-expert-parallel", "-q": "--quantization", "-n": "--nnodes"}  # fmt: skip


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells of a serving row that a command means, and remarks."""
    s, stray = _engine.settings_of(text, TABLE, "vLLM", given, {"vllm", "vllm.entrypoints.openai.api_server"}, SHORT)
    named = [word for word in stray if word != "serve"]
    model = _engine.model_of(s.text("--model") or (named[0] if named else ""), s)
    tp, dp = s.integer("--tensor-parallel-size", 1), s.integer("--data-parallel-size", 1)
    mixture = _engine.is_mixture(model)
    cells: dict[str, Any] = {
        "framework": "vllm",
        "model": model,
        "tp": tp,
        "pp": s.integer("--pipeline-parallel-size", 1),
        "dp": dp,
        # Ranks of one server share the experts; without experts they are replicas.
        "attention_dp": dp if mixture else 1,
        "ep": tp * dp if s.flag("--enable-expert-parallel") and mixture else 1,
        "max_seqs": s.integer("--max-num-seqs"),
        "chunk_tokens": s.integer("--max-num-batched-tokens"),
        "memory_share": _engine.share_of(s, "--gpu-memory-utilization"),
        "kv_precision": CACHE.get(s.word("--kv-cache-dtype", CACHE, "auto")),
        "precision": _engine.weights_of(s, WEIGHTS, DTYPES),
        "draft_tokens": _draft(s),
    }
    if s.flag("--enable-expert-parallel") and not mixture:
        s.notes.append("--enable-expert-parallel has no effect on a model without experts")
    return _engine.finished(s, cells, "--max-model-len")


def _draft(s: Settings) -> int | None:
    """Tokens drafted, of the JSON of --speculative-config."""
    text = s.get("--speculative-config")
    if text is None:
        return None
    try:
        count = json.loads(str(text)).get("num_speculative_tokens")
    except (ValueError, AttributeError):
        s.problems.append("--speculative-config is not a JSON object")
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        s.problems.append("--speculative-config needs num_speculative_tokens, a whole number of 1 or more")
        return None
    return count


SOURCE = Source(("vllm",), read, "a vllm serve command", "serving")
