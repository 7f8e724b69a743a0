"""Claims about runs: checked by the training estimate, the published runs, or their own arithmetic."""

from __future__ import annotations

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIB
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.validate.claims.statements import CIRCULAR, DEPENDS, FALSE, PARTLY, TRUE, Claim, Verdict

SLOWEST_RING = 0.05  # of a link; less than any published untuned ring
BATCHES = (1, 16, 256, 1024)  # sequences of a GPU


def check_mfu(claim: Claim, db: Database) -> Verdict:
    """The model FLOPs utilisation of the published runs that ship with the package, from their measured times."""
    from gpucalc.jobs.training import evaluate_rows
    from gpucalc.validate.metrics import quantile
    from gpucalc.validate.training import shipped_rows

    low, high = float(claim.fields["mfu_low_pct"]), float(claim.fields["mfu_high_pct"])
    if low >= high:
        raise UsageError(f"mfu_low_pct is {low:g}, expected less than mfu_high_pct, which is {high:g}")
    rows = [
        r
        for r in shipped_rows()
        if r.get("strict") == "True" and r.get("measured_step_time_s") and (r.get("method") or "full") == "full"
    ]
    measured = []
    for row, found in zip(rows, evaluate_rows(rows, Context(db)), strict=True):
        if not found.get("pred_error"):
            ratio = float(found["pred_step_time_s"]) / float(row["measured_step_time_s"])
            measured.append(float(found["pred_mfu_pct"]) * ratio)
    inside = sum(low <= value <= high for value in measured) / len(measured)
    ends = [quantile(measured, q) for q in (0.1, 0.5, 0.9)]
    lines = (
        f"{len(measured)} published full-training runs: 10th percentile {ends[0]:.0f} %, median {ends[1]:.0f} %, "
        f"90th percentile {ends[2]:.0f} %",
        f"between {low:g} and {high:g} %: {100 * inside:.0f} % of them",
        "counted: model FLOPs without recomputation, full attention, dense peak of the matrix precision",
    )
    verdict = TRUE if inside >= 0.8 else PARTLY if inside >= 0.4 else FALSE
    return Verdict(
        claim, verdict, f"{100 * inside:.0f} % of published runs lie in it", lines, "measurements/training.csv"
    )


def check_zero(claim: Claim, db: Database) -> Verdict:
    """Memory of a model over data-parallel GPUs by ZeRO stage, states and all, over that without it."""
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs.training import resolve, stack

    n = int(claim.fields["n_gpus"])
    base = {
        "model": str(claim.fields["model"]),
        "gpu": str(claim.fields["gpu"]),
        "n_gpus": n,
        "dp": n,
        "seq_len": 2048,
        "micro_batch": 1,
        "global_batch": n,
        "recompute": "none",
    }
    ledger = estimate_training(
        stack([resolve({**base, "zero_stage": stage}, Context(db)) for stage in range(4)]), detail=True
    )
    states = [sum(float(ledger[f"memory/{p}"][i]) for p in ("weights", "gradients", "optimizer")) for i in range(4)]
    total = [float(ledger["memory/total"][i]) for i in range(4)]
    lines = tuple(
        f"stage {i}: states {states[i] / GIB:.1f} GiB, {states[i] / states[0]:.3f} of stage 0; "
        f"with activations and reserve {total[i] / GIB:.1f} GiB, {total[i] / total[0]:.3f} of it"
        for i in range(4)
    )
    because = (
        f"1/{n} = {1 / n:.3f}: stage 3 brings the states to {states[3] / states[0]:.3f}, stage 1 and 2 to "
        f"{states[1] / states[0]:.2f} and {states[2] / states[0]:.2f}; activations stay, so all memory falls to "
        f"{total[3] / total[0]:.2f}"
    )
    return Verdict(
        claim, PARTLY if states[3] / states[0] < 2 / n else FALSE, because, lines, "rajbhandari2020; estimate"
    )


def check_network_share(claim: Claim, db: Database) -> Verdict:
    """Share of a step that the network takes beyond the work, in a one-GPU-a-node cluster, by model and batch."""
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs.training import resolve, stack

    n, said = int(claim.fields["n_gpus"]), float(claim.fields["share_pct"]) / 100
    stated = claim.fields.get("model")
    models = [stated] if stated else claim.fields.get("models") or ["gpt2-124m", "bert-large", "llama-2-7b"]
    lines, shares = [], []
    for model in models:
        for batch in BATCHES:
            cells = {
                "model": model,
                "gpu": str(claim.fields["gpu"]),
                "n_gpus": n,
                "gpus_per_node": 1,
                "dp": n,
                "seq_len": 512,
                "micro_batch": 1,
                "global_batch": n * batch,
                "zero_stage": 0,
            }
            ledger = estimate_training(
                stack([resolve(cells, Context(db, fabric=str(claim.fields["fabric"])))]), detail=True
            )
            step, work = (float(ledger[p]) for p in ("time/step", "bounds/work"))
            shares.append(1 - work / step)
            lines.append(
                f"{model}, {batch} sequences of 512 a GPU: {step:.2f} s a step, {100 * shares[-1]:.0f} % of it waiting"
            )
    low, high = min(shares), max(shares)
    because = f"from {100 * low:.0f} to {100 * high:.0f} % by model and batch"
    verdict = DEPENDS if low <= said <= high else FALSE
    return Verdict(claim, verdict, because, tuple(lines), f"links/{claim.fields['fabric']}.toml; estimate")


def check_tuned_share(claim: Claim, db: Database) -> Verdict:
    """How much cheaper communication becomes when its share of a step falls, and what of the link that needs."""
    before, after = (float(claim.fields[n]) / 100 for n in ("before_pct", "after_pct"))
    if not 0 < after < before < 1:
        raise UsageError("expected 0 < after_pct < before_pct < 100")
    gain = (before / (1 - before)) / (after / (1 - after))
    device = db.device(str(claim.fields.get("gpu") or "h100-sxm-80gb"))
    n = int(claim.fields.get("n_gpus") or 64)
    cluster = resolve_cluster(db, device.key, n)
    link = db.link(cluster.fabric if n > cluster.domain else cluster.link_key)
    best = link.achievable_fraction
    lines = (
        f"communication per compute: {before:g}/{1 - before:g} = {before / (1 - before):.3f}, then "
        f"{after:g}/{1 - after:g} = {after / (1 - after):.3f}: {gain:.2f} times less",
        f"the step becomes {(1 - after) / (1 - before):.2f} times faster",
        f"a ring over {n} ranks moves 2·({n}-1)/{n} = {2 * (n - 1) / n:.3f} of the buffer, and no algorithm less",
        f"isolated transfers reach {best:.2f} of {link.key}, which binds {n} of {device.key}; {gain:.2f} times less is "
        f"{best / gain:.2f} of it",
    )
    because = (
        f"communication must become {gain:.1f} times cheaper: by overlap with the backward pass, or if the ring "
        f"reached only {100 * best / gain:.0f} % of the link before; the ring itself cannot be made to move less"
    )
    verdict = DEPENDS if best / gain > SLOWEST_RING else FALSE
    return Verdict(claim, verdict, because, lines, f"patarasuk2009; links/{link.key}.toml")


def check_product(claim: Claim, db: Database) -> Verdict:
    """Whether an energy is hours times a nominal power, so that it says nothing that these do not."""
    hours, kilowatts, energy = (float(claim.fields[n]) for n in ("hours", "kilowatts", "energy_kwh"))
    lines = (f"{hours:,.0f} h × {kilowatts:g} kW = {hours * kilowatts:,.0f} kWh",)
    source = str(claim.fields.get("source", ""))
    if abs(hours * kilowatts - energy) < 1e-3 * energy:
        because = "hours times a nominal power, exactly: a calculation, not a measurement; it validates nothing"
        return Verdict(claim, CIRCULAR, because, lines, source)
    off = 100 * (energy / (hours * kilowatts) - 1)
    return Verdict(claim, DEPENDS, f"{off:+.1f} % from hours times that power", lines, source)
