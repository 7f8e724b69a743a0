"""The serving estimate: in which order the formulas are evaluated, from columns to a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger, any_row
from gpucalc.core.units import Unit
from gpucalc.estimate.serving_memory import add_cache, add_weights
from gpucalc.estimate.serving_pass import ONE, Layer, Pass, add_layer, add_pass
from gpucalc.estimate.serving_prefill import prefill_side
from gpucalc.formulas import kv_cache, serving, serving_memory
from gpucalc.formulas import serving_load as load

BISECTIONS = 18
SHARES = 6  # rounds in which the share of requests that decode is found where others prefill
PREFILL_SIDE, UNLOADED, LOADED = "prefill-side", "time/prefill-unloaded", "time/prefill"
NOTHING = Constant("NOTHING", 0.0, "what a request alone in the system waits", "definition", unit=Unit("s", second=1))
MIDDLE = Constant("MIDDLE", 0.5, "mean place in a wave", "definition")
LAST = Constant("LAST", 1.0, "last place in a wave", "definition")
SLOWEST = Constant("SLOWEST", 0.99, "share of requests that are no slower", "definition")
RESERVES = 1  # memory rule of an engine that admits a request only when its full length fits


def estimate_serving(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of serving on rows of columns; open-loop rows are solved for the requests in the system."""
    if np.any(columns["open_loop"] > 0):
        columns = _balanced(columns)
    elif np.any(columns["prefill_workers"] > 0):
        columns = _split(columns)
    return _estimate(columns, trace)


def _split(columns: Columns) -> Columns:
    """The columns with the share of the requests that decode, the others being with workers that prefill.

    A request is with each side for a share of its time: fewer that decode make decoding faster, so a few rounds do.
    """
    values = dict(columns)
    share = np.where(values["prefill_workers"] > 0, 0.9, 1.0)
    for _ in range(SHARES):
        found = _estimate(Columns({**values, "decoding_share": share}), False)
        decoding = found["time/tpot"] * (values["osl"] - 1)
        whole = found["time/ttft"] + decoding
        share = np.where(values["prefill_workers"] > 0, np.maximum(decoding / whole, 1e-6), 1.0)
    return Columns({**values, "decoding_share": _plain(share)})


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
    ledger = Ledger(Columns({"saturation_rate": 0.0, "decoding_share": 1.0, **columns}), trace=trace)
    ledger.define("context", load.mean_context)
    ledger.define("cached_prefix", load.cached_tokens_of_prompt)
    ledger.define("prompt_tokens", load.computed_prompt)
    ledger.define("verified", load.verified_tokens)
    ledger.define("decode_ranks", load.decode_ranks)
    parts = add_layer(ledger)
    add_weights(ledger)
    add_cache(ledger)
    _batch(ledger)
    _passes(ledger, parts)
    apart = any_row(columns["prefill_workers"] > 0)
    if apart:
        ledger.adopt(PREFILL_SIDE, prefill_side(columns, trace=trace))
    _answers(ledger, apart)
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


def _answers(ledger: Ledger, apart: bool) -> None:
    ledger.add("time/overhead", serving.step_overhead, sequences="decoding")
    ledger.add("time/host", serving.host_floor)
    for name in ("decode", "single", "prefill", "mixed"):
        ledger.total(f"{name}/device", f"{name}/time", "time/overhead")
        ledger.maximum(f"{name}/step", f"{name}/device", "time/host")
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
    _prefill(ledger, apart)
    ledger.add("time/residence", serving.request_time, prefill="time/prefill", tpot="time/tpot")
    _queue(ledger, apart)
    sent: str | Constant = "time/transfer" if apart else NOTHING
    loaded = {"queue": "time/queue", "admission": "time/admission-closed", "prefill": LOADED, "transfer": sent}
    ledger.add("time/fellows", serving.gathering_wait, step="time/step")
    loaded |= {"burst": "time/burst", "fellows": "time/fellows"}
    ledger.add("time/ttft", serving.time_to_first_token, step="time/step", **loaded)
    alone = {
        "step": NOTHING,
        "queue": NOTHING,
        "burst": NOTHING,
        "admission": NOTHING,
        "prefill": UNLOADED,
        "transfer": sent,
    }
    alone["fellows"] = NOTHING
    ledger.add("time/ttft-unloaded", serving.time_to_first_token, **alone)
    _spread(ledger, loaded, alone)
    _rates(ledger, apart)


def _spread(ledger: Ledger, loaded: Mapping[str, Any], alone: Mapping[str, Any]) -> None:
    """Store first tokens in the steady state and where all are sent at once, and the slowest of random arrivals."""
    ledger.add("time/ttft-steady", serving.time_to_first_token, step="time/step", **{**loaded, "burst": NOTHING})
    for name, place in (("mean", MIDDLE), ("last", LAST)):
        ledger.add(f"wave/wait-{name}", serving.wait_in_wave, batch="replica_batch", prefill="prefill/one", place=place)
        ledger.add(f"wave/ttft-{name}", serving.time_to_first_token, **{**alone, "burst": f"wave/wait-{name}"})
    ledger.add(
        "wave/queue-p99",
        serving.queue_quantile,
        wait="time/queue/open",
        rate="time/queue/arrivals",
        service="prefill/interference",
        quantile=SLOWEST,
    )
    ledger.add("wave/ttft-p99", serving.time_to_first_token, step="time/step", **{**loaded, "queue": "wave/queue-p99"})


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


def _prefill(ledger: Ledger, apart: bool) -> None:
    """Store the time of a prompt alone and under load, and what sending its cache to a decode worker adds."""
    alone, loaded = ("time/prefill-together-unloaded", "time/prefill-together") if apart else (UNLOADED, LOADED)
    ledger.product(alone, "single/step", "prefill/chunks")
    ledger.add("prefill/pass", load.loaded_prefill_pass, mixed="mixed/step", alone="prefill/step")
    ledger.product(loaded, "prefill/pass", "prefill/chunks")
    if not apart:
        return
    ledger.add(UNLOADED, load.of_apart, apart=f"{PREFILL_SIDE}/time/prompt", together=alone)
    ledger.add(LOADED, load.of_apart, apart=f"{PREFILL_SIDE}/time/prompt", together=loaded)
    ledger.add("transfer/bandwidth", load.cache_sending_rate)
    ledger.add("transfer/cache", serving_memory.prompt_cache, sequence_bytes="memory/kv/longest")
    ledger.add(
        "transfer/exposed",
        kv_cache.cache_transfer_exposed,
        cache="transfer/cache",
        transfer_bandwidth="transfer/bandwidth",
        prefill=UNLOADED,
    )
    ledger.add("time/transfer", load.transfer_of_apart, exposed="transfer/exposed")


def _queue(ledger: Ledger, apart: bool) -> None:
    """Store the waits for a place in the batch and behind the prefills of others."""
    ledger.add("time/admission", serving.admission_wait, concurrency="symbol/wanted", residence="time/residence")
    ledger.add("time/admission-closed", load.closed_loop_wait, wait="time/admission")
    service = "prefill/interference"
    # The first wave is computed without decoding beside it.
    ledger.add(
        "prefill/one",
        load.prompt_interference,
        interference_of_pass="prefill/step",
        chunks="prefill/chunks",
        together="prefill/together",
    )
    ledger.add("time/burst-together", serving.burst_wait, batch="replica_batch", prefill="prefill/one")
    ledger.add("time/burst", load.of_apart, apart=NOTHING, together="time/burst-together")
    closed = "time/queue/together" if apart else "time/queue/closed"
    ledger.add(closed, serving.prefill_queue, batch="replica_batch", interference=service)
    if apart:
        side = PREFILL_SIDE
        ledger.add("time/queue/others", load.other_times, prefill=UNLOADED, transfer="time/transfer", tpot="time/tpot")
        ledger.add("metric/held-rate-apart", load.held_rate, others="time/queue/others")
        ledger.add("prefill/load", load.prefill_load, rate="metric/held-rate-apart", fed=f"{side}/metric/rate")
        ledger.add(
            "time/queue/feeding",
            load.feeding_wait,
            fed=f"{side}/metric/rate",
            others="time/queue/others",
            prefill=f"{side}/time/pass",
            load_of_prefill="prefill/load",
        )
        ledger.add("time/queue/closed", load.of_apart, apart="time/queue/feeding", together=closed)
        ledger.add(
            "metric/prefill-limits", load.prefill_limits, fed=f"{side}/metric/rate", held="metric/held-rate-apart"
        )
    ledger.add("time/queue/arrivals", load.arrivals_at_one)
    ledger.add("time/queue/open", serving.deterministic_queue, rate="time/queue/arrivals", service=service)
    ledger.choose("time/queue", "open_loop", {0: "time/queue/closed", 1: "time/queue/open"})


def _rates(ledger: Ledger, apart: bool) -> None:
    ledger.add("metric/held-rate", serving.service_rate, ranks="decode_ranks", residence="time/residence")
    fed = "metric/held-rate"
    if apart:
        fed = f"{PREFILL_SIDE}/metric/rate"
        ledger.add("metric/service-rate", load.slower_side, held="metric/held-rate", fed=fed)
    else:
        ledger.total("metric/service-rate", "metric/held-rate")
    ledger.add("metric/requests", load.some_requests)
    ledger.add(
        "metric/loop-rate",
        serving.little_throughput,
        concurrency="metric/requests",
        ttft="time/ttft",
        tpot="time/tpot",
    )
    ledger.add("metric/output-rate", load.output_rate, loop="metric/loop-rate", fed=fed)
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
