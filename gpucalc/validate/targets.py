"""What predictions are meant to reach, and what they do reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpucalc.validate.metrics import Ranking, balanced, errors_of, fit_quality, grouped, rankings, share, trusted_timed
from gpucalc.validate.training import LEFT_OUT, RANDOM, SHIPPED, Checked

Rows = Sequence[Checked]
FEW = 10  # families with fewer rows have no bias to speak of


@dataclass(frozen=True)
class Target:
    """One figure to reach: at most (or at least) so much with random rows, or whole sources, held out."""

    name: str
    figure: Callable[[Rows, str], float | None]
    random: float
    left_out: float
    at_least: bool = False

    def missed(self, value: float | None, view: str) -> bool | None:
        """Whether a figure misses its limit; None where there is no figure."""
        if value is None:
            return None
        limit = self.left_out if view == LEFT_OUT else self.random
        return value < limit if self.at_least else value > limit


def _median(select: Callable[[Checked], bool]) -> Callable[[Rows, str], float | None]:
    return lambda rows, view: errors_of(r.ratio(view) for r in trusted_timed(rows) if r.job and select(r)).median


def _arch(row: Checked) -> str:
    return row.job.cluster.device.arch if row.job else ""


def _gpus(row: Checked) -> int:
    return row.job.cluster.n_gpus if row.job else 0


def _p90_dense(rows: Rows, view: str) -> float | None:
    return errors_of(r.ratio(view) for r in trusted_timed(rows) if "moe" not in r.families).p90


def worst_bias(rows: Rows, view: str) -> float | None:
    """The largest median signed error of a family, without its sign."""
    found = [errors_of(r.ratio(view) for r in members) for members in grouped(trusted_timed(rows), "family").values()]
    return max((abs(e.bias) for e in found if e.bias is not None and e.rows >= FEW), default=None)


def memory_median(rows: Rows, view: str) -> float | None:
    """Median error of the peak memory where the counter is stated."""
    return errors_of(r.memory_ratio(view) for r in rows if r.trusted and r.counter != "not stated").median


def inside_band(rows: Rows, view: str) -> float | None:
    """Share of trusted rows in the 80 % band."""
    return share(r.inside(view) for r in trusted_timed(rows))


def pairs_right(found: Sequence[Ranking]) -> float | None:
    """Share of clearly different pairs in the right order, over all groups."""
    pairs = sum(g.pairs for g in found)
    return sum(g.right for g in found) / pairs if pairs else None


def best_within(found: Sequence[Ranking], loss: float = 0.03) -> float | None:
    """Share of groups whose predicted best is measured within `loss` of the measured best."""
    return sum(g.loss <= loss for g in found) / len(found) if found else None


def mean_loss(found: Sequence[Ranking]) -> float | None:
    """Mean of what the predicted best loses against the measured best."""
    return sum(g.loss for g in found) / len(found) if found else None


def targets(groups: Mapping[str, Sequence[Checked]]) -> tuple[Target, ...]:
    """All figures to reach; `groups` are the ranking groups."""
    return (
        Target("step time, mean over sources of the median error", balanced, 0.05, 0.08),
        Target("90th percentile, trusted rows without experts", _p90_dense, 0.18, 0.25),
        Target("largest bias of a family", worst_bias, 0.04, 0.08),
        Target(
            "Megatron-type 16 bit on A100 and Hopper",
            _median(lambda r: "megatron" in r.families and _arch(r) in {"Ampere", "Hopper"}),
            0.04,
            0.06,
        ),
        Target(
            "Megatron-Core FP8/FP4 on Hopper and Blackwell",
            _median(lambda r: "low-precision" in r.families and _arch(r) in {"Hopper", "Blackwell"}),
            0.06,
            0.09,
        ),
        Target("FSDP, 8 to 512 GPUs", _median(lambda r: "fsdp" in r.families and 8 <= _gpus(r) <= 512), 0.05, 0.08),
        Target(
            "networks of about 50 Gb/s per GPU, 8 to 1,024 GPUs",
            _median(lambda r: "slow-network" in r.families and 8 <= _gpus(r) <= 1024),
            0.07,
            0.10,
        ),
        Target("LoRA and QLoRA", _median(lambda r: "adapters" in r.families), 0.06, 0.10),
        Target("mixtures of experts", _median(lambda r: "moe" in r.families), 0.15, 0.22),
        Target("small models in PyTorch on one node", _median(lambda r: "small" in r.families), 0.15, 0.15),
        Target("peak memory, counter stated", memory_median, 0.04, 0.08),
        Target("fits / does not fit, both classes alike", lambda r, v: _fit(r, v)[0], 0.95, 0.90, at_least=True),
        Target("runs out of memory found", lambda r, v: _fit(r, v)[1], 0.85, 0.80, at_least=True),
        Target(
            "ranking: pairs in the right order",
            lambda r, v: pairs_right(rankings(groups, v)),
            0.90,
            0.90,
            at_least=True,
        ),
        Target("ranking: mean loss of the predicted best", lambda r, v: mean_loss(rankings(groups, v)), 0.03, 0.03),
        Target("rows inside the 80 % band", inside_band, 0.80, 0.80, at_least=True),
    )


def _fit(rows: Rows, view: str) -> tuple[float | None, float | None]:
    found = fit_quality([r for r in rows if r.trusted], view)
    return found.balanced, found.oom_found


def achieved(rows: Rows, groups: Mapping[str, Sequence[Checked]], views: Sequence[str]) -> list[dict[str, object]]:
    """Each target with its limits and the figures reached in each view, and the misses by name of the view."""
    lines: list[dict[str, object]] = []
    for target in targets(groups):
        figures = {view: target.figure(rows, view) for view in views}
        missed = [view for view in (RANDOM, LEFT_OUT) if view in figures and target.missed(figures[view], view)]
        if views == (SHIPPED,) and target.missed(figures[SHIPPED], SHIPPED):
            missed = [SHIPPED]
        lines.append(
            {
                "target": target.name,
                "sense": "at least" if target.at_least else "at most",
                "limit_random_pct": 100 * target.random,
                "limit_left_out_pct": 100 * target.left_out,
                **{f"{view}_pct": None if f is None else 100 * f for view, f in figures.items()},
                "missed": ", ".join(missed),
            }
        )
    return lines
