"""What all pictures share: colours, a figure, and writing it to a file or into a document."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucalc.core.errors import UsageError

FORMS = (".png", ".svg", ".pdf")
DPI = 150
MISSING = "pictures need matplotlib; install it with: pip install 'gpucalc[plot]'"

# Eight colours that people with any kind of colour vision tell apart (Okabe and Ito), greys, and a dark brown.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, RED, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
GREY, PALE, BROWN = "#7F7F7F", "#D0D0D0", "#7A3E00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, BLACK, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Behind text that may stand on a line.
PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}

_SETTINGS: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "gpucalc",  # the same picture twice is the same file
    "figure.facecolor": "white",
}


def check_path(path: str, flag: str = "--plot") -> None:
    """Raise UsageError for a name whose ending is not a form of picture, or where pictures cannot be made.

    >>> check_path("plan.jpeg")
    Traceback (most recent call last):
    ...
    gpucalc.core.errors.UsageError: --plot is 'plan.jpeg', expected a name that ends in .png, .svg, .pdf
    """
    if not path.lower().endswith(FORMS):
        raise UsageError(f"{flag} is {path!r}, expected a name that ends in {', '.join(FORMS)}")
    require_matplotlib()


def require_matplotlib() -> None:
    """Raise UsageError where matplotlib is not installed."""
    from importlib.util import find_spec

    try:
        found = find_spec("matplotlib")
    except ValueError:  # blocked on purpose
        found = None
    if found is None:
        raise UsageError(MISSING)


def new_figure(width: float, height: float) -> Any:
    """A figure of its own, outside matplotlib's global state, so that a library user's figures are left alone."""
    require_matplotlib()
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    return Figure(figsize=(width, height), layout="constrained")


def settings(**more: Any) -> Any:
    """The context in which a figure and its parts are drawn; it ends with the `with` block."""
    require_matplotlib()
    from matplotlib import rc_context  # type: ignore[import-not-found,unused-ignore]

    values: Any = {**_SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}
    return rc_context(values)


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure in the form that its name ends in; the file appears whole or not at all."""
    target = Path(path)
    form = target.suffix.lower().removeprefix(".")
    with settings():
        data = _rendered(figure, form)
    write_whole(target, data)


def write_whole(target: Path, data: bytes) -> None:
    """Write a file beside its place and move it there; UsageError where that is not possible."""
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():  # a device or a pipe cannot be replaced
        _written_in_place(target, data)
        return
    temporary = ""
    try:
        number, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(number, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise UsageError(f"cannot write {str(target)!r}: {error.strerror or error}") from None


def _written_in_place(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {str(target)!r}: {error.strerror or error}") from None


def _rendered(figure: Any, form: str) -> bytes:
    """A figure as the bytes of a file; no dates, so that the same picture twice is the same file."""
    stream = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    figure.savefig(stream, format=form, dpi=DPI, metadata=metadata)
    return stream.getvalue()


def svg_text(figure: Any, title: str) -> str:
    """A figure as an `<svg>` element to stand inside a document: text as text, no reference to anything outside.

    `title` is what a screen reader says.
    """
    import html

    # Names inside the picture are made from the salt: pictures of one document must not share them.
    with settings(svg__fonttype="none", svg__hashsalt=title):
        text = _rendered(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = _own_names(text, re.sub(r"\W+", "-", title.casefold()))
    said = html.escape(title, quote=True)
    return re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{said}"', text, count=1).strip()


def _own_names(text: str, prefix: str) -> str:
    """Identifiers with a prefix of the picture, where they are given and where they are used."""
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)


def grid(axes: Any, axis: str = "both") -> None:
    """Thin lines behind the data."""
    axes.grid(True, axis=axis, which="major", color=PALE, linewidth=0.6)


def shortened(text: str, width: int = 52) -> str:
    """A label that fits beside a bar.

    >>> shortened("tp8-pp4-dp2", 8)
    'tp8-pp4…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def stacked_bars(
    axes: Any,
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    styles: Mapping[str, tuple[str, str]],
    totals: str = "{:.3g}",
) -> None:
    """Horizontal bars, first name on top, one piece for each part; the total stands behind each bar."""
    places = list(range(len(names)))
    left = [0.0] * len(names)
    for part, values in parts.items():
        colour, hatch = styles[part]
        axes.barh(
            places,
            values,
            left=left,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            height=0.72,
            label=part,
        )
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, total in zip(places, left, strict=True):
        axes.annotate(
            totals.format(total),
            (total, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox=PLATE,
        )
    axes.set_yticks(places, [shortened(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)  # not inverted: two plots that share an axis would undo each other
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(left, default=1.0) * 1.12 or 1.0)
    grid(axes, "x")


def time_scale(largest: float) -> tuple[float, str]:
    """Divisor and unit of an axis of times."""
    from gpucalc.core.units import scale_for

    return scale_for(largest, "s")
