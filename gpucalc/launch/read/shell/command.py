"""The launch command inside a script: its flags, and the number of GPUs that its starter gives it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.errors import DataError, suggestion
from gpucalc.launch.read.shell.script import Script, missing, read_script, shown

MOST_GPUS = 10**7


def find_command(text: str, known: Collection[str], who: str) -> Command:
    """The one command of a text that holds flags of a framework.

    Raises DataError when there is none, or several.
    """
    script = read_script(text)
    candidates = [words for words in _nested(script, 0) if _score(words, known) > 0]
    if not candidates:
        flags = sorted({w.split("=")[0] for words in script.commands for w in words if w.startswith("--")})
        near = next((n for n in map(lambda flag: near_flag(flag, known), flags) if n), "")
        hint = f"; did you mean {near}?" if near else "; expected a command such as torchrun … with its flags"
        raise DataError(f"no flag of {who} stands in the text{hint}")
    best = max(_score(words, known) for words in candidates)
    main = [words for words in candidates if _score(words, known) > max(1, best // 3)] or candidates[:1]
    if len(main) > 1:
        raise DataError(f"{len(main)} commands with flags of {who} stand in the text; leave the one that is meant")
    return Command(main[0], script.variables, script.slurm, list(script.notes))


def near_flag(flag: str, known: Collection[str]) -> str:
    """The known flag of which `flag` is a slip of the hand, or nothing.

    >>> near_flag("--tensor-model-paralel-size", ["--tensor-model-parallel-size", "--seq-length"])
    '--tensor-model-parallel-size'
    """
    import difflib

    return next(iter(difflib.get_close_matches(flag, list(known), 1, 0.87)), "")


def _score(words: list[str], known: Collection[str]) -> int:
    return sum(1 for word in words if word.split("=")[0] in known)


def _nested(script: Script, depth: int) -> Iterator[list[str]]:
    """All commands, those inside `bash -c "…"` too."""
    for words in script.commands:
        yield words
        if depth < 2 and "-c" in words:
            inner = words[words.index("-c") + 1 :][:1]
            for text in inner:
                if " " in text:
                    try:
                        found = read_script(text)
                    except DataError:
                        continue
                    prefix = words[: words.index("-c")]
                    yield from ([*prefix, *more] for more in _nested(found, depth + 1))


@dataclass
class Command:
    """Words of a command, the variables around it and Slurm's options."""

    words: list[str]
    variables: dict[str, str]
    slurm: dict[str, str]
    notes: list[str] = field(default_factory=list)

    def _program(self) -> int:
        """The place of the program: the first word that ends in .py, or the module after -m of the starter."""
        for place, word in enumerate(self.words):
            if word.endswith(".py"):
                return place
            if word == "-m" and place + 1 < len(self.words) and "torch.distributed" not in self.words[place + 1]:
                return place + 1
        return -1 if self.words and self.words[0].startswith("-") else 0

    def flags(self, single: Collection[str] = ()) -> Iterator[tuple[str, list[str]]]:
        """(flag, its values) after the program; a flag in `single` takes at most one, others as many as follow."""
        flag: str | None = None
        values: list[str] = []
        stray = []
        for word in self.words[self._program() + 1 :]:
            if word.startswith("--"):
                if flag is not None:
                    yield flag, values
                flag, equals, value = word.partition("=")
                values = [value] if equals else []
            elif flag is not None and (flag not in single or not values):
                values.append(word)
            else:
                stray.append(word)
        if flag is not None:
            yield flag, values
        if stray:
            self.notes.append(f"words that belong to no flag: {' '.join(shown(w) for w in stray[:6])}")

    def text(self, flag: str, values: list[str], problems: list[str]) -> str | None:
        """The value of a flag; what it lacks goes to `problems`."""
        if not values or values == [""]:
            problems.append(f"{flag} has no value")
            return None
        lacking = missing(" ".join(values))
        if lacking:
            problems.append(
                f"{flag} is {shown(values[0])}, and {', '.join(lacking)} is not set in the text; write its value above"
            )
            return None
        return values[0]

    def integer(self, flag: str, values: list[str], problems: list[str]) -> int | None:
        """A whole number of at least one."""
        text = self.text(flag, values, problems)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,12}", text) or int(text) < 1:
            problems.append(f"{flag} is {text[:40]!r}, expected a whole number of 1 or more")
            return None
        return int(text)

    def choice(self, flag: str, values: list[str], choices: tuple[str, ...], problems: list[str]) -> str | None:
        """One of a few words."""
        text = self.text(flag, values, problems)
        if text is None or text in choices:
            return text
        problems.append(f"{flag} is {text[:40]!r}{suggestion(text, choices, 1)}")
        return None

    def world(self, given: dict[str, Any], problems: list[str]) -> tuple[int | None, int | None]:
        """(GPUs, GPUs of a node) that the starter gives, as far as it says; what is given elsewhere must agree."""
        found: list[str] = []
        nodes, per_node, total = self._starter(found)
        if nodes and per_node:
            total = nodes * per_node
        stated = given.get("n_gpus")
        if stated and total and stated != total:
            problems.append(f"the command starts {total} processes, but {stated} GPUs are stated")
        if not stated and not total:
            problems += found
        world = stated or total
        if world and world > MOST_GPUS:
            problems.append(f"{world} GPUs are more than any cluster has")
            return None, None
        return world, per_node if nodes and nodes > 1 else None

    def _starter(self, problems: list[str]) -> tuple[int | None, int | None, int | None]:
        """(nodes, processes a node, processes in all) of torchrun, srun, mpirun, deepspeed, or #SBATCH lines."""
        place = max(self._program(), 0)
        head = self.words[:place]
        options: dict[str, str] = {}
        for at, word in enumerate(head):
            name, equals, value = word.partition("=")
            if name.startswith("-"):
                follows = head[at + 1] if at + 1 < len(head) and not head[at + 1].startswith("-") else ""
                options[name.lstrip("-").replace("_", "-")] = value if equals else follows
        torch = any("torchrun" in w or w.startswith("torch.distributed") for w in head)

        def number(*names: str) -> int | None:
            for name in names:
                text = options.get(name)
                if text is None:
                    continue
                lacking = missing(text)
                if lacking:
                    problems.append(
                        f"--{name} is {shown(text)}, and {', '.join(lacking)} is not set in the text; write its value "
                        "above, or state the GPUs with --set n_gpus=N"
                    )
                    return None
                text = text.rpartition(":")[2] if name in {"nnodes", "gpus-per-node"} else text
                if re.fullmatch(r"\d{1,9}", text) and int(text) > 0:
                    return int(text)
            return None

        slurm_nodes, slurm_gpus = self._slurm("nodes"), self._slurm("gpus-per-node", "gres")
        if torch:
            per_node = number("nproc-per-node")
            if "nproc-per-node" not in options:
                per_node = 1
            elif per_node is None and options["nproc-per-node"] in {"gpu", "auto"}:
                per_node = slurm_gpus
            nodes = number("nnodes") if "nnodes" in options else 1
            return nodes, per_node, None
        if any(w.endswith("deepspeed") for w in head):
            return number("num-nodes"), number("num-gpus"), None
        if any(w.endswith("srun") for w in head) or self.slurm:
            tasks = number("ntasks", "n")
            nodes = number("nodes", "N") or slurm_nodes
            per_node = number("ntasks-per-node") or self._slurm("ntasks-per-node")
            if per_node == 1 and slurm_gpus:
                per_node = slurm_gpus
            return nodes, per_node or slurm_gpus, tasks
        world = self.variables.get("WORLD_SIZE", "")
        total = number("np", "n") or (int(world) if re.fullmatch(r"\d{1,9}", world) else None)
        return None, None, total

    def _slurm(self, *names: str) -> int | None:
        for name in names:
            text = self.slurm.get(name, "").rpartition(":")[2]
            if re.fullmatch(r"\d{1,9}", text) and int(text) > 0:
                return int(text)
        return None
