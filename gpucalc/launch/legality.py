"""The rules that frameworks hold a layout to, as sentences with what is missing or a legal neighbour.

They take cells by name, so that an export and an import are judged by the same text. Rules of all layouts (tp divides
heads, ep divides experts) are those of `gpucalc.layouts.rules`; an import may lack the numbers that some read.
Sources: Megatron-LM d98e8a64 (megatron/training/arguments.py, core/transformer/transformer_config.py),
torchtitan v0.2.2 (distributed/parallel_dims.py, distributed/pipeline_parallel.py, models/*/infra/parallelize.py),
DeepSpeed 0.19.6 (runtime/config.py, runtime/engine.py), accelerate 16cb6eb8 (parallelism_config.py),
nanotron 2411b022 (config/parallelism_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.layouts.axes import AXES
from gpucalc.layouts.rules import DIVIDES_EXPERTS, DIVIDES_HEADS, DIVIDES_SEQUENCE
from gpucalc.layouts.verdicts import broken, partial

Cells = Mapping[str, Any]


def megatron(c: Cells) -> list[str]:
    """What Megatron-LM refuses at start-up: sizes that do not divide, interleaving without a pipeline.

    >>> megatron({"heads": 64, "kv_heads": 8, "tp": 8, "pp": 1, "cp": 1, "vpp": 2, "n_gpus": 8})
    ['vpp=2 needs a pipeline: Megatron-LM interleaves with pp > 1 only']
    """
    problems = _world(c, "Megatron-LM")
    tp, pp, ep = (int(c.get(n) or 1) for n in ("tp", "pp", "ep"))
    vpp, seq = int(c.get("vpp") or 1), c.get("seq_len")
    etp = int(c.get("etp") or tp)
    heads, kv = c.get("heads"), c.get("kv_heads")
    problems += broken(partial(c), DIVIDES_HEADS, DIVIDES_SEQUENCE)
    if heads and kv and not c.get("latent") and kv % tp and tp % kv:
        problems.append(f"tp={tp} neither divides the {kv} kv heads nor is a multiple of them")
    if vpp > 1 and pp == 1:
        problems.append(f"vpp={vpp} needs a pipeline: Megatron-LM interleaves with pp > 1 only")
    micro, batch = c.get("micro_batches"), c.get("global_batch")
    if vpp > 1 and pp > 1 and micro:
        rest = micro % pp
        if micro < pp:
            problems.append(f"interleaving needs at least pp={pp} micro-batches, here {micro} (global batch {batch})")
        elif rest:
            problems.append(f"interleaving needs micro-batches in groups of pp={pp}; {micro} leaves {rest}")
    if c.get("sequence_parallel") and tp > 1 and seq and seq % tp:
        problems.append(f"sequence parallelism needs a sequence that tp={tp} divides, not {seq}")
    problems += _experts(c)
    n = c.get("n_gpus")
    if n and ep > 1 and n % (etp * ep * pp):
        problems.append(f"etp·ep·pp = {etp}·{ep}·{pp} = {etp * ep * pp} does not divide the {n} GPUs")
    if c.get("experts") and tp > 1 and not c.get("sequence_parallel"):
        problems.append(f"experts with tp={tp} need sequence parallelism in Megatron-LM; add sp")
    return problems


def _world(c: Cells, who: str) -> list[str]:
    tp, pp, cp = (int(c.get(n) or 1) for n in ("tp", "pp", "cp"))
    n = c.get("n_gpus")
    if not n or n % (tp * pp * cp) == 0:
        return []
    return [f"{who}: {n} GPUs are not a multiple of tp·pp·cp = {tp}·{pp}·{cp} = {tp * pp * cp}"]


def _experts(c: Cells) -> list[str]:
    return broken(partial({**c, "experts": c.get("experts") or 0}), DIVIDES_EXPERTS)


def unsaid(c: Cells, target: str) -> list[str]:
    """The axes of a layout that a target of `export` has no settings for; those of old each module judges itself."""
    return [
        f"{target} has no setting for {axis.title or name} ({name}={c[name]})"
        for name, axis in AXES.items()
        if axis.launchers is not None and target not in axis.launchers and c.get(name) not in {None, axis.default}
    ]


def torchtitan(c: Cells, *, recipe: bool = False) -> list[str]:
    """What torchtitan refuses: v0.2.2 with TOML, or the later recipes."""
    problems = _world(c, "torchtitan")
    tp, pp, cp, ep = (int(c.get(n) or 1) for n in ("tp", "pp", "cp", "ep"))
    etp, seq, kv = int(c.get("etp") or 1), c.get("seq_len"), c.get("kv_heads")
    problems += broken(partial(c), DIVIDES_HEADS)
    if kv and not c.get("latent") and kv % tp:
        problems.append(f"tp={tp} does not divide the {kv} kv heads, which torchtitan requires")
    if seq and (tp > 1 or cp > 1 or not recipe):
        divisor = 2 * cp * tp if not recipe or cp > 1 else tp
        if seq % divisor:
            problems.append(f"torchtitan needs a sequence that 2·cp·tp = {divisor} divides, not {seq}")
    problems += _experts(c)
    if ep > 1:
        allowed = {1} if recipe else {1, tp}
        if etp not in allowed:
            only = " or ".join(str(e) for e in sorted(allowed))
            problems.append(f"etp={etp}: torchtitan splits an expert over {only} ranks only")
        shards = int(c.get("dp_shard") or c.get("dp") or 1) * cp * tp
        if shards % (ep * etp):
            problems.append(f"ep·etp = {ep * etp} does not divide dp_shard·cp·tp = {shards}")
    if cp > 1 and c.get("latent") and not recipe:
        problems.append(f"torchtitan's latent attention is FlexAttention, which has no context parallelism (cp={cp})")
    if pp > 1 and c.get("tied"):
        problems.append("torchtitan splits no model with tied embeddings into pipeline stages")
    return problems


def deepspeed(c: Cells) -> list[str]:
    """What a DeepSpeed JSON cannot say or DeepSpeed refuses."""
    problems = []
    tp, cp, zero = int(c.get("tp") or 1), int(c.get("cp") or 1), int(c.get("zero_stage") or 0)
    n = c.get("n_gpus")
    if int(c.get("pp") or 1) > 1:
        problems.append(
            f"DeepSpeed JSON has no pipeline degree (pp={c['pp']} stands in code: PipelineModule(num_stages={c['pp']}))"
        )
        if zero >= 2:
            problems.append(f"DeepSpeed refuses ZeRO-{zero} with a pipeline")
    elif n and n % (tp * cp):
        problems.append(f"{n} GPUs are not a multiple of tp·cp = {tp}·{cp} = {tp * cp}")
    if cp > 1 and c.get("heads") and c["heads"] % cp:
        problems.append(f"Ulysses over {cp} ranks needs heads that {cp} divides, not {c['heads']}")
    return problems + _experts(c)
