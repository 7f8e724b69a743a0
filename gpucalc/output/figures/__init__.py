"""Pictures of answers: each module turns one kind of answer into a figure; all numbers come from the estimate.

matplotlib is loaded when a figure is made, never before; without it the error says how to install it.
"""

from __future__ import annotations

from gpucalc.output.figures.canvas import FORMS, check_path, save, svg_text

__all__ = ["FORMS", "check_path", "plot_scaling", "save", "svg_text"]


def plot_scaling(frame: object, path: str, title: str = "") -> None:
    """Write the picture of a scaling curve: see `gpucalc.output.figures.scaling.scaling_figure`."""
    from gpucalc.output.figures.scaling import scaling_figure

    check_path(path)
    save(scaling_figure(frame, title), path)
