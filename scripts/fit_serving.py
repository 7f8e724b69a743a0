"""Fit the constants of the serving engines to measured serving points.

    python scripts/fit_serving.py --left-out --write

Fitted are the constants of hardware_db/engines/*.toml whose origin is "fitted": those of neutral.toml to all rows,
those of an engine's own file to its rows, pulled towards the neutral value. Residuals are log(predicted/measured) of
TPOT and, with less weight, of TTFT; each counts at most as an error of about a factor of two, and every series (model
x GPU x engine) has the same weight as any other. --left-out fits once more without each series in turn and records what
is predicted for it; models of one shape count as one. Deterministic.
"""

from __future__ import annotations

import argparse
import csv
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.database.reader import Database
from gpucalc.estimate.serving import estimate_serving
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import ServingJob, parse_serving, resolve_serving, stack_serving
from gpucalc.validate.training import shipped_rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "serving.md"
ENGINES = ROOT / "hardware_db" / "engines"
ERRORS = ROOT / "hardware_db" / "calibration" / "serving_errors.csv"
HELD_OUT = ROOT / "hardware_db" / "calibration" / "serving_held_out.csv"
TTFT_WEIGHT = 0.5
LOW_TRUST = 0.3  # weight of runs that the source calls gap analyses
PULL = 0.15  # a constant that is off its prior by e counts as a row that is off by this
SOFT = 0.15  # errors beyond this count less and less
# Lowest, expected before seeing the data, and highest value of each constant.
BOUNDS: dict[str, tuple[float, float, float]] = {
    "graph_launch_share": (0.15, 0.5, 1.2),
    "attention_launch_share": (0.1, 0.5, 1.5),
    "kernel_seconds": (5e-7, 3e-06, 1e-5),
    "step_seconds": (5e-5, 0.0003, 8e-3),
    "reduce_startup": (2e-6, 5e-06, 2.5e-5),
    "grouped_efficiency": (0.2, 0.8, 1.0),
    "grouped_memory_efficiency": (0.3, 0.8, 1.1),
    "product_efficiency": (0.6, 0.85, 1.05),
    "expanded_efficiency": (0.4, 0.8, 1.0),
    "expanded_memory_efficiency": (0.4, 0.8, 1.0),
    "grouped_k_half": (10.0, 300, 1000.0),
    "fp4_factor": (1.0, 1.3, 1.6),
    "routing_evenness": (0.5, 1.5, 20.0),
    "sequence_seconds": (5e-7, 5e-06, 6e-5),
    "expert_load_factor": (1.0, 1.2, 2.0),
    "request_overhead": (5e-3, 0.03, 0.4),
    "prefill_queue_share": (5e-3, 0.06, 0.6),
    "unpacked_bytes": (6.0, 16.0, 24.0),
    "expert_prompt_efficiency": (0.25, 0.7, 1.0),
    "gathering_steps": (0.5, 10.0, 60.0),
}
SHAPES = {"deepseek-v3": "deepseek-r1"}


@dataclass
class Data:
    """The rows, their jobs and their weights."""

    records: list[dict[str, str]]
    jobs: list[ServingJob]
    columns: dict[str, np.ndarray]
    tpot: np.ndarray
    ttft: np.ndarray
    series: np.ndarray
    engines: np.ndarray
    trust: np.ndarray

    def take(self, chosen: np.ndarray) -> Data:
        """Some of the rows."""
        places = np.flatnonzero(chosen)
        return Data(
            [self.records[i] for i in places],
            [self.jobs[i] for i in places],
            {n: v[chosen] for n, v in self.columns.items()},
            self.tpot[chosen],
            self.ttft[chosen],
            self.series[chosen],
            self.engines[chosen],
            self.trust[chosen],
        )


def series_of(job: ServingJob) -> str:
    """Model shape, GPU and engine."""
    return f"{SHAPES.get(job.model.name, job.model.name)} | {job.cluster.device.key} | {job.engine.name}"


def load() -> Data:
    """The shipped rows that can be evaluated."""
    db = Database(())
    records, jobs = [], []
    for record in shipped_rows("serving"):
        if record["repeat_of"] or set_apart(record):
            continue
        cells, problems = parse_serving(record)
        if problems:
            raise SystemExit(f"{record['id']}: {problems}")
        records.append(record)
        jobs.append(resolve_serving(cells, Context(db)))
    columns = dict(stack_serving(jobs))
    measured = np.array([[float(r["measured_tpot_ms"]), float(r["measured_ttft_ms"])] for r in records]) / 1e3
    trust = np.array([LOW_TRUST if "low trust" in r["notes"] else 1.0 for r in records])
    series = np.array([series_of(job) for job in jobs])
    engines = np.array([job.engine.name for job in jobs])
    return Data(records, jobs, columns, measured[:, 0], measured[:, 1], series, engines, trust)


def set_apart(record: Mapping[str, str]) -> bool:
    """Rows that ran otherwise than they say; they are predicted and shown, not fitted.

    TensorRT-LLM ran gpt-oss on H100 without captured graphs, and DeepSeek-R1 in 1.2.0rc6.post3 with drafts of which
    the accepted share is not published.
    """
    eager = "gpt-oss" in record["model"] and record["gpu"].startswith("h100") and record["framework"] == "trtllm"
    return eager or record["framework_version"].endswith("rc6.post3")


def fitted_constants() -> list[tuple[str, str, float]]:
    """(engine, constant, value) of each constant whose origin is "fitted", the neutral engine first."""
    found = []
    for file in sorted(ENGINES.glob("*.toml"), key=lambda f: f.stem != "neutral"):
        for name, cell in tomllib.loads(file.read_text(encoding="utf-8")).get("constants", {}).items():
            if cell["origin"] == "fitted":
                found.append((file.stem, name, float(cell["value"])))
    return found


def apply(data: Data, names: Sequence[tuple[str, str]], values: np.ndarray) -> Columns:
    """The columns of the rows with these values of the constants; an engine's own value beats the neutral one."""
    columns = dict(data.columns)
    for (engine, name), value in zip(names, values, strict=True):
        where = np.ones(len(data.engines), bool) if engine == "neutral" else data.engines == engine
        columns[name] = np.where(where, value, columns[name])
    return Columns(columns)


def logs(data: Data, names: Sequence[tuple[str, str]], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted/measured) of TPOT and TTFT."""
    ledger = estimate_serving(apply(data, names, np.exp(x)))
    return np.log(ledger["time/tpot"] / data.tpot), np.log(ledger["time/ttft"] / data.ttft)


def weights(data: Data) -> np.ndarray:
    """Square roots of row weights: series alike, low trust less."""
    total = {s: float(np.sum(data.trust[data.series == s])) for s in set(data.series.tolist())}
    share = np.array([t / max(total[s], 10.0) for s, t in zip(data.series.tolist(), data.trust, strict=True)])
    return np.sqrt(share * len(total) / np.sum(share) * 10.0)


def residuals(
    data: Data, names: Sequence[tuple[str, str]], prior: Mapping[tuple[str, str], float]
) -> Callable[[np.ndarray], np.ndarray]:
    """The function whose squares are minimised."""
    root = weights(data)

    def soft(error: np.ndarray) -> np.ndarray:
        size = np.abs(error) / SOFT
        return np.sign(error) * SOFT * np.sqrt(2 * (np.sqrt(1 + size**2) - 1))

    def of(x: np.ndarray) -> np.ndarray:
        tpot, ttft = logs(data, names, x)
        at = dict(zip(names, x, strict=True))
        pulls = [
            PULL * (at[e, n] - at.get(("neutral", n) if e != "neutral" else ("", ""), np.log(prior[e, n])))
            for e, n in names
        ]
        return np.concatenate([root * soft(tpot), TTFT_WEIGHT * root * soft(ttft), pulls])

    return of


def minimise(
    of: Callable[[np.ndarray], np.ndarray], x: np.ndarray, names: Sequence[tuple[str, str]], rounds: int
) -> np.ndarray:
    """Levenberg-Marquardt with a numeric Jacobian, inside the bounds."""
    low, high = (np.log([BOUNDS[n][i] for _, n in names]) for i in (0, 2))
    x = np.clip(x, low, high)
    damping, r, idle = 1e-2, of(x), 0
    for _ in range(rounds):
        jacobian = np.empty((len(r), len(x)))
        for i in range(len(x)):
            moved = x.copy()
            moved[i] += 1e-3 if x[i] + 1e-3 <= high[i] else -1e-3
            jacobian[:, i] = (of(moved) - r) / (moved[i] - x[i])
        gradient = jacobian.T @ r
        # A constant at its bound that would leave it takes no part in the step.
        free = ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))
        hessian = (jacobian.T @ jacobian)[np.ix_(free, free)]
        before = r @ r
        for _ in range(8):
            step = np.zeros(len(x))
            step[free] = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian) + 1e-9), -gradient[free])
            trial = np.clip(x + np.clip(step, -0.5, 0.5), low, high)
            tried = of(trial)
            if tried @ tried < r @ r:
                x, r, damping = trial, tried, damping / 3
                break
            damping *= 4
        idle = idle + 1 if 1 - (r @ r) / before < 1e-4 else 0
        if idle == 2:
            break
    return x


def report(data: Data, tpot: np.ndarray, ttft: np.ndarray) -> None:
    """Errors by series and in sum."""
    dense = np.array([not job.model.is_moe for job in data.jobs])
    rate = throughput_errors(data, tpot, ttft)
    for name in sorted(set(data.series.tolist())):
        print(f"{name:58s}", line(tpot, ttft, rate, data.series == name))
    for name, which in (("dense", dense), ("mixtures", ~dense)):
        print(f"{name:58s}", line(tpot, ttft, rate, which))


def throughput_errors(data: Data, tpot: np.ndarray, ttft: np.ndarray) -> np.ndarray:
    """log of predicted over measured output rate, both by Little's law."""
    osl = data.columns["osl"]
    return np.log(
        (data.ttft + data.tpot * (osl - 1)) / (data.ttft * np.exp(ttft) + data.tpot * np.exp(tpot) * (osl - 1))
    )


def line(tpot: np.ndarray, ttft: np.ndarray, rate: np.ndarray, which: np.ndarray) -> str:
    """One line of the report."""
    error = np.abs(np.expm1(tpot[which]))
    return (
        f"n {np.sum(which):5d}  TPOT median {np.median(error):6.1%} mean {np.mean(error):6.1%} "
        f"bias {np.expm1(np.median(tpot[which])):+6.1%}  rate {np.median(np.abs(np.expm1(rate[which]))):6.1%}  "
        f"TTFT {np.median(np.abs(np.expm1(ttft[which]))):6.1%} bias {np.expm1(np.median(ttft[which])):+6.1%}"
    )


def write_constants(values: Mapping[tuple[str, str], float]) -> None:
    """Put fitted values into the files of the engines."""
    for engine in {e for e, _ in values}:
        path = ENGINES / f"{engine}.toml"
        text = path.read_text(encoding="utf-8")
        for (of, name), value in values.items():
            if of == engine:
                text = re.sub(rf"(?m)^({name} = {{ value = )[^,]+,", rf"\g<1>{value:.4g},", text)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit, report, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left-out", action="store_true", help="fit again without each series")
    parser.add_argument("--write", action="store_true", help="write constants and held-out predictions")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    data = load()
    found = fitted_constants()
    names = [(engine, name) for engine, name, _ in found]
    prior = {(engine, name): BOUNDS[name][1] for engine, name, _ in found}
    start = np.log([BOUNDS[name][1] for _, name, _ in found])
    x = minimise(residuals(data, names, prior), start, names, options.rounds)
    for (engine, name), value in zip(names, np.exp(x), strict=True):
        print(f"{engine:8s} {name:28s} {value:.4g}")
    print("sum of squares", round(float(np.sum(residuals(data, names, prior)(x) ** 2)), 3))
    tpot, ttft = logs(data, names, x)
    report(data, tpot, ttft)
    if options.write:
        write_constants(dict(zip(names, np.exp(x), strict=True)))
    if options.left_out:
        for name in sorted(set(data.series.tolist())):
            rest = data.take(data.series != name)
            here = minimise(residuals(rest, names, prior), x, names, 10)
            gone = data.take(data.series == name)
            tpot[data.series == name], ttft[data.series == name] = logs(gone, names, here)
        print("\nseries left out")
        report(data, tpot, ttft)
        if options.write:
            write_held_out(data, tpot, ttft)
            write_errors(data, tpot, ttft)
            write_page(data, tpot, ttft)


def write_held_out(data: Data, tpot: np.ndarray, ttft: np.ndarray) -> None:
    """What is predicted for each row when its series is not in the fit."""
    with HELD_OUT.open("w", encoding="utf-8", newline="") as file:
        file.write(
            "# Written by scripts/fit_serving.py: predictions with the series (model x GPU x engine) left out.\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "series", "left_out_ttft_ms", "left_out_tpot_ms"])
        for i, record in enumerate(data.records):
            seconds = (data.ttft[i] * np.exp(ttft[i]), data.tpot[i] * np.exp(tpot[i]))
            writer.writerow([record["id"], data.series[i], *(f"{1e3 * s:.5g}" for s in seconds)])


def write_page(data: Data, tpot: np.ndarray, ttft: np.ndarray) -> None:
    """The table of docs/serving.md between its marks."""
    rate = throughput_errors(data, tpot, ttft)
    dense = np.array([not job.model.is_moe for job in data.jobs])
    every = np.ones(len(dense), bool)
    groups = [("dense models", dense), ("mixtures", ~dense), ("all", every)]
    groups += [(name, data.series == name) for name in sorted(set(data.series.tolist()))]
    lines = [
        "| series left out | rows | TPOT median | mean | bias | rate median | TTFT median |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, which in groups:
        error = np.abs(np.expm1(tpot[which]))
        cells = [np.median(error), np.mean(error), np.expm1(np.median(tpot[which]))]
        cells += [np.median(np.abs(np.expm1(e[which]))) for e in (rate, ttft)]
        shown = [f"{100 * c:+.1f}" if i == 2 else f"{100 * c:.1f}" for i, c in enumerate(cells)]
        title = " × ".join(part.strip() for part in name.split("|"))
        lines.append(f"| {title} | {np.sum(which)} | " + " | ".join(f"{s} %" for s in shown) + " |")
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split("<!-- accuracy: written by scripts/fit_serving.py -->\n")
    tail = rest.split("<!-- end of accuracy -->")[1]
    table = "\n".join(lines)
    marks = ("<!-- accuracy: written by scripts/fit_serving.py -->\n\n", "\n\n<!-- end of accuracy -->")
    PAGE.write_text(f"{head}{marks[0]}{table}{marks[1]}{tail}", encoding="utf-8")


def write_errors(data: Data, tpot: np.ndarray, ttft: np.ndarray) -> None:
    """Median errors on series left out, which a prediction states beside it."""
    dense = np.array([not job.model.is_moe for job in data.jobs])
    logs_of = {"tpot": tpot, "ttft": ttft, "rate": throughput_errors(data, tpot, ttft)}
    with ERRORS.open("w", encoding="utf-8", newline="") as file:
        file.write("# Written by scripts/fit_serving.py: |predicted/measured - 1| on series left out of the fit.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["family", "quantity", "rows", "median_error", "mean_error"])
        for family, which in (("dense", dense), ("mixtures", ~dense)):
            for quantity, error in logs_of.items():
                size = np.abs(np.expm1(error[which]))
                writer.writerow([family, quantity, len(size), f"{np.median(size):.4f}", f"{np.mean(size):.4f}"])


if __name__ == "__main__":
    main()
