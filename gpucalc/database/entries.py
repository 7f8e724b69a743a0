"""TOML files that hold many entries: `defaults/*.toml`, `references.toml`, `claims.toml`. Their shapes.

`Database.layers` reads them; of each entry the last folder that states it wins.
"""

from __future__ import annotations

from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.units import parse_quantity
from gpucalc.database.schema import PRECISIONS
from gpucalc.database.shapes import Each, Either, Flag, Number, Rows, Shape, Table, Text, Texts

ORIGINS = ("measured", "published", "counted", "assumed")
DEFAULT = Table(
    {
        **dict.fromkeys(("value", "low", "high"), Number()),
        "unit": Text(empty=True),
        "origin": Text(ORIGINS),
        "why": Text(),
    }
)
SHARE = Number(0, 1)


def _quantity(dimension: str) -> Any:
    def wrong(text: str) -> str:
        try:
            parse_quantity(text, dimension)
        except UsageError as error:
            return str(error)
        return ""

    return wrong


_DEFAULTS = Table({}, {"title": Text(), "values": Each(DEFAULT)})
_MAKERS = Each(SHARE)
_FACTORS = Each(Number(0, 10))
_SYSTEMS = Table({"value": SHARE, "low": SHARE, "high": SHARE, "systems": Number(0, whole=True)})
_CPU = Table({"title": Text(), **dict.fromkeys(("memory_bandwidth", "fp64", "fp32"), Number()), "origin": Text()})
_KERNEL = Table(
    {
        "title": Text(),
        "unit": Text(),
        "precision": Text(PRECISIONS),
        **dict.fromkeys(("flops", "bytes", "memory", "halo"), Number()),
        "overlap": SHARE,
        "origin": Text(),
        "compute": SHARE,
        "bandwidth": _MAKERS,
    },
    {
        **dict.fromkeys(("reductions", "exchange", "exchanges"), Number()),
        "lattice": Number(3, 4, whole=True),
        "depth": Number(1),
        "halo_rate": Text(accepts=_quantity("B/s")),
        "added": Flag(),
        "low": _FACTORS,
        "high": _FACTORS,
    },
)
_SCALING = Table(
    {
        "title": Text(),
        "gpu": Text(),
        "per": Text(),
        **dict.fromkeys(("divided", "serial", "logarithmic"), Number()),
        **dict.fromkeys(("first", "last"), Number(1, whole=True)),
        "origin": Text(),
    }
)
_SECONDS = Text(accepts=_quantity("s"))
_RANGE = Table({**dict.fromkeys(("value", "low", "high"), Number()), "origin": Text()})
_PRICE = Table(
    {"gpu": Text(), **dict.fromkeys(("usd_per_hour", "low", "high"), Number()), "date": Text(), "source": Text()}
)
_CAPITAL = Table(
    {"gpu": Text(), **dict.fromkeys(("usd_per_gpu", "low", "high"), Number()), "date": Text(), "source": Text()}
)
_SAMPLES = Table(
    {
        "title": Text(),
        **dict.fromkeys(("batch", "sample", "decoded"), Number()),
        **dict.fromkeys(("core_seconds", "reads_per_sample"), Number()),
        "compute": Each(Number()),
        **dict.fromkeys(("threads", "wait", "wait_low", "wait_high"), Number()),
        "utilisation": SHARE,
        "source": Text(),
        "origin": Text(),
    }
)
_CITED = ("electricity", "interest", "years", "opex")
REFERENCE = Table({"authors": Text(), "title": Text(), "year": Number(1600, 2200, whole=True), "locator": Text()})
CLAIM = Each(Either((Text(), Number(), Flag(), Texts())))
# A whole file: every entry may stand alone in an overlay, so no top-level key is required there.
SHAPES: dict[str, Shape] = {
    "defaults/run": _DEFAULTS,
    "defaults/power": _DEFAULTS,
    "defaults/training": _DEFAULTS,
    "defaults/networks": _DEFAULTS,
    "defaults/grid": Table(
        {"grams_per_kwh": Each(Number(0, 5000))}, {"title": Text(), "year": Number(whole=True), "source": Text()}
    ),
    "defaults/prices": Table(
        {},
        {
            "title": Text(),
            **dict.fromkeys(("electricity_usd_per_kwh", "years"), Number()),
            **dict.fromkeys(("interest", "opex_share"), SHARE),
            **{f"{name}_source": Text() for name in _CITED},
            "price": Rows(_PRICE),
            "capital": Rows(_CAPITAL),
        },
    ),
    "defaults/storage_workloads": Table(
        {},
        {
            "title": Text(),
            **dict.fromkeys(("speed_exponent", "speed_exponent_low", "speed_exponent_high"), SHARE),
            **dict.fromkeys(("open_latency", "stream_rate", "card_rate"), Number()),
            **dict.fromkeys(("speed_exponent_source", "open_source", "card_source", "wait_source"), Text()),
        },
        others=_SAMPLES,
    ),
    "defaults/hpc_kernels": Table(
        {},
        {
            "kernel": Each(_KERNEL),
            "hpl": Table(
                {}, {"title": Text(), "memory_fill": SHARE, "origin": Text(), "efficiency": Each(Each(_SYSTEMS))}
            ),
            "hpcg": Table({}, {"title": Text(), "origin": Text(), "intensity": Each(_SYSTEMS)}),
            "halo": Table(
                {},
                {
                    **dict.fromkeys(("latency", "reduction_latency"), _SECONDS),
                    **dict.fromkeys(("link_share", "network_share"), SHARE),
                    **dict.fromkeys(("staged_share", "staged_low", "staged_high"), SHARE),
                    "origin": Text(),
                },
            ),
            "scaling": Each(_SCALING),
            "cpu": Each(_CPU),
            "cpu_share": Each(Either((Number(), Text()))),
        },
    ),
    "defaults/render_scores": Table(
        {},
        {
            "origin": Text(),
            "score": Each(Table({"value": Number()}, {"submissions": Number(1, whole=True)})),
            "per_fp32_tflop": Each(_RANGE),
            "farm": Table({}, {"spread": Number(), "origin": Text()}),
        },
    ),
    "references": Each(REFERENCE),
    "claims": Each(CLAIM),
}
