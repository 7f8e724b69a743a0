"""`gpucalc claims`: what is often said, checked."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows
from gpucalc.core.errors import UsageError

COLUMNS_OUT = ("key", "claim", "verdict", "because", "arithmetic", "source")


def claims(
    which: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="[KEY | KEY=VALUE]...", help="Claims of the list, or the parts of your own."),
    ] = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> None:
    """Check common claims against the database, with the arithmetic; or a claim of yours, stated as key=value.

    \b
    gpucalc claims
    gpucalc claims gpu=h100-sxm-80gb precision=fp16 tflops=2000
    """
    form = opt.chosen_format(form)
    words = which or []
    own = [w for w in words if "=" in w]
    if own and len(own) < len(words):
        odd = next(w for w in words if "=" not in w)
        raise UsageError(f"{odd!r} is not key=value; a claim of the list and one of yours cannot be mixed")
    database = opt.open_database(db)

    from gpucalc.validate.claims.check import check, check_all
    from gpucalc.validate.claims.statements import from_pairs

    found = [check(from_pairs(own), database)] if own else check_all(database, words)
    rows = [
        {
            "key": one.claim.key,
            "claim": one.claim.text,
            "verdict": one.verdict,
            "because": one.because,
            "arithmetic": "; ".join(one.arithmetic),
            "source": one.source,
        }
        for one in found
    ]
    if form == "json":
        emit_document([{**row, "arithmetic": list(one.arithmetic)} for row, one in zip(rows, found, strict=True)])
    elif form == "table" and columns is None:
        import textwrap

        blocks = []
        for one in found:
            lines = [f"{one.claim.text}: {one.verdict.upper()}"]
            lines += textwrap.wrap(one.because, 106, initial_indent="  ", subsequent_indent="  ")
            for line in one.arithmetic:
                lines += textwrap.wrap(line, 106, initial_indent="    ", subsequent_indent="      ")
            if one.source:
                lines += textwrap.wrap(f"source: {one.source}", 106, initial_indent="    ", subsequent_indent="      ")
            blocks.append("\n".join(lines))
        sys.stdout.write("\n\n".join(blocks) + "\n")
    else:
        emit_rows(form, COLUMNS_OUT, rows, columns, not no_header)
