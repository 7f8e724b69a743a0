"""Jobs for the tests of launch settings: legal layouts of each framework, and readers of what was written."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.launch import command_of, export, target_named
from gpucalc.launch.job import Launch, Placed, make_launch
from gpucalc.launch.read.shell.script import read_script
from gpucalc.launch.target import find
from gpucalc.layouts.axes import AXES
from gpucalc.layouts.label import Layout, label_cells

DATA = Path(__file__).parent / "data" / "launch"
BIG = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
SMALL = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 8192, "global_batch": 64}
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b")
LAYOUT_CELLS = tuple(AXES)


@functools.cache
def database() -> Database:
    return Database()


def launch(target: str, layout: str, job: dict[str, Any] = BIG, **more: Any) -> Launch:
    """A job of a label, completed for a target."""
    to = target_named(target)
    return make_launch({**job, **label_cells(layout), **more}, Context(database()), to.profile, to.usual)


def text_of(target: str, layout: str, job: dict[str, Any] = BIG, **more: Any) -> str:
    """What a target prints for a label."""
    return command_of(launch(target, layout, job, **more), target_named(target)).text


def refused(target: str, layout: str, job: dict[str, Any] = BIG, **more: Any) -> str:
    """The sentences of a refusal."""
    try:
        command_of(launch(target, layout, job, **more), target_named(target))
    except UsageError as error:
        return str(error)
    raise AssertionError(f"{target} took {layout}")


def wrapped(made: Launch, wrapper: str, target: str, kind: str = "", placed: Placed | None = None) -> str:
    """The script of a scheduler around a target."""
    return export(made, target_named(target), find(wrapper, ("wrap",), "--to"), kind, placed)[0]


def recorded(name: str) -> str:
    """A recorded example."""
    return (DATA / name).read_text(encoding="utf-8")


def argument_sets(text: str) -> dict[str, tuple[str, ...]]:
    """flag → values of the last command of a script, the launcher's flags included."""
    words = read_script(text).commands[-1]
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+", word):
            flag, equals, value = word.partition("=")
            found[flag] = (value,) if equals else ()
        elif flag:
            found[flag] = (*found[flag], word)
    return found


def yaml_document(text: str) -> dict[str, Any]:
    """A YAML document, as PyYAML reads it; a key that stands twice is an error."""
    document = yaml.load(text, Loader=_Strict)
    assert isinstance(document, dict)
    return document


class _Strict(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself lets the last of two equal keys win."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [loader.construct_object(key) for key, _ in node.value]
    assert len(set(names)) == len(names), f"a key stands twice among {names}"
    return {name: loader.construct_object(value, deep=True) for name, (_, value) in zip(names, node.value, strict=True)}


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings under dotted names."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = item
    return found


def same_layout(stated: Launch, cells: dict[str, Any]) -> None:
    """Assert that cells read back mean the layout that was exported."""
    read = Layout.from_cells(cells)
    wanted = Layout.from_cells({**stated.cells, "dp": stated["dp"]})
    # These are compared below: where nothing is split they may be written either way.
    apart = {"etp", "shard_group", "cp_kind", "recompute", "recompute_layers", "zero_stage"}
    for name in (n for n in LAYOUT_CELLS if n not in apart):
        assert read[name] == wanted[name], (name, read, wanted)
    if stated.model.experts:
        assert cells.get("etp", cells["tp"]) == wanted["etp"]
    if stated["cp"] > 1:
        assert read["cp_kind"] == wanted["cp_kind"]
    if stated.replicas > 1:
        assert read["zero_stage"] == wanted["zero_stage"]
        whole = stated.replicas
        assert (read["shard_group"] or whole) == (wanted["shard_group"] or whole) or wanted["zero_stage"] == 0
    depth = stated.depth
    if "recompute" in cells:
        assert read["recompute"] == wanted["recompute"]
        assert (read["recompute_layers"] or depth) == (wanted["recompute_layers"] or depth)
    for name in ("seq_len", "global_batch", "precision"):
        assert cells[name] == stated[name], name
    assert cells["n_gpus"] == stated.n_gpus


@st.composite
def layouts(draw: Any, models: tuple[str, ...]) -> dict[str, Any]:
    """Cells of a job on whole nodes, most of which some framework can express."""
    model = draw(st.sampled_from(models))
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 1, 2, 4, 8]))
    cp = draw(st.sampled_from([1, 1, 2]))
    dp = draw(st.sampled_from([d for d in (1, 2, 4, 8) if (tp * pp * cp * d) % 8 == 0] or [8]))
    vpp = draw(st.sampled_from([1, 2, 4])) if pp > 1 else 1
    micro = draw(st.sampled_from([1, 2]))
    zero = draw(st.integers(0, 3))
    cells: dict[str, Any] = {
        "model": model,
        "gpu": "h100-sxm-80gb",
        "n_gpus": tp * pp * cp * dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "vpp": vpp,
        "zero_stage": zero,
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "micro_batch": micro,
        "global_batch": dp * micro * pp * draw(st.sampled_from([1, 2, 8])),
        "seq_len": draw(st.sampled_from([2048, 8192])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": draw(st.sampled_from(["bf16", "fp8"])),
        "cp_kind": draw(st.sampled_from(["ring", "ag", "ulysses"])) if cp > 1 else "ring",
        "offload_optimizer": draw(st.booleans()) and zero > 0,
    }
    if cells["recompute"] == "full" and draw(st.booleans()):
        cells["recompute_layers"] = draw(st.sampled_from([1, 2, 4, 8]))
    if model in EXPERTS:
        cells["ep"] = draw(st.sampled_from([e for e in (1, 2, 4, 8) if (dp * cp * tp) % e == 0]))
        cells["etp"] = draw(st.sampled_from([e for e in {1, tp} if (dp * cp * tp) % (cells["ep"] * e) == 0] or [1]))
    if zero == 3 and (dp * cp) % 2 == 0 and dp * cp > 2 and draw(st.booleans()):
        cells["shard_group"] = dp * cp // 2
    return cells
