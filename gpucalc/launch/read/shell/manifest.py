"""Commands that stand in a manifest of Kubernetes or a compose file, as the shell lines that its containers run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

MOST_NODES = 20_000
_SIGN = re.compile(r"^\s*(-\s+)?(containers|initContainers|services|trainer)\s*:", re.MULTILINE)


def as_script(text: str) -> str:
    """The text itself, or for a manifest the command of each container, a line each.

    A container's command and args are one list of words; a compose file's may be a text. An image of an engine
    without a command starts the engine itself.

    >>> as_script('containers:\\n- image: a\\n  command: [run]\\n  args: ["--n", "a b"]\\n')
    "run --n 'a b'\\n"
    >>> as_script("run --n 1")
    'run --n 1'
    """
    if not _SIGN.search(text) or len(text) > 1_000_000:
        return text
    import yaml

    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    lines = [line for document in documents for line in _containers(document, 0, [MOST_NODES])]
    return "\n".join(lines) + "\n" if lines else text


def _containers(value: Any, depth: int, left: list[int]) -> Iterator[str]:
    left[0] -= 1
    if depth > 40 or left[0] < 0:  # aliases that multiply
        return
    if isinstance(value, list):
        for item in value:
            yield from _containers(item, depth + 1, left)
    elif isinstance(value, Mapping):
        if isinstance(value.get("pytorchReplicaSpecs"), Mapping):
            yield from _replicas(value["pytorchReplicaSpecs"], depth, left)
            return
        if "numNodes" in value:
            yield from _processes(value["numNodes"], value.get("numProcPerNode", gpus_of(value)))
        parts = [value[name] for name in ("entrypoint", "command", "args") if name in value]
        if "image" in value and parts:
            yield from _environment(value)
            words = [word for part in parts for word in (part if isinstance(part, list) else [None])]
            shell = len(words) >= 3 and re.fullmatch(r"(/usr)?(/bin/)?(ba)?sh", str(words[0]))
            if shell and re.fullmatch(r"-[a-z]*c", str(words[1])):
                yield str(words[2])  # a script of its own
            else:
                yield " ".join([*_started(str(value["image"]), value), *map(_words, parts)])
        for item in value.values():
            if isinstance(item, Mapping | list):
                yield from _containers(item, depth + 1, left)


def _replicas(kinds: Mapping[Any, Any], depth: int, left: list[int]) -> Iterator[str]:
    """A PyTorchJob: its pods are torchrun's nodes, and all run what the first does."""
    pods = [kind for kind in kinds.values() if isinstance(kind, Mapping)]
    counts = [kind.get("replicas", 1) for kind in pods]
    if pods and all(isinstance(count, int) for count in counts):
        template = pods[0].get("template")
        found = template.get("spec", {}).get("containers") if isinstance(template, Mapping) else None
        first = found[0] if isinstance(found, list) and found and isinstance(found[0], Mapping) else {}
        yield from _processes(sum(counts), gpus_of(first))
    yield from _containers(pods[0] if pods else None, depth + 1, left)


def _processes(nodes: Any, per_node: Any) -> Iterator[str]:
    """The variables in which torchrun finds its number of nodes and of processes a node."""
    for name, value in (("PET_NNODES", nodes), ("PET_NPROC_PER_NODE", per_node)):
        if re.fullmatch(r"[1-9]\d{0,6}", str(value)):
            yield f"{name}={value}"


def gpus_of(container: Mapping[Any, Any]) -> Any:
    """The GPUs that a container asks for."""
    for name in ("resources", "resourcesPerNode"):
        asked = container.get(name)
        for kind in ("limits", "requests"):
            found = asked.get(kind) if isinstance(asked, Mapping) else None
            for resource, count in found.items() if isinstance(found, Mapping) else ():
                if str(resource).endswith("/gpu"):
                    return count
    return None


def _started(image: str, container: Mapping[Any, Any]) -> list[str]:
    """What an image starts by itself, before the words of the container."""
    if "vllm" in image.casefold() and "entrypoint" not in container:
        first = str(_words(container.get("command", ""))).split()
        return ["vllm", "serve"] if not first or first[0].startswith("-") else []
    return []


def _environment(container: Mapping[Any, Any]) -> Iterator[str]:
    """The variables of a container that have a value, as assignments."""
    env = container.get("env", container.get("environment"))
    pairs: list[tuple[Any, Any]] = []
    if isinstance(env, Mapping):
        pairs = list(env.items())
    elif isinstance(env, list):
        for item in env:
            if isinstance(item, Mapping):
                pairs.append((item.get("name"), item.get("value")))
            elif isinstance(item, str):
                pairs.append(tuple(item.partition("=")[::2]))  # type: ignore[arg-type]
    for name, value in pairs:
        if re.fullmatch(r"[A-Za-z_]\w*", str(name)) and isinstance(value, str | int):
            yield f"{name}={shlex.quote(str(value))}"


def _words(value: Any) -> str:
    """A list as quoted words, in which $(NAME) of Kubernetes is ${NAME} of a shell; a text as it stands."""
    if isinstance(value, list):
        words = [str(word) for word in value]
        words = [re.sub(r"\$\(([A-Za-z_]\w*)\)", r"${\1}", word) for word in words]
        return " ".join(f'"{word}"' if "${" in word and '"' not in word else shlex.quote(word) for word in words)
    return re.sub(r"\s*\n\s*", " ", str(value).replace("\\\n", " ")).strip()
