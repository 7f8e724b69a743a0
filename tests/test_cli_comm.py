"""`gpucalc comm` as a process: what is permitted, whose cards, and one sentence for each mistake."""

from __future__ import annotations

import pytest
from cli import gpucalc

H100 = ("--gpu", "h100-sxm-80gb")


def test_what_is_not_permitted_is_said_with_its_reason():
    run = gpucalc("comm", "all_reduce", "1GiB", *H100, "--gpus", "32")
    assert "not permitted: sharp (" in run.err
    assert "hierarchical (NCCL has none" in run.err
    assert "pat (8 ranks a domain" in gpucalc("comm", "all_gather", "1GiB", *H100, "--gpus", "32").err


def test_switches_and_libraries_that_are_stated_are_named():
    options = ("--in-switch-reduction", "yes", "--collective-library", "hierarchical")
    run = gpucalc("comm", "all_reduce", "1GiB", *H100, "--gpus", "32", *options, "--format", "csv")
    names = [line.split(",")[4] for line in run.out.splitlines()[1:]]
    assert names[0] == "sharp"
    assert {"hierarchical", "nvls-tree", "ring simple"} <= set(names)


def test_cards_are_said_in_one_sentence():
    shared = gpucalc("comm", "all_gather", "1GiB", "--gpu", "a100-sxm-80gb", "--gpus", "32", "--node", "aws-p4de")
    assert (
        "50 Gb/s of network per GPU (4 x efa-v1 per 8-GPU node aws-p4de), shared by all GPUs of the node" in shared.err
    )
    alone = gpucalc(
        *("comm", "all_gather", "1GiB", "--gpu", "a100-sxm-80gb", "--gpus", "4"),
        *("--node", "aws-p4de", "--gpus-per-node", "1"),
    )
    assert "100 Gb/s" in alone.err
    assert "groups of a job have 50 each" in alone.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--domain", "16"), "domain=16 is more than the 8 accelerators that dgx-h100 joins; use domain=8"),
        (("--nics", "0"), "--nics is '0', expected 1 or more"),
        (("--oversubscription", "0.5"), "--oversubscription is '0.5', expected 1 or more"),
        (("--topology", "torus-3d", "--torus-sides", "2x2x3"), "2x2x2"),
        (("--torus-sides", "2x2x2"), "torus_sides is for a torus"),
        (("--collective-library", "gloo"), "known: nccl, hierarchical"),
        (("--in-switch-reduction", "maybe"), "in-switch-reduction is 'maybe'"),
    ],
)
def test_a_mistake_takes_one_sentence(options, said):
    assert said in gpucalc("comm", "all_reduce", "1GiB", *H100, "--gpus", "64", *options).sentence()


def test_a_fabric_without_a_rate_is_refused(tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "wire.toml").write_text(
        'name = "Wire"\nkind = "network"\nper_direction = "0 GB/s"\nlatency = "1 us"\nachievable = 0.9\n'
        'source = "none"\nconfidence = "low"\n'
    )
    run = gpucalc(
        *("comm", "all_reduce", "1GiB", *H100, "--gpus", "64", "--fabric", "wire", "--db", str(tmp_path)),
    )
    assert "rate" in run.sentence() or "per_direction" in run.sentence()


def test_untuned_ethernet_is_a_range_with_its_share():
    run = gpucalc("comm", "all_reduce", "1GiB", *H100, "--gpus", "64", "--fabric", "roce-400g")
    assert "roce-400g that nobody tuned keeps 63 % of that rate: up to " in run.err
    assert "nobody tuned" not in gpucalc("comm", "all_reduce", "1GiB", *H100, "--gpus", "64").err


def test_a_step_on_untuned_ethernet_says_how_much_longer():
    words = ("llama-2-7b", *H100, "--gpus", "64", "--seq-len", "4096", "--global-batch", "64", "--fabric", "eth-100g")
    run = gpucalc("explain", *words, "--layout", "dp64-mbs1-zero3-full")
    assert "eth-100g that nobody tuned keeps 63 % of that rate: up to " in run.out + run.err
