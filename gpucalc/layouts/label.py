"""The layout label: `tp8-pp4-dp2-mbs1-zero1-sp` ↔ the fields of a layout, exactly, both ways.

Tokens stand in one order and each is left out at its default. A label that leaves a token out means
the default, so that what `plan` prints is what `explain` evaluates; `parse_label` gives the stated
tokens alone, for a restriction of a search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError, nearest

LARGEST = 10**9  # more ranks, layers or sequences than this is a slip of the hand

_COUNTS = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "vpp": "vpp",
    "mbs": "micro_batch",
    "shard": "shard_group",
}
_SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "int": "interleaved",
    "zbh1": "zb-h1",
    "zb1p": "zb-1p",
    "zb2p": "zb-2p",
    "dualpipe": "dualpipe",
    "dualpipev": "dualpipe-v",
}
_SCHEDULE_TOKENS = {schedule: token for token, schedule in _SCHEDULES.items()}
_CP_KINDS = ("ring", "ag", "ulysses")
_RECOMPUTES = ("none", "selective", "full")
_WORDS: dict[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True),
    **{token: ("schedule", schedule) for token, schedule in _SCHEDULES.items()},
    **{kind: ("cp_kind", kind) for kind in _CP_KINDS},
    **{kind: ("recompute", kind) for kind in _RECOMPUTES},
    "offload-opt": ("offload_optimizer", True),
    "offload-act": ("offload_activations", True),
    **{f"zero{stage}": ("zero_stage", stage) for stage in range(4)},
}
_KNOWN = [*(f"{token}N" for token in _COUNTS), *_WORDS, "fullN"]
EXAMPLE = "tp8-pp4-dp2-mbs1-zero1-sp"


def default_schedule(pp: int, vpp: int) -> str:
    """The schedule that an unstated one means."""
    if pp == 1:
        return "none"
    return "interleaved" if vpp > 1 else "1f1b"


@dataclass(frozen=True)
class Layout:
    """How a job is laid out over its GPUs; None means not stated, so that another rule decides.

    Schedule "" or "none" means the default of pp and vpp. With recompute "full", `recompute_layers`
    limits it to that many layers of each stage's share.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    micro_batch: int | None = None
    zero_stage: int | None = None
    shard_group: int | None = None
    sequence_parallel: bool = False
    schedule: str = ""
    cp_kind: str = "ring"
    recompute: str | None = None
    recompute_layers: int | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False

    def __post_init__(self) -> None:
        """Bring fields that say the same thing into one form."""
        if self.schedule in {"", "none"}:
            object.__setattr__(self, "schedule", default_schedule(self.pp, self.vpp))
        if self.recompute_layers is not None and self.recompute is None:
            object.__setattr__(self, "recompute", "full")
        if self.recompute != "full":
            object.__setattr__(self, "recompute_layers", None)

    def label(self) -> str:
        """The label, tokens in their order, each left out at its default; a layout of defaults alone is "tp1".

        >>> Layout(tp=8, pp=4, dp=2, micro_batch=1, zero_stage=1, sequence_parallel=True).label()
        'tp8-pp4-dp2-mbs1-zero1-sp'
        """
        counts = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")
        tokens = [f"{name}{getattr(self, name)}" for name in counts if getattr(self, name) != 1]
        if self.micro_batch is not None:
            tokens.append(f"mbs{self.micro_batch}")
        if self.zero_stage is not None:
            tokens.append(f"zero{self.zero_stage}")
        if self.shard_group is not None:
            tokens.append(f"shard{self.shard_group}")
        if self.sequence_parallel:
            tokens.append("sp")
        if self.schedule != default_schedule(self.pp, self.vpp):
            tokens.append(_SCHEDULE_TOKENS[self.schedule])
        if self.cp_kind != "ring":
            tokens.append(self.cp_kind)
        if self.recompute is not None:
            tokens.append(self.recompute + ("" if self.recompute_layers is None else str(self.recompute_layers)))
        if self.offload_optimizer:
            tokens.append("offload-opt")
        if self.offload_activations:
            tokens.append("offload-act")
        return "-".join(tokens) or "tp1"

    def cells(self) -> dict[str, Any]:
        """The cells of the row schema; what is not stated is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_cells(cls, cells: Mapping[str, Any]) -> Layout:
        """The layout in a row's typed cells; other cells and empty ones are passed over."""
        names = cls.__dataclass_fields__
        return cls(**{n: v for n, v in cells.items() if n in names and v is not None})

    @classmethod
    def from_label(cls, text: str) -> Layout:
        """The layout that a label means."""
        return cls.from_cells(parse_label(text))


def _tokens(text: str) -> list[str]:
    """The label's tokens; the dash inside offload-opt and offload-act does not part."""
    return re.sub(r"\boffload[-_](opt|act)", r"offload_\1", text.strip().casefold()).split("-")


def _token(token: str) -> tuple[tuple[str, Any], ...]:
    word = token.replace("_", "-") if token.startswith("offload") else token
    if word in _WORDS:
        return (_WORDS[word],)
    match = re.fullmatch(r"([a-z]+)([0-9]+)", word)
    if not match:
        raise UsageError(_unknown(token))
    name, number = match[1], match[2]
    if name == "zero":
        raise UsageError(f"{token!r}: ZeRO has stages 0 to 3")
    if name not in _COUNTS and name != "full":
        raise UsageError(_unknown(token))
    if len(number) > 10 or not 1 <= int(number) <= LARGEST:
        raise UsageError(f"{token!r}: the number after {name} must be between 1 and {LARGEST}")
    if name == "full":
        return (("recompute", "full"), ("recompute_layers", int(number)))
    return ((_COUNTS[name], int(number)),)


def _unknown(token: str) -> str:
    shown = token if len(token) <= 40 else token[:39] + "…"
    if not token:
        return "an empty token (two dashes in a row, or a dash at an end)"
    if token in _COUNTS:
        return f"{token!r} lacks its number; write for example {token}2"
    number = "".join(re.findall(r"[0-9]+$", shown))
    near = nearest(re.sub(r"[0-9]+$", "N", shown), _KNOWN, 1) or nearest(shown, _KNOWN, 1)
    hint = f", did you mean {re.sub('N$', number or '2', near[0])}?" if near else ""
    return f"unknown token {shown!r}{hint}"


def parse_label(text: str) -> dict[str, Any]:
    """The cells that a label's tokens state, in any order and case.

    Raises UsageError that lists every bad or repeated token.

    >>> parse_label("tp8-sp-full12")
    {'tp': 8, 'sequence_parallel': True, 'recompute': 'full', 'recompute_layers': 12}
    """
    if not text.strip():
        raise UsageError(f"the layout label is empty; write for example {EXAMPLE}")
    cells: dict[str, Any] = {}
    problems: list[str] = []
    for token in _tokens(text):
        try:
            for index, (name, value) in enumerate(_token(token)):
                if name in cells and index == 0:
                    problems.append(f"{token!r} states {name} a second time")
                cells.setdefault(name, value)
        except UsageError as error:
            problems.extend(error.problems)
    if problems:
        shown = text.strip() if len(text) <= 80 else text.strip()[:79] + "…"
        raise UsageError(f"layout {shown!r}: " + ", ".join(problems[:8]))
    return cells


def label_cells(text: str) -> dict[str, Any]:
    """All cells of the row schema that a label decides, its defaults included.

    dp is among them only when stated; a label without it follows from the number of GPUs.

    >>> label_cells("tp2-mbs1")["pp"], "dp" in label_cells("tp2-mbs1")
    (1, False)
    """
    stated = parse_label(text)
    cells = Layout.from_cells(stated).cells()
    if "dp" not in stated:
        del cells["dp"]
    return cells
