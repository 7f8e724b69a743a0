"""The rows of one cell of a sweep as CSV lines: its best layouts, its Pareto front, or all of them.

Everything here runs in a worker process; a cell depends on its number alone, so any worker may do it again.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import INPUT, MEASURED, NETWORK_PREDICTIONS, TRAINING_PREDICTIONS, cell_text, parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIGABIT
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import is_network
from gpucalc.layouts.axes import AXES, decided_axes
from gpucalc.layouts.label import Layout, layout_label, read_restriction
from gpucalc.output.delimited import csv_line
from gpucalc.sweep.spec import ALL, CHOICES, PARETO, Spec

if TYPE_CHECKING:
    import numpy as np

    from gpucalc.core.ledger import Ledger
    from gpucalc.database.reader import Database
    from gpucalc.questions.plan import Question

FITS, NOTHING, ILLEGAL, FAULT = "fits", "nothing fits", "illegal", "internal error"
Progress = Callable[[int], None]


@dataclass
class Outcome:
    """What became of a cell; its lines are text, or stand in the file `part`."""

    cell: int
    state: str = FITS
    rows: int = 0
    layouts: int = 0  # costed
    seconds: float = 0.0
    text: str = ""
    part: str = ""
    fatal: str = ""  # why the sweep cannot go on


def columns_of(spec: Spec) -> list[str]:
    """The header, the same for every row of a sweep."""
    names = spec.names()
    extra = [name for name in ("id", *CHOICES) if name in names]
    known = [name for name in INPUT if name != "id" and name not in MEASURED]
    rates = [name for name in NETWORK_PREDICTIONS if name not in TRAINING_PREDICTIONS] if has_networks(spec) else []
    return ["cell", "rank", "layout", *extra, *known, *TRAINING_PREDICTIONS, *rates]


def has_networks(spec: Spec) -> bool:
    """Whether some cell asks of a network that is no decoder."""
    return any(is_network({"model": name}) for name in spec.values("model")) or is_network(
        {name: spec.values(name)[0] for name in spec.names() if name != "model"}
    )


def cell_lines(spec: Spec, index: int, db: Database, outcome: Outcome, progress: Progress) -> Iterator[str]:
    """The lines of a cell, piece by piece; `outcome` is complete when they end.

    A cell that breaks a rule or that nothing fits has one line, which says why.
    """
    started = time.perf_counter()
    values = spec.cell(index)
    try:
        yield from _lines(spec, values, db, outcome, progress)
    except UsageError as error:
        outcome.state = ILLEGAL
        yield _one_line(spec, values, outcome, "; ".join(error.problems))
    except OSError:
        raise
    except Exception as error:
        # A fault of ours in one cell does not cost the others.
        outcome.state = FAULT
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield _one_line(spec, values, outcome, f"internal error: {said}")
    outcome.seconds = time.perf_counter() - started


def _lines(spec: Spec, values: Mapping[str, Any], db: Database, outcome: Outcome, progress: Progress) -> Iterator[str]:
    from gpucalc.questions.plan import ask, plan

    cells = {**{n: v for n, v in values.items() if n not in (*CHOICES, "layout")}, **spec.layout}
    if values.get("layout"):
        restriction = read_restriction(values["layout"])
        cells = restriction.closed({**cells, **restriction.cells})
    context = Context(db, values.get("profile"), values.get("fabric"), spec.causal_flops)
    if is_network(cells):
        yield from _of_network(spec, values, cells, context, outcome, progress)
        return
    if spec.keep == ALL:
        asked = ask(cells, context)
        yield from _every_layout(spec, values, asked, outcome, progress)
        if not outcome.rows:
            outcome.state = NOTHING
            rejected = asked.space.rejected
            worst = max(rejected, key=lambda name: rejected[name])
            yield _one_line(
                spec, values, outcome, f"no legal layout: every combination breaks a constraint, most often {worst!r}"
            )
        return
    if spec.keep == PARETO:
        result = plan(cells, context, objective=PARETO, progress=progress)
    else:
        result = plan(cells, context, objective=spec.objective, top=int(spec.keep), progress=progress)
    outcome.layouts = result.evaluated
    outcome.rows = len(result.rows)
    if not result.rows:
        outcome.state = NOTHING
        fit = "oom" if result.evaluated else ""
        yield _one_line(spec, values, outcome, result.nearest_miss or "no layout fits", fit)
        return
    columns = columns_of(spec)
    for rank, row in enumerate(result.rows, 1):
        shown = {**values, **row, "cell": outcome.cell + 1, "rank": rank}
        yield csv_line(cell_text(shown.get(name)) for name in columns)


def _of_network(
    spec: Spec,
    values: Mapping[str, Any],
    cells: Mapping[str, Any],
    context: Context,
    outcome: Outcome,
    progress: Progress,
) -> Iterator[str]:
    """The layouts of a network, the highest rate first; all of them where the sweep keeps all or a front."""
    from gpucalc.questions.network import MOST, plan_network

    single = {name: value[0] if isinstance(value, tuple) else value for name, value in cells.items()}
    several = [name for name, value in cells.items() if isinstance(value, tuple) and len(value) > 1]
    if several:
        raise UsageError(f"{several[0]} of a network is one value, or an axis of the sweep; not several under [layout]")
    top = MOST if spec.keep in {ALL, PARETO} else int(spec.keep)
    found = plan_network(single, context, "throughput", top)
    outcome.layouts, outcome.rows = found.evaluated, len(found.rows)
    progress(outcome.layouts)
    if not found.rows:
        outcome.state = NOTHING
        yield _one_line(spec, values, outcome, "no layout fits", "oom" if found.evaluated else "")
        return
    columns = columns_of(spec)
    for rank, row in enumerate(found.rows, 1):
        shown = {**values, **row, "cell": outcome.cell + 1, "rank": rank}
        yield csv_line(cell_text(shown.get(name)) for name in columns)


def _one_line(spec: Spec, values: Mapping[str, Any], outcome: Outcome, problem: str, fit: str = "") -> str:
    single = {name: levels[0] for name, levels in spec.layout.items() if len(levels) == 1}
    shown = {**values, **single, "cell": outcome.cell + 1, "pred_fit": fit, "pred_error": " ".join(problem.split())}
    outcome.rows += 1
    return csv_line(cell_text(shown.get(name)) for name in columns_of(spec))


def failed_cell(spec: Spec, index: int, why: str) -> Outcome:
    """The outcome of a cell that no worker survives: one line that says so."""
    outcome = Outcome(index, FAULT)
    outcome.text = _one_line(spec, spec.cell(index), outcome, why)
    return outcome


# --- every layout ------------------------------------------------------------------------------------


def _every_layout(
    spec: Spec, values: Mapping[str, Any], asked: Question, outcome: Outcome, progress: Progress
) -> Iterator[str]:
    """All legal layouts in the order of their enumeration, those that do not fit too; block by block."""
    from gpucalc.estimate.training import estimate_training
    from gpucalc.layouts.space import block_columns, blocks, cuts

    base = asked.base
    known = {"seq_len": base.cells["seq_len"], "precision": base.cells["precision"]}
    known["gpus_per_node"] = base.cluster.gpus_per_node
    known["inter_node_gbps_per_gpu"] = base.cluster.network_bandwidth_per_gpu / GIGABIT
    shared = {**values, **known, **asked.question, "cell": outcome.cell + 1}
    frame = _Frame(columns_of(spec), {name: cell_text(value) for name, value in shared.items()})
    for block in blocks(asked.space, cuts(asked.space)):
        ledger = estimate_training(block_columns(base.columns, block))
        text, rows = _block_text(frame, block, ledger, asked)
        outcome.rows += rows
        outcome.layouts += rows
        ledger.entries.clear()  # terms and scopes point at each other, and would wait for the garbage collector
        progress(outcome.layouts)
        yield text


class _Frame:
    """A line with holes: the cells that all layouts of a cell share are put in place once."""

    def __init__(self, columns: list[str], shared: Mapping[str, str]) -> None:
        varying = _varying()
        self.varying = [name for name in columns if name in varying]
        pieces, fixed = [], []
        for name in columns:
            if name in varying:
                pieces.append("%s")
            else:
                fixed.append(name)
                pieces.append(csv_line(["", shared.get(name, "")])[1:-1].replace("%", "%%"))
        self.line = ",".join(pieces) + "\n"


def _varying() -> frozenset[str]:
    """The columns in which the layouts of a cell differ."""
    return frozenset(("layout", *decided_axes(), *TRAINING_PREDICTIONS))


def _block_text(frame: _Frame, block: Mapping[str, np.ndarray], ledger: Ledger, asked: Question) -> tuple[str, int]:
    """The lines of a block, column by column, without the layouts that are another one again."""
    import numpy as np

    from gpucalc.jobs.training import PREDICTIONS
    from gpucalc.questions.plan import duplicates

    length = len(block["tp"])

    def column(path: str) -> np.ndarray:
        return np.broadcast_to(np.asarray(ledger[path], dtype=float), (length,))

    share, depth, fill = column("symbol/full_share"), column("stage/layers/second"), column("memory/fill")
    kept = np.flatnonzero(~duplicates(asked.space, block["recompute"], share))
    texts = _words({name: values[kept].tolist() for name, values in block.items()}, share[kept], depth[kept], asked)
    numbers = {name: column(path)[kept] * factor for name, (path, factor) in PREDICTIONS.items()}
    low, high = _bands(asked, block["zero_stage"][kept])
    numbers["pred_step_time_low_s"] = numbers["pred_step_time_s"] * low
    numbers["pred_step_time_high_s"] = numbers["pred_step_time_s"] * high
    texts |= {name: [repr(v) for v in values.tolist()] for name, values in numbers.items()}
    from gpucalc.jobs.training import fit_of

    texts["pred_fit"] = [fit_of(v) for v in fill[kept].tolist()]
    texts["pred_error"] = [""] * len(kept)
    rows = zip(*(texts[name] for name in frame.varying), strict=True)
    return "".join([frame.line % row for row in rows]), len(kept)


def _words(
    block: Mapping[str, list[int]], share: np.ndarray, depth: np.ndarray, asked: Question
) -> dict[str, list[str]]:
    """The text of each axis, of the recomputation used, and of the label."""
    from gpucalc.jobs.training import recompute_text

    words: dict[str, list[str]] = {}
    for name, codes in block.items():
        known = {code: cell_text(AXES[name].cell(code)) for code in set(codes)}
        words[name] = [known[code] for code in codes]
    used = [
        recompute_text(stated or None, a, b)
        for stated, a, b in zip(words["recompute"], share.tolist(), depth.tolist(), strict=True)
    ]
    split = [text.partition(":") for text in used]
    words |= {"recompute": [kind for kind, _, _ in split], "recompute_layers": [layers for _, _, layers in split]}
    names = [name for name in AXES if name in words]
    place = names.index(_LAST_OF_HEAD) + 1
    first, last = tuple(names[:place]), tuple(names[place:])
    fixed = tuple((n, asked.stated[n]) for n in AXES if n in asked.stated and n not in words)
    heads = zip(*(block[name] for name in first), strict=True)
    tails = zip(*(words[name] for name in last), strict=True)
    pp, vpp, experts = first.index("pp"), first.index("vpp"), asked.base.model.experts
    words["layout"] = [
        _label_head(first, head, experts) + _label_tail(last, tail, head[pp] > 1, head[vpp] > 1, fixed)
        for head, tail in zip(heads, tails, strict=True)
    ]
    return {"pred_recompute": used, **words}


_LAST_OF_HEAD = "micro_batch"  # up to here the axes of a label are numbers that blocks repeat


@functools.lru_cache(maxsize=1 << 16)
def _label_head(names: tuple[str, ...], counts: tuple[int, ...], experts: int) -> str:
    """The part of a label that the degrees and the micro-batch decide; blocks repeat few of them."""
    return layout_label(dict(zip(names, counts, strict=True)), experts)


@functools.lru_cache(maxsize=1 << 16)
def _label_tail(
    names: tuple[str, ...], texts: tuple[str, ...], staged: bool, chunked: bool, fixed: tuple[tuple[str, Any], ...]
) -> str:
    """The rest of a label, with its leading dash; whether a schedule is the default depends on pp and vpp above 1."""
    cells: dict[str, Any] = {"pp": 1 + staged, "vpp": 1 + chunked}
    head = Layout.from_cells(cells).label() if staged or chunked else ""
    cells |= {name: parse_cell(name, text) for name, text in zip(names, texts, strict=True)}
    label = Layout.from_cells({**cells, **dict(fixed)}).label()
    return label.removeprefix(head) if head else f"-{label}"


def _bands(asked: Question, stages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the band of each layout: of a job's layout only the ZeRO stage decides its family."""
    import numpy as np

    from gpucalc.jobs.training import job_band

    base = asked.base
    ends = []
    for stage in range(4):
        ends.append(job_band(dataclasses.replace(base, cells={**base.cells, "zero_stage": stage})))
    table = np.array(ends)
    return table[stages, 0], table[stages, 1]
