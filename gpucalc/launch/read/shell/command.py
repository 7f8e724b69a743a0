"""The launch command inside a script: its flags, and the number of GPUs that its starter gives it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.read.shell.manifest import as_script
from gpucalc.launch.read.shell.script import Script, missing, read_script, shown, slurm_variables

MOST_GPUS = 10**7
_NODES = ("nnodes", "num-nodes", "nodes", "N")
_PER_NODE = ("nproc-per-node", "num-gpus", "ntasks-per-node", "gpus-per-node")


def find_command(text: str, known: Collection[str], who: str, given: Mapping[str, Any] | None = None) -> Command:
    """The one command of a text that holds flags of a framework.

    Where the number of nodes hangs on the default of a variable alone and other GPUs are stated (`given`), the
    variable takes the value that agrees. Raises DataError when there is no such command, or several.
    """
    text = as_script(text)
    command = _find(text, known, who, {})
    stated = (given or {}).get("n_gpus")
    nodes, per_node, _ = command.starter([])
    if not (stated and nodes and per_node) or nodes * per_node == stated:
        return command
    strict = _find(text, known, who, {}, defaults=False)
    by_default = strict.lacking(_NODES), strict.lacking(_PER_NODE)
    if by_default[0] and stated % per_node == 0:
        taken = {by_default[0][0]: stated // per_node}
    elif by_default[1] and stated % nodes == 0:
        taken = {by_default[1][0]: stated // nodes}
    else:
        return command
    again = _find(text, known, who, {name: str(value) for name, value in taken.items()})
    again.notes += [f"{n} has a default only: {v} agrees with the {stated} GPUs stated" for n, v in taken.items()]
    return again


def _find(text: str, known: Collection[str], who: str, around: Mapping[str, str], *, defaults: bool = True) -> Command:
    script = read_script(text, around, defaults=defaults)
    candidates = [found for found in _nested(script, 0) if _score(found[0], known) > 0]
    if not candidates:
        flags = sorted({w.split("=")[0] for words, _ in _nested(script, 0) for w in words if w.startswith("--")})
        near = next((n for n in map(lambda flag: near_flag(flag, known), flags) if n), "")
        hint = f"; did you mean {near}?" if near else "; expected a command such as torchrun … with its flags"
        raise DataError(f"no flag of {who} stands in the text{hint}")
    best = max(_score(words, known) for words, _ in candidates)
    main = [found for found in candidates if _score(found[0], known) > max(1, best // 3)] or candidates[:1]
    if len(main) > 1:
        raise DataError(f"{len(main)} commands with flags of {who} stand in the text; leave the one that is meant")
    words, holder = main[0]
    notes = list(dict.fromkeys((*script.notes, *holder.notes)))
    return Command(words, holder.variables, {**script.slurm, **holder.slurm}, notes, text, holder.documents)


def near_flag(flag: str, known: Collection[str]) -> str:
    """The known flag of which `flag` is a slip of the hand, or nothing.

    >>> near_flag("--tensor-model-paralel-size", ["--tensor-model-parallel-size", "--seq-length"])
    '--tensor-model-parallel-size'
    """
    import difflib

    return next(iter(difflib.get_close_matches(flag, list(known), 1, 0.87)), "")


def _score(words: list[str], known: Collection[str]) -> int:
    return sum(1 for word in words if word.split("=")[0] in known)


def _nested(script: Script, depth: int) -> Iterator[tuple[list[str], Script]]:
    """All commands with the script that holds them: those inside `bash -c "…"`, `eval` and here-documents too."""
    for words in script.commands:
        if words[0] != "eval" or depth >= 2:  # eval's words are the command that it runs
            yield words, script
        if depth >= 2:
            continue
        place = next((at for at, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
        if words[0] == "eval":
            yield from _inside(" ".join(words[1:]), [], script, depth)
        elif place is not None and re.search(r"\s", words[place + 1]):
            yield from _inside(words[place + 1], words[:place], script, depth)
    for document in script.documents if depth < 2 else ():
        if not document.lstrip().startswith(("{", "[")) and "--" in document:
            yield from _inside(document, [], script, depth)


def _inside(text: str, prefix: list[str], script: Script, depth: int) -> Iterator[tuple[list[str], Script]]:
    try:
        inner = read_script(
            text, {**script.variables, **slurm_variables(_options_of(prefix))}, defaults=script.defaults
        )
    except DataError:
        return
    for words, holder in _nested(inner, depth + 1):
        yield [*prefix, *words], holder


def _options_of(words: list[str]) -> dict[str, str]:
    """The options of srun before what it starts; none of another command."""
    if not any(word.rpartition("/")[2] == "srun" for word in words):
        return {}
    return {name: value for name, value in re.findall(r"--([a-z-]+)[= ](\S+)", " ".join(words))}


@dataclass
class Command:
    """Words of a command, the variables around it and Slurm's options."""

    words: list[str]
    variables: dict[str, str]
    slurm: dict[str, str]
    notes: list[str] = field(default_factory=list)
    source: str = ""
    documents: list[str] = field(default_factory=list)

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

    def world(self, given: Mapping[str, Any], problems: list[str]) -> tuple[int | None, int | None]:
        """(GPUs, GPUs of a node) that the starter gives, as far as it says; what is given elsewhere must agree."""
        found: list[str] = []
        nodes, per_node, total = self.starter(found)
        if nodes and per_node:
            total = nodes * per_node
        stated = given.get("n_gpus")
        if stated and total and stated != total:
            problems.append(f"the command starts {total} processes{self._where()}, but {stated} GPUs are stated")
        if not stated and not total:
            problems += found
        world = stated or total
        if world and world > MOST_GPUS:
            problems.append(f"{world} GPUs are more than any cluster has")
            return None, None
        return world, per_node if nodes and nodes > 1 else None

    def _where(self) -> str:
        """The lines of the text that say how many processes start: variables' where the options name some."""
        option = re.compile(rf"--?(?:{'|'.join((*_PER_NODE, *_NODES[:-1]))})\b[= ]*(\S*)")
        lines, found = self.source.splitlines(), []
        for number, line in enumerate(lines, 1):
            for size in option.finditer(line.replace("_", "-")):
                names = re.findall(r"^[\"']?\$\{?([A-Za-z_]\w*)", line[size.start(1) : size.end(1)])
                at = number
                if names:
                    assigned = re.compile(rf"\s*(?:export\s+)?{names[0]}=")
                    at = next((n for n in range(number, 0, -1) if assigned.match(lines[n - 1])), number)
                short = f": {lines[at - 1].strip()}" if len(lines[at - 1]) < 60 else ""
                found.append(f"line {at}{short}")
        return f" ({', '.join(dict.fromkeys(found))})" if found else ""

    def lacking(self, names: tuple[str, ...]) -> list[str]:
        """The variables that the first of these options of the starter lacks."""
        options = self._options()
        texts = [options[name] for name in names if name in options]
        return missing(texts[0]) if texts else []

    def _options(self) -> dict[str, str]:
        """The starter's own options, before the program."""
        head = self.words[: max(self._program(), 0)]
        options: dict[str, str] = {}
        for at, word in enumerate(head):
            name, equals, value = word.partition("=")
            if name.startswith("-"):
                follows = head[at + 1] if at + 1 < len(head) and not head[at + 1].startswith("-") else ""
                options[name.lstrip("-").replace("_", "-")] = value if equals else follows
        return options

    def starter(self, problems: list[str]) -> tuple[int | None, int | None, int | None]:
        """(nodes, processes a node, processes in all) of torchrun, srun, mpirun, deepspeed, or #SBATCH lines."""
        head = self.words[: max(self._program(), 0)]
        options = self._options()
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
                        "above, or state the GPUs with --gpus N"
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
                per_node = self._torch("NPROC_PER_NODE") or 1
            elif per_node is None and options["nproc-per-node"] in {"gpu", "auto"}:
                per_node = slurm_gpus
            nodes = number("nnodes") if "nnodes" in options else self._torch("NNODES") or 1
            return nodes, per_node, None
        if any(w.endswith("deepspeed") for w in head):
            per_node = number("num-gpus")
            # Without a host file DeepSpeed's launcher starts on this machine alone.
            alone = 1 if per_node and "hostfile" not in options else None
            return number("num-nodes") or alone, per_node, None
        if any(w.endswith("srun") for w in head) or self.slurm:
            tasks = number("ntasks", "n")
            nodes = number("nodes", "N") or slurm_nodes
            per_node = number("ntasks-per-node") or self._slurm("ntasks-per-node")
            if per_node == 1 and slurm_gpus:
                per_node = slurm_gpus
            return nodes, per_node or slurm_gpus, tasks
        world = self.variables.get("WORLD_SIZE", "")
        total = number("np", "n", "num-processes") or (int(world) if re.fullmatch(r"\d{1,9}", world) else None)
        return None, None, total

    def _torch(self, name: str) -> int | None:
        """A number that torchrun takes from its environment where no option states it."""
        value = self.variables.get(f"PET_{name}", "")
        return int(value) if re.fullmatch(r"[1-9]\d{0,6}", value) else None

    def _slurm(self, *names: str) -> int | None:
        for name in names:
            text = self.slurm.get(name, "").rpartition(":")[2]
            if re.fullmatch(r"\d{1,9}", text) and int(text) > 0:
                return int(text)
        return None
