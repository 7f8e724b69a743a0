"""Questions about networks that are no decoder, as processes: plan, generate, explain, fit, scale, eval, validate."""

from __future__ import annotations

import csv
import io
import json

import pytest
from cli import gpucalc

RESNET = ("resnet-50", "--gpu", "v100-sxm2-16gb", "--set", "framework=mxnet-tuned", "--set", "channels_last=yes")
FLUX = ("flux.1-dev", "--gpu", "h100-sxm-80gb", "--set", "framework=xdit", "--set", "compile=yes")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_plan_ranks_batches_of_a_convolution_net_by_its_rate():
    ran = gpucalc("plan", *RESNET, "--gpus", "32", "--global-batch", "8192", "-f", "csv")
    assert ran.status == 0
    found = rows(ran.out)
    rates = [float(row["pred_samples_per_s"]) for row in found]
    assert rates == sorted(rates, reverse=True)
    assert all(int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_accum"]) == 8192 for row in found)
    assert 20_000 < rates[0] < 50_000  # published: 1,390 images/s a V100 on one node, 31 k on 32


def test_generate_names_splits_that_the_kind_has():
    ran = gpucalc("generate", *FLUX, "--gpus", "4", "-f", "json")
    assert ran.status == 0
    best = json.loads(ran.out)["rows"][0]
    one = json.loads(gpucalc("generate", *FLUX, "--gpus", "1", "-f", "json").out)["rows"][0]
    assert best["pred_latency_s"] < one["pred_latency_s"]
    assert one["pred_latency_s"] == pytest.approx(4.3, rel=0.15)  # xDiT: 4.3 s compiled on one H100
    assert 4 % (best["ulysses"] * best["ring"] * best["pipefusion"] * best["tp"]) == 0


def test_a_unet_is_not_split_along_its_sequence():
    ran = gpucalc("generate", "sdxl", "--gpu", "h100", "--gpus", "8", "--set", "ulysses=4", "-f", "json")
    assert ran.status == 2
    assert "ulysses=4: sdxl (unet) is split by replicas only" in ran.err


def test_explain_shows_the_components_as_branches():
    ran = gpucalc("explain", *FLUX, "--gpus", "1", "--set", "mode=generation", "--micro-batch", "1")
    assert ran.status == 0
    for name in ("time/VAE-decoder", "time/text-encoder", "forward/denoiser/products"):
        assert name in ran.out


def test_three_numbers_state_any_net():
    numbers = ("--set", "params_m=19.44", "--set", "gmac=3.2", "--set", "mact=11.26", "--set", "mode=inference")
    ran = gpucalc(
        "plan", "--gpu", "rtx4090-24gb", "--gpus", "1", *numbers, "--micro-batch", "1024", "--set", "framework=pytorch",
        "--precision", "fp16", "-f", "csv",
    )  # fmt: skip
    assert ran.status == 0
    assert float(rows(ran.out)[0]["pred_samples_per_s"]) == pytest.approx(4500, rel=0.3)  # timm's regnety_032


def test_eval_takes_networks_and_decoders_in_one_file():
    text = (
        "id,model,mode,gpu,n_gpus,micro_batch,precision,framework,seq_len,global_batch\n"
        "a,resnet-50,training,v100-sxm2-16gb,8,256,fp16,mxnet-tuned,,\n"
        "b,llama-3.1-8b,,h100-sxm-80gb,8,1,bf16,,4096,64\n"
        "c,resnet-50,generation,v100-sxm2-16gb,8,1,fp16,,,\n"
    )
    ran = gpucalc("eval", "-", "-f", "csv", stdin=text)
    assert ran.status == 0
    net, decoder, wrong = rows(ran.out)
    assert float(net["pred_samples_per_s"]) > 5000
    assert float(net["pred_gmac"]) == pytest.approx(4.089, rel=1e-3)
    assert float(decoder["pred_step_time_s"]) > 0
    assert decoder["pred_samples_per_s"] == ""
    assert "makes no pictures" in wrong["pred_error"]
    assert wrong["pred_step_time_s"] == ""


def test_fit_and_scale_answer_about_networks():
    ran = gpucalc("fit", "flux.1-dev", "--gpu", "l4-24gb", "--set", "mode=inference", "-f", "json")
    assert ran.status == 0
    assert json.loads(ran.out)["rows"][0]["n_gpus"] >= 2
    curve = rows(gpucalc("scale", *RESNET, "--gpus", "8..64", "--micro-batch", "256", "-f", "csv").out)
    share = [float(row["efficiency_pct"]) for row in curve]
    assert share[0] == pytest.approx(100)
    assert share == sorted(share, reverse=True)
    assert share[-1] > 75


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("plan", "resnet-50", "--gpu", "h100", "--gpus", "8", "--set", "hotness=3"), "resnet-50 has no hotness"),
        (("plan", "nothing-net", "--gpu", "h100", "--gpus", "8", "--set", "gmac=3", "--set", "mode=inference"), "mact"),
        (("plan", "bert-base", "--gpu", "h100", "--gpus", "8", "--seq-len", "4096"), "beyond the 512 positions"),
        (("plan", "sdxl", "--gpu", "h100", "--gpus", "8", "--resolution", "big"), "HxW"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence):
    ran = gpucalc(*arguments)
    assert ran.status == 2
    assert sentence in ran.err
    assert "Traceback" not in ran.err


def test_models_show_counts_of_a_network():
    facts = json.loads(gpucalc("models", "show", "sdxl", "-f", "json").out)
    assert facts["parameters_total"] == 2_567_463_684
    assert facts["gmac"] == pytest.approx(3381, rel=1e-3)
    assert facts["components"]["VAE decoder"]["kind"] == "vae"


def test_validate_reports_by_source():
    ran = gpucalc("validate", "--kind", "recommenders", "-f", "json")
    assert ran.status == 0
    found = json.loads(ran.out)
    groups = {line["group"]: line for line in found["by_group"]}
    assert groups["training mlcommons/training_results_v3.1"]["median_pct"] < 15


@pytest.mark.parametrize("layout", ["dp8", "dp8-sp", "*", "tp*"])
@pytest.mark.parametrize("command", ["plan", "scale"])
def test_a_label_leaves_the_rest_to_the_search(command: str, layout: str) -> None:
    """What a label does not name is searched, as for decoders."""
    gpus = ("--gpus", "8") if command == "plan" else ("--gpus", "8,16")
    layout = layout.replace("dp8", "*") if command == "scale" else layout
    done = gpucalc(
        command, "resnet-50", "--gpu", "h100-sxm-80gb", *gpus, "--global-batch", "256", "--layout", layout, "-f", "csv"
    )
    assert done.status == 0, done.err
    assert done.out.count("\n") >= 2


def test_a_net_that_cannot_be_split_says_so() -> None:
    """Tensor parallelism of a convolution net is one sentence."""
    job = ("plan", "resnet-50", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "256", "--layout", "tp8")
    assert "split by replicas only" in gpucalc(*job).sentence(2)
