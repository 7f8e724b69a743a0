"""Preset models: their names, the many ways people write them, and the size a name states."""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "presets"
_SUFFIXES = ("hf", "instruct", "base", "chat", "fp8", "nvfp4", "bf16")
# words that describe a run of a model, not the model
_RUN_WORDS = re.compile(
    r"^(\(.*|\+.*|lora|qlora|q-lora|adapter(_v2)?|full|full-parameter|sft|r=\d+|bnb\.\S+)$", re.IGNORECASE
)


def preset_names() -> list[str]:
    """All preset names, sorted; from the file names alone.

    >>> "llama-3.1-70b" in preset_names()
    True
    """
    return list(_names())


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.name.removesuffix(".json") for file in FOLDER.glob("*.json")))


def folded(name: str) -> str:
    """A name without owner, case, punctuation, `Meta-` and the suffixes that do not change the shape.

    >>> folded("nvidia/Meta-Llama-3.1-70B-Instruct-FP8")
    'llama3170b'
    """
    text = name.rsplit("/", 1)[-1].rsplit("--", 1)[-1].casefold()
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    if len(words) > 1 and words[0] == "meta":
        words = words[1:]
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    return "".join(words)


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    """Folded spelling → preset; presets win over aliases."""
    table: dict[str, str] = {}
    aliases = FOLDER / "aliases.csv"
    if aliases.is_file():
        with aliases.open(encoding="utf-8", newline="") as stream:
            table = {folded(row["alias"]): row["preset"] for row in csv.DictReader(stream)}
    table.update({folded(name): name for name in _names()})
    return table


def resolve_preset(name: str) -> str | None:
    """The preset that `name` means, or None. Words of a run after it ("LoRA r=8", "(proxy)") are ignored.

    >>> resolve_preset("meta-llama/Llama-2-70b-chat-hf"), resolve_preset("Llama2-70B LoRA (r=16)")
    ('llama-2-70b', 'llama-2-70b')
    """
    index = _index()
    found = index.get(folded(name))
    if found:
        return found
    words = name.split()
    for count in range(len(words) - 1, 0, -1):
        if not _RUN_WORDS.match(words[count]) and not any(w.startswith(("(", "+")) for w in words[1 : count + 1]):
            return None
        found = index.get(folded(" ".join(words[:count])))
        if found:
            return found
    return None


def preset_config(preset: str) -> dict[str, Any]:
    """The configuration of a preset."""
    from gpucalc.model_reader import parse_config

    file = FOLDER / f"{preset}.json"
    return parse_config(file.read_bytes(), preset)


_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bmt])(?![a-z0-9])", re.IGNORECASE)
_SCALE = {"m": 1e6, "b": 1e9, "t": 1e12}


def named_size(name: str) -> float | None:
    """The total size a name states, or None where it states none or an active size (8x7B, A3B, 17B-16E).

    >>> named_size("Llama-3.1-70B"), named_size("Mixtral-8x7B"), named_size("Llama-4-Scout-17B-16E")
    (70000000000.0, None, None)
    """
    text = name.rsplit("/", 1)[-1]
    if re.search(r"\d+e(?![a-z0-9])", text, re.IGNORECASE):
        return None
    found = _SIZE.findall(text)
    return float(found[0][0]) * _SCALE[found[0][1].casefold()] if len(found) == 1 else None
