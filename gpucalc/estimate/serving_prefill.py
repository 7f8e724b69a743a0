"""Workers that only prefill: the time of a prompt, and the prompts per second when enough of them wait.

They have a layout of their own, so their terms form a ledger of their own, of which the deployment's adopts all.
"""

from __future__ import annotations

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.estimate.serving_pass import ONE, Pass, add_layer, add_pass
from gpucalc.formulas import serving
from gpucalc.formulas import serving_load as load

OF_A_SIDE = ("tp", "attention_dp", "ep")


def prefill_side(columns: Columns, *, trace: bool = False) -> Ledger:
    """The terms of one worker that prefills: `time/prompt`, `time/pass` and `metric/rate` of all of them."""
    own = {name: columns[f"prefill_{name}"] for name in OF_A_SIDE}
    ledger = Ledger(Columns({**columns, **own}), trace=trace)
    ledger.define("cached_prefix", load.cached_tokens_of_prompt)
    ledger.define("prompt_tokens", load.computed_prompt)
    ledger.define("verified", load.verified_tokens)
    parts = add_layer(ledger)
    ledger.add("prompt/chunks", serving.prefill_chunks, tokens="prompt_tokens", chunk="chunk_tokens")
    ledger.define("chunk", load.chunk_size, chunks="prompt/chunks")
    ledger.add("full/prompts", load.prompts_of_full_pass)
    ledger.add("full/of-rank", load.prompts_on_rank, prompts="full/prompts")
    ledger.product("full/tokens", "chunk", "full/of-rank")
    ledger.product("full/group-tokens", "chunk", "full/prompts")
    add_pass(ledger, Pass("single", "chunk", "chunk", ONE, prompts=ONE, exchange="prefill"), parts)
    full = Pass("full", "full/tokens", "full/group-tokens", "full/of-rank", prompts="full/of-rank", exchange="prefill")
    add_pass(ledger, full, parts)
    ledger.add("time/overhead", serving.step_overhead, sequences=ONE)
    ledger.add("time/host", serving.host_floor)
    for name in ("single", "full"):
        ledger.total(f"{name}/device", f"{name}/time", "time/overhead")
        ledger.maximum(f"{name}/step", f"{name}/device", "time/host")
    ledger.product("time/prompt", "single/step", "prompt/chunks")
    ledger.product("time/pass", "full/step", "prompt/chunks")
    rate = {"prompts": "full/prompts", "passes": "prompt/chunks", "prefill_pass": "full/step"}
    ledger.add("metric/rate", load.prefill_rate, **rate)
    return ledger
