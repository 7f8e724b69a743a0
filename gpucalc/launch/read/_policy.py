"""What the readers of reinforcement learning share: the command that starts it, lengths, and the update's batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.read._settings import Settings, overrides
from gpucalc.launch.read.shell.script import read_script
from gpucalc.models.model import load_model, resolve_preset
from gpucalc.questions.tune.policy_rows import DEFAULT_PROMPT

RESPONSE_SHARE = 4  # the longest response over the mean, where no mean is stated
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt_llm": "trtllm"}


def started(text: str, program: str, who: str) -> tuple[list[str], list[str]]:
    """The words of the one command that starts a program, and remarks of the script. DataError without it."""
    script = read_script(text)
    found = [words for words in script.commands if any(re.search(program, word) for word in words)]
    if not found:
        raise DataError(f"no command of {who} stands in the text")
    if len(found) > 1:
        raise DataError(f"{len(found)} commands of {who} stand in the text; leave the one that is meant")
    return found[0], list(script.notes)


def merged(base: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    """Settings with KEY=VALUE words over them; ~KEY takes one away."""
    found = {**base, **overrides(words)}
    for word in words:
        if word.startswith("~"):
            found.pop(word[1:].partition("=")[0], None)
    return found


def lengths(s: Settings, prompt: int, response: int) -> dict[str, Any]:
    """Mean and longest tokens of a prompt and a response: means are the data's, so what was taken is said."""
    given = s.given
    mean = given.get("prompt") or min(DEFAULT_PROMPT, prompt)
    answer = given.get("response") or max(1, response // RESPONSE_SHARE)
    if not (given.get("prompt") and given.get("response")):
        s.notes.append(
            f"mean lengths are the data's: prompts of {mean} and responses of {answer} tokens are taken "
            "(--set prompt=N --set response=N)"
        )
    return {"prompt": mean, "response": answer, "max_response": response, "seq_len": prompt + response}


def engine_of(s: Settings, key: str) -> str | None:
    """The engine that generates."""
    word = s.text(key, "vllm").casefold()
    if word not in ENGINES:
        s.problems.append(f"{key} is {word[:30]!r}; generation is predicted for {', '.join(dict.fromkeys(ENGINES))}")
    return ENGINES.get(word)


def spread(s: Settings, cells: dict[str, Any], world: int) -> None:
    """dp from the GPUs of the update, and what its degrees contradict."""
    cut = cells["tp"] * cells.get("pp", 1) * cells["cp"]
    if world % cut:
        s.problems.append(f"{world} GPUs of the update are not a multiple of tp·pp·cp = {cut}")
        return
    cells["dp"] = world // cut
    engine = cells.get("engine_tp", 1) * cells.get("engine_pp", 1)
    serving = cells.get("generation_gpus") or world
    if serving % engine:
        s.problems.append(f"{serving} generating GPUs are not a multiple of an engine's tp·pp = {engine}")
    name = cells.get("model")
    if name and resolve_preset(str(name)) is not None and not load_model(str(name)).experts:
        if cells.get("ep", 1) > 1:
            s.problems.append(f"expert parallelism of {cells['ep']} without experts")
        cells.pop("etp", None)
