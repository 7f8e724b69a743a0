"""Legal jobs for property tests: cells that `resolve` accepts, over models, devices, precisions and layouts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.vocabulary import CP_KINDS, RECOMPUTES
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import Job, resolve, stack
from gpucalc.layouts.axes import divisors
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.models.model import load_model

DENSE = ("llama-3.1-8b", "llama-3.1-70b", "gpt3-175b", "gpt2-1.5b", "qwen2.5-7b")
MIXTURES = ("mixtral-8x7b", "deepseek-moe-16b", "qwen3-30b-a3b")
DEVICES = {
    "v100-sxm2-32gb": ("fp16",),
    "a100-sxm-80gb": ("bf16", "fp16"),
    "h100-sxm-80gb": ("bf16", "fp8"),
    "gb200": ("bf16", "mxfp8", "nvfp4"),
    "mi300x": ("bf16",),
}
FRAMEWORKS = {"megatron-core": None, "fsdp": None, "deepspeed": None, "megatron-lm": "2022-06"}


@functools.cache
def database() -> Database:
    return Database()


def solve(*rows: dict[str, Any], detail: bool = True) -> Ledger:
    """The ledger of rows of cells."""
    columns = stack([resolve(row, Context(database())) for row in rows])
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        return estimate_training(columns, detail=detail)


def value(ledger: Ledger, path: str, row: int = 0) -> float:
    """One number of a ledger."""
    found = np.asarray(ledger[path], dtype=float)
    return float(found if found.ndim == 0 else found.ravel()[row])


def changed(job: Job, **columns: float) -> Ledger:
    """The ledger of a job some of whose columns are replaced: a faster link, a higher peak."""
    unknown = set(columns) - set(job.columns)
    assert not unknown, f"no such columns: {unknown}"
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        return estimate_training(Columns({**job.columns, **columns}), detail=True)


@st.composite
def legal_cells(draw: Any, models: tuple[str, ...] = (*DENSE, *MIXTURES), largest: int = 64) -> dict[str, Any]:
    """Cells of a legal job, most of them far from what a planner would choose."""
    name = draw(st.sampled_from(models))
    model = load_model(name)
    most = model.max_seq_len if model.parameters_positional else 8192  # learned positions end where they end
    gpu = draw(st.sampled_from(tuple(DEVICES)))
    tp = draw(st.sampled_from([t for t in (1, 2, 4, 8) if model.heads % t == 0]))
    pp = draw(st.sampled_from([p for p in (1, 2, 3, 4, 8) if p <= model.layers and tp * p <= largest]))
    cp = draw(st.sampled_from([c for c in (1, 2, 4) if tp * pp * c <= largest]))
    dp = draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp * pp * cp * d <= largest]))
    ep = draw(st.sampled_from([e for e in divisors(model.experts or 1, 8) if (dp * cp * tp) % e == 0]))
    etps = [e for e in {1, tp} if (dp * cp * tp) % (ep * e) == 0]
    micro = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([v for v in (1, 2, 3) if pp > 1 and v <= -(-model.layers // pp)] or [1]))
    many = draw(st.sampled_from([1, 2, 4, 16])) * pp
    usable = [row.name for row in SCHEDULES.values() if bool(row.token) == (pp > 1) and row.chunked == (vpp > 1)]
    zero = draw(st.integers(0, 3))
    framework = draw(st.sampled_from(tuple(FRAMEWORKS)))
    return {
        "model": name,
        "gpu": gpu,
        "precision": draw(st.sampled_from(DEVICES[gpu])),
        "framework": framework,
        "software_date": FRAMEWORKS[framework],
        "n_gpus": tp * pp * cp * dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": ep,
        "etp": draw(st.sampled_from(etps or [1])),
        "vpp": vpp,
        "schedule": draw(st.sampled_from(usable)),
        "cp_kind": draw(st.sampled_from(CP_KINDS)),
        "zero_stage": zero,
        "shard_group": draw(st.sampled_from([None, *(d for d in (2, 4) if (dp * cp) % d == 0 and zero == 3)])),
        "sequence_parallel": draw(st.booleans()),
        "recompute": draw(st.sampled_from([None, *RECOMPUTES])),
        "micro_batch": micro,
        "global_batch": dp * micro * many,
        "seq_len": draw(st.sampled_from([s for s in (512, 2048, 8192) if s <= most])),
        "flash_attention": draw(st.sampled_from([None, "yes", "no"])),
    }


def is_legal(cells: dict[str, Any]) -> bool:
    """Whether `resolve` accepts the cells."""
    try:
        resolve(cells, Context(database()))
    except UsageError:
        return False
    return True
