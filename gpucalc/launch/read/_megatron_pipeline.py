"""How Megatron-LM's options deal layers to pipeline stages and chunks, and what is wrong with the deal.

Rules of megatron/core/transformer/transformer_config.py, d98e8a64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucalc.launch import stages

_DEALS = {
    "chunk_layers": "--num-layers-per-virtual-pipeline-stage",
    "chunks": "--num-virtual-stages-per-pipeline-rank",
    "layout": "--pipeline-model-parallel-layout",
}


def deal(f: Mapping[str, Any], cells: Mapping[str, Any], problems: list[str], notes: list[str]) -> dict[str, Any]:
    """The cells vpp, layers_first and layers_last of stated options (`_megatron.Arguments.flags`).

    What cannot be goes to `problems`.
    """
    stated = [name for name in _DEALS if name in f]
    if len(stated) > 1:
        problems.append(f"only one of {' and '.join(_DEALS[n] for n in stated)} may be stated")
    if "layout" in stated:
        return _of_layout(f["layout"], cells, problems, notes)
    layers, pp = cells.get("layers"), int(cells["pp"])
    ends = [bool(f.get(f"--account-for-{what}-in-pipeline-split")) for what in ("embedding", "loss")]
    if not layers:
        return {"vpp": int(f.get("chunks", 1))}
    if pp == 1:
        vpp = int(f.get("chunks") or (layers // f["chunk_layers"] if f.get("chunk_layers") else 1))
        return {"vpp": max(1, vpp)}
    uneven = [f[n] for n in ("first_layers", "last_layers") if n in f]
    if uneven and any(ends):
        problems.append("--decoder-first/last-pipeline-num-layers exclude --account-for-… in the pipeline split")
    if f.get("partition"):
        depth = -(-layers // pp)  # the engine deals layers to stages itself, unevenly where it must
    elif uneven:
        depth = _uneven(layers, pp, uneven, problems)
    else:
        # The embedding and the loss each count as one layer of the first and the last stage.
        slots = layers + sum(ends)
        if slots % pp:
            counted = f"{slots} slots of {layers} layers, {' and '.join(_named(ends))}"
            plain = f"{layers} layers, and no uneven split is stated"
            problems.append(f"pp={pp} does not divide the {counted if any(ends) else plain}")
            return {"vpp": int(f.get("chunks", 1))}
        depth = slots // pp
    found = {"vpp": _chunks(f, depth, uneven, problems)}
    if not problems and not f.get("partition"):
        first = f.get("first_layers", depth - ends[0])
        last = f.get("last_layers", depth - ends[1])
        found |= stages.ends([first, *[depth] * (pp - 2), last])
    return found


def _named(ends: list[bool]) -> list[str]:
    return [name for name, there in zip(("the embedding", "the loss"), ends, strict=True) if there]


def _uneven(layers: int, pp: int, ends: list[int], problems: list[str]) -> int:
    """Layers of the stages between stated ends."""
    rest, between = layers - sum(ends), pp - len(ends)
    if rest < 0 or (between and rest % between) or (not between and rest):
        problems.append(f"{rest} layers are left for the {between} other stages, which must be equal")
        return max(1, max(ends))
    return rest // between if between else max(ends)


def _chunks(f: Mapping[str, Any], depth: int, ends: list[int], problems: list[str]) -> int:
    """Chunks of a stage of `depth` slots."""
    if "chunks" in f:
        vpp = int(f["chunks"])
        wrong = [n for n in (depth, *ends) if n % vpp]
        if wrong:
            problems.append(f"vpp={vpp} does not divide the {wrong[0]} layers of a stage")
        return vpp
    if "chunk_layers" not in f:
        return 1
    if depth % f["chunk_layers"]:
        problems.append(f"{f['chunk_layers']} layers a chunk do not divide the {depth} layers of a stage")
        return 1
    return max(1, depth // int(f["chunk_layers"]))


def _of_layout(text: str, cells: Mapping[str, Any], problems: list[str], notes: list[str]) -> dict[str, Any]:
    """vpp and the layers of the end stages of a layout string such as E|(t|)*126L."""
    plain = re.sub(r"\s|,", "", text[:2000])
    for pattern in (r"\(([EtmL|]+)\)\*(\d{1,3})", r"([EtmL|])\*(\d{1,3})"):
        plain = re.sub(pattern, lambda m: m[1] * int(m[2]), plain)
    parts, pp = plain.split("|"), int(cells["pp"])
    if not re.fullmatch(r"[EtmL|]+", plain) or len(parts) % pp:
        problems.append(
            f"--pipeline-model-parallel-layout {text[:40]!r} is not a layout of E, t, m, L and | with a number of "
            f"stages that pp={cells['pp']} divides"
        )
        return {"vpp": 1}
    if cells.get("layers") and plain.count("t") != cells["layers"]:
        problems.append(f"the layout has {plain.count('t')} layers t, not the {cells['layers']} of --num-layers")
    ranks = stages.of_ranks([part.count("t") for part in parts], pp)
    if pp > 1 and not min(ranks[0], ranks[-1]):
        notes.append("the layout leaves an end stage without layers; predicted with an even share there: more memory")
    elif len(set(ranks[1:-1])) > 1 and max(ranks[1:-1]) - min(ranks[1:-1]) > 1:
        notes.append(f"middle stages hold {min(ranks[1:-1])} to {max(ranks[1:-1])} layers: slower than predicted")
    return {"vpp": len(parts) // pp, **stages.ends(ranks)}
