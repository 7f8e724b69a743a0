"""Launch settings: a layout written for the frameworks that run it, and read back from their settings.

`export` writes; `read_launch` reads. Nothing that is read is executed. What can be written and read is found in the
folders `write`, `wrap` and `read` (see `target`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError
from gpucalc.launch.target import find

if TYPE_CHECKING:
    from gpucalc.jobs.serving import ServingJob
    from gpucalc.launch.job import Launch, LaunchCommand, Placed
    from gpucalc.launch.policy import PolicyLaunch
    from gpucalc.launch.target import Source, Target, Wrapper


def target_named(name: str, what: str = "--to") -> Target:
    """A framework or engine by its name. Raises UsageError with the nearest one."""
    found: Target = find(name, ("write",), what)
    return found


def command_of(job: Launch | ServingJob | PolicyLaunch, target: Target) -> LaunchCommand:
    """The settings of one framework; UsageError with everything that it cannot express."""
    from gpucalc.launch import legality
    from gpucalc.launch.job import Launch

    if isinstance(job, Launch) and (unsaid := legality.unsaid(job.cells, target.name)):
        raise UsageError(*unsaid)
    if isinstance(job, Launch) and job["method"] != "full" and not target.adapters:
        raise UsageError(f"method={job['method']}: {target.name} is written for full training only")
    found = target.problems(job)
    if found and isinstance(job, Launch) and job.open_recompute and job["recompute_layers"]:
        whole = _fully_recomputed(job)
        if not target.problems(whole):
            job, found = whole, []
    if found:
        raise UsageError(*dict.fromkeys(found))
    return target.start(job)


def _fully_recomputed(launch: Launch) -> Launch:
    """The same job with every layer recomputed, for a framework that cannot recompute a part of them."""
    from dataclasses import replace

    cells = {name: value for name, value in launch.cells.items() if name != "recompute_layers"}
    said = "recompute was not stated: all layers, as a part of them cannot be chosen here"
    return replace(launch, cells=cells, comments=(said,))


def export(
    job: Launch | ServingJob | PolicyLaunch,
    target: Target,
    wrapper: Wrapper | None = None,
    kind: str = "",
    placed: Placed | None = None,
) -> tuple[str, tuple[str, ...]]:
    """The text of a target, alone or inside the script of a scheduler, and what is to be said beside it.

    kind: which of the scheduler's scripts; placed: the nodes that the script is bound to.
    """
    made = command_of(job, target)
    if wrapper is None:
        return made.text, (*made.notes, *(made.server.alone if made.server else ()))
    fits(target, wrapper)
    said = made.notes if wrapper.job == "serving" else ()
    return wrapper.write(job, made, target.starter, kind, placed), said


def fits(target: Target, wrapper: Wrapper) -> None:
    """Raise UsageError unless a scheduler's script can hold the launch of a target."""
    does = {"training": "trains", "serving": "serves", "policy": "is started on the head of a Ray cluster"}
    holds = {"training": "the launch of a training framework", "serving": "a server's command"}
    if target.job != wrapper.job:
        raise UsageError(f"{target.name} {does[target.job]}; {wrapper.name} holds {holds[wrapper.job]}")


def source_named(name: str) -> Source:
    """A reader by its name. Raises UsageError with the nearest one."""
    found: Source = find(name, ("read",), "--from")
    return found


def read_launch(kind: str, text: str, given: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The cells of the row that launch settings mean, and remarks: flags that were not read, values assumed.

    kind: a name of `target.sources()`. `given` are cells known from elsewhere (n_gpus, model), which the text may
    need to be understood. Raises DataError with every contradiction.
    """
    return source_named(kind).read(text, dict(given or {}))
