"""What `fit_kernels.py` cannot measure: families of devices, published plateaus, constants assumed for a reason."""

from __future__ import annotations

from typing import Any

SOURCE = "aiconfigurator-core 0.12.0 (Apache-2.0, (c) NVIDIA), TensorRT-LLM kernels"
_MAMF = "best matrix product found, S. Bekman, ML Engineering, accelerator benchmarks"

# Measured devices → the key of their family, under which `gpucalc.efficiency` looks up relatives.
FAMILY = {
    "a100-sxm-80gb": "Ampere",
    "h100-sxm-80gb": "Hopper",
    "h200-sxm-141gb": "Hopper",
    "gh200-96gb": "Hopper",
    "b200-sxm-180gb": "Blackwell",
    "gb200": "Blackwell",
    "b300-sxm-270gb": "Blackwell Ultra",
    "gb300": "Blackwell Ultra",
    "l40s-48gb": "Ada",
    "rtx-pro-6000-server": "Blackwell GDDR",
}

# (device, precision) → share of the dense peak that the best large product reaches, source.
PUBLISHED_PLATEAU = {
    ("a100-sxm-80gb", "bf16"): (0.869, _MAMF),
    ("h100-sxm-80gb", "bf16"): (0.803, _MAMF),
    ("h200-sxm-141gb", "bf16"): (0.797, "788 TFLOP/s at 8192 cubed on random data, ML Engineering"),
    ("gh200-96gb", "bf16"): (0.838, _MAMF),
    ("b200-sxm-180gb", "bf16"): (0.776, _MAMF),
    ("b300-sxm-270gb", "bf16"): (0.786, _MAMF),
    ("gb200", "bf16"): (0.729, _MAMF),
    ("gh200-96gb", "fp8"): (0.776, _MAMF),
    # Full rate with fp32 accumulation is half of the chip's: no power limit holds it back.
    ("rtx4090-24gb", "bf16"): (0.97, "160.2 TFLOP/s at 8192 cubed, torch-performance-test-data #78"),
    ("mi300x", "bf16"): (0.511, _MAMF),
    ("mi325x", "bf16"): (0.604, _MAMF),
    ("mi355x", "bf16"): (0.622, _MAMF),
    ("gaudi2", "bf16"): (0.969, _MAMF),
    ("gaudi2", "fp8"): (0.955, _MAMF),
    ("gaudi3", "bf16"): (0.741, _MAMF + "; of 1677 TFLOP/s at the shipping clock"),
    ("gaudi3", "fp8"): (0.769, _MAMF + "; of 1677 TFLOP/s at the shipping clock"),
}


def _row(key: str, precision: str, reason: str, **constants: float) -> dict[str, Any]:
    return {"key": key, "precision": precision, "provenance": "assumed", "source": reason, **constants}


ASSUMED: dict[str, list[dict[str, Any]]] = {
    "gemm": [
        _row("Volta", "bf16", "first tensor cores: 0.8 of the fp16 peak, Ampere otherwise", gemm_efficiency=0.80),
        _row("CDNA2", "bf16", "MI250X: between the 0.51 of MI300X and the 0.8 of Volta", gemm_efficiency=0.65),
        _row("CDNA3", "bf16", "mean of the published MI300X and MI325X", gemm_efficiency=0.56),
        _row("CDNA3", "fp8", "as bf16: the same share of twice the peak", gemm_efficiency=0.55),
        _row("CDNA4", "bf16", "published MI355X", gemm_efficiency=0.63),
        _row("CDNA4", "fp8", "as bf16", gemm_efficiency=0.60),
        _row("TPU", "bf16", "systolic arrays fed by a compiler: above GPUs of their year", gemm_efficiency=0.85),
        _row("TPU", "fp8", "as bf16, int8 path", gemm_efficiency=0.80),
        _row(
            "h20-sxm-96gb",
            "bf16",
            "148 of 989 TFLOP/s in 500 of 700 W: not power-limited, as the RTX 4090",
            gemm_efficiency=0.95,
        ),
        _row("h20-sxm-96gb", "fp8", "as bf16: twice the peak in the same power", gemm_efficiency=0.93),
        _row("default", "any", "n or k off a multiple of 64: narrower loads and padded tiles", gemm_misalignment=1.12),
        _row("default", "bf16", "no cast in 16 bit", cast_bytes_per_element=0.0, cast_launch_seconds=0.0),
    ],
    "attention": [
        _row("Volta", "any", "first-generation fused kernels without asynchronous copies", attention_efficiency=0.35),
        _row("CDNA2", "any", "fused kernels of the ROCm stack, older generation", attention_efficiency=0.30),
        _row("CDNA3", "any", "at the ratio of attention to matrix products of Hopper (0.7)", attention_efficiency=0.38),
        _row("CDNA4", "any", "at the ratio of attention to matrix products of Hopper (0.7)", attention_efficiency=0.42),
        _row("Gaudi2", "any", "at the ratio of attention to matrix products of Ampere", attention_efficiency=0.50),
        _row("Gaudi3", "any", "at the ratio of attention to matrix products of Ampere", attention_efficiency=0.42),
        _row("TPU", "any", "fused kernels of the compiler, between Ampere and Hopper", attention_efficiency=0.50),
        _row(
            "default",
            "any",
            "mean of the measured families; backward pass and scores from training runs with and without flash",
            attention_backward_ratio=2.96,
            score_traffic_forward=13.0,
            score_traffic_backward=21.0,
            batched_product_share=0.6,
            batched_product_half=32.0,
        ),
    ],
    "memory": [
        _row("default", "any", "0.80 of the datasheet and 3 us per kernel, the default of aiconfigurator",
             memory_efficiency=0.80, kernel_launch_seconds=3e-6),
        _row("Volta", "any", "HBM2 of this generation streams at the share of Ampere", memory_efficiency=0.82),
        _row("CDNA2", "any", "copy benchmarks of HBM2e on this generation", memory_efficiency=0.78),
        _row("CDNA3", "any", "no primary stream figure; 0.75 to 0.81 quoted", memory_efficiency=0.78),
        _row("CDNA4", "any", "as CDNA3", memory_efficiency=0.78),
    ],
}  # fmt: skip
