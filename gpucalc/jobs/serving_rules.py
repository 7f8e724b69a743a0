"""What no engine serves: layouts that the model's heads, layers and experts forbid, formats and drafts that cannot be.

A broken rule is its name, by which a search counts it, and a sentence with a legal neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.jobs.completion import largest_divisor
from gpucalc.jobs.serving_sides import SIDES, worker

if TYPE_CHECKING:
    from gpucalc.database.records import Device
    from gpucalc.models.model import Model

DIVIDES_HEADS = "tp divides heads"
SHARES_KV_HEADS = "tp shares KV heads"
DIVIDES_EXPERTS = "ep divides experts"
DIVIDES_RANKS = "ep divides ranks"
STAGES = "pp within layers"
WHOLE_REPLICAS = "prefill GPUs are whole replicas"
PRODUCT = "tp·pp·dp is the number of GPUs"
OTHER = "the question"
Broken = tuple[str, str]


def layout_rules(cells: Mapping[str, Any], model: Model) -> list[Broken]:
    """Every rule that the layout breaks."""
    found: list[Broken] = []
    if cells.get("prefill_workers"):
        for side in SIDES:
            one = worker(cells, side)
            own = worker_rules(one["tp"], 1, one["attention_dp"], one["ep"], model)
            found += [(name, f"workers that {side}: {text}") for name, text in own]
        return found
    tp, pp, dp, share = (int(cells[n]) for n in ("tp", "pp", "dp", "attention_dp"))
    if tp * pp * dp != cells["n_gpus"]:
        rest = tp * pp
        fits = f"dp={cells['n_gpus'] // rest} would fit" if cells["n_gpus"] % rest == 0 else f"use {rest * dp} GPUs"
        text = f"tp·pp·dp = {tp}·{pp}·{dp} = {tp * pp * dp}, not the {cells['n_gpus']} GPUs; {fits}"
        found.append((PRODUCT, text))
    if pp > model.layers:
        found.append((STAGES, f"pp={pp} asks for more stages than the {model.layers} layers"))
    if dp % share:
        text = f"attention_dp={share} does not divide dp={dp}; attention_dp={largest_divisor(dp, share)}"
        return [*found, *worker_rules(tp, pp, 1, 1, model), (PRODUCT, text)]
    found += worker_rules(tp, pp, share, int(cells["ep"]), model)
    apart = int(cells.get("prefill_gpus") or 0)
    if apart and (apart % (tp * pp * share) or apart >= cells["n_gpus"]):
        text = (
            f"prefill_gpus={apart} must be whole replicas of {tp * pp * share} GPUs and leave some of the "
            f"{cells['n_gpus']} to decode"
        )
        found.append((WHOLE_REPLICAS, text))
    return found


def worker_rules(tp: int, pp: int, share: int, ep: int, model: Model) -> list[Broken]:
    """Rules of one replica or worker."""
    found: list[Broken] = []
    if model.heads and model.heads % tp:
        legal = largest_divisor(model.heads, tp)
        found.append((DIVIDES_HEADS, f"tp={tp} does not divide the {model.heads} heads; tp={legal} does"))
    elif not model.is_mla and model.kv_heads and max(tp, model.kv_heads) % min(tp, model.kv_heads):
        legal = largest_divisor(model.kv_heads, tp)
        text = f"tp={tp} and the {model.kv_heads} KV heads do not divide each other; tp={legal} shares them evenly"
        found.append((SHARES_KV_HEADS, text))
    if not model.experts:
        if ep > 1:
            found.append((DIVIDES_EXPERTS, f"ep={ep} needs a mixture of experts; {model.name} is dense"))
    elif tp * share % ep:
        legal = largest_divisor(tp * share, ep)
        text = f"ep={ep} does not divide the tp·attention_dp = {tp * share} ranks of a replica; ep={legal} does"
        found.append((DIVIDES_RANKS, text))
    elif model.experts % ep:
        legal = largest_divisor(model.experts, ep)
        found.append((DIVIDES_EXPERTS, f"ep={ep} does not divide the {model.experts} experts; ep={legal} does"))
    return found


def question_problems(cells: Mapping[str, Any], model: Model, device: Device) -> list[str]:
    """What no layout can mend, as sentences."""
    problems = []
    if not model.causal:
        problems.append(f"{model.name} is not a causal decoder and generates no tokens")
    draft, accepted = cells.get("draft_tokens") or 0, cells.get("accepted_tokens")
    if accepted is not None and cells.get("acceptance") is not None:
        problems.append("acceptance and accepted_tokens say the same in two ways; state one")
    if accepted is not None and accepted > draft:
        problems.append(
            f"accepted_tokens is {accepted:g}, more than the draft_tokens={draft} that are drafted; at most {draft}"
        )
    if draft and draft >= cells["osl"]:
        problems.append(
            f"draft_tokens={draft} is not less than the osl={cells['osl']:g} tokens of an answer; "
            f"draft_tokens={max(int(cells['osl']) - 1, 0)} at most"
        )
    if draft > MOST_DRAFTED:
        problems.append(f"draft_tokens={draft} is beyond the {MOST_DRAFTED} that engines draft; state {MOST_DRAFTED}")
    if cells.get("memory_share") == 0:
        problems.append("memory_share is 0, which leaves an engine nothing; state a share such as 0.9")
    kind = cells["kv_precision"]
    if not _holds_cache(device, kind):
        problems.append(
            f"kv_precision is {kind!r}, which kernels on {device.key} ({device.arch}) do not read; "
            f"{'fp8' if _holds_cache(device, 'fp8') else 'bf16'} is the narrowest that they do"
        )
    return problems


MOST_DRAFTED = 16


def _holds_cache(device: Device, kind: str) -> bool:
    """Whether attention kernels of a device read a format of the cache: 4 bit needs its products, 8 bit conversions."""
    if kind == "nvfp4":
        return device.supports("nvfp4")
    if kind == "fp8":
        return device.supports("fp8") or device.architecture.weight_only
    return True


def beyond_context(cells: Mapping[str, Any], model: Model) -> str:
    """The remark on sequences longer than the model's configuration says; empty where there is none."""
    length = cells["isl"] + cells["osl"]
    if not model.max_seq_len or length <= model.max_seq_len:
        return ""
    return (
        f"isl + osl = {length:,.0f} tokens are beyond the context of {model.max_seq_len:,} that {model.name} states: "
        "an engine has to be told so, with scaled positions"
    )
