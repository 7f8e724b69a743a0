"""Networks that are no decoder: parameters to the last digit, and the products and elements of one forward."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.models.networks.catalog import (
    custom_network,
    load_network,
    network_names,
    resolve_network,
    restated,
    with_states,
)
from gpucalc.models.networks.component import FROZEN, PASSES, TRAINED

# Published counts (torchvision, timm, transformers, diffusers), GMAC and 10^6 written elements of one forward.
COUNTS = {
    "resnet-18": (11_689_512, 1.814, 2.48), "resnet-34": (21_797_672, 3.664, 3.74),
    "resnet-50": (25_557_032, 4.089, 11.11), "resnet-101": (44_549_160, 7.801, 16.23),
    "resnet-152": (60_192_808, 11.514, 22.56), "resnext-50-32x4d": (25_028_904, 4.230, 14.40),
    "resnext-101-32x4d": (44_177_704, 7.970, 21.23), "se-resnext-101-32x4d": (48_955_416, 7.975, 21.26),
    "vgg-16": (138_357_544, 15.470, 13.56), "alexnet": (61_100_840, 0.714, 0.49),
    "inception-v3": (23_834_568, 5.71, 8.97), "efficientnet-b0": (5_288_548, 0.386, 6.75),
    "efficientnet-b4": (19_341_616, 4.394, 49.49), "retinanet-r50": (34_014_999, 151.54, 187.3),
    "retinanet-resnext50": (37_128_876, 201.2, 250.0), "ssd300-resnet50": (22_894_902, 20.15, 31.3),
    "unet3d": (31_190_243, 477.3, 452.8),
    "vit-b-16": (86_567_656, 17.56, 23.9), "vit-b-32": (88_224_232, 4.41, 5.0),
    "vit-l-16": (304_326_632, 61.56, 63.5), "vit-h-14": (632_045_800, 167.3, 139.4),
    "vit-bigg-14": (1_844_440_680, 483.7, 275.4),
    "clip-vit-b-32": (151_277_313, 7.39, 10.3), "clip-vit-b-16": (149_620_737, 20.54, 29.2),
    "clip-vit-l-14": (427_616_513, 87.66, 96.7), "clip-vit-h-14": (986_109_441, 190.8, 160.6),
    "clip-vit-gg-14": (1_366_678_273, 290.6, 213.8),
    "bert-base": (109_482_240, 48.3, 84.9), "bert-large": (335_141_888, 167.5, 226.5),
    "t5-v1.1-small": (76_961_152, 17.7, None), "t5-v1.1-large": (783_150_080, 244.6, None),
    "t5-v1.1-xl": (2_849_757_184, 891.0, None), "t5-v1.1-xxl": (11_135_332_352, 3483, None),
    "whisper-large-v2": (1_543_304_960, None, None), "whisper-large-v3": (1_543_490_560, None, None),
    "sd-1.5": (859_520_964, 401.6, None), "sd-2": (865_910_724, 402.1, 752),
    "sdxl": (2_567_463_684, 3381, 5051), "dit-xl-2": (675_129_632, 118.6, 112),
    "flux.1-dev": (11_901_408_320, 37_192, None), "flux.1-schnell": (11_891_178_560, None, None),
    "wan-2.1-14b": (14_288_491_584, None, None), "wan-2.1-1.3b": (1_418_996_800, 1.415e5, None),
    "cogvideox-5b": (5_570_283_072, 1.66e5, None),
}  # fmt: skip
# Approximate: shapes that no public file states to the end.
ABOUT = {"flux.2-dev": 32.1e9, "hunyuanvideo": 12.8e9, "dlrm-dcnv2": 26.15e9}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_published_ones(name):
    parameters, gmac, mact = COUNTS[name]
    network = load_network(name)
    assert network.parameters == parameters
    if gmac is not None:
        assert network.macs / 1e9 == pytest.approx(gmac, rel=2e-3)
    if mact is not None:
        assert network.elements / 1e6 == pytest.approx(mact, rel=1e-2)


@pytest.mark.parametrize("name", ABOUT)
def test_counts_of_shapes_known_in_part(name):
    assert load_network(name).parameters == pytest.approx(ABOUT[name], rel=0.01)


def test_every_preset_has_a_test_of_its_count():
    known = COUNTS.keys() | ABOUT.keys()
    assert set(network_names()) - known <= {"efficientnet-v2-s", "nnunet-3d", "dlrm-criteo-tb"}


def test_other_sizes_are_counted_anew():
    assert load_network("sd-2", {"resolution": "256x256"}).macs / 1e9 == pytest.approx(90.5, rel=1e-3)
    assert load_network("flux.1-dev", {"resolution": "256x256", "text_tokens": 256}).macs / 1e9 == pytest.approx(
        3403, rel=1e-3
    )
    hunyuan = load_network("hunyuanvideo").core[0]
    assert hunyuan.scores / hunyuan.macs == pytest.approx(0.87, abs=0.01)  # attention of a long clip
    clip = load_network("wan-2.1-14b", {"resolution": "480x832", "frames": 81}).core[0]
    assert clip.tokens == 21 * 30 * 52


@given(st.sampled_from(["resnet-50", "vit-b-16", "sd-1.5"]), st.sampled_from([128, 224, 256, 384, 512]))
def test_larger_pictures_cost_more(name, side):
    smaller, larger = (load_network(name, {"resolution": f"{n}x{n}"}) for n in (side, 2 * side))
    assert larger.macs > 3 * smaller.macs
    assert larger.elements > 3 * smaller.elements


def test_names_are_found_as_people_write_them():
    assert resolve_network("ResNet50") == "resnet-50"
    assert resolve_network("black-forest-labs/FLUX.1-dev") == "flux.1-dev"
    assert resolve_network("llama-3.1-8b") is None


def test_sizes_that_a_network_lacks_and_positions_beyond_it_are_refused():
    with pytest.raises(UsageError, match="resnet-50 has no hotness"):
        load_network("resnet-50", {"hotness": 3.0})
    with pytest.raises(UsageError, match="beyond the 512 positions of bert-base"):
        load_network("bert-base", {"seq_len": 1024})
    with pytest.raises(UsageError, match="expected pixels as HxW"):
        load_network("resnet-50", {"resolution": "big"})
    with pytest.raises(UsageError, match="gmac, mact not stated"):
        custom_network("timm/x", {"params_m": 3.0}, "conv")


def test_padding_that_is_removed_costs_products_by_the_mean_length():
    whole, packed = (load_network("bert-large", {"seq_len": 512, **more}) for more in ({}, {"effective_len": 256}))
    assert whole.macs / packed.macs == pytest.approx(2.1, abs=0.1)
    assert packed.parameters == whole.parameters


def test_stated_counts_are_those_of_the_whole_model():
    own = load_network("clip-vit-b-16")
    stated = restated(own, {"gmac": 2 * own.macs / 1e9, "params_m": 150.0})
    assert stated.macs == pytest.approx(2 * own.macs)
    assert stated.parameters == 150_000_000
    # Counts of written elements differ in the scores of attention; what the layers write is known.
    unet = restated(load_network("sd-1.5"), {"mact": 752.155})
    assert unet.elements == pytest.approx(752.155e6)
    assert unet.core[0].elements == load_network("sd-1.5").core[0].elements


def test_scores_of_a_custom_transformer_follow_from_its_tokens():
    known = load_network("vit-b-16")
    numbers = {"params_m": known.parameters / 1e6, "gmac": known.macs / 1e9, "mact": known.elements / 1e6}
    custom = custom_network("timm/vit", numbers, "vit")
    assert custom.elements == pytest.approx(known.elements)
    assert custom.core[0].logits == pytest.approx(known.core[0].logits, rel=0.1)


def test_a_step_costs_three_passes_of_what_learns_and_one_of_what_does_not():
    network = with_states(load_network("sd-2"), "denoiser")
    assert [part.state for part in network.components] == [TRAINED, FROZEN, FROZEN]
    assert PASSES[TRAINED] == 3 * PASSES[FROZEN]
    with pytest.raises(UsageError, match="names no part"):
        with_states(load_network("sd-2"), "projector")


def test_public_files_state_a_network(tmp_path):
    folder = tmp_path / "sdxl"
    files = {
        "model_index.json": {"_class_name": "StableDiffusionXLPipeline"},
        "unet/config.json": {
            "_class_name": "UNet2DConditionModel",
            "block_out_channels": [320, 640, 1280],
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "transformer_layers_per_block": [1, 2, 10],
            "attention_head_dim": [5, 10, 20],
            "cross_attention_dim": 2048,
            "projection_class_embeddings_input_dim": 2816,
            "sample_size": 128,
        },
    }
    for name, config in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    assert load_network(str(folder)).parameters == COUNTS["sdxl"][0]
    vit = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    (tmp_path / "config.json").write_text(json.dumps(vit))
    assert load_network(str(tmp_path)).parameters == COUNTS["vit-b-16"][0]
    assert resolve_network(str(tmp_path / "absent.json")) is None
    (folder / "unet/config.json").write_text(json.dumps({"_class_name": "Unheard"}))
    with pytest.raises(UsageError, match="the denoiser Unheard is not known"):
        load_network(str(folder), {"steps": None, "frames": 2})
