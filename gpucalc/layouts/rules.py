"""The rules of layouts: each once, as an array test for the search and as a sentence for people.

A rule takes the codes of a layout's axes and the numbers of its job by name (`facts`), as whole numbers or as
arrays of them. A rule that `refuses` names what cannot be: such a layout has no time. The others name what the
planner does not list though it can be run: a measured row may break them, and is priced with a remark.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.vocabulary import CP_KINDS
from gpucalc.core.vocabulary import SCHEDULES as SCHEDULE_NAMES
from gpucalc.layouts.axes import AXES, Sizes, degree_axes
from gpucalc.layouts.schedules import SCHEDULES, Condition

Facts = Mapping[str, Any]

PARTS_GPUS = "tp·pp·cp divides the GPUs"
DIVIDES_HEADS = "tp divides heads"
DIVIDES_SEQUENCE = "cp divides the sequence"
ULYSSES_HEADS = "ulysses: tp·cp divides heads"
STAGES = "pp at most the layers"
CHUNKS = "vpp at most the layers of a stage"
CHUNKED = "only interleaved stages have chunks"
DIVIDES_EXPERTS = "ep divides experts"
EXPERT_RANKS = "ep·etp divides dp·cp·tp"
PROFILE = "schedule of the stated profile"
BATCH = "dp·micro_batch divides the global batch"
SHARDING = "shard_group divides dp·cp"

# What a rule may read beside axes: numbers of the job, and what follows from axes and these.
DERIVED = {"micro_batches": ("dp", "micro_batch"), "depth": ("pp",), "holders": ("tp", "dp", "cp", "ep", "etp")}


@dataclass(frozen=True)
class Rule:
    """One rule.

    reads: the axes it depends on, so that a search tests it where it enumerates the last of them.
    holds: whether it holds, of one layout or of arrays. sentence: what a layout that breaks it does.
    changes: axes (or global_batch, seq_len, n_gpus) whose change may keep it, the likeliest first.
    refuses: a layout that breaks it cannot be.
    """

    name: str
    reads: tuple[str, ...]
    holds: Callable[[Facts], Any]
    sentence: Callable[[Facts], str]
    changes: tuple[str, ...]
    refuses: bool = False


def _no(c: Facts, name: str) -> Any:
    """Whether a number of the job is zero: no attention heads, no experts."""
    return c[name] == 0


def _parts_gpus(c: Facts) -> str:
    names = degree_axes()
    shown = "·".join(str(c[name]) for name in names)
    product = math.prod(c[name] for name in names)
    return f"{'·'.join(names)} = {shown} = {product}, not the {c['n_gpus']} GPUs"


def _offered(c: Facts) -> Any:
    offered = c["offered"]
    if offered is None:
        return True
    if isinstance(offered, list) and hasattr(c["schedule"], "dtype"):  # a list a row
        return [row is None or row[code] for row, code in zip(offered, c["schedule"], strict=True)]
    return offered[c["schedule"]]


def _whole_groups(c: Facts) -> Any:
    """A group that shares states is of whole groups of the ranks that hold the same experts, or holds them all."""
    group, holders = c["shard_group"], c["holders"]
    return (group == 0) | _no(c, "experts") | (holders <= group) | (holders % (group + (group == 0)) == 0)


def _expert_sentence(c: Facts) -> str:
    if not c["experts"]:
        return f"ep={c['ep']} needs a mixture of experts; the model is dense"
    return f"ep={c['ep']} does not divide the {c['experts']} experts"


def _chunk_sentence(c: Facts) -> str:
    schedule = SCHEDULE_NAMES[c["schedule"]]
    if c["vpp"] > 1:
        return f"vpp={c['vpp']} with schedule {schedule}: only an interleaved pipeline has chunks"
    return f"schedule {schedule} needs vpp of at least 2"


def _chunked(c: Facts) -> Any:
    chunked = [row.chunked for row in SCHEDULES.values()]
    if hasattr(c["schedule"], "dtype"):
        import numpy as np

        return (c["vpp"] > 1) == np.array(chunked)[c["schedule"]]
    return (c["vpp"] > 1) == chunked[c["schedule"]]


@functools.cache
def _of_schedule(code: int, condition: Condition) -> Rule:
    """What a schedule asks of the pipeline, as a rule of all layouts."""
    return Rule(
        condition.name,
        ("schedule", "pp", "vpp", "micro_batches"),
        lambda c: (c["schedule"] != code) | condition.holds(c),
        condition.sentence,
        ("micro_batch", "global_batch", "pp", "schedule"),
    )


_RULES = (
    Rule(
        PARTS_GPUS,
        ("tp", "pp", "dp", "cp"),
        lambda c: math.prod(c[name] for name in degree_axes()) == c["n_gpus"],
        _parts_gpus,
        ("dp", "tp", "pp", "cp", "n_gpus"),
        refuses=True,
    ),
    Rule(
        DIVIDES_HEADS,
        ("tp",),
        lambda c: _no(c, "heads") | (c["heads"] % c["tp"] == 0),
        lambda c: f"tp={c['tp']} does not divide the {c['heads']} heads",
        ("tp",),
        refuses=True,
    ),
    Rule(
        DIVIDES_SEQUENCE,
        ("cp",),
        lambda c: c["seq_len"] % c["cp"] == 0,
        lambda c: f"cp={c['cp']} does not divide the sequence of {c['seq_len']}",
        ("cp", "seq_len"),
        refuses=True,
    ),
    Rule(
        DIVIDES_SEQUENCE,
        ("cp",),
        # Causal balancing cuts each rank's share in two.
        lambda c: c["seq_len"] % (c["cp"] * (1 + (c["cp"] > 1))) == 0,
        lambda c: f"2·cp = {2 * c['cp']} does not divide the sequence of {c['seq_len']}, so that halves are unequal",
        ("cp", "seq_len"),
    ),
    Rule(
        ULYSSES_HEADS,
        ("tp", "cp", "cp_kind"),
        lambda c: (
            (c["cp_kind"] != CP_KINDS.index("ulysses")) | (c["cp"] == 1) | (c["heads"] % (c["tp"] * c["cp"]) == 0)
        ),
        lambda c: f"tp·cp = {c['tp'] * c['cp']} does not divide the {c['heads']} heads, which ulysses parts",
        ("cp", "tp", "cp_kind"),
    ),
    Rule(
        STAGES,
        ("pp",),
        lambda c: c["pp"] <= c["layers"],
        lambda c: f"pp={c['pp']} asks for more stages than the {c['layers']} layers",
        ("pp",),
        refuses=True,
    ),
    Rule(
        CHUNKS,
        ("depth", "vpp"),
        lambda c: c["vpp"] <= c["depth"],
        lambda c: f"vpp={c['vpp']} is more chunks than the {c['depth']} layers of a stage",
        ("vpp", "pp"),
        refuses=True,
    ),
    Rule(
        CHUNKED,
        ("vpp", "schedule"),
        _chunked,
        _chunk_sentence,
        ("vpp", "schedule"),
    ),
    Rule(
        DIVIDES_EXPERTS,
        ("ep",),
        lambda c: (c["ep"] == 1) | ((c["experts"] > 0) & (c["experts"] % c["ep"] == 0)),
        _expert_sentence,
        ("ep",),
        refuses=True,
    ),
    Rule(
        EXPERT_RANKS,
        ("ep", "etp", "dp", "cp", "tp"),
        lambda c: (c["dp"] * c["cp"] * c["tp"]) % (c["ep"] * c["etp"]) == 0,
        lambda c: (
            f"ep·etp = {c['ep']}·{c['etp']} = {c['ep'] * c['etp']} does not divide dp·cp·tp = "
            f"{c['dp'] * c['cp'] * c['tp']}"
        ),
        ("ep", "etp", "pp"),
        refuses=True,
    ),
    Rule(
        PROFILE,
        ("schedule",),
        _offered,
        lambda c: f"the stated software profile has no schedule {SCHEDULE_NAMES[c['schedule']]}",
        ("schedule",),
    ),
    Rule(
        BATCH,
        ("dp", "micro_batch"),
        lambda c: c["global_batch"] % (c["dp"] * c["micro_batch"]) == 0,
        lambda c: (
            f"the global batch of {c['global_batch']} is not a multiple of dp·micro_batch = {c['dp']}·"
            f"{c['micro_batch']} = {c['dp'] * c['micro_batch']}"
        ),
        ("micro_batch", "global_batch", "pp", "tp"),
    ),
)
_SHARDING_RULES = (
    Rule(
        SHARDING,
        ("shard_group", "dp", "cp"),
        lambda c: (c["shard_group"] == 0) | (c["dp"] * c["cp"] % (c["shard_group"] + (c["shard_group"] == 0)) == 0),
        lambda c: f"shard_group={c['shard_group']} does not divide dp·cp = {c['dp'] * c['cp']}",
        ("shard_group", "pp"),
        refuses=True,
    ),
    Rule(
        SHARDING,
        ("shard_group", "holders"),
        _whole_groups,
        lambda c: f"shard_group={c['shard_group']} does not divide the {c['holders']} ranks that hold the same experts",
        ("shard_group", "ep", "etp"),
        refuses=True,
    ),
    Rule(
        SHARDING,
        ("shard_group", "dp", "cp"),
        lambda c: (c["shard_group"] == 0) | (c["dp"] * c["cp"] > c["shard_group"]),
        lambda c: f"shard_group={c['shard_group']} is not a part of dp·cp = {c['dp'] * c['cp']}; leave it out",
        ("shard_group",),
    ),
)
_ADDED: list[Rule] = []


def rules() -> Iterator[Rule]:
    """Every rule: those of all layouts, what schedules ask, and those that were registered."""
    yield from _RULES
    yield from (_of_schedule(row.code, row.condition) for row in SCHEDULES.values() if row.condition is not None)
    yield from _SHARDING_RULES
    yield from _ADDED


@contextlib.contextmanager
def register(rule: Rule) -> Iterator[Rule]:
    """Add a rule, for the time of a `with` block."""
    _ADDED.append(rule)
    try:
        yield rule
    finally:
        _ADDED.remove(rule)


@functools.cache
def axes_read(rule: Rule) -> frozenset[str]:
    """The axes that decide whether a rule holds; the degrees where it reads the number of GPUs they make."""
    return frozenset(axis for name in rule.reads for axis in DERIVED.get(name, (name,)))


# --- the facts that rules read ------------------------------------------------------------------------------


def derived(c: Facts) -> dict[str, Any]:
    """What follows from axes and sizes: micro-batches of a replica, layers of a stage, ranks with the same experts."""
    return {
        "micro_batches": -(-c["global_batch"] // (c["dp"] * c["micro_batch"])),
        "depth": -(-c["layers"] // c["pp"]),
        "holders": c["dp"] * c["cp"] * c["tp"] // (c["ep"] * c["etp"]),
    }


def codes(cells: Mapping[str, Any]) -> dict[str, int]:
    """The number that stands for each axis of a layout."""
    return {name: axis.code(cells.get(name)) for name, axis in AXES.items()}


def together(rows: Sequence[Facts]) -> Facts:
    """The facts of several layouts as arrays, for the rules to test all at once."""
    import numpy as np

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: column if name == "offered" else np.array(column) for name, column in columns.items()}


def facts(cells: Mapping[str, Any], sizes: Sizes, offered: Sequence[bool] | None = None) -> dict[str, Any]:
    """What the rules read of one layout with all its cells.

    offered: whether the stated software profile has each schedule, by code; None: no profile is stated. A cell
    `batch_follows` says that no global batch was stated, so that it follows from dp and micro_batch.
    """
    found = {**codes(cells), **vars(sizes), "offered": offered, "batch_follows": bool(cells.get("batch_follows"))}
    return {**found, **derived(found)}
