"""Fit the few constants of post-training that are not counted from tensors, and predict rows that were left out.

    python scripts/fit_posttraining.py hardware_db/measurements/posttraining.csv --write

Fitted are, to memory of the Hugging Face Trainer, the bytes per logit of `eager` and what a job alone on its GPU
takes beside its tensors (`context_bytes`), and, to steps of reinforcement learning, the constants of
hardware_db/calibration/posttraining.csv. Each row is then predicted twice more: with its model family (of its
source) left out of the fit, and with its whole source left out, for which the priors stand where no other source
informs a constant.
Doubtful rows are never fitted. Deterministic.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.core.rows import read_rows, text_record
from gpucalc.database.posttraining import policy_constants
from gpucalc.database.reader import Database
from gpucalc.database.recipes import choose_recipe
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import evaluate_rows
from gpucalc.questions.tune import predict as posttraining_job
from gpucalc.questions.tune.rows import SUPERVISED, read_tuning
from gpucalc.validate.posttraining import measured

CAP = math.log(2)
PROFILE = {"logit_bytes_eager": "common", "context_bytes": "common"}
GRIDS = {
    "logit_bytes_eager": np.array([14.0]),  # measured by hooks, not fitted
    "context_bytes": np.arange(3.0e8, 2.01e9, 1.0e8),
    "rollout_ratio": np.arange(1.0, 3.01, 0.2),
    "driver_seconds": np.arange(0.0, 30.1, 5.0),
}
PRIORS = {"logit_bytes_eager": 14.0, "context_bytes": 5.0e8, "rollout_ratio": 1.5, "driver_seconds": 5.0}
PULL = 0.005  # weight of one squared log-deviation from the prior
NAMES = ("pred_peak_mem_gib", "pred_tokens_per_s_per_gpu", "pred_step_time_s")


def family(record: Mapping[str, str]) -> tuple[str, str]:
    """Source and model of a row: what is left out together."""
    return record["source"], record["model"]


def doubtful(record: Mapping[str, str], quantity: str) -> bool:
    """Whether a row does not state what decides a quantity."""
    return (record.get("doubtful") or "") in {quantity, "both"} or record["kind"].upper().startswith("ESTIMATE")


class Model:
    """Predictions of all rows as a function of the constants, without resolving a row twice."""

    def __init__(self, records: Sequence[dict[str, str]], db: Database) -> None:
        self.records, self.db = records, db
        self.plain = posttraining_job.evaluate_posttraining(records, Context(db))
        self.known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def predict(self, constants: Mapping[str, float], places: Sequence[int]) -> list[dict[str, Any]]:
        """The predictions of the rows at `places`."""
        found = []
        for place in places:
            key = (place, *constants.values())
            if key not in self.known:
                self.known[key] = self._predict(place, constants)
            found.append(self.known[key])
        return found

    def _predict(self, place: int, constants: Mapping[str, float]) -> dict[str, Any]:
        known = self.plain[place]
        if known["pred_error"]:
            return known
        tuning = read_tuning(self.records[place], lambda text: choose_recipe(text, self.db))
        if tuning.algorithm in SUPERVISED:
            return {**known, "pred_peak_mem_gib": self._memory(place, tuning, constants)}
        policy = {name: constants[name] for name in ("rollout_ratio", "driver_seconds")}
        return posttraining_job.policy_row(tuning, Context(self.db), policy)

    def _memory(self, place: int, tuning: Any, constants: Mapping[str, float]) -> float:
        from gpucalc.core.ledger import Columns
        from gpucalc.estimate.training import estimate_training

        job, _ = posttraining_job.supervised_jobs(tuning, Context(self.db))
        columns = dict(job.columns)
        columns["context_bytes"] = constants["context_bytes"]
        return float(estimate_training(Columns(columns))["memory/total"]) / 2**30


def error(record: Mapping[str, str], prediction: Mapping[str, Any], quantity: str) -> float | None:
    """|log(predicted / measured)|, capped."""
    found = measured(record, quantity)
    if found is None or not prediction.get(found[1]):
        return None
    return min(abs(math.log(float(prediction[found[1]]) / found[0])), CAP)


def fit(model: Model, places: Sequence[int], quantity: str, names: tuple[str, str]) -> dict[str, float]:
    """The pair of constants of a grid that predicts the rows best, with a weak pull to the priors."""
    best: tuple[float, dict[str, float]] = (math.inf, dict(PRIORS))
    if not places:
        return best[1]
    for first in GRIDS[names[0]]:
        for second in GRIDS[names[1]]:
            constants = {**PRIORS, names[0]: float(first), names[1]: float(second)}
            errors = [
                e
                for place, row in zip(places, model.predict(constants, places), strict=True)
                if (e := error(model.records[place], row, quantity)) is not None
            ]
            pull = PULL * sum(math.log(max(constants[n], 0.5) / PRIORS[n]) ** 2 for n in names if n != "driver_seconds")
            score = float(np.mean(errors)) + pull
            if score < best[0] - 1e-9:
                best = (score, constants)
    return best[1]


def main() -> None:
    """Fit, print, and write with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    records = [text_record(r) for block in read_rows(options.file).blocks for r in block]
    db = Database()
    model = Model(records, db)
    jobs = {
        "memory": ([i for i, r in enumerate(records) if _informs_memory(r)], ("logit_bytes_eager", "context_bytes")),
        "time": ([i for i, r in enumerate(records) if _informs_time(r)], ("rollout_ratio", "driver_seconds")),
    }
    final = dict(PRIORS)
    held: dict[str, dict[str, Any]] = {r["id"]: {"id": r["id"]} for r in records}
    for quantity, (places, names) in jobs.items():
        chosen = fit(model, places, quantity, names)
        final |= {n: chosen[n] for n in names}
        print(quantity, len(places), {n: chosen[n] for n in names})
        for name, key in (("family", family), ("source", lambda r: r["source"])):
            for group in sorted({key(records[i]) for i in places}):
                rest = [i for i in places if key(records[i]) != group]
                constants = fit(model, rest, quantity, names)
                left = [i for i, r in enumerate(records) if key(r) == group]
                for place, row in zip(left, model.predict(constants, left), strict=True):
                    keep = NAMES[:1] if quantity == "memory" else NAMES[1:]
                    held[records[place]["id"]] |= {f"{name}_{n}": row.get(n) for n in keep}
                print(f"  without {group}: {[constants[n] for n in names]}")
    # No constant that is fitted here enters the other rows: left out or not, they are predicted alike.
    shipped = model.predict(final, range(len(records)))
    for record, row in zip(records, shipped, strict=True):
        for name in ("family", "source"):
            for n in NAMES:
                held[record["id"]].setdefault(f"{name}_{n}", row.get(n))
    _training_fit(records, model, held)
    _without_hooks(records, db, held)
    if options.write:
        write(final, list(held.values()))


def _without_hooks(records: Sequence[dict[str, str]], db: Database, held: dict[str, dict[str, Any]]) -> None:
    """Rows under ZeRO-3 with the source, or Qwen-1.8B, left out: without the host time read from that model."""
    for record in records:
        if "Qwen" not in record["source"]:
            continue
        tuning = read_tuning(record, lambda text: choose_recipe(text, db))
        if not str(tuning.cells.get("framework", "")).endswith("ZeRO-3"):
            continue
        plain = posttraining_job.evaluate_posttraining([{**record, "framework": "deepspeed trainer"}], Context(db))[0]
        for name in ("family", "source") if record["model"] == "Qwen-1.8B" else ("source",):
            held[record["id"]] |= {f"{name}_{n}": plain[n] for n in NAMES[1:]}


def _training_fit(records: Sequence[dict[str, str]], model: Model, held: dict[str, dict[str, Any]]) -> None:
    """Time of rows that are also in the training measurements: as when their source was left out of that fit.

    The time of a supervised row rests on constants of its framework's profile, which scripts/fit_training.py fits.
    """
    root = Path(__file__).parent.parent / "hardware_db"
    known: dict[tuple[str, str], list[tuple[float, float]]] = {}
    left_out = {r["id"]: r for r in _table(root / "calibration" / "held_out.csv")}
    training = [r for r in _table(root / "measurements" / "training.csv") if r["measured_step_time_s"]]
    shipped = evaluate_rows([text_record(r) for r in training], Context(model.db))
    for row, prediction in zip(training, shipped, strict=True):
        seconds = left_out.get(row["id"], {}).get("loso_s")
        if seconds and prediction["pred_step_time_s"]:
            change = float(seconds) / prediction["pred_step_time_s"]
            known.setdefault((row["source"], row["seq_len"]), []).append((float(row["measured_step_time_s"]), change))
    matched = 0
    for record in records:
        found, length = measured(record, "time"), record["seq_len"].removesuffix(".0")
        if found is None:
            continue
        value, name = found
        if name == "pred_tokens_per_s_per_gpu" and length.isdigit():
            value = int(length) * float(record["micro_batch"] or 1) / value
        near = [c for s, c in known.get((record["source"], length), ()) if abs(s / value - 1) < 0.002]
        if near:
            matched += 1
            row = held[record["id"]]
            if row.get("source_pred_step_time_s"):
                row["source_pred_step_time_s"] *= near[0]
                row["source_pred_tokens_per_s_per_gpu"] /= near[0]
    print(f"{matched} rows are also in the training fit; their time with the source left out is taken from there")


def _table(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def _informs_memory(record: Mapping[str, str]) -> bool:
    alone = record["n_gpus"] in {"1", "1.0"}
    return "Qwen" in record["source"] and alone and bool(measured(record, "memory")) and not doubtful(record, "memory")


def _informs_time(record: Mapping[str, str]) -> bool:
    return (
        record["method"] in {"grpo", "ppo", "dapo"} and bool(measured(record, "time")) and not doubtful(record, "time")
    )


def write(constants: Mapping[str, float], held: Sequence[Mapping[str, Any]]) -> None:
    """Put the constants into the database and the predictions of left-out rows beside them."""
    root = Path(__file__).parent.parent / "hardware_db"
    for name, profile in PROFILE.items():
        path = root / "profiles" / f"{profile}.toml"
        text = path.read_text(encoding="utf-8")
        text = re.sub(rf"(?m)^({name} = {{ value = )[-+.\de]+", rf"\g<1>{constants[name]:g}", text)
        path.write_text(text, encoding="utf-8")
    path = root / "calibration" / "posttraining.csv"
    shipped = policy_constants(Database())
    lines = path.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        name = line.split(",", 1)[0]
        if name in shipped:
            cells = line.split(",", 5)
            lines[at] = ",".join([name, f"{constants[name]:g}", *cells[2:]])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = ["id", *[f"{view}_{n}" for view in ("family", "source") for n in NAMES]]
    with open(root / "calibration" / "posttraining_held_out.csv", "w", encoding="utf-8", newline="") as file:
        file.write("# Written by scripts/fit_posttraining.py: predictions for rows that were not in the fit.\n")
        file.write("# family: the row's model in its source left out; source: its whole source left out.\n")
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in held:
            writer.writerow({n: f"{v:.6g}" if isinstance(v, float) else v for n, v in row.items() if n in columns})


if __name__ == "__main__":
    main()
