"""Where a present job loses its time: which single change of the estimate would explain a measured step.

Each cause changes documented constants within physical bounds, or one cell of the job. What it can reach is the
estimate evaluated again. A difference inside the error band is no gap, and causes that explain a gap equally well
are told as such.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucalc import job as jobs
from gpucalc.errors import UsageError
from gpucalc.variation import Context, Outcome, Variation, outcomes, scaled, time_parts
from gpucalc.whatif import HOST_TIMES

GRID = 17  # values of a constant that are tried at a time
PASSES = 2  # each narrows the range to one step of the one before
LONGEST_GAP = 20e-3  # seconds of host gap per layer and micro-batch beyond which no report goes
NO_MEMORY = 0.1  # what is left of a cause's weight when the job would not fit with it
SAME = 0.5  # causes with at least this share of the best weight are not told apart


@dataclass(frozen=True)
class Cause:
    """A way in which the job may differ from what was stated, and how to find out.

    A constant that ranges has `columns` (value → columns) between `now` and `bound`; a cause that is or is not
    has `cells`. `prior` is its weight before the measurement: an assumption, from how often each is reported.
    """

    key: str
    title: str
    check: str
    prior: float
    now: float = 0.0
    bound: float = 0.0
    unit: str = ""
    logarithmic: bool = False
    columns: Callable[[float], dict[str, float]] | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)

    def at(self, place: float) -> float:
        """The constant at a place between 0 (as estimated) and 1 (its bound)."""
        if self.logarithmic:
            return self.now * (self.bound / self.now) ** place
        return self.now + (self.bound - self.now) * place


@dataclass(frozen=True)
class Finding:
    """What a cause can explain of the gap."""

    cause: Cause
    reaches: float  # step time at its bound, or with it
    value: float | None  # the constant that explains the whole gap
    explained: float  # share of the gap, 0 to 1
    weight: float  # relative plausibility: 1 is the best of all
    fit: str

    @property
    def says(self) -> str:
        """The value as people write it."""
        value = self.cause.bound if self.value is None else self.value
        if self.cause.columns is None:
            return ""
        if self.cause.unit == "Gb/s":
            return f"{value * 8 / 1e9:.3g} Gb/s"
        if self.cause.unit == "GB/s":
            return f"{value / 1e9:.3g} GB/s"
        if self.cause.unit == "ms":
            return f"{value * 1e3:.3g} ms"
        if self.cause.unit == "%":
            return f"{100 * value:.0f} %"
        return f"{value:.3g} {self.cause.unit}".strip()


@dataclass(frozen=True)
class Term:
    """One term of the predicted step, and what it would take with nothing hidden or in the ideal."""

    title: str
    seconds: float
    share: float
    unhidden: float | None
    note: str


@dataclass
class Diagnosis:
    """The measurement beside the prediction, term by term, and what would explain the difference."""

    base: Outcome
    measured: float
    low: float
    high: float
    terms: list[Term]
    findings: list[Finding]
    summary: list[str]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.base.step_time

    @property
    def verdict(self) -> str:
        """slower, faster, or no gap."""
        if self.low <= self.measured <= self.high:
            return "no gap"
        return "slower" if self.measured > self.high else "faster"


def diagnose(context: Context, cells: Mapping[str, Any], measured: float) -> Diagnosis:
    """Compare a measured step time with the estimate of the job, and rank what would explain the difference."""
    job = context.resolve({name: value for name, value in cells.items() if value is not None})
    base = outcomes([(Variation("", "as stated"), job)])[0]
    low, high = base.row["pred_step_time_low_s"], base.row["pred_step_time_high_s"]
    spread = max(math.log(high / low) / 2 / 1.2816, 0.01)  # an 80 % band reaches 1.28 standard deviations
    slower = measured > base.step_time
    causes = _causes(context, job, slower, measured - base.step_time)
    findings = _ranked(context, base, causes, measured, spread)
    found = Diagnosis(base, measured, low, high, _terms(base), findings, [])
    found.summary = _summary(found)
    return found


# --- causes ---------------------------------------------------------------------------------------------


def _causes(context: Context, job: jobs.Job, slower: bool, gap: float) -> list[Cause]:
    """The causes that apply to a job and work in the direction of the gap."""
    ranging = [*_traffic_causes(job, slower), *_kernel_causes(job, slower), *_host_causes(job, slower)]
    if slower:
        ranging.append(
            Cause(
                "outside",
                "time outside the step: data loading, checkpoints, logging, evaluation",
                "time steps without these, or look for gaps before the first kernel of a step in a profile",
                0.4,
                job.columns["optimizer_fixed_seconds"],
                job.columns["optimizer_fixed_seconds"] + 2 * gap,
                "s",
                columns=lambda x: {"optimizer_fixed_seconds": x},
            )
        )
    return [*ranging, *_cell_causes(job)]


def _traffic_causes(job: jobs.Job, slower: bool) -> list[Cause]:
    c, cells, found = job.columns, job.cells, []
    if cells["tp"] > 1:
        now = (c["tp_exposed_forward"] + c["tp_exposed_backward"]) / 2
        found.append(
            Cause(
                "tp-overlap",
                "tensor parallel traffic " + ("is not overlapped" if slower else "is hidden better"),
                "look for NCCL kernels with no compute beside them; check overlap flags, CUDA_DEVICE_MAX_CONNECTIONS",
                0.8,
                now,
                max(1.0, now * 1.01) if slower else 0.0,
                "%",
                columns=lambda x: {"tp_exposed_forward": x, "tp_exposed_backward": x},
            )
        )
    replicas = cells["dp"] * cells["cp"]
    if replicas > 1 and cells["zero_stage"] < 3 and c["dp_hidden_share"] > 0 and slower:
        hidden, residual = c["dp_hidden_share"], c["dp_residual"]
        found.append(
            Cause(
                "dp-overlap",
                "gradient reduction is not overlapped with the backward pass",
                "check the overlap flags of gradients and parameters; look for a reduction after the last backward",
                0.7,
                hidden,
                0.0,
                "%",
                columns=lambda x: {"dp_hidden_share": x, "dp_residual": 1 - (1 - residual) * x / hidden},
            )
        )
    if replicas > 1 and cells["zero_stage"] >= 3 and c["fsdp_hidden_share"] > 0 and slower:
        share, rest = c["fsdp_hidden_share"], c["fsdp_residual"]
        found.append(
            Cause(
                "fsdp-prefetch",
                "parameters are gathered without prefetch",
                "check forward and backward prefetch, and that parameters are not re-gathered for each micro-step",
                0.8,
                share,
                0.0,
                "%",
                columns=lambda x: {"fsdp_hidden_share": x, "fsdp_residual": 1 - (1 - rest) * x / share},
            )
        )
    if job.cluster.n_gpus > job.cluster.domain:
        rate = c["network_bandwidth"]
        found.append(
            Cause(
                "network",
                f"the network is {'slower' if slower else 'faster'} than {rate * 8 / 1e9:g} Gb/s per GPU",
                "run all_reduce_perf of nccl-tests over the same nodes; check that all NICs, RDMA and rails are used",
                1.0,
                rate,
                rate / 50 if slower else rate * 4,
                "Gb/s",
                True,
                lambda x: {"network_bandwidth": x},
            )
        )
    if job.cluster.n_gpus > 1 and job.cluster.domain > 1:
        link = c["link_bandwidth"]
        found.append(
            Cause(
                "link",
                f"the scale-up link is {'slower' if slower else 'faster'} than {link / 1e9:g} GB/s per GPU",
                "run all_reduce_perf inside one node; check nvidia-smi topo -m and that peer-to-peer is not disabled",
                0.5,
                link,
                link / 30 if slower else link * 2,
                "GB/s",
                True,
                lambda x: {"link_bandwidth": x},
            )
        )
    doublings = math.log2(max(job.cluster.n_gpus / 8, 1.0))
    if doublings > 0:
        share_now = c["straggler_share"]
        found.append(
            Cause(
                "stragglers",
                "a slow GPU, node or link holds up the others" if slower else "no stragglers at all",
                "compare the step time of each rank before the collectives; exclude the slowest node and repeat",
                0.6,
                1 + share_now * doublings,
                2.0 if slower else 1.0,
                "× step time",
                columns=lambda x: {"straggler_share": (x - 1) / doublings},
            )
        )
    if job.model.experts and slower:
        found.append(
            Cause(
                "imbalance",
                "tokens are routed unevenly over the experts",
                "log the tokens of each expert; check the auxiliary loss, the bias or the capacity factor",
                0.8,
                c["expert_load_factor"],
                4.0,
                "× the mean load",
                columns=lambda x: {"expert_load_factor": x},
            )
        )
    return found


def _kernel_causes(job: jobs.Job, slower: bool) -> list[Cause]:
    c = job.columns
    clock = c["clock_at_reference"]
    factor = c["elementwise_factor"]
    found = [
        Cause(
            "clock",
            "GPUs run at a lower clock (power cap, heat)" if slower else "GPUs hold their full clock",
            "read SM clock and throttle reasons with nvidia-smi -q -d PERFORMANCE,CLOCK during a step",
            0.6,
            clock,
            clock / 2 if slower else 1.0,
            "of the boost clock",
            columns=lambda x: {"clock_at_reference": x},
        ),
        Cause(
            "elementwise",
            f"norms, activations and casts are fused {'less' if slower else 'better'}",
            "count element-wise kernels of a layer in a profile; check compile, fused norm, RoPE and SwiGLU options",
            0.6,
            factor,
            3 * factor if slower else factor / 2,
            "× minimal traffic",
            True,
            lambda x: {"elementwise_factor": x},
        ),
    ]
    gemm = c["gemm_efficiency"]
    names = ("gemm_efficiency", "half_gemm_efficiency")
    found.append(
        Cause(
            "gemm",
            f"matrix products reach {'less' if slower else 'more'} of the peak",
            "time the products of a layer alone (roofline gemm M N K tells what to expect)",
            0.4,
            gemm,
            gemm / 2 if slower else min(1.0, gemm * 1.15),
            "of the peak",
            columns=lambda x: scaled(job, names, x / gemm),
        )
    )
    return found


def _host_causes(job: jobs.Job, slower: bool) -> list[Cause]:
    c = job.columns
    operation = c["seconds_per_operation"]
    found = [
        Cause(
            "host",
            "the host launches kernels too slowly" if slower else "the host launches kernels faster (CUDA graphs)",
            "look for gaps between kernels; try CUDA graphs, compilation, pinned cores, a larger micro-batch",
            0.8,
            1.0,
            20.0 if slower else 0.05,
            "× launch time",
            True,
            lambda x: (
                scaled(job, [n for n in HOST_TIMES if n != "optimizer_fixed_seconds"], x)
                if operation
                else {"seconds_per_operation": 1e-5 * x}
            ),
        )
    ]
    if slower:
        found.append(
            Cause(
                "blocking",
                "each layer waits for the host (CUDA_LAUNCH_BLOCKING, anomaly detection, synchronising logs)",
                "check the environment and the training loop for synchronisations",
                0.3,
                c["serial_gap_seconds"],
                c["serial_gap_seconds"] + LONGEST_GAP,
                "ms",
                columns=lambda x: {"serial_gap_seconds": x},
            )
        )
    return found


def _cell_causes(job: jobs.Job) -> list[Cause]:
    """Cells that may differ from what was stated; those that do not apply fall away when they are resolved."""
    cells = job.cells
    found: list[Cause] = []

    def add(key: str, title: str, check: str, prior: float, **changed: Any) -> None:
        found.append(Cause(key, title, check, prior, cells=changed))

    profile_check = "look at the attention kernels in a profile"
    add(
        "recompute",
        "every layer is recomputed",
        "check the recomputation flags",
        1.0,
        recompute="full",
        recompute_layers=None,
    )
    add("no-recompute", "nothing is recomputed", "check the flags", 0.8, recompute="none", recompute_layers=None)
    if cells["flash_attention"] != "no":
        add("no-flash", "attention runs without a fused kernel", profile_check, 0.7, flash_attention="no")
        for kernel in ("fa1", "fa2"):
            if cells["flash_attention"] != kernel:
                title = f"attention runs an older kernel ({kernel})"
                add(kernel, title, profile_check, 0.6 if kernel == "fa2" else 0.3, flash_attention=kernel)
        add("fa3", "attention runs a newer kernel (fa3)", profile_check, 0.4, flash_attention="fa3")
    if cells["precision"] in {"fp8", "mxfp8", "nvfp4", "mxfp4"}:
        add("bf16", "products run in bf16 instead", "look at the kernels' names in a profile", 0.7, precision="bf16")
    if cells["vpp"] > 1:
        add("vpp", "the pipeline is not interleaved", "check the virtual stages", 0.5, vpp=1, schedule=None)
    if cells["sequence_parallel"]:
        add("no-sp", "sequence parallelism is off", "check the flag", 0.3, sequence_parallel=False)
    if not cells.get("offload_optimizer"):
        add("offload", "the optimizer runs on the host", "check the offload settings", 0.4, offload_optimizer=True)
    if cells["dp"] * cells["cp"] > 1 and cells["zero_stage"] < 3:
        add("zero3", "parameters are sharded (ZeRO-3, FSDP)", "check the ZeRO stage", 0.4, zero_stage=3)
    return found


# --- what they explain ------------------------------------------------------------------------------------


def _ranked(context: Context, base: Outcome, causes: Sequence[Cause], measured: float, spread: float) -> list[Finding]:
    ranging = [cause for cause in causes if cause.columns is not None]
    places = _places(base, ranging, measured)
    findings = []
    for cause, (place, reached, fit) in zip(ranging, places, strict=True):
        findings.append(_finding(base, cause, place, reached, fit, measured, spread))
    varied = []
    chosen = []
    for cause in causes:
        if cause.columns is not None:
            continue
        try:
            changed = context.resolve({**base.job.cells, **cause.cells})
        except UsageError:
            continue
        chosen.append(cause)
        varied.append((Variation("cause", cause.key), changed))
    for cause, outcome in zip(chosen, outcomes(varied), strict=True):
        findings.append(_finding(base, cause, None, outcome.step_time, outcome.fit, measured, spread))
    gap = abs(measured - base.step_time)
    findings = [f for f in findings if abs(f.reaches - base.step_time) > 0.02 * gap and f.explained > 0]
    best = max((f.weight for f in findings), default=1.0) or 1.0
    findings = [dataclasses.replace(f, weight=f.weight / best) for f in findings]
    return sorted(findings, key=lambda f: (-round(f.weight, 6), -f.explained, f.cause.key))


def _places(base: Outcome, causes: Sequence[Cause], measured: float) -> list[tuple[float | None, float, str]]:
    """For each ranging cause: where the step takes as long as measured (None: nowhere), its reach, and the fit."""
    bounds = [(0.0, 1.0)] * len(causes)
    result: list[tuple[float | None, float, str]] = [(None, base.step_time, base.fit)] * len(causes)
    for turn in range(PASSES):
        varied = []
        for cause, (low, high) in zip(causes, bounds, strict=True):
            assert cause.columns is not None
            for i in range(GRID):
                columns = cause.columns(cause.at(low + (high - low) * i / (GRID - 1)))
                job = dataclasses.replace(base.job, columns={**base.job.columns, **columns})
                varied.append((Variation("cause", cause.key), job))
        found = outcomes(varied)
        for index in range(len(causes)):
            mine = found[index * GRID : (index + 1) * GRID]
            times = [o.step_time for o in mine]
            if turn == 0:
                result[index] = (None, times[-1], mine[-1].fit)
            crossing = next(
                (i for i in range(GRID - 1) if min(times[i : i + 2]) <= measured <= max(times[i : i + 2])), None
            )
            if crossing is None:
                continue
            low, high = bounds[index]
            step = (high - low) / (GRID - 1)
            inside = (measured - times[crossing]) / (times[crossing + 1] - times[crossing] or 1.0)
            place = low + step * (crossing + inside)
            bounds[index] = (low + step * crossing, low + step * (crossing + 1))
            result[index] = (place, result[index][1], mine[crossing].fit)
    return result


def _finding(
    base: Outcome, cause: Cause, place: float | None, reached: float, fit: str, measured: float, spread: float
) -> Finding:
    """Weight = prior × how well what is left of the gap agrees with the band × how far the constant is stretched."""
    gap = measured - base.step_time
    explained = 1.0 if place is not None else max(0.0, min(1.0, (reached - base.step_time) / gap)) if gap else 0.0
    rest = 0.0 if place is not None else math.log(measured / reached)
    if place is None and gap and (reached - base.step_time) / gap > 1:
        explained = 1.0
    stretch = 1.0 if place is None and cause.columns is not None else place or 0.0
    weight = cause.prior * math.exp(-((rest / spread) ** 2) / 2) * math.exp(-2 * stretch**2)
    if fit == "oom" and base.fit != "oom":
        weight *= NO_MEMORY
    return Finding(cause, reached, None if place is None else cause.at(place), explained, weight, fit)


def _terms(base: Outcome) -> list[Term]:
    """Every term of the step, the largest first, with what it would take unhidden."""
    unhidden = {
        "time/tp/exposed": "communication/tp",
        "time/cp/exposed": "communication/cp",
        "time/ep/exposed": "communication/ep",
        "time/dp/exposed": "communication/dp",
        "time/fsdp/exposed": "communication/dp",
        "time/pp/p2p": "communication/pp",
    }
    zero3 = base.job.cells["zero_stage"] >= 3
    found = []
    for path, title in time_parts().items():
        seconds = base.terms.get(path, 0.0)
        whole = base.terms.get(unhidden.get(path, ""))
        if path in {"time/dp/exposed", "time/fsdp/exposed"} and zero3 == (path == "time/dp/exposed"):
            whole = None
        if seconds <= 0 and not whole:
            continue
        note = ""
        if whole:
            note = f"{100 * max(0.0, 1 - seconds / whole):.0f} % of {whole:.3g} s is hidden"
        found.append(Term(title, seconds, seconds / base.step_time, whole, note))
    return sorted(found, key=lambda term: -term.seconds)


def _summary(found: Diagnosis) -> list[str]:
    base, measured = found.base, found.measured
    percent = 100 * (found.ratio - 1)
    lines = [
        f"measured {measured:.4g} s, predicted {base.step_time:.4g} s: {percent:+.1f} %; the 80 % band of the "
        f"prediction is {found.low:.4g} to {found.high:.4g} s"
    ]
    ideal = base.terms["bounds/lower"]
    if measured < ideal:
        lines.append(
            f"the measurement is below the {ideal:.4g} s that the work takes with all communication hidden: "
            "check that it is one whole step of the stated batch and sequence"
        )
    if found.verdict == "no gap":
        lines.append(
            "there is no gap: the difference lies inside the band, and no cause can be told from the error of the "
            "prediction; what the causes could explain is listed for orientation"
        )
        return lines
    best = [f for f in found.findings if f.weight >= SAME and f.explained > 0.5]
    if not best:
        lines.append(
            "no single change of a constant within its bounds explains the gap: suspect several at once, or a job that "
            "differs from what was stated (batch, sequence, GPUs, model)"
        )
    elif len(best) == 1:
        lines.append(f"most plausible: {best[0].cause.title}" + (f" ({best[0].says})" if best[0].says else ""))
    else:
        names = "; ".join(f.cause.title + (f" ({f.says})" if f.says else "") for f in best[:5])
        lines.append(
            f"{len(best)} causes explain it about equally well, and this measurement cannot tell them apart: {names}"
        )
    for one in best[:3]:
        lines.append(f"to check: {one.cause.check}")
    return lines
