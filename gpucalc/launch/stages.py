"""How many layers each pipeline stage holds: as the estimate has it, and as launchers deal them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def depths(layers: int, pp: int, first: int | None = None, last: int | None = None) -> list[int]:
    """Layers of each stage as the estimate has them; `first` and `last` where they are stated.

    Middle stages are even; what is missing of a whole multiple is taken from the last stage, the first, then those
    before the last. Empty where stated ends leave no layers to the others.

    >>> depths(61, 16), depths(32, 8, 2, 6), depths(7, 2)
    ([3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3], [2, 4, 4, 4, 4, 4, 4, 6], [4, 3])
    """
    if pp == 1:
        return [layers]
    rest, open_ends = layers - (first or 0) - (last or 0), [n for n, end in ((pp - 1, last), (0, first)) if not end]
    inner = list(range(pp - 2, 0, -1))
    others = [*open_ends, *inner]
    if rest < len(others) or (rest and not others):
        return []
    longest = -(-rest // len(others)) if others else 0
    found = [longest] * pp
    for place in others[: longest * len(others) - rest]:
        found[place] -= 1
    found[0], found[-1] = first or found[0], last or found[-1]
    return found


def ends(found: Sequence[int]) -> dict[str, Any]:
    """The cells of stages with these layers: nothing where the estimate deals them so by itself.

    >>> ends([4, 4, 4, 4]), ends([7, 8, 8, 7]), ends([2, 4, 4, 6]), ends([8, 9, 8, 7])
    ({}, {}, {'layers_first': 2, 'layers_last': 6}, {'layers_first': 8, 'layers_last': 7})
    """
    if len(found) < 2 or not min(found[0], found[-1]):
        return {}
    usual = depths(sum(found), len(found))
    if usual and (usual[0], max(usual), usual[-1]) == (found[0], max(found), found[-1]):
        return {}
    return {"layers_first": found[0], "layers_last": found[-1]}


def of_ranks(chunks: Sequence[int], pp: int) -> list[int]:
    """Layers of each rank of chunks in their order: chunk c lies on rank c mod pp.

    >>> of_ranks([1, 2, 2, 2, 2, 2, 2, 1], 4)
    [3, 4, 4, 3]
    """
    return [sum(chunks[rank::pp]) for rank in range(pp)]


def in_chunks(found: Sequence[int], vpp: int) -> list[int]:
    """Chunks of ranks with these layers, in order; the ends of the model hold the shorter ones.

    >>> in_chunks([3, 4, 4, 3], 2)
    [1, 2, 2, 2, 2, 2, 2, 1]
    """
    rows = []
    for rank, depth in enumerate(found):
        each, more = divmod(depth, vpp)
        longer = [each + 1] * more
        shorter = [each] * (vpp - more)
        rows.append([*shorter, *longer] if rank == 0 else [*longer, *shorter])
    return [row[chunk] for chunk in range(vpp) for row in rows]


def of_torchtitan(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Layers of each stage as torchtitan deals them, the embedding counted as `first` layers, the head as `last`.

    As `generate_llm_fqn_per_model_part` of torchtitan/distributed/pipeline_parallel.py. Empty where it refuses.

    >>> of_torchtitan(32, 4, 1, 1), of_torchtitan(61, 4, 1, 0)
    ([8, 9, 8, 7], [15, 16, 15, 15])
    """
    if stages == 1:
        return [layers]
    each, more = divmod(layers + first + last, stages)
    found = [each + (stage < more) for stage in range(stages)]
    if each < max(first, last):
        return []
    found[0] -= first
    found[-1] -= last
    return found
