"""Software profiles: chosen by words and dates, inherited, documented, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from legal_jobs import database

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.documents import ORIGINS
from gpucalc.database.profiles import choose_profile, load_profile, profile_names
from gpucalc.database.reader import Database

DB = database()


@pytest.mark.parametrize("name", profile_names(DB))
def test_every_constant_has_an_origin_and_a_reason(name: str) -> None:
    profile = load_profile(name, DB)
    assert profile.title
    for key, constant in profile.constants.items():
        assert constant.origin in ORIGINS, f"{name}: {key}"
        assert constant.why, f"{name}: {key}"


@pytest.mark.parametrize("name", profile_names(DB))
def test_no_profile_is_made_for_a_source_of_rows(name: str) -> None:
    """A profile is software at a date, never the owner of a benchmark."""
    profile = load_profile(name, DB)
    words = " ".join((profile.name, profile.title, *profile.frameworks)).casefold()
    for source in ("mlperf", "mlcommons", "dgxc", "bigscience", "qwenlm", "narayanan", "korthikanti"):
        assert source not in words


@pytest.mark.parametrize("name", profile_names(DB))
def test_shares_are_shares_and_times_are_times(name: str) -> None:
    profile = load_profile(name, DB)
    for key, constant in profile.constants.items():
        assert constant.value >= 0, key
        if key.endswith(("_hidden_share", "_residual", "_efficiency", "exposed_share")):
            assert constant.value <= 1, f"{name}: {key}"
        if key.endswith("_seconds"):
            assert constant.value < 1, f"{name}: {key}"


@pytest.mark.parametrize(
    ("framework", "date", "start"),
    [
        ("", "", "megatron-core"),
        ("NeMo/Megatron-Core", "2025-04", "nemo"),
        ("Megatron-Bridge, performance recipe", "2025-04", "nemo-performance"),
        ("KempnerForge (PyTorch FSDP2 + DTensor TP)", "2026-04", "fsdp"),
        ("fms-fsdp (torch.compile)", "2024-03", "fsdp-compiled"),
        ("ms-swift (HF Trainer + DeepSpeed)", "2025-06", "trainer-deepspeed"),
        ("our own trainer", "2025-06", "neutral"),
        ("xlarge", "2025-06", "neutral"),
        ("PyTorch FSDP", "2024-06", "fsdp"),
        ("DeepSpeed ZeRO-3", "2022-06", "deepspeed"),
        ("Megatron-DeepSpeed", "2022-02", "megatron-deepspeed"),
        ("Megatron-LM PTD-P", "2021-04", "megatron-legacy"),
        ("something nobody knows", "2024-01", "neutral"),
    ],
)
def test_words_and_dates_choose_a_profile(framework: str, date: str, start: str) -> None:
    profile = choose_profile(framework, date, DB)
    assert profile.name.startswith(start)
    assert (profile.since or "0000") <= (date or "2026-11") <= (profile.until or "9999")


def test_dated_profiles_of_one_framework_leave_no_month_without_one() -> None:
    for year in range(2021, 2028):
        for month in ("01", "07", "12"):
            assert choose_profile("megatron-core", f"{year}-{month}", DB).name


def test_an_unknown_profile_is_a_sentence_with_near_names() -> None:
    with pytest.raises(UsageError, match="megatron-core"):
        load_profile("megatron-cor", DB)


def test_an_overlay_extends_a_shipped_profile(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    file = tmp_path / "profiles" / "mine.toml"
    constant = '{ value = 0.5, unit = "", origin = "measured", why = "our traces" }'
    file.write_text(f'title = "ours"\nextends = "megatron-core"\n[constants]\ndp_hidden_share = {constant}\n')
    overlaid = Database([tmp_path])
    mine, theirs = load_profile("mine", overlaid), load_profile("megatron-core", DB)
    assert mine.values["dp_hidden_share"] == 0.5
    assert {k: v for k, v in mine.values.items() if k != "dp_hidden_share"} == {
        k: v for k, v in theirs.values.items() if k != "dp_hidden_share"
    }
    (tmp_path / "profiles" / "bare.toml").write_text("title = 'ours'\n[constants]\ndp_hidden_share = 0.5\n")
    with pytest.raises(DataError, match="dp_hidden_share"):
        load_profile("bare", Database([tmp_path]))
