"""A step of ppo or grpo as the exporters of reinforcement learning read it: its update as a launch, and its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context
from gpucalc.launch.job import Launch, make_launch
from gpucalc.launch.text import headline
from gpucalc.questions.tune.plan import one_split
from gpucalc.questions.tune.policy import Policy, engine_tp, update_job
from gpucalc.questions.tune.policy_cells import make_policy

LORA_PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}


@dataclass(frozen=True)
class PolicyLaunch:
    """A step with everything decided: the launch of its update, and what generates.

    engine_tp: tensor parallel ranks of one engine. per_node: GPUs of a node.
    """

    update: Launch
    policy: Policy
    engine_tp: int
    comments: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """A cell of the update; None where it is not stated."""
        return self.update[name]

    @property
    def prompts(self) -> int:
        """Prompts of a step."""
        return self.policy.rollouts // self.policy.samples

    @property
    def title(self) -> str:
        """One line that says what the settings are for."""
        p = self.policy
        where = f"{p.generation_gpus} of {p.n_gpus} GPUs generate" if p.generation_gpus else "all GPUs generate in turn"
        return f"{headline(self.update)}; {p.algorithm}, {p.rollouts} responses a step, {where}"


def make_policy_launch(
    algorithm: str,
    cells: Mapping[str, Any],
    step: Mapping[str, Any],
    context: Context,
    profile: str | Callable[[Mapping[str, Any]], str],
) -> PolicyLaunch:
    """Complete a step; `profile` names the software of the update where the cells name none.

    Raises UsageError for a step that is impossible.
    """
    asked = {name: value for name, value in cells.items() if name not in {"dp", "layout"}}
    asked.setdefault("framework", profile if isinstance(profile, str) else profile(asked))
    policy = make_policy(algorithm, asked, step)
    if policy.rollouts % policy.samples:
        low = max(1, policy.rollouts // policy.samples) * policy.samples
        raise UsageError(
            f"rollouts={policy.rollouts} is not a multiple of samples={policy.samples} responses of a prompt; {low} is"
        )
    job, updates = update_job(policy, context)
    stated_dp = cells.get("dp")
    if stated_dp and stated_dp != job.cells["dp"]:
        raise UsageError(
            f"dp={stated_dp}, but {policy.training_gpus} training GPUs hold {job.cells['dp']} replicas of this layout"
        )
    if updates != int(updates):
        raise UsageError(
            f"rollouts={policy.rollouts} is not a multiple of the {policy.update_batch} responses of an update"
        )
    launch = make_launch({**job.cells, "framework": asked["framework"]}, context, profile)
    answer = one_split(policy, context)
    said = (
        f"predicted: {answer.row['pred_step_time_s']:.4g} s a step with prompts of {policy.prompt} and responses of "
        f"{policy.mean_response:g} tokens, {answer.row['pred_peak_mem_gib']:.1f} GiB per GPU"
    )
    tp = policy.engine_tp or engine_tp(policy, launch.model, context)
    comments = (said, *(line for line in launch.comments if not line.startswith("predicted as")))
    return PolicyLaunch(launch, policy, tp, comments)


def divides(launch: PolicyLaunch) -> list[str]:
    """What a step of whole micro-batches needs: sizes that divide each other."""
    p, found = launch.policy, []
    engines = (p.generation_gpus or p.n_gpus) % (launch.engine_tp * p.engine_pp)
    if engines:
        found.append(
            f"{p.generation_gpus or p.n_gpus} generating GPUs are not a multiple of an engine's tp·pp = "
            f"{launch.engine_tp * p.engine_pp}"
        )
    batch = p.update_batch or p.rollouts
    if batch % p.samples:
        found.append(
            f"the {batch} responses of an update are not a multiple of the {p.samples} of a prompt; "
            f"--global-batch {max(1, batch // p.samples) * p.samples} is"
        )
    return found


def repository_remark(launch: PolicyLaunch) -> str:
    """What is to be replaced in the text."""
    return f"{launch['model']} is a preset here: write the repository or folder of the checkpoint, and the data's files"
