"""Output of nccl-tests in its own format, made from known times."""

from __future__ import annotations

from collections.abc import Callable, Iterable

BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
PROGRAM = {"send_recv": "sendrecv"}
_PLACES = f"#{'out-of-place':>74}{'in-place':>33}          "
_HALF = "     time   algbw   busbw #wrong"
_UNITS = "     (us)  (GB/s)  (GB/s)       "
HEADING = (
    f"{_PLACES}\n"
    f"#       size         count      type   redop    root{_HALF}{_HALF}\n"
    f"#        (B)    (elements)                          {_UNITS}{_UNITS}\n"
)


def cell(microseconds: float) -> str:
    """A time as nccl-tests prints it: about four digits."""
    if microseconds >= 10_000:
        return f"{microseconds:.0f}"
    return f"{microseconds:.1f}" if microseconds >= 100 else f"{microseconds:.2f}"


def nccl_log(
    op: str,
    ranks: int,
    times: Iterable[tuple[int, float]],
    hosts: int = 1,
    device: str = "NVIDIA H100 80GB HBM3",
    in_place: Callable[[float], float] = lambda t: t,
    program: bool = True,
) -> str:
    """A log of one run; `times` are sizes in bytes and microseconds."""
    name = PROGRAM.get(op, op)
    lines = ["# nccl-tests version 2.17.1 nccl-headers=22706 nccl-library=22706"]
    if program:
        lines.append(f"# Collective test starting: {name}_perf")
    lines.append(
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0"
    )
    lines += ["#", "# Using devices"]
    for rank in range(ranks):
        host = f"node{rank * hosts // ranks:03d}"
        slot = rank % (ranks // hosts)
        process = f"Group  0 Pid {4000 + rank:6d} on {host:>10} device {slot:2d}"
        lines.append(f"#  Rank {rank:2d} {process} [0000:{slot:02x}:00] {device}")
    lines += ["NCCL version 2.27.6+cuda12.9", "#"]
    text = "\n".join(lines) + "\n" + HEADING
    redop = "sum" if op in {"all_reduce", "reduce_scatter"} else "none"
    for size, microseconds in times:
        halves = ""
        for place, t in enumerate((microseconds, in_place(microseconds))):
            rate = size / t / 1e3
            wrong = "N/A" if place and op == "alltoall" else "0"
            halves += f" {cell(t):>8} {rate:7.2f} {rate * BUS[op](ranks):7.2f} {wrong:>6}"
        text += f"{size:12d} {size // 4:13d} {'float':>9} {redop:>7} {-1:>7}{halves}\n"
    return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 123.456 \n#\n"
