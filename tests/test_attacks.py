"""Hostile input through real processes, for every reader that a kind of fault was found in."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from cli import JOB, gpucalc

from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.toml import parse_toml
from gpucalc.core.units import parse_quantity

HOSTILE_TOML = {
    "deep": "a=" + "[" * 100_000,
    "long key": ".".join(["a"] * 20_000) + " = 1",
    "long header": "[" + ".".join(["a"] * 20_000) + "]",
    "digits": "a = " + "9" * 5000,
    "not TOML": "a =",
}
SMALL = ("--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096", "--global-batch", "8")


@pytest.mark.parametrize("text", HOSTILE_TOML.values(), ids=HOSTILE_TOML)
def test_toml_fails_in_one_way(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)


@pytest.mark.parametrize("name", HOSTILE_TOML)
@pytest.mark.parametrize("command", ["sweep {}", "eval --from torchtitan {}", "hw show x --db {}"])
def test_hostile_toml_is_one_sentence(command: str, name: str, tmp_path: Path) -> None:
    overlay = tmp_path / "accelerators"
    overlay.mkdir()
    file = overlay / "x.toml"
    file.write_text(HOSTILE_TOML[name])
    place = tmp_path if "--db" in command else file
    gpucalc(*command.format(place).split()).sentence()


def test_spec_with_a_byte_order_mark(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_bytes(
        b"\xef\xbb\xbf[product]\r\nmodel = 'llama-3.1-8b'\r\ngpu = 'h100-sxm-80gb'\r\n"
        b"n_gpus = 8\r\nseq_len = 4096\r\nglobal_batch = 8\r\n[layout]\r\ntp = 8\r\n"
    )
    ran = gpucalc("sweep", str(spec), "-o", "-", "--jobs", "1")
    assert ran.status == 0, ran.err
    assert len(ran.out.splitlines()) == 2


@pytest.mark.parametrize("text", ["1e300s", "1e-300s", "1e300h"])
def test_quantities_stay_where_products_are_finite(text: str) -> None:
    with pytest.raises(UsageError, match=r"too (large|small)"):
        parse_quantity(text, "s")


def test_measured_time_beyond_reason() -> None:
    said = gpucalc("diagnose", "llama-3.1-8b", *SMALL, "--layout", "tp8", "--measured-step-time", "1e300s").sentence()
    assert "too large" in said


def test_tiny_rate() -> None:
    said = gpucalc("plan", "llama-3.1-8b", *JOB, "--inter-node-gbps", "1e-300").sentence()
    assert "too small" in said


LONG = "a" * 100_000


@pytest.mark.parametrize(
    "arguments",
    [
        (LONG,),
        ("plan", LONG, *SMALL),
        ("plan", "llama-3.1-8b", *SMALL, f"--{LONG}"),
        ("plan", "llama-3.1-8b", *SMALL, "-f", LONG),
        ("plan", "llama-3.1-8b", *SMALL, "--columns", LONG),
        ("eval", LONG),
        ("hw", "show", LONG),
        ("models", "import", LONG),
    ],
)
def test_a_long_argument_does_not_fill_the_screen(arguments: tuple[str, ...]) -> None:
    assert len(gpucalc(*arguments).sentence()) < 1000


def test_unknown_name_with_nothing_near_names_some() -> None:
    assert "; known: " in gpucalc("plan", "llama-3.1-8b", *SMALL, "--profile", "qqqqqq").sentence()


def test_scale_takes_a_list_of_counts() -> None:
    ran = gpucalc("scale", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8,16", *SMALL[4:], "-f", "csv")
    assert ran.status == 0, ran.err


def test_folder_of_an_overlay_that_leads_out_of_it(tmp_path: Path) -> None:
    outside, overlay = tmp_path / "outside", tmp_path / "overlay"
    outside.mkdir()
    overlay.mkdir()
    (outside / "secret-name").write_text("")
    os.symlink(outside, overlay / "nodes")
    ran = gpucalc("hw", "check", str(overlay))
    assert ran.status == 2
    assert "leads out" in ran.out
    assert "secret-name" not in ran.out + ran.err


@pytest.mark.parametrize(
    "text",
    [
        "extends = 'a'",
        "extends = 'b'",
        "constants = 3",
        "frameworks = 3",
        "[constants]\nx = {value = nan}",
        "title = 1",
    ],
)
def test_profile_of_an_overlay(text: str, tmp_path: Path) -> None:
    from gpucalc.database.profiles import load_profile
    from gpucalc.database.reader import Database

    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "a.toml").write_text(text)
    (folder / "b.toml").write_text("extends = 'a'")
    with pytest.raises(DataError, match=r"a\.toml: "):
        load_profile("a", Database((str(tmp_path),)))


def test_pipe_in_an_overlay_does_not_hang_a_sweep(tmp_path: Path) -> None:
    from gpucalc.sweep.drive import data_fingerprint

    (tmp_path / "accelerators").mkdir()
    os.mkfifo(tmp_path / "accelerators" / "x.toml")
    assert data_fingerprint((), (str(tmp_path),))
