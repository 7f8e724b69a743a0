"""What the readers of serving engines share: the options of a server, and the cells that are counted alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpucalc.launch.flags import flags
from gpucalc.launch.read._settings import Missing, Settings
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.read.shell.script import missing, shown
from gpucalc.models.model import load_model, resolve_preset


def settings_of(
    text: str, table: str, who: str, given: Mapping[str, Any], signs: Collection[str], aliases: Mapping[str, str]
) -> tuple[Settings, list[str]]:
    """The options of the one server command of a text by name, and the words that belong to none.

    An option without a value is true; --no-NAME is NAME off. signs: words by which the command is known. aliases:
    other names of options.
    """
    known = set(flags(table)) | set(signs)
    command = find_command(text, known, who)
    values: dict[str, Any] = {}
    words = _after(command, signs)
    stray: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        name, equals, value = word.partition("=")
        if not name.startswith("-") or (len(name) > 1 and name[1].isdigit()):
            stray.append(word)
            continue
        name = name if name in flags(table) or not name.startswith("--") else "--" + name[2:].replace("_", "-")
        entry = flags(table).get(name)
        off = entry is None and name.startswith("--no-") and "--" + name[5:] in flags(table)
        if off:
            values["--" + name[5:]] = False
        elif equals:
            values[name] = _value([value])
        elif entry is not None and entry.takes == "0":
            values[name] = True
        else:
            taken: list[str] = []
            several = entry is not None and entry.takes == "n"
            while place < len(words) and not words[place].startswith("--") and (several or not taken):
                if words[place].startswith("-") and words[place] in flags(table):
                    break
                taken.append(words[place])
                place += 1
            values[name] = _value(taken)
    values = {aliases.get(name, name): value for name, value in values.items()}
    settings = Settings(values, table, who, given)
    settings.notes += command.notes
    return settings, stray


def _after(command: Command, signs: Collection[str]) -> list[str]:
    """The words after the program."""
    for place in range(len(command.words) - 1, -1, -1):
        word = command.words[place]
        if word in signs or word.rpartition("/")[2] in signs:
            return command.words[place + 1 :]
    if command.words[:2] in (["docker", "run"], ["podman", "run"]):  # the words after the image are the engine's
        image = next((at for at, word in enumerate(command.words) if re.match(r"[\w.:-]+/\w", word)), 0)
        return command.words[image + 1 :]
    return command.words


def _value(words: Sequence[str]) -> Any:
    if not words:
        return True
    lacking = missing(" ".join(words))
    if lacking:
        return Missing(" ".join(shown(word) for word in words), lacking)
    return words[0] if len(words) == 1 else list(words)


def model_of(name: str, s: Settings) -> str | None:
    """The preset that a repository's name means, where no model is stated beside."""
    stated: str | None = s.given.get("model")
    if stated:
        return stated
    preset = resolve_preset(name) if name else None
    if preset is None:
        what = f"{name[:60]} is not a preset" if name else "no model is named"
        s.problems.append(f"{what}; name the shape with --set model=llama-3.1-8b")
    return preset


def is_mixture(model: str | None) -> bool:
    """Whether a model that is known has experts."""
    return model is not None and load_model(model).experts > 0


def share_of(s: Settings, key: str) -> float | None:
    """A share of the memory."""
    value = s.get(key)
    if value is None:
        return None
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 < share <= 1:
        s.problems.append(f"{key} is {str(value)[:40]!r}, expected a share such as 0.9")
        return None
    return share


def weights_of(s: Settings, weights: Mapping[str, str], dtypes: Mapping[str, str | None]) -> str | None:
    """The type of the weights by an engine's words for quantisation, else of its data type."""
    kind = s.get("--quantization")
    if kind is not None:
        found = weights.get(str(kind).casefold())
        if found is None:
            s.notes.append(f"--quantization {str(kind)[:30]} is not known here; state it with --set precision=…")
        return found
    return dtypes.get(s.word("--dtype", dtypes, "auto"))


def finished(s: Settings, cells: dict[str, Any], bound: str) -> tuple[dict[str, Any], list[str]]:
    """The cells with the GPUs of the command, and every remark; `bound` is the option of the longest request."""
    longest = s.get(bound)
    if longest is not None:
        s.notes.append(f"{bound} {longest} bounds a request; state the mean lengths with --set isl=N osl=N")
    s.integer("--nnodes", 1)
    world_agrees(s, cells)
    return s.finish(cells)


def world_agrees(s: Settings, cells: dict[str, Any]) -> None:
    """GPUs of the command: those of one server; what is stated beside must be a multiple, as further replicas."""
    one = cells["tp"] * cells["pp"] * cells["dp"]
    stated = s.given.get("n_gpus")
    if stated and stated % one:
        s.problems.append(f"the command takes {one} GPUs, of which {stated} are not a multiple")
    elif stated and stated != one:
        s.notes.append(f"{stated // one} of these servers are taken for the {stated} GPUs")
        cells["dp"] *= stated // one
    cells["n_gpus"] = stated or one
