"""The serving estimate: in which order the formulas are evaluated, from columns to a ledger."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import Unit
from gpucalc.estimate.serving_memory import add_cache, add_weights
from gpucalc.estimate.serving_pass import ONE, Layer, Pass, add_layer, add_pass
from gpucalc.formulas import kv_cache, serving, serving_memory
from gpucalc.formulas import serving_load as load

BISECTIONS = 18
NOTHING = Constant("NOTHING", 0.0, "what a request alone in the system waits", "definition", unit=Unit("s", second=1))
RESERVES = 1  # memory rule of an engine that admits a request only when its full length fits


def estimate_serving(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of serving on rows of columns; open-loop rows are solved for the requests in the system."""
    if np.any(columns["open_loop"] > 0):
        columns = _balanced(columns)
    return _estimate(columns, trace)


def estimate_at_concurrency(columns: Columns) -> Ledger:
    """The terms at the stated requests in the system, whatever the stated rate is."""
    return _estimate(columns, False)


def _balanced(columns: Columns) -> Columns:
    """The columns with the concurrency at which the replicas finish as many requests as arrive."""
    values = dict(columns)
    most = _estimate(Columns({**values, "concurrency": _filled(values, 1e9)}), False)
    limit = most["memory/batch-limit"] * values["dp"]
    saturation = _estimate(Columns({**values, "concurrency": limit}), False)["metric/service-rate"]
    low, high = _filled(values, 1e-3), limit * 1.0
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        rate = _estimate(Columns({**values, "concurrency": middle}), False)["metric/service-rate"]
        less = rate < values["rate"]
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    open_loop = values["open_loop"] > 0
    values["concurrency"] = np.where(open_loop, high, values["concurrency"])
    values["saturation_rate"] = np.where(open_loop, saturation, 0.0)
    return Columns({n: _plain(v) for n, v in values.items()})


def _filled(values: dict[str, Any], number: float) -> Any:
    return np.where(values["open_loop"] > 0, number, np.maximum(values["concurrency"], 1e-3))


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _estimate(columns: Columns, trace: bool) -> Ledger:
    ledger = Ledger(Columns({"saturation_rate": 0.0, **columns}), trace=trace)
    ledger.define("context", load.mean_context)
    ledger.define("cached_prefix", load.cached_tokens_of_prompt)
    ledger.define("prompt_tokens", load.computed_prompt)
    ledger.define("verified", load.verified_tokens)
    ledger.define("prefill_workers", load.prefill_workers)
    ledger.define("decode_ranks", load.decode_ranks)
    parts = add_layer(ledger)
    add_weights(ledger)
    add_cache(ledger)
    _batch(ledger)
    _passes(ledger, parts)
    _answers(ledger)
    return ledger


def _batch(ledger: Ledger) -> None:
    """Sequences that decode together on one attention rank: those in the system, as far as the cache holds them."""
    ledger.choose(
        "memory/held-sequences", "memory_rule", {RESERVES: "memory/sequences"}, otherwise="memory/sequences-mean"
    )
    limit = "memory/batch-limit"
    ledger.add(limit, serving_memory.batch_limit, sequences="memory/held-sequences")
    ledger.define("concurrency", load.requests_in_system, batch_limit=limit)
    ledger.add("symbol/wanted", load.requests_per_rank)
    ledger.define("batch", load.decoding_batch, wanted="symbol/wanted", batch_limit=limit)
    ledger.define("decoding", load.stage_batch)
    ledger.define("replica_batch", load.replica_batch)


def _passes(ledger: Ledger, parts: Layer) -> None:
    ledger.add("prefill/chunks", serving.prefill_chunks, tokens="prompt_tokens", chunk="chunk_tokens")
    ledger.define("chunk", load.chunk_size, chunks="prefill/chunks")
    ledger.add(
        "prefill/arrived",
        serving.prompts_per_pass,
        batch="replica_batch",
        tokens="prompt_tokens",
        chunk="chunk_tokens",
        attention_ranks="attention_dp",
    )
    # Engines that balance attention ranks let all of them prefill in the same step.
    ledger.add("prefill/together", load.prompts_together, arrived="prefill/arrived")
    ledger.add("prefill/prompts", load.prompts_of_rank, together="prefill/together")
    ledger.product("decode/tokens", "decoding", "verified")
    ledger.product("decode/group-tokens", "decode/tokens", "attention_dp")
    ledger.product("prefill/tokens", "chunk", "prefill/prompts")
    ledger.product("prefill/group-tokens", "chunk", "prefill/together")
    ledger.total("mixed/tokens", "prefill/tokens", "decode/tokens")
    ledger.total("mixed/group-tokens", "prefill/group-tokens", "decode/group-tokens")
    rows, prompts, decoding = "decode/tokens", "prefill/prompts", "decoding"
    for one in (
        Pass("decode", rows, "decode/group-tokens", rows, sequences=decoding, launch="graph_launch_share"),
        Pass("single", "chunk", "chunk", ONE, prompts=ONE, exchange="prefill"),
        Pass("prefill", "prefill/tokens", "prefill/group-tokens", prompts, prompts=prompts, exchange="prefill"),
        Pass("mixed", "mixed/tokens", "mixed/group-tokens", rows, decoding, prompts, exchange="prefill"),
    ):
        add_pass(ledger, one, parts)


def _answers(ledger: Ledger) -> None:
    ledger.add("time/overhead", serving.step_overhead, sequences="decoding")
    for name in ("decode", "single", "prefill", "mixed"):
        ledger.total(f"{name}/step", f"{name}/time", "time/overhead")
    ledger.total("time/step", "decode/step")
    ledger.add("decode/accepted", serving.tokens_per_verification, draft="draft_tokens")
    ledger.product("decode/draft", "decode/time", "draft_cost")
    ledger.add(
        "time/token", serving.speculative_step, verify="time/step", draft="decode/draft", accepted="decode/accepted"
    )
    _interference(ledger)
    ledger.add(
        "time/tpot",
        serving.closed_loop_tpot,
        step="time/token",
        batch="replica_batch",
        interference="prefill/felt",
        stages="pp",
    )
    _prefill(ledger)
    ledger.add("time/residence", serving.request_time, prefill="time/prefill", tpot="time/tpot")
    _queue(ledger)
    loaded = {"queue": "time/queue", "admission": "time/admission-closed", "prefill": "time/prefill"}
    ledger.add("time/ttft", serving.time_to_first_token, step="time/step", transfer="time/transfer", **loaded)
    alone = {"step": NOTHING, "queue": NOTHING, "admission": NOTHING, "prefill": "time/prefill-unloaded"}
    ledger.add("time/ttft-unloaded", serving.time_to_first_token, transfer="time/transfer", **alone)
    _rates(ledger)


def _interference(ledger: Ledger) -> None:
    """Store how long the prefill of a request delays the others."""
    ledger.add(
        "prefill/interference-of-pass",
        serving.prefill_interference,
        mixed_pass="mixed/step",
        step="time/step",
        alone="prefill/step",
        mixes="mixes_prefill",
    )
    ledger.add(
        "prefill/interference",
        load.prompt_interference,
        interference_of_pass="prefill/interference-of-pass",
        chunks="prefill/chunks",
        together="prefill/together",
    )
    ledger.add("prefill/felt", load.felt_interference, interference="prefill/interference")


def _prefill(ledger: Ledger) -> None:
    """Store the time of a prompt alone and under load, and what sending its cache to a decode worker adds."""
    ledger.product("time/prefill-unloaded", "single/step", "prefill/chunks")
    ledger.add("prefill/pass", load.loaded_prefill_pass, mixed="mixed/step", alone="prefill/step")
    ledger.product("time/prefill", "prefill/pass", "prefill/chunks")
    ledger.product("transfer/bandwidth", "network_bandwidth", "transfer_efficiency")
    ledger.add("transfer/cache", serving_memory.prompt_cache, sequence_bytes="memory/kv/longest")
    ledger.add(
        "transfer/exposed",
        kv_cache.cache_transfer_exposed,
        cache="transfer/cache",
        transfer_bandwidth="transfer/bandwidth",
        prefill="time/prefill-unloaded",
    )
    ledger.add("time/transfer", load.transfer_of_apart, exposed="transfer/exposed")


def _queue(ledger: Ledger) -> None:
    """Store the waits for a place in the batch and behind the prefills of others."""
    ledger.add("time/admission", serving.admission_wait, concurrency="symbol/wanted", residence="time/residence")
    ledger.add("time/admission-closed", load.closed_loop_wait, wait="time/admission")
    service = "prefill/interference"
    ledger.add("time/queue/closed", serving.prefill_queue, batch="replica_batch", interference=service)
    ledger.add("time/queue/arrivals", load.arrivals_at_one)
    ledger.add("time/queue/open", serving.deterministic_queue, rate="time/queue/arrivals", service=service)
    ledger.choose("time/queue", "open_loop", {0: "time/queue/closed", 1: "time/queue/open"})


def _rates(ledger: Ledger) -> None:
    ledger.add("metric/held-rate", serving.service_rate, ranks="decode_ranks", residence="time/residence")
    ledger.add("metric/prefill-rate", load.prefill_rate, prefill="time/prefill-unloaded")
    ledger.add("metric/service-rate", load.slower_side, held="metric/held-rate", fed="metric/prefill-rate")
    ledger.add("metric/requests", load.some_requests)
    ledger.add(
        "metric/loop-rate",
        serving.little_throughput,
        concurrency="metric/requests",
        ttft="time/ttft",
        tpot="time/tpot",
    )
    ledger.add("metric/output-rate", load.output_rate, loop="metric/loop-rate", fed="metric/prefill-rate")
    ledger.add("metric/request-rate", load.request_rate, output_rate="metric/output-rate")
    ledger.add("metric/output-rate-per-gpu", load.rate_per_gpu, output_rate="metric/output-rate")
    ledger.add("metric/output-rate-per-user", load.rate_per_user, tpot="time/tpot")
    ledger.total("metric/decode-batch", "batch")
    ledger.add(
        "metric/saturation-rate",
        load.saturation_rate,
        served="metric/service-rate",
        saturation="saturation_rate",
    )
