"""The serving estimate: in which order the formulas are evaluated, from columns to a ledger."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.estimate.serving_memory import add_cache, add_weights
from gpucalc.estimate.serving_pass import Pass, add_pass, define_shapes
from gpucalc.formulas import kv_cache, layer, serving

BISECTIONS = 18
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
    ledger = Ledger(Columns(columns), trace=trace)
    c = ledger.columns
    c.define("context", c["isl"] + c["osl"] / 2)
    c.define("cached_prefix", c["isl"] * c["prefix_hit"])
    c.define("prompt_tokens", np.maximum(c["isl"] - c["cached_prefix"], 1.0))
    c.define("verified", c["draft_tokens"] + 1)
    if "saturation_rate" not in c:
        c.define("saturation_rate", 0.0)
    workers = c["prefill_gpus"] / (c["tp"] * c["pp"])
    c.define("prefill_workers", workers)
    c.define("decode_ranks", np.maximum(c["dp"] - workers, 1.0))
    define_shapes(ledger)
    add_weights(ledger)
    add_cache(ledger)
    _batch(ledger)
    _passes(ledger)
    _answers(ledger)
    return ledger


def _batch(ledger: Ledger) -> None:
    """Sequences that decode together on one attention rank: those in the system, as far as the cache holds them."""
    c = ledger.columns
    holds = np.where(c["memory_rule"] == RESERVES, ledger["memory/sequences"], ledger["memory/sequences-mean"])
    limit = ledger.keep("memory/batch-limit", np.maximum(np.minimum(holds, c["max_seqs"]), 1.0))
    c.define("concurrency", np.where(c["fills"] > 0, limit * c["decode_ranks"], c["concurrency"]))
    wanted = ledger.keep("symbol/wanted", c["concurrency"] / c["decode_ranks"])
    batch = ledger.keep("symbol/batch", np.minimum(np.maximum(wanted, np.where(c["open_loop"] > 0, 0.0, 1.0)), limit))
    c.define("batch", batch)
    c.define("decoding", np.maximum(batch / c["pp"], 1.0))


def _passes(ledger: Ledger) -> None:
    c = ledger.columns
    c.define("chunk", np.minimum(c["prompt_tokens"], c["chunk_tokens"]))
    chunks = ledger.add("prefill/chunks", serving.prefill_chunks, tokens=c["prompt_tokens"], chunk=c["chunk_tokens"])
    c.define("chunk", c["prompt_tokens"] / chunks)  # chunks of equal size
    arrived = ledger.add(
        "prefill/arrived",
        serving.prompts_per_pass,
        batch=c["batch"] * c["attention_dp"],
        tokens=c["prompt_tokens"],
        chunk=c["chunk_tokens"],
        attention_ranks=c["attention_dp"],
    )
    # Engines that balance attention ranks let all of them prefill in the same step.
    together = np.maximum(arrived, np.where(c["gathers_prompts"] > 0, c["attention_dp"], 1.0))
    together = np.minimum(together, _at_least_one(c["batch"] * c["attention_dp"]))
    ledger.keep("prefill/together", together)
    each = np.maximum(together / c["attention_dp"], 1.0)  # prompts of one rank
    rows = c["decoding"] * c["verified"]
    share = c["attention_dp"]
    add_pass(ledger, Pass("decode", rows, rows * share, rows, sequences=c["decoding"], launch=c["graph_launch_share"]))
    one = c["chunk"]
    add_pass(ledger, Pass("single", one, one, 1.0, prompts=1.0, exchange="prefill"))
    prompt, group = c["chunk"] * each, c["chunk"] * together
    add_pass(ledger, Pass("prefill", prompt, group, each, prompts=each, exchange="prefill"))
    mixed = prompt + rows
    add_pass(
        ledger,
        Pass("mixed", mixed, group + rows * share, rows, sequences=c["decoding"], prompts=each, exchange="prefill"),
    )


def _at_least_one(value: Any) -> Any:
    return np.maximum(value, 1.0)


def _answers(ledger: Ledger) -> None:
    c = ledger.columns
    chunks, together = ledger["prefill/chunks"], ledger["prefill/together"]
    ledger.add("time/overhead", serving.step_overhead, sequences=c["decoding"])
    for name in ("decode", "single", "prefill", "mixed"):
        ledger.total(f"{name}/step", f"{name}/time", "time/overhead")
    step = ledger.total("time/step", "decode/step")
    accepted = ledger.add("decode/accepted", serving.tokens_per_verification, draft=c["draft_tokens"])
    per_token = ledger.add(
        "time/token",
        serving.speculative_step,
        verify=step,
        draft=ledger["decode/time"] * c["draft_cost"],
        draft_tokens=c["draft_tokens"],
        accepted=accepted,
    )
    one_pass = ledger.add(
        "prefill/interference-of-pass",
        serving.prefill_interference,
        mixed_pass=ledger["mixed/step"],
        step=step,
        alone=ledger["prefill/step"],
        mixes=c["mixes_prefill"],
    )
    apart = c["prefill_workers"] > 0
    interference = ledger.add("prefill/interference", layer.scaled_time, time=one_pass, factor=chunks / together)
    felt = ledger.keep("prefill/felt", np.where(apart, 0.0, interference))
    tpot = ledger.add(
        "time/tpot",
        serving.closed_loop_tpot,
        step=per_token,
        batch=c["batch"] * c["attention_dp"],
        interference=felt,
        stages=c["pp"],
    )
    alone = ledger.add("time/prefill-unloaded", layer.scaled_time, time=ledger["single/step"], factor=chunks)
    loaded_pass = np.where(
        apart, ledger["prefill/step"], np.where(c["mixes_prefill"] > 0, ledger["mixed/step"], ledger["prefill/step"])
    )
    prefill = ledger.add(
        "time/prefill", layer.scaled_time, time=ledger.keep("prefill/pass", loaded_pass), factor=chunks
    )
    transfer = _transfer(ledger, alone, apart)
    residence = ledger.add("time/residence", serving.request_time, prefill=prefill, tpot=tpot)
    admission = ledger.add(
        "time/admission", serving.admission_wait, concurrency=ledger["symbol/wanted"], residence=residence
    )
    ledger.add(
        "time/queue/closed", serving.prefill_queue, batch=c["batch"] * c["attention_dp"], interference=interference
    )
    arrivals = np.where(c["rate"] > 0, c["rate"] / np.where(apart, np.maximum(c["prefill_workers"], 1.0), c["dp"]), 0.0)
    ledger.add("time/queue/open", serving.deterministic_queue, rate=arrivals, service=interference)
    queue = ledger.choose("time/queue", c["open_loop"], {0: "time/queue/closed", 1: "time/queue/open"})
    ttft = ledger.add(
        "time/ttft",
        serving.time_to_first_token,
        prefill=prefill,
        step=step,
        queue=queue,
        admission=np.where(c["open_loop"] > 0, 0.0, admission),
        transfer=transfer,
    )
    ledger.add(
        "time/ttft-unloaded",
        serving.time_to_first_token,
        prefill=alone,
        step=0.0,
        queue=0.0,
        admission=0.0,
        transfer=transfer,
    )
    _rates(ledger, ttft, tpot, alone, apart)


def _transfer(ledger: Ledger, alone: Any, apart: Any) -> Any:
    """Time that sending the prompt's cache to a decode worker adds; nothing where one GPU does both."""
    c = ledger.columns
    network = c["network_bandwidth"] * c["transfer_efficiency"]
    cache = ledger["memory/kv/longest"] * c["isl"] / (c["isl"] + c["osl"])
    exposed = ledger.add(
        "transfer/exposed",
        kv_cache.cache_transfer_exposed,
        cache=cache,
        transfer_bandwidth=network,
        prefill=alone,
    )
    return ledger.keep("time/transfer", np.where(apart, exposed, 0.0))


def _rates(ledger: Ledger, ttft: Any, tpot: Any, alone: Any, apart: Any) -> None:
    c = ledger.columns
    held = ledger.add(
        "metric/held-rate", serving.service_rate, ranks=c["decode_ranks"], residence=ledger["time/residence"]
    )
    workers = np.maximum(c["prefill_workers"], 1e-9)
    feed = ledger.add("metric/prefill-rate", serving.service_rate, batch=1.0, ranks=workers, residence=alone)
    feed = np.where(apart, feed, np.inf)
    served = ledger.keep("metric/service-rate", np.minimum(held, feed))
    loop = ledger.add(
        "metric/loop-rate",
        serving.little_throughput,
        concurrency=np.maximum(c["concurrency"], 1e-9),
        ttft=ttft,
        tpot=tpot,
    )
    closed = np.minimum(loop, feed * c["osl"])
    total = ledger.keep("metric/output-rate", np.where(c["open_loop"] > 0, c["rate"] * c["osl"], closed))
    ledger.keep("metric/request-rate", total / c["osl"])
    ledger.keep("metric/output-rate-per-gpu", total / c["n_gpus"])
    ledger.keep("metric/output-rate-per-user", 1 / tpot)
    ledger.keep("metric/decode-batch", c["batch"])
    ledger.keep("metric/saturation-rate", np.where(c["fills"] > 0, served, c["saturation_rate"]))
