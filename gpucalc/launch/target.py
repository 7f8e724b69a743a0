"""What an export, a batch wrapper and a reader of launch settings are, and how they are found.

Each is one module of a folder (`write`, `wrap`, `read`) whose file name is its name, `_` standing for `-`. Listing the
folder gives the names without importing anything, so that help and completion cost nothing; a module is imported
when it is asked for, and all of a folder only to look for another name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import unknown

if TYPE_CHECKING:
    from gpucalc.launch.job import LaunchCommand, Placed
    from gpucalc.launch.starter import Starter


@dataclass(frozen=True)
class Target:
    """A framework or engine whose launch settings can be written.

    names: its name, then other common ones.
    problems: everything that it cannot express of a job, in sentences.
    start: the settings of a job without problems.
    profile: the framework whose software profile fills the cells that a question leaves open; or a function of the
    stated cells that names it.
    starter: how its processes are started; None where the command stands for itself (serving engines).
    job: what kind of job it takes: training (`launch.job.Launch`), serving (`jobs.serving.ServingJob`) or policy
    (`launch.policy.PolicyLaunch`).
    usual: cells that its settings mean where a question leaves them open; or a function of the stated cells.
    adapters: whether it is for fine-tuning, and takes methods other than full training.
    """

    names: tuple[str, ...]
    problems: Callable[[Any], list[str]]
    start: Callable[[Any], LaunchCommand]
    profile: str | Callable[[Mapping[str, Any]], str] = ""
    starter: Starter | None = None
    job: str = "training"
    usual: Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default_factory=dict)
    adapters: bool = False

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


@dataclass(frozen=True)
class Wrapper:
    """A scheduler whose scripts hold the launch of a target: names, the kinds of script, and the writer.

    write(launch, command, starter, kind, placed) → the text; `kind` is empty or one of `kinds`. job: what kind of job
    it starts, as in `Target`; launcher: the target inside it unless another is asked for.
    """

    names: tuple[str, ...]
    write: Callable[[Any, LaunchCommand, Any, str, Placed | None], str]
    kinds: tuple[str, ...] = ()
    job: str = "training"
    launcher: str = "megatron"

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


@dataclass(frozen=True)
class Source:
    """A kind of launch settings that can be read: names, what such a text is, the reader, and the kind of row.

    read(text, given) → (cells of the row schema, remarks); `given` are cells known from elsewhere. kind: as in
    `eval --kind`, training or serving; or policy, a step of `tune --method ppo` or grpo.
    """

    names: tuple[str, ...]
    read: Callable[[str, dict[str, Any]], tuple[dict[str, Any], list[str]]]
    holds: str = ""
    kind: str = "training"

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


FOLDERS = {"write": "TARGET", "wrap": "WRAPPER", "read": "SOURCE"}


def names(folder: str) -> tuple[str, ...]:
    """The names that a folder of `gpucalc.launch` offers, in the order of the alphabet; nothing is imported."""
    return tuple(sorted(module.replace("_", "-") for module in _modules(folder)))


def targets() -> tuple[str, ...]:
    """Names for --launcher and --to: frameworks and engines."""
    return names("write")


def wrappers() -> tuple[str, ...]:
    """Names for --to: schedulers, whose scripts hold the launch of a framework."""
    return names("wrap")


def sources() -> tuple[str, ...]:
    """Names for --from."""
    return names("read")


def find(word: str, folders: tuple[str, ...], what: str) -> Any:
    """The target, wrapper or source that a word names; case, `_` for `-`, and common other names are forgiven.

    Raises UsageError with the nearest name.
    """
    name = word.strip().casefold().replace("_", "-")
    for folder in folders:
        if name in names(folder):
            return _load(folder, name)
    for folder in folders:
        for module in names(folder):
            found = _load(folder, module)
            if name in found.names:
                return found
    raise unknown(f"value of {what}", word, [n for folder in folders for n in names(folder)])


def all_of(folder: str) -> Iterator[Any]:
    """Everything that a folder offers, imported."""
    return (_load(folder, name) for name in names(folder))


def _package(folder: str) -> Any:
    return importlib.import_module(f"gpucalc.launch.{folder}")


def _modules(folder: str) -> Iterator[str]:
    found = pkgutil.iter_modules(_package(folder).__path__)
    return (module.name for module in found if not module.ispkg and not module.name.startswith("_"))


def _load(folder: str, name: str) -> Any:
    module = importlib.import_module(f"gpucalc.launch.{folder}.{name.replace('-', '_')}")
    return getattr(module, FOLDERS[folder])
