"""`gpucalc diagnose`: where a present job loses its time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import say_effects
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.networks import asks_of_network
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import quantity
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    from gpucalc.questions.diagnose import Diagnosis
    from gpucalc.questions.network_change import NetworkDiagnosis

CAUSES_OUT = ("cause", "title", "value", "explained_pct", "plausibility", "pred_step_time_s", "pred_fit", "check")
TERMS_OUT = ("term", "pred_time_s", "share_pct", "unhidden_s", "note")
_HEADINGS = {
    "title": Column("title", "text", "", heading="cause"),
    "value": Column("value", "text", "", heading="needed value"),
    "explained_pct": Column("explained_pct", "number", "", unit="%", heading="of the gap", decimals=0),
    "plausibility": Column("plausibility", "number", "", heading="weight", decimals=2),
    "pred_step_time_s": Column("pred_step_time_s", "number", "", unit="s", heading="at most", scale="s"),
    "pred_fit": Column("pred_fit", "text", "", heading="fit"),
    "term": Column("term", "text", "", heading="term"),
    "pred_time_s": Column("pred_time_s", "number", "", unit="s", heading="predicted", scale="s"),
    "share_pct": Column("share_pct", "number", "", unit="%", heading="share", decimals=1),
    "note": Column("note", "text", "", heading=""),
}


@command(group="Understand")
def diagnose(
    *,
    job: JobOptions,
    measured: float | None = option(
        "--measured-step-time TIME", "With a unit, such as 12.3s or 840ms.", read=quantity("s")
    ),
    show: str | None = option(
        "--show WHAT", "causes or terms, where one table is printed.", choices=("causes", "terms")
    ),
    output: OutputOptions,
) -> None:
    """Tell where a job loses its time: the measured step beside the predicted one, and what would explain the gap.

    Each cause is one constant within its bounds, or one setting, that differs from what was stated; its weight says
    how plausible it is beside the others. MODEL may be "-": a row of eval or plan, with measured_step_time_s.

    \b
    gpucalc diagnose llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --layout tp8-pp4-dp2-mbs1-zero1-sp --measured-step-time 21.5s

    \b
    gpucalc eval --from megatron run.sh --gpu h100-sxm-80gb | gpucalc diagnose - --measured-step-time 20s
    """
    stated = job.whole()
    network = asks_of_network(stated)
    cells = stated if network else job.laid_out("diagnose")
    seconds = measured if measured is not None else (job.row or {}).get("measured_step_time_s")
    if seconds is None:
        raise UsageError("missing: --measured-step-time, such as --measured-step-time 12.3s")
    if network:
        from gpucalc.questions.network_change import diagnose_network

        require(cells, "gpu")
        _write_network(diagnose_network(cells, job.context(), seconds), show, output)
        return

    from gpucalc.questions.diagnose import diagnose as diagnosed

    found = diagnosed(job.context(), cells, seconds)
    _write(found, show, output)
    say_effects(job, cells, job.context())


def _write(found: Diagnosis, shown: str | None, output: OutputOptions) -> None:
    causes = [
        {
            "cause": one.cause.key,
            "title": one.cause.title,
            "value": one.says,
            "explained_pct": 100 * one.explained,
            "plausibility": one.weight,
            "pred_step_time_s": one.reaches,
            "pred_fit": one.fit,
            "check": one.cause.check,
        }
        for one in found.findings
    ]
    terms = [
        {
            "term": term.title,
            "pred_time_s": term.seconds,
            "share_pct": 100 * term.share,
            "unhidden_s": term.unhidden,
            "note": term.note,
        }
        for term in found.terms
    ]
    if output.json:
        emit_document(
            {
                "layout": found.base.label,
                "measured_step_time_s": found.measured,
                "pred_step_time_s": found.base.step_time,
                "pred_step_time_low_s": found.low,
                "pred_step_time_high_s": found.high,
                "bound_s": found.base.terms["bounds/lower"],
                "ratio": found.ratio,
                "verdict": found.verdict,
                "terms": terms,
                "causes": causes,
                "summary": found.summary,
            }
        )
    elif output.for_people:
        if shown is None:
            sys.stdout.write("\n".join(found.summary) + "\n\n")
        if shown != "causes":
            _table(("term", "pred_time_s", "share_pct", "note"), terms, output)
        if shown is None and causes:
            sys.stdout.write("\n")
        if shown != "terms" and causes:
            _table(
                ("title", "value", "explained_pct", "plausibility", "pred_step_time_s", "pred_fit"),
                causes,
                output,
            )
            to_stderr(
                "",
                '"at most" is the step at the bound of a constant; weights compare causes with each other and are '
                "no probabilities: priors are assumptions; gpucalc learn takes what several runs have in common",
            )
    elif shown == "terms":
        output.rows(TERMS_OUT, terms)
    else:
        output.rows(CAUSES_OUT, causes)


def _write_network(found: NetworkDiagnosis, shown: str | None, output: OutputOptions) -> None:
    if output.json:
        times = {"measured_step_time_s": found.measured, "pred_step_time_s": found.predicted}
        band = {"pred_step_time_low_s": found.low, "pred_step_time_high_s": found.high}
        told = {"verdict": found.verdict, "terms": found.terms, "causes": found.causes, "summary": found.summary}
        emit_document({"layout": found.layout, **times, **band, "ratio": found.measured / found.predicted, **told})
    elif output.for_people:
        if shown is None:
            sys.stdout.write("\n".join(found.summary) + "\n\n")
        if shown != "causes":
            _table(("term", "pred_time_s", "share_pct"), found.terms, output)
        if shown != "terms" and found.causes:
            if shown is None:
                sys.stdout.write("\n")
            _table(("title", "value", "explained_pct", "plausibility", "pred_step_time_s"), found.causes, output)
    elif shown == "terms":
        output.rows(TERMS_OUT, found.terms)
    else:
        output.rows(CAUSES_OUT, found.causes)


def _table(names: tuple[str, ...], rows: list[dict[str, Any]], output: OutputOptions) -> None:
    output.table([_HEADINGS[n] for n in names], rows)
