"""What a program asks about: a model, a cluster, and cells by the rules of the row schema."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpucalc.core.columns import INPUT, MEASURED, cell_text, parse_row
from gpucalc.core.errors import UsageError, suggestion
from gpucalc.core.units import GIGABIT
from gpucalc.database.cluster import Cluster as ResolvedCluster
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import opened
from gpucalc.models.model import Model as ResolvedModel
from gpucalc.models.model import load_model, model_from_shape

Databases = Sequence[str | os.PathLike[str]]
# Options of the command line whose column has another name.
OPTIONS = {
    "gpus": "n_gpus",
    "zero": "zero_stage",
    "inter_node_gbps": "inter_node_gbps_per_gpu",
    "gpu_memory": "gpu_memory_gib",
    "nics": "nics_per_node",
}


@dataclass(frozen=True)
class Model:
    """A model: a preset, a path to a config.json or its folder, or a shape; cells given by keyword win.

    >>> Model("llama-3.1-8b").parameters_total
    8030261248
    >>> Model("llama-3.1-8b", layers=16).shape.layers, Model(layers=24, hidden=2048, heads=16).shape.head_dim
    (16, 128)
    """

    name: str = ""
    cells: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, name: str | os.PathLike[str] = "", **cells: Any) -> None:
        object.__setattr__(self, "name", os.fspath(name))
        object.__setattr__(self, "cells", typed_cells(cells))
        _ = self.shape  # a mistake is told where the model is made

    @cached_property
    def shape(self) -> ResolvedModel:
        """Every number of the model: layers, hidden, heads, experts, parameters by kind."""
        cells = dict(self.cells)
        if self.name:
            return load_model(self.name, cells or None)
        missing = [name for name in ("layers", "hidden", "heads") if name not in cells]
        if missing:
            raise UsageError(f"no model is named, and the shape lacks {', '.join(missing)}")
        return model_from_shape(**cells)

    @property
    def parameters_total(self) -> int:
        """All parameters."""
        return self.shape.parameters_total

    def __hash__(self) -> int:
        """Of the name and the cells."""
        return hash((self.name, tuple(sorted(self.cells.items()))))

    def as_cells(self) -> dict[str, Any]:
        """The cells of the row schema that state this model."""
        return {**({"model": self.name} if self.name else {}), **self.cells}

    def _repr_html_(self) -> str:
        shape = self.shape
        names = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "experts", "experts_per_token")
        pairs = [(name, getattr(shape, name)) for name in names if getattr(shape, name)]
        return html_pairs(shape.name, [*pairs, ("parameters", shape.parameters_total)])


@dataclass(frozen=True)
class Cluster:
    """A number of GPUs, and where they stand: the node's own size and network unless stated otherwise.

    >>> cluster = Cluster("h100-sxm-80gb", 64)
    >>> cluster.resolved.gpus_per_node, cluster.resolved.network_bandwidth_per_gpu * 8 / 1e9
    (8, 400.0)
    """

    gpu: str
    n_gpus: int
    gpus_per_node: int | None = None
    inter_node_gbps_per_gpu: float | None = None
    fabric: str | None = None
    db: Databases = ()

    def __post_init__(self) -> None:
        """Look the names up, so that a mistake is told where the cluster is made."""
        for name, value in typed_cells(self.as_cells()).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "db", places(self.db))
        _ = self.resolved

    @cached_property
    def resolved(self) -> ResolvedCluster:
        """Domains, links and rates, per GPU and in one direction."""
        return resolve_cluster(
            opened(self.db),
            self.gpu,
            self.n_gpus,
            self.gpus_per_node,
            self.inter_node_gbps_per_gpu,
            self.fabric,
        )

    def as_cells(self) -> dict[str, Any]:
        """The cells of the row schema that state this cluster."""
        names = ("gpu", "n_gpus", "gpus_per_node", "inter_node_gbps_per_gpu")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _repr_html_(self) -> str:
        found = self.resolved
        return html_pairs(
            f"{found.n_gpus} × {found.device.name}",
            [
                ("GPUs of a node", found.gpus_per_node),
                ("GPUs of a scale-up domain", found.domain),
                ("link per GPU, one direction", f"{found.link_bandwidth / 1e9:g} GB/s"),
                ("network per GPU, one direction", f"{found.network_bandwidth_per_gpu / GIGABIT:g} Gb/s"),
                ("network is", found.network_basis),
            ],
        )


def html_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> str:
    """A title and names with values, as a notebook shows them."""
    import html

    lines = "".join(f"<tr><td>{html.escape(n)}</td><td>{html.escape(cell_text(v))}</td></tr>" for n, v in pairs)
    return f"<b>{html.escape(title)}</b><table>{lines}</table>"


def typed_cells(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Cells by the rules of the row schema, whether given as Python values or as text.

    >>> typed_cells({"tp": 8, "recompute": "full:12", "sequence_parallel": "yes"})
    {'tp': 8, 'sequence_parallel': True, 'recompute': 'full', 'recompute_layers': 12}
    """
    problems = []
    known = [name for name in INPUT if name not in MEASURED]
    for name in cells:
        if name not in known:
            meant = f"; did you mean {OPTIONS[name]}?" if name in OPTIONS else suggestion(name, known, otherwise="")
            problems.append(f"unknown argument {name!r}{meant}")
    values, wrong = parse_row({name: cell_text(plain(value)) for name, value in cells.items() if name in known})
    if problems or wrong:
        raise UsageError(*problems, *wrong)
    return values


def plain(value: Any) -> Any:
    """A value without its library: a numpy scalar as a number, a missing cell as None."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    missing = value is None or value != value or type(value).__name__ in {"NAType", "NaTType"}
    return None if missing else os.fspath(value) if isinstance(value, os.PathLike) else value


def places(db: Databases | str | os.PathLike[str]) -> tuple[str, ...]:
    """Folders of a database overlay; one alone may be given without a list around it."""
    return (os.fspath(db),) if isinstance(db, str | os.PathLike) else tuple(os.fspath(place) for place in db)
