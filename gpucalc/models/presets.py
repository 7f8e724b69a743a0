"""Preset models: their names, the many ways people write them, and the size a name states."""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "presets"
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


@lru_cache(maxsize=4096)
def folded(name: str, between_digits: str | None = None) -> str:
    """A name without owner, case, punctuation, `Meta-` and the suffixes that do not change the shape.

    Punctuation between digits tells OPT-1.3B from OPT-13B and GPT-2 2B from GPT 22B: None keeps it
    (a point, or a dash for anything else), otherwise `between_digits` stands for it.

    >>> folded("nvidia/Meta-Llama-3.1-70B-Instruct-FP8"), folded("Llama 3 1 70b", "-"), folded("Llama-2-7B", "")
    ('llama3.1-70b', 'llama3-1-70b', 'llama27b')
    """
    text = name.rsplit("/", 1)[-1].rsplit("--", 1)[-1].casefold()
    words = re.findall(r"[a-z0-9]+|[^a-z0-9]+", text)
    while words and not words[0].isalnum():
        words.pop(0)
    if len(words) > 2 and words[0] == "meta":
        words = words[2:]
    while len(words) > 1 and (not words[-1].isalnum() or words[-1] in _SUFFIXES):
        words.pop()
    for index in range(1, len(words) - 1):
        if not words[index].isalnum():
            apart = words[index - 1][-1].isdigit() and words[index + 1][0].isdigit()
            kept = "." if words[index] == "." else "-"
            words[index] = (kept if between_digits is None else between_digits) if apart else ""
    return "".join(words)


@lru_cache(maxsize=1)
def _index() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Folded spelling → preset: with the punctuation between digits, with any there, without; presets win."""
    spellings: list[tuple[str, str]] = []
    aliases = FOLDER / "aliases.csv"
    if aliases.is_file():
        with aliases.open(encoding="utf-8", newline="") as stream:
            spellings = [(row["alias"], row["preset"]) for row in csv.DictReader(stream)]
    spellings += [(name, name) for name in _names()]
    exact = {folded(spelling): preset for spelling, preset in spellings}
    return exact, _unambiguous(spellings, "-"), _unambiguous(spellings, "")


def _unambiguous(spellings: list[tuple[str, str]], between_digits: str) -> dict[str, str]:
    meanings: dict[str, set[str]] = {}
    for spelling, preset in spellings:
        meanings.setdefault(folded(spelling, between_digits), set()).add(preset)
    return {spelling: presets.pop() for spelling, presets in meanings.items() if len(presets) == 1}


def _lookup(name: str) -> str | None:
    exact, loose, bare = _index()
    found = exact.get(folded(name)) or loose.get(folded(name, "-"))
    if not found and folded(name) == folded(name, ""):  # written without punctuation between digits
        found = bare.get(folded(name))
    return found


def resolve_preset(name: str) -> str | None:
    """The preset that `name` means, or None. Words of a run after it ("LoRA r=8", "(proxy)") are ignored.

    >>> resolve_preset("meta-llama/Llama-2-70b-chat-hf"), resolve_preset("Llama2-70B LoRA (r=16)")
    ('llama-2-70b', 'llama-2-70b')
    """
    found = _lookup(name)
    words = name.split()
    for count in range(len(words) - 1, 0, -1):
        if found:
            return found
        if not _RUN_WORDS.match(words[count]) and not any(w.startswith(("(", "+")) for w in words[1 : count + 1]):
            return None
        found = _lookup(" ".join(words[:count]))
    return found


def preset_config(preset: str) -> dict[str, Any]:
    """The configuration of a preset."""
    from gpucalc.models.huggingface.reader import parse_config

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
