"""What the rules say of one layout: why it cannot be, why no plan lists it, and the nearest layout that is legal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucalc.layouts.axes import AXES, Sizes, degree_axes, divisors
from gpucalc.layouts.rules import Facts, Rule, derived, rules, together


@dataclass
class Verdict:
    """What the rules say of one layout.

    problems: why it cannot be; unlisted: why the planner does not list it though it can be. Each is the sentence of a
    rule that it breaks, with what would keep the rule.
    """

    problems: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


def judge(layouts: Sequence[Facts]) -> list[Verdict]:
    """The verdict on each layout; a rule is tested on all of them at once, and only faults are put in words."""
    found = [Verdict() for _ in layouts]
    several = len(layouts) > 1
    c = together(layouts) if several else layouts[0] if layouts else {}
    for rule in rules() if layouts else ():
        holds = rule.holds(c)
        if several and not isinstance(holds, bool):
            broken = [place for place, kept in enumerate(holds) if not kept]
        else:
            broken = [] if holds else list(range(len(layouts)))
        for place in broken:
            said = found[place].problems if rule.refuses else found[place].unlisted
            said.append(with_hint(rule, layouts[place]))
    return found


def partial(cells: Mapping[str, Any]) -> dict[str, Any]:
    """What the rules read of cells of which some, or numbers of the model, are not known: only what is there."""
    found: dict[str, Any] = {name: cells[name] for name in vars(_NO_SIZES) if cells.get(name) is not None}
    found |= {name: axis.code(cells[name]) for name, axis in AXES.items() if cells.get(name) is not None}
    if cells.get("micro_batches") is not None:
        found["micro_batches"] = cells["micro_batches"]
    return found


def broken(c: Facts, *names: str) -> list[str]:
    """The sentences of the named rules that a layout breaks; a rule that reads what is not known is passed over."""
    found = []
    for rule in rules():
        if rule.name in names:
            try:
                if not rule.holds(c):
                    found.append(rule.sentence(c))
            except KeyError:
                continue
    return found


def with_hint(rule: Rule, c: Facts) -> str:
    """What a layout does that breaks a rule, and the nearest that keeps it."""
    changed = neighbour(rule, c)
    sentence = rule.sentence(c)
    if changed is None:
        return sentence
    told = {name: value for name, value in changed.items() if name != "etp" or c["experts"]}
    hint = ", ".join(f"{name}={_shown(name, value)}" for name, value in told.items())
    return f"{sentence}; {hint} would be legal"


def _shown(name: str, code: int) -> Any:
    if name not in AXES:
        return code
    cell = AXES[name].cell(code)
    return "dp·cp" if cell is None else cell


# --- the nearest layout that keeps a rule -------------------------------------------------------------------

_NO_SIZES = Sizes(1, 1, 1, 0, 1, 1)


def neighbour(rule: Rule, c: Facts) -> dict[str, int] | None:
    """The change of one axis, and of what follows from it, that keeps `rule` and breaks no other.

    Of the axes that may change the first with such a value, of its values the nearest. A change that keeps all rules
    goes before one beside which the layout's other faults stay. None where no value of any of the axes helps.
    """
    all_rules = list(rules())
    faults = {i for i, other in enumerate(all_rules) if not other.holds(c)}
    second: dict[str, int] | None = None
    for name in rule.changes:
        for value in _nearest_first(c, name):
            changes = _with_following(c, name, value)
            if changes is None:
                continue
            after = {**c, **changes}
            if c["batch_follows"] and name != "global_batch":
                after["global_batch"] = after["dp"] * after["micro_batch"]
            after |= derived(after)
            left = {i for i, other in enumerate(all_rules) if not other.holds(after)}
            if not left:
                return changes
            if second is None and left < faults and all_rules.index(rule) not in left:
                second = changes
    return second


def _nearest_first(c: Facts, name: str) -> list[int]:
    """Values of an axis, or of a size of the job, that may be tried in place of its own, the nearest first."""
    now = c[name]
    sizes = Sizes(**{field: c[field] for field in vars(_NO_SIZES)})
    if name == "global_batch":
        values = _multiples(now, c["dp"] * c["micro_batch"] * (c["pp"] if c["vpp"] > 1 else 1))
    elif name == "seq_len":
        values = _multiples(now, 2 * c["cp"])
    elif name == "n_gpus":
        values = [math.prod(c[axis] for axis in degree_axes())]
    elif name == "dp":
        others = math.prod(c[axis] for axis in degree_axes() if axis != "dp")
        values = [c["n_gpus"] // others] if c["n_gpus"] % others == 0 else []
    elif name == "vpp":
        values = list(range(1, c["depth"] + 1))
    elif name == "etp":
        values = [1, c["tp"]]
    elif name == "shard_group":
        values = [0, *divisors(c["dp"] * c["cp"])]
    else:
        values = list(AXES[name].levels(sizes))
    others = [value for value in dict.fromkeys(values) if value != now and value >= 0]
    if name in AXES and AXES[name].column.kind == "choice":
        return others
    return sorted(others, key=lambda v: (abs(math.log(max(v, 0.5) / max(now, 0.5))), v))


def _multiples(now: int, unit: int) -> list[int]:
    return [unit * k for k in (now // unit, now // unit + 1, -(-now // unit)) if k > 0]


def _with_following(c: Facts, name: str, value: int) -> dict[str, int] | None:
    """A changed value with the values that follow from it; None where they cannot."""
    changes: dict[str, int] = {name: value}
    if name in degree_axes() and name != "dp":
        others = math.prod(value if axis == name else c[axis] for axis in degree_axes() if axis != "dp")
        if c["n_gpus"] % others:
            return None
        if c["n_gpus"] // others != c["dp"]:
            changes["dp"] = c["n_gpus"] // others
    if name == "tp" and c["etp"] == c["tp"]:
        changes["etp"] = value
    if name == "pp" and (value == 1) != (c["pp"] == 1):
        return None  # another kind of layout, not a neighbour
    if name == "vpp":
        changes |= _schedule_of_chunks(c, value)
    return changes


def _schedule_of_chunks(c: Facts, vpp: int) -> dict[str, int]:
    """The schedule that a pipeline has by default with so many chunks, where it had the default before."""
    schedule = AXES["schedule"]
    if schedule.cell(c["schedule"]) not in {"1f1b", "interleaved"}:
        return {}
    code = schedule.code(schedule.default_cell({"pp": c["pp"], "vpp": vpp}))
    return {} if code == c["schedule"] else {"schedule": code}
