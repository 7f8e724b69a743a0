"""Reading a model configuration file: the bytes, the JSON, and single fields with their origin."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.core.files import read_limited, within

LARGEST_FILE = 4 * 2**20
READ, DERIVED, DEFAULT = "read", "derived", "default"

_MISSING = object()
# field → (largest sensible value, a valid example)
RANGES: dict[str, tuple[int, int]] = {
    "layers": (10_000, 32),
    "hidden": (1_048_576, 4096),
    "heads": (65_536, 32),
    "kv_heads": (65_536, 8),
    "head_dim": (65_536, 128),
    "ffn_hidden": (16_777_216, 14336),
    "vocab": (100_000_000, 128256),
    "experts": (65_536, 64),
    "experts_per_token": (65_536, 8),
    "expert_ffn_hidden": (16_777_216, 2048),
    "max_seq_len": (10**12, 8192),
    "window": (10**12, 4096),
}


def read_config(path: str | Path) -> tuple[dict[str, Any], str]:
    """The configuration at `path` (a JSON file, or a folder with a config.json) and the model's name.

    The name is the folder's when the file is called config.json, otherwise the file's. Nothing the
    file names is opened.
    """
    file = Path(path)
    if file.is_dir():
        if not (file / "config.json").is_file():
            raise DataError(f"{file}: the folder holds no config.json")
        file = file / "config.json"
    data = read_limited(file, LARGEST_FILE, "a config.json")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    config = parse_config(data, str(file))
    beside = file.parent / "hf_quant_config.json"
    if file.name == "config.json" and "quantization_config" not in config and beside.is_file():
        stated = parse_config(read_limited(beside, LARGEST_FILE, "a hf_quant_config.json"), str(beside)).get(
            "quantization"
        )
        if isinstance(stated, dict):  # ModelOpt states it in a file of its own
            config["quantization_config"] = stated
    return config, name.rsplit("--", 1)[-1]


def parse_config(data: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `data`; a byte-order mark, CRLF and the tokens NaN and Infinity are accepted."""
    data = within(data, LARGEST_FILE, label, "a config.json")
    if not data.strip():
        raise DataError(f"{label}: the file is empty; expected a JSON object such as a Hugging Face config.json")
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{label}: a binary file; expected a JSON object such as a Hugging Face config.json")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    try:
        config = json.loads(text)
    except RecursionError:
        raise DataError(f"{label}: nested too deeply to be a config.json") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{label}: not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"{label}: not JSON that can be read: {str(error).split(';')[0]}") from None
    if not isinstance(config, dict):
        raise DataError(f"{label}: holds a JSON {_kind(config)}; expected an object such as a Hugging Face config.json")
    return config


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds: list[tuple[type, str]] = [(bool, "boolean"), (str, "string"), (list, "array"), (dict, "object")]
    return next((name for kind, name in kinds if isinstance(value, kind)), "number")


def shown(value: object) -> str:
    """A value as a message shows it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = "a value too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


def keys_found(config: dict[str, Any], most: int = 16) -> str:
    """The keys of a configuration whose values are sizes, as a message lists them.

    >>> keys_found({"model_type": "x", "width": 512, "depth": 12, "tie": True})
    'the sizes width, depth'
    >>> keys_found({"model_type": "x"})
    'no key that holds a size'
    """
    sizes = [k for k, v in config.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    nested = [k for k, v in config.items() if isinstance(v, dict)]
    if not sizes and not nested:
        return "no key that holds a size"
    shown_keys = ", ".join(sizes[:most]) + (" …" if len(sizes) > most else "")
    inner = f"{' and ' if sizes else ''}the parts {', '.join(nested[:6])}" if nested else ""
    return (f"the sizes {shown_keys}" if sizes else "") + inner


class Reader:
    """Fields of a configuration by the names a cost model uses; problems are collected, not raised one by one."""

    def __init__(self, config: dict[str, Any], label: str) -> None:
        """Read from `config`; `label` names the file in messages."""
        self.config = config
        self.label = label
        self.origin: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def find(self, *keys: str) -> tuple[str, Any]:
        """The first of `keys` that is present and not null, with its value; keys may be dotted."""
        for key in keys:
            node: Any = self.config
            for part in key.split("."):
                node = node.get(part, _MISSING) if isinstance(node, dict) else _MISSING
            if node is not _MISSING and node is not None:
                return key, node
        return "", None

    def has(self, *keys: str) -> bool:
        """Whether one of `keys` is present and not null."""
        return self.find(*keys)[0] != ""

    def problem(self, text: str) -> None:
        """Record a violation."""
        self.problems.append(text)

    def integer(
        self,
        field: str,
        *keys: str,
        default: int | None = None,
        derived: int | None = None,
        minimum: int = 1,
        required: bool = False,
    ) -> int:
        """A whole number. Absent: `derived`, else `default`, else a problem when `required`, else 0."""
        key, value = self.find(*keys)
        largest, example = RANGES.get(field, (10**9, max(minimum, 1)))
        if not key:
            if derived is not None:
                self.origin[field] = DERIVED
                return derived
            if default is not None:
                self.origin[field] = DEFAULT
                return default
            if required:
                others = f" (or {', '.join(keys[1:4])})" if len(keys) > 1 else ""
                self.problem(f"{keys[0]}{others} is missing; give for example {keys[0]}: {example}")
                return max(minimum, 1)  # lets the reading go on to find the other problems
            return 0
        self.origin[field] = READ
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(f"{key} is {shown(value)}; it must be a whole number, such as {example}")
            return minimum
        if not minimum <= value <= largest:
            shown_value = str(value) if abs(value) < 10**18 else "out of range"
            self.problem(f"{key} is {shown_value}; it must be from {minimum} to {largest}, such as {example}")
            return minimum
        return value

    def flag(self, field: str, *keys: str, default: bool = False) -> bool:
        """True or false; the class default when absent."""
        key, value = self.find(*keys)
        if not key:
            self.origin.setdefault(field, DEFAULT)
            return default
        self.origin[field] = READ
        if not isinstance(value, bool):
            self.problem(f"{key} is {shown(value)}; it must be true or false")
            return default
        return value

    def names(self, key: str, allowed: dict[str, str]) -> tuple[str, ...]:
        """A list of words, each translated by `allowed`; empty when absent."""
        _, value = self.find(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(f"{key} is {shown(value)}; it must be a list of words such as {next(iter(allowed))!r}")
            return ()
        unknown = sorted({item for item in value if item not in allowed})
        if unknown:
            self.problem(f"{key} holds {shown(unknown[0])}; known are {', '.join(sorted(allowed))}")
            return ()
        return tuple(allowed[item] for item in value)

    def indices(self, key: str) -> frozenset[int]:
        """A list of layer numbers; empty when absent."""
        _, value = self.find(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            self.problem(f"{key} is {shown(value)}; it must be a list of layer numbers such as [0, 1]")
            return frozenset()
        return frozenset(value)

    def text(self, key: str) -> str:
        """A word; empty when absent or not a word."""
        _, value = self.find(key)
        return value if isinstance(value, str) else ""

    def check(self) -> None:
        """Raise one DataError with all problems recorded so far, and the keys there are where the width is missing."""
        if self.problems:
            if any(problem.startswith("hidden_size (or ") for problem in self.problems):
                self.problems.append(f"the file has {keys_found(self.config)}")
            raise DataError(*(f"{self.label}: {problem}" for problem in self.problems))
