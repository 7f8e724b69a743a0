"""Predicted against measured step times as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from gpucalc.core.errors import UsageError
from gpucalc.validate.training import FAMILY_TITLES, SHIPPED, Checked


def draw(rows: Sequence[Checked], path: str) -> None:
    """Write the picture; UsageError where the plotting library is not installed or no row has a time."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'gpucalc[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [(r, r.measured_s, r.seconds(SHIPPED)) for r in rows]
    points = [(r, m, p) for r, m, p in timed if m and p]
    if not points:
        raise UsageError("--plot: no row has both a measured and a predicted step time")
    figure, axes = pyplot.subplots(figsize=(7.5, 7.0))
    for family, title in FAMILY_TITLES.items():
        chosen = [(m, p) for r, m, p in points if r.families[0] == family]
        if chosen:
            measured, predicted = zip(*chosen, strict=True)
            axes.scatter(measured, predicted, s=14, alpha=0.6, label=f"{title} ({len(chosen)})")
    low = min(min(m, p) for _, m, p in points) * 0.8
    high = max(max(m, p) for _, m, p in points) * 1.25
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    for factor in (0.9, 1.1):
        axes.plot([low, high], [low * factor, high * factor], color="black", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="measured step time [s]", ylabel="predicted step time [s]", title="dashed: ±10 %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=150, metadata={})
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
