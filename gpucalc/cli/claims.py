"""`gpucalc claims`: what is often said, checked."""

from __future__ import annotations

import sys

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import argument
from gpucalc.cli.output import OutputOptions, emit_document
from gpucalc.core.errors import UsageError

COLUMNS_OUT = ("key", "claim", "verdict", "because", "arithmetic", "source")


@command(group="Check")
def claims(
    *,
    words: tuple[str, ...] = argument(
        "[KEY | KEY=VALUE]...",
        "Claims of the list, or the parts of your own.",
        repeat=True,
        complete="claims",
    ),
    output: OutputOptions,
    database: DatabaseOptions,
) -> None:
    """Check common claims against the database, with the arithmetic; or a claim of yours, stated as key=value.

    \b
    gpucalc claims
    gpucalc claims gpu=h100-sxm-80gb precision=fp16 tflops=2000
    """
    own = [w for w in words if "=" in w]
    if own and len(own) < len(words):
        odd = next(w for w in words if "=" not in w)
        raise UsageError(f"{odd!r} is not key=value; a claim of the list and one of yours cannot be mixed")
    db = database.database()

    from gpucalc.validate.claims.check import check, check_all
    from gpucalc.validate.claims.statements import from_pairs

    found = [check(from_pairs(own), db)] if own else check_all(db, words)
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
    if output.json:
        emit_document([{**row, "arithmetic": list(one.arithmetic)} for row, one in zip(rows, found, strict=True)])
    elif output.form == "table" and output.columns is None:
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
        output.rows(COLUMNS_OUT, rows)
