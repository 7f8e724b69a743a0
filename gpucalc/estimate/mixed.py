"""A step on pipelines whose stages and replicas lie on GPUs of several kinds: which of them decides, and what it takes.

The columns state what the training estimate says of each stage on its GPUs; this module only joins them.
"""

from __future__ import annotations

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import flops, mixed


def stage_column(replica: int, stage: int, what: str) -> str:
    """The name of the column that states a figure of a stage of a kind of replica: `time` or `hop`.

    >>> stage_column(0, 2, "time")
    'replica_1_stage_3_time'
    """
    return f"replica_{replica + 1}_stage_{stage + 1}_{what}"


def estimate_mixed(columns: Columns, replicas: int, stages: int, *, trace: bool = False) -> Ledger:
    """The step of one plan, or of several of one shape: `replicas` kinds of replica, each of `stages` stages.

    The columns hold, beside those of `stage_column` and `replica_N_micro_batches`, for each stage `stage_N_exchange`
    (the gradient exchange that nothing hides, of its slowest member) and `stage_N_update`; `straggler`, `global_batch`,
    `seq_len`, `n_gpus`.
    """
    ledger = Ledger(columns, trace=trace)
    for one in range(replicas):
        path = f"replica/{one + 1}"
        times = [stage_column(one, stage, "time") for stage in range(stages)]
        hops = [stage_column(one, stage, "hop") for stage in range(stages)]
        ledger.maximum(f"{path}/slowest", *times)
        ledger.maximum(f"{path}/hop", *hops)
        ledger.total(f"{path}/through", *times, *hops)
        ledger.add(f"{path}/filling", mixed.filling_time, through=f"{path}/through", slowest=f"{path}/slowest")
        ledger.add(
            f"{path}/pipeline",
            mixed.uneven_pipeline_time,
            slowest=f"{path}/slowest",
            transfer=f"{path}/hop",
            micro_batches=f"replica_{one + 1}_micro_batches",
            filling=f"{path}/filling",
        )
    ledger.maximum("time/pipelines", *[f"replica/{one + 1}/pipeline" for one in range(replicas)])
    ledger.maximum("time/exchange", *[f"stage_{stage + 1}_exchange" for stage in range(stages)])
    ledger.maximum("time/update", *[f"stage_{stage + 1}_update" for stage in range(stages)])
    ledger.add(
        "time/step", mixed.uneven_step_time, pipeline="time/pipelines", exchange="time/exchange", update="time/update"
    )
    ledger.add("metric/tokens_per_s_per_gpu", flops.tokens_per_second_per_gpu, step_time="time/step")
    return ledger
