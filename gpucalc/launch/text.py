"""Launch settings as text: values as YAML and TOML, quoted wherever a reader could mistake them, and comment lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpucalc.launch.job import Launch

# vendor → the name of its devices in a pod.
GPU_RESOURCES = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "habana.ai/gaudi",
    "google": "google.com/tpu",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_WORDS = {"y", "n", "yes", "no", "true", "false", "on", "off", "null", "none", "nan", "inf"}


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 reads 1e-05 as text: the mantissa needs its point.
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.casefold() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)


def yaml_text(value: Mapping[str, Any], indent: int = 0) -> str:
    """A mapping as a YAML document in block style.

    >>> print(yaml_text({"a": {"b": 1e-05, "c": "8"}, "d": [{"name": "x", "on": True}], "e": ["f", "-g"]}), end="")
    a:
      b: 1.0e-05
      c: "8"
    d:
      - name: x
        "on": true
    e: [f, "-g"]
    """
    return "".join(_entry(name, item, indent) for name, item in value.items())


def _entry(name: str, value: Any, indent: int) -> str:
    lead = " " * indent
    key = _scalar(name)
    if isinstance(value, Mapping):
        return f"{lead}{key}:\n{yaml_text(value, indent + 2)}" if value else f"{lead}{key}: {{}}\n"
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value) or any("\n" in str(item) for item in value):
            return f"{lead}{key}:\n" + "".join(_item(item, indent + 2) for item in value)
        return f"{lead}{key}: [{', '.join(_scalar(item) for item in value)}]\n"
    return f"{lead}{key}: {_scalar(value)}\n"


def _item(value: Any, indent: int) -> str:
    lead = " " * indent
    if isinstance(value, Mapping):
        block = yaml_text(value, indent + 2)
        return f"{lead}- {block.lstrip()}"
    if isinstance(value, str) and "\n" in value:
        body = "".join(f"{lead}  {line}\n" if line else "\n" for line in value.rstrip("\n").split("\n"))
        return f"{lead}- |-\n{body}"
    return f"{lead}- {_scalar(value)}\n"


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values as TOML.

    >>> print(toml_text({"model": {"name": "llama3", "converters": ["a.b"]}, "empty": {}}), end="")
    [model]
    name = "llama3"
    converters = ["a.b"]
    """
    parts = []
    for section, values in sections.items():
        if values:
            parts.append(f"[{section}]\n" + "".join(f"{n} = {json.dumps(v)}\n" for n, v in values.items()))
    return "\n".join(parts)


def headline(launch: Launch) -> str:
    """One line that says what the settings are for."""
    from gpucalc.layouts.label import Layout

    cells = dict(launch.cells)
    if not launch.model.experts:
        cells["etp"] = 1
    label = Layout.from_cells(cells).label()
    name = launch["model"] or launch.model.name
    return (
        f"{name}, {launch.n_gpus} x {launch['gpu']} ({launch.nodes} x {launch.gpus_per_node}), "
        f"sequence {launch['seq_len']}, global batch {launch['global_batch']}, {launch['precision']}: {label}"
    )


def commented(launch: Launch, comments: tuple[str, ...]) -> str:
    """Comment lines, one a remark."""
    return "".join(f"# {' '.join(line.split())}\n" for line in (headline(launch), *comments))


def job_name(launch: Launch) -> str:
    """A name for a scheduler: a DNS label of lower-case letters, digits and hyphens."""
    text = str(launch["model"] or launch.model.name)
    name = re.sub(r"[^a-z0-9]+", "-", text.rsplit("/", 1)[-1].casefold()).strip("-")
    return f"{name or 'model'}-{launch.n_gpus}"[:50].strip("-")
