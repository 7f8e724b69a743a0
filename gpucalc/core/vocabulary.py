"""Words of the row schema whose position in their tuple is the number that the columns carry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from gpucalc.core.errors import unknown


class Words(Sequence[str]):
    """Words of a column in the order of their codes, to which a table that knows more about them may add.

    The order is nothing but a number for each word: what a word means stands in its table.

    >>> list(Words("a", "b")), Words("a", "b").index("b")
    (['a', 'b'], 1)
    """

    def __init__(self, *words: str) -> None:
        self._words = list(words)
        self._codes = {word: code for code, word in enumerate(words)}

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._words[index]

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The code of a word; ValueError where it has none."""
        if start or stop is not None or value not in self._codes:
            return self._words.index(value, start, len(self._words) if stop is None else stop)
        return self._codes[value]

    def __repr__(self) -> str:
        return f"Words{tuple(self._words)!r}"

    def add(self, word: str) -> None:
        """Give a new word the next code; ValueError for one that is there."""
        if word in self._words:
            raise ValueError(f"{word!r} is registered twice")
        self._codes[word] = len(self._words)
        self._words.append(word)

    def remove(self, word: str) -> None:
        """Take the last word back, so that no code of another changes."""
        if self._words[-1] != word:
            raise ValueError(f"{word!r} is not the last word registered")
        del self._codes[self._words.pop()]


# What each schedule is stands in gpucalc.layouts.schedules.
SCHEDULES = Words("none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-1p", "zb-2p", "dualpipe", "dualpipe-v")
RECOMPUTES = ("none", "selective", "full")
CP_KINDS = ("ring", "ag", "ulysses")
OPTIMIZERS = ("adam", "adam8bit", "paged-adam8bit", "sgd", "adafactor", "muon")
LORA_TARGETS = ("q", "k", "v", "o", "mlp")
LORA_SETS = {"qv": "q+v", "qkv": "q+k+v", "attention": "q+k+v+o", "all": "q+k+v+o+mlp", "all-linear": "q+k+v+o+mlp"}
QUANTISATIONS = ("none", "nf4", "nf4-dq", "int4", "int8", "fp8")
METHODS = ("full", "lora", "qlora", "adapter", "adapter-v2")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "bf16-true", "fp8", "mxfp8", "nvfp4", "mxfp4")
NETWORK_PRECISIONS = (*PRECISIONS, "int8", "int4")  # inference of networks and quantised bases
MODES = ("training", "inference", "generation")
NETS = ("conv", "depthwise", "vit", "hierarchical", "mixed")  # kinds of net that three numbers may state
SCOPES = ("full", "denoiser")
FLASH_KINDS = ("no", "yes", "fa1", "fa2", "fa3", "vendor")
MEM_COUNTERS = ("allocated", "reserved", "nvidia-smi")
LOSS_KERNELS = ("eager", "inplace", "compiled", "chunked", "linear")
GRADIENT_DTYPES = ("fp32", "bf16", "fp16")
ATTENTION_PRECISIONS = ("16bit", "fp8")
CUDA_GRAPHS = ("no", "layer", "full")
EXPERT_KERNELS = ("grouped", "loop", "padded")
DISPATCHERS = ("alltoall", "allgather", "fused")
FITS = ("fits", "risky", "oom")
WIRINGS = ("nvswitch", "mesh", "hybrid-cube-mesh", "pcie", "torus-2d", "torus-3d", "none")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "send_recv")
# Letters and digits of a spelling → the operation: as here, as nccl-tests, MPI and PyTorch write it.
_OPERATION_SPELLINGS = {name.replace("_", ""): name for name in OPERATIONS} | {
    "a2a": "alltoall",
    "sendreceive": "send_recv",
    "p2p": "send_recv",
    "pointtopoint": "send_recv",
}


def operation(text: str) -> str:
    """The collective that a spelling means: all-reduce, AllReduce and all_reduce are one.

    Raises UsageError with the nearest operations for a name that is none.

    >>> operation("All-Reduce"), operation("all_to_all"), operation("a2a"), operation("p2p")
    ('all_reduce', 'alltoall', 'alltoall', 'send_recv')
    """
    folded = "".join(c for c in text.casefold() if c.isalnum())
    if folded not in _OPERATION_SPELLINGS:
        raise unknown("operation", text, OPERATIONS)
    return _OPERATION_SPELLINGS[folded]


PROTOCOLS = ("ll", "ll128", "simple")  # of NCCL: for small messages, middling ones, large ones
TOPOLOGIES = ("fat-tree", "rail", "dragonfly", "torus-2d", "torus-3d")
PLACEMENTS = ("consecutive", "scattered")
LIBRARIES = ("nccl", "hierarchical")  # of collectives: flat rings and trees, or gathers in domains and between them
