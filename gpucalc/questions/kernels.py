"""One kernel on one device: `eval --kind gemm|attention` for many rows, and the ledgers of `roofline` for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucalc.core.errors import UsageError, unknown
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database.efficiency import ELEMENT_BYTES, TABLE_PRECISION, kernel_constants
from gpucalc.estimate.kernels import PHASES, Kind, add_decode, add_gemm, add_kernel, add_prefill, bounds, one

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

Record = dict[str, str]
Prediction = dict[str, Any]

# Spellings of a data type in measurement files → the precision of the database.
DTYPES = {name: name for name in TABLE_PRECISION} | {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "fp4": "nvfp4",
}
LARGEST = 10**9
GEMM_OUTPUT = ("pred_time_us", "pred_tflops", "pred_bound")
ATTENTION_OUTPUT = ("pred_time_us", "pred_bound")


def _gemm_facts(device: Device, precision: str, db: Database) -> dict[str, float]:
    """Constants of products in `precision`, with the peak and the memory bandwidth."""
    peak = device.precision_peak(precision)
    return {**kernel_constants(device, precision, db), "peak": peak, "memory_bandwidth": device.memory_bandwidth}


def _attention_facts(device: Device, precision: str, db: Database) -> dict[str, float]:
    """Constants of attention; with 8- or 4-bit values the cache shrinks, the products stay in 16 bit."""
    device.precision_peak(precision)
    width = ELEMENT_BYTES[precision]
    products = device.default_precision if width < 2 else precision
    facts = _gemm_facts(device, products, db)
    return {**facts, "kv_bytes": width, "attention_element_bytes": max(width, 2.0)}


def roofline_gemm(m: int, n: int, k: int, device: Device, precision: str, db: Database) -> Ledger:
    """The ledger of one matrix product on one device."""
    facts = _gemm_facts(device, precision, db)
    return one({"m": float(m), "n": float(n), "k": float(k), **facts}, add_gemm)


def roofline_attention(
    phase: str,
    batch: int,
    seqlen: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    device: Device,
    precision: str,
    db: Database,
) -> Ledger:
    """The ledger of attention on one device: `prefill_causal` of whole sequences or one step of `decode`."""
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    lengths = {name: float(seqlen) for name in ("queries", "keys", "context")}
    facts = {**_attention_facts(device, precision, db), **lengths, **{n: float(v) for n, v in shape.items()}}
    return one(facts, add_prefill if phase == "prefill_causal" else add_decode)


def roofline_kernel(flops: float, traffic: float, device: Device, precision: str, db: Database) -> Ledger:
    """The ledger of a kernel of which only its FLOPs and its memory traffic are known."""
    return one({**_gemm_facts(device, precision, db), "flops": flops, "traffic": traffic}, add_kernel)


class _Devices:
    """Facts of each (gpu, dtype) that occurs, or why there are none; each is looked up once."""

    def __init__(self, db: Database, facts: Callable[[Device, str, Database], dict[str, float]]) -> None:
        self._db, self._facts = db, facts
        self._found: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.constants: list[dict[str, float]] = []

    def find(self, gpu: str, dtype: str) -> tuple[int, list[str]]:
        """Index into `constants`, and the problems: without any the index is valid."""
        if (gpu, dtype) not in self._found:
            self._found[gpu, dtype] = self._look_up(gpu, dtype)
        return self._found[gpu, dtype]

    def _look_up(self, gpu: str, dtype: str) -> tuple[int, list[str]]:
        problems: list[str] = []
        device = None
        precision = DTYPES.get(dtype.casefold())
        try:
            device = self._db.device(gpu) if gpu else None
            if not gpu:
                problems.append("gpu is missing")
        except UsageError as error:
            problems += error.problems
        if not dtype:
            problems.append("dtype is missing")
        elif precision is None:
            problems += unknown("dtype", dtype, DTYPES).problems
        if device is None or precision is None:
            return -1, problems
        try:
            self.constants.append(self._facts(device, precision, self._db))
        except UsageError as error:
            return -1, [*problems, *error.problems]
        return len(self.constants) - 1, problems

    def columns(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Each constant as one value per row."""
        names = self.constants[0]
        return {name: np.array([c[name] for c in self.constants])[index] for name in names}


def _size(record: Record, name: str, problems: list[str]) -> float:
    """A positive whole number of a row; 1 with a problem noted where it is none."""
    text = (record.get(name) or "").strip()
    try:
        value = int(text)
    except ValueError:
        value = _whole(text)
    if 1 <= value <= LARGEST:
        return float(value)
    if not text:
        problems.append(f"{name} is missing")
    elif value > LARGEST:
        problems.append(f"{name} = {text} is above {LARGEST:,}")
    else:
        problems.append(f"{name} = {text!r} is not a whole number of at least 1")
    return 1.0


def _whole(text: str) -> int:
    """A whole number written as 4096.0 or 4e3; 0 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return 0
    if value == float("inf"):
        return LARGEST + 1
    return int(value) if value == value and value == value // 1 else 0


def evaluate_gemm(records: Sequence[Record], db: Database) -> list[Prediction]:
    """Predictions for rows with the columns gpu, dtype, m, n, k."""
    devices = _Devices(db, _gemm_facts)
    shapes: list[tuple[float, ...]] = []
    indices: list[int] = []
    rows: list[int] = []
    answers: list[Prediction] = []
    for position, record in enumerate(records):
        index, found = devices.find((record.get("gpu") or "").strip(), (record.get("dtype") or "").strip())
        problems = list(found)
        shape = tuple([_size(record, name, problems) for name in "mnk"])
        answers.append(_blank(GEMM_OUTPUT, problems))
        if not problems:
            shapes.append(shape)
            indices.append(index)
            rows.append(position)
    if rows:
        values = dict(zip("mnk", np.array(shapes).T, strict=True))
        _fill(answers, rows, {**devices.columns(np.array(indices)), **values}, add_gemm)
    return answers


def evaluate_attention(records: Sequence[Record], db: Database) -> list[Prediction]:
    """Predictions for rows with the columns phase, gpu, dtype, batch, seqlen, heads, kv_heads, head_dim."""
    devices = _Devices(db, _attention_facts)
    names = ("batch", "seqlen", "heads", "kv_heads", "head_dim")
    chosen: dict[str, list[tuple[int, int, tuple[float, ...]]]] = {phase: [] for phase in PHASES}
    answers: list[Prediction] = []
    for position, record in enumerate(records):
        index, found = devices.find((record.get("gpu") or "").strip(), (record.get("dtype") or "").strip())
        problems = list(found)
        phase = (record.get("phase") or "").strip()
        if phase not in PHASES:
            problems += ["phase is missing"] if not phase else unknown("phase", phase, PHASES).problems
        if not (record.get("kv_heads") or "").strip():
            record = {**record, "kv_heads": record.get("heads") or ""}
        shape = tuple([_size(record, name, problems) for name in names])
        if not problems and shape[2] % shape[3]:
            problems.append(f"heads = {shape[2]:.0f} is not a multiple of kv_heads = {shape[3]:.0f}")
        answers.append(_blank(ATTENTION_OUTPUT, problems))
        if not problems:
            chosen[phase].append((position, index, shape))
    for phase, add in zip(PHASES, (add_prefill, add_decode), strict=True):
        if chosen[phase]:
            rows, indices, shapes = zip(*chosen[phase], strict=True)
            values = dict(zip(names, np.array(shapes).T, strict=True))
            values |= {name: values["seqlen"] for name in ("queries", "keys", "context")}
            _fill(answers, rows, {**devices.columns(np.array(indices)), **values}, add)
    return answers


def _blank(names: Sequence[str], problems: Sequence[str]) -> Prediction:
    return {**dict.fromkeys(names), "pred_error": "; ".join(problems)}


def _fill(
    answers: list[Prediction],
    rows: Sequence[int],
    columns: Mapping[str, Any],
    add: Kind,
) -> None:
    """Evaluate the rows that have no problem and write their predictions."""
    ledger = Ledger(Columns(columns))
    add(ledger)
    found: dict[str, list[Any]] = {
        "pred_time_us": (ledger["time/total"] * 1e6).tolist(),
        "pred_bound": bounds(ledger, add).tolist(),
    }
    if add is add_gemm:
        found["pred_tflops"] = (ledger["metric/achieved"] / 1e12).tolist()
    for at, position in enumerate(rows):
        answers[position] |= {name: values[at] for name, values in found.items()}
