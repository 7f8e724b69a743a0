"""What a claim is, how a person states one as key=value, and what a verdict on it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError, suggestion
from gpucalc.core.units import parse_count, parse_quantity

CLOSE = 0.03  # figures are rounded when people say them
TRUE, SPARSE, FALSE = "true", "true only with sparsity", "false"
MIXED, DEPENDS, CIRCULAR, PARTLY = "mixed bases", "depends", "circular", "partly"


@dataclass(frozen=True)
class Claim:
    """Something that is said, of a kind that can be checked."""

    key: str
    text: str
    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, with the arithmetic, line by line."""

    claim: Claim
    verdict: str
    because: str
    arithmetic: tuple[str, ...]
    source: str = ""


# Keys of a claim → what they state; the kinds that they make, by what must be there.
KEYS = {
    "gpu": "accelerator of the database",
    "node": "node of the database",
    "precision": "fp64, fp32, tf32, fp16, bf16, fp8, int8, fp4",
    "tflops": "peak in TFLOP/s",
    "pflops": "peak in PFLOP/s",
    "memory_gb": "memory in GB",
    "memory_tb_s": "memory bandwidth in TB/s",
    "link_gb_s": "scale-up links of a GPU together in GB/s",
    "pcie": "pcie-3, pcie-4, pcie-5 or pcie-6",
    "pcie_gb_s": "PCIe in GB/s",
    "tdp_w": "power limit in W",
    "fabric": "network port of the database",
    "gbps": "its rate in Gb/s",
    "mfu_low_pct": "least MFU in %",
    "mfu_high_pct": "most MFU in %",
    "model": "model",
    "parameters": "parameters of a model",
    "n_gpus": "GPUs",
    "share_pct": "share of a step in %",
    "before_pct": "share of a step before in %",
    "after_pct": "share of a step after in %",
    "hours": "GPU hours",
    "kilowatts": "power of a GPU in kW",
    "energy_kwh": "energy in kWh",
    "goodput_pct": "useful share of the time in %",
    "mtbf_h": "time between failures of the job in h",
    "interval_s": "time between checkpoints in s",
    "save_s": "time that a checkpoint stops the job in s",
    "restart_s": "time until the job runs again in s",
    "usd_per_hour": "price of a GPU hour in USD",
    "capital_usd": "price of a GPU or node, with its share of the network, in USD",
    "communication_pct": "share of a step in communication in %",
    "speedup": "times as fast",
    "serial_pct": "share of the work that does not parallelise in %",
    "node_kw": "power of a node or rack under load in kW",
    "tokens": "tokens of a run",
    "flop": "operations of a run",
}
# What people also write → the key; and the unit that a value may carry → (dimension, its size in the key's unit).
ALIASES = {"peak": "tflops", "memory": "memory_gb", "memory_bandwidth": "memory_tb_s", "tdp": "tdp_w", "rate": "gbps"}
ALIASES |= {
    "goodput": "goodput_pct",
    "mtbf": "mtbf_h",
    "interval": "interval_s",
    "save": "save_s",
    "price": "usd_per_hour",
}
ALIASES |= {"communication": "communication_pct", "serial": "serial_pct", "node_power": "node_kw", "gpus": "n_gpus"}
ALIASES |= {"restart": "restart_s", "rack": "node", "tops": "tflops", "pops": "pflops", "bandwidth": "memory_tb_s"}
ALIASES |= {"power": "tdp_w", "power_w": "tdp_w", "power_kw": "node_kw", "rack_kw": "node_kw", "network": "gbps"}
ALIASES |= {"params": "parameters", "weights": "memory_gb", "weights_gb": "memory_gb", "bandwidth_tb_s": "memory_tb_s"}
ALIASES |= {"capital": "capital_usd", "price_usd": "capital_usd", "price_per_hour": "usd_per_hour", "flops": "flop"}
ALIASES |= {"link": "link_gb_s", "nvlink": "link_gb_s", "nvlink_gb_s": "link_gb_s", "energy": "energy_kwh"}
UNITS = {
    "tflops": ("FLOP/s", 1e12),
    "pflops": ("FLOP/s", 1e15),
    "memory_gb": ("B", 1e9),
    "memory_tb_s": ("B/s", 1e12),
    "link_gb_s": ("B/s", 1e9),
    "pcie_gb_s": ("B/s", 1e9),
    "tdp_w": ("W", 1.0),
    "gbps": ("B/s", 1e9 / 8),
    "kilowatts": ("W", 1e3),
    "node_kw": ("W", 1e3),
    "mtbf_h": ("s", 3600.0),
    **dict.fromkeys(("interval_s", "save_s", "restart_s"), ("s", 1.0)),
    "flop": ("FLOP", 1.0),
}
NONE_IS_SOME = frozenset({"communication_pct", "serial_pct", "share_pct", "before_pct", "after_pct"})  # may be 0
COUNTS = frozenset({"tokens", "parameters"})  # written as 15T, 70B
TEXTS = {"gpu", "node", "precision", "pcie", "fabric", "model"}
KINDS: dict[str, tuple[str, ...]] = {
    "node_peak": ("node", "precision", "tflops"),
    "peak": ("gpu", "precision", "tflops"),
    "links": ("gpu", "link_gb_s", "pcie_gb_s"),
    "link": ("gpu", "link_gb_s"),
    "pcie": ("gpu", "pcie_gb_s"),
    "port": ("fabric", "gbps"),
    "node_network": ("node", "gbps"),
    "network_share": ("gpu", "n_gpus", "fabric", "share_pct"),
    "weights": ("model", "precision", "memory_gb"),
    "weights_of": ("parameters", "precision", "memory_gb"),
    "memory": ("gpu", "memory_gb"),
    "memory_bandwidth": ("gpu", "memory_tb_s"),
    "tdp": ("gpu", "tdp_w"),
    "mfu": ("mfu_low_pct", "mfu_high_pct"),
    "tuned_share": ("before_pct", "after_pct"),
    "product": ("hours", "kilowatts", "energy_kwh"),
    "interval": ("interval_s", "save_s", "mtbf_h"),
    "goodput": ("goodput_pct", "mtbf_h"),
    "goodput_of": ("goodput_pct", "n_gpus"),
    "mtbf": ("mtbf_h", "n_gpus"),
    "price": ("gpu", "usd_per_hour"),
    "capital": ("gpu", "capital_usd"),
    "node_capital": ("node", "capital_usd"),
    "speedup": ("communication_pct", "speedup"),
    "amdahl": ("serial_pct", "n_gpus", "speedup"),
    "node_power": ("node", "node_kw"),
    "training_flop": ("model", "tokens", "flop"),
    "training_flop_of": ("parameters", "tokens", "flop"),
}
EXAMPLES = "gpu=h100-sxm-80gb precision=fp16 tflops=2000"


def from_pairs(pairs: Sequence[str]) -> Claim:
    """The claim that pairs such as gpu=h100 precision=fp16 tflops=2000 make; UsageError when they make none."""
    fields: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().casefold().replace("-", "_")
        name = ALIASES.get(name, name)
        if not equals or not text.strip():
            problems.append(f"{pair!r} is not key=value; write for example {EXAMPLES}")
        elif name not in KEYS:
            problems.append(f"unknown key {name!r}{suggestion(name, KEYS)}")
        elif name in fields:
            problems.append(f"{name} is stated twice")
        elif name in TEXTS:
            fields[name] = text.strip()
        else:
            fields[name] = _number(name, text)
            if not (0 < fields[name] < 1e30 or (fields[name] == 0 and name in NONE_IS_SOME and _is_zero(text))):
                problems.append(f"{name} is {text!r}, expected a number above 0 ({KEYS[name]})")
    if problems:
        raise UsageError(*problems)
    if "node" in fields and "gpu" not in fields and "tdp_w" in fields:
        fields["node_kw"] = fields.pop("tdp_w") / 1e3
    if "pflops" in fields:
        fields["tflops"] = 1000 * fields.pop("pflops")
    kind = next((k for k, needed in KINDS.items() if all(n in fields for n in needed)), None)
    if kind is None and fields.get("model") and "gpu" in fields and "n_gpus" in fields:
        kind = "zero"
    if kind is None:
        most = max(KINDS.values(), key=lambda needed: sum(n in fields for n in needed) / len(needed))
        missing = [f"{n} ({KEYS[n]})" for n in most if n not in fields]
        raise UsageError(f"the claim is not complete; missing {', '.join(missing)}, for example {EXAMPLES}")
    return Claim("stated", " ".join(pairs), kind, fields)


def _is_zero(text: str) -> bool:
    """Whether a text is a zero, not what could not be read.

    >>> _is_zero("0"), _is_zero("0.0%"), _is_zero("some")
    (True, True, False)
    """
    return not text.strip().removesuffix("%").strip("0.")


def _number(name: str, text: str) -> float:
    """A value in the unit of its key, or with a unit of its own; 0 for what is none."""
    number = text.strip().removesuffix("%") if name.endswith("_pct") else text
    try:
        return float(number)
    except ValueError:
        pass
    if name in COUNTS:
        return parse_count(text) or 0.0
    if name not in UNITS:
        return 0.0
    dimension, size = UNITS[name]
    return parse_quantity(text, dimension, positive=False) / size


def close(said: float, found: float, within: float = CLOSE) -> bool:
    """Whether a figure that somebody said is the one of a source.

    >>> close(2000, 1978.9), close(1000, 1978.9)
    (True, False)
    """
    return abs(said - found) <= within * found


def factor_said(said: float, found: float) -> str:
    """By how much a figure is off, as words.

    >>> factor_said(2000, 1000)
    '2,000 is 2 times 1,000'
    """
    return f"{said:,.4g} is {said / found:.3g} times {found:,.4g}"
