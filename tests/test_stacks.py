"""Rates of software stacks on networks: factors that multiply, and estimates against published figures."""

import pytest

from gpucalc.database.reader import Database
from gpucalc.database.stacks import CONSTANTS, choose_stack, factors, rates
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import predict_networks, resolve_network_job

DB = Database()


def predicted(**cells):
    """The pred_ columns of one row."""
    return predict_networks([resolve_network_job(cells, Context(DB))])[0]


def test_a_combination_without_rows_has_the_factors_of_its_parts():
    stack = choose_stack("mxnet", DB, channels_last=True)
    found = rates(stack, "inference", "depthwise", "fp16", "hbm", DB)
    assert not found.own
    table = DB.table("stacks")
    names = [n for n in factors(stack, "mxnet", "inference", "depthwise", "fp16", "hbm") if (n,) in table]
    assert {"base", "mode inference", "net depthwise", "stack mxnet", "mark nhwc"} <= set(names)
    for constant in CONSTANTS:
        product = 1.0
        for name in names:
            product *= table[(name,)].values[constant]
        assert getattr(found, constant) == pytest.approx(product)


def test_a_framework_that_nobody_measured_has_a_wider_band_than_one_that_many_did():
    cells = {"model": "resnet-50", "gpu": "a100-sxm-80gb", "n_gpus": 8, "micro_batch": 256, "precision": "fp16"}
    known, unknown = (predicted(**cells, framework=name) for name in ("pytorch", "chainer"))
    width = [row["pred_samples_per_s_high"] / row["pred_samples_per_s_low"] for row in (known, unknown)]
    assert width[0] < width[1]


def test_a_large_cache_serves_the_traffic_of_a_small_batch():
    """diffusers' tables: an RTX 4090 beats an RTX 3090 by 1.9 at nearly the same bandwidth."""
    cells = {"mode": "generation", "model": "sd-1.5", "scope": "denoiser", "steps": 1, "global_batch": 4}
    cells |= {"precision": "fp16", "framework": "diffusers", "n_gpus": 1}
    slow, fast = (predicted(**cells, gpu=name)["pred_latency_s"] for name in ("rtx3090-24gb", "rtx4090-24gb"))
    assert slow / fast == pytest.approx(1.9, rel=0.15)


def test_a_long_clip_takes_what_was_published():
    """xDiT's table of HunyuanVideo on H100, which is in no fit: 129 frames at 1280x720, 50 steps, one GPU: 1,904 s."""
    row = predicted(
        mode="generation",
        model="hunyuanvideo",
        gpu="h100-sxm-80gb",
        n_gpus=1,
        micro_batch=1,
        precision="bf16",
        framework="xdit",
        resolution="720x1280",
        frames=129,
        steps=50,
        cfg=False,
    )
    assert row["pred_latency_s"] == pytest.approx(1904, rel=0.2)
    assert row["pred_latency_low_s"] < 1904 < row["pred_latency_high_s"]


def test_stacks_that_choose_their_layout_take_no_mark_of_it():
    assert choose_stack("mxnet-tuned", DB, channels_last=True) == choose_stack("mxnet-tuned", DB)
    assert choose_stack("pytorch", DB, channels_last=True) != choose_stack("pytorch", DB)


def test_layers_without_a_norm_move_less():
    """TensorFlow's table of May 2017: VGG-16 (no norms) trains 154 pictures a second on a P100, synthetic data."""
    row = predicted(
        model="vgg-16", gpu="p100-sxm2-16gb", n_gpus=1, micro_batch=64, precision="fp32", framework="tensorflow"
    )
    assert row["pred_step_time_s"] == pytest.approx(64 / 154, rel=0.25)
