"""What may make a measured step differ from the estimate: constants within physical bounds, and settings of the job.

The priors are assumptions, from how often each cause is reported; they order causes that explain a gap alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.units import GIGABIT
from gpucalc.jobs import training as jobs
from gpucalc.jobs.variations import scaled
from gpucalc.questions.whatif import HOST_TIMES

LONGEST_GAP = 20e-3  # seconds of host gap per layer and micro-batch beyond which no report goes


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


def causes_of(job: jobs.Job, slower: bool, gap: float) -> list[Cause]:
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
    if cells["tp"] > 1 and c["tp_overlap"] == (1.0 if slower else 0.0):
        now = c["tp_overlap"]
        found.append(
            Cause(
                "tp-overlap",
                "tensor parallel traffic " + ("is not overlapped" if slower else "is hidden better"),
                "look for NCCL kernels with no compute beside them; check overlap flags, CUDA_DEVICE_MAX_CONNECTIONS",
                0.8,
                now,
                0.0 if slower else 1.0,
                "%",
                columns=lambda x: {"tp_overlap": x},
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
                f"the network is {'slower' if slower else 'faster'} than {rate / GIGABIT:g} Gb/s per GPU",
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
                c["expert_imbalance"],
                4.0,
                "× the mean load",
                columns=lambda x: {"expert_imbalance": x},
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
