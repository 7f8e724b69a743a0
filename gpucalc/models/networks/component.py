"""A network as a list of components: what each part holds, and what one forward pass of one sample costs in it.

A component says how many parameters it has, how many multiply-accumulates one sample needs, how many elements its
convolutions, linear layers and attention products write, how many of them are launched, and what decides how it
may be split. All numbers are exact counts of the shapes; time and bytes are made of them elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

TRANSFORMER, MMDIT, UNET, CONV, VAE, EMBEDDING, MLP = "transformer", "mmdit", "unet", "conv", "vae", "embedding", "mlp"
KINDS = (TRANSFORMER, MMDIT, UNET, CONV, VAE, EMBEDDING, MLP)
TRAINED, FROZEN, PASSED = "trained", "frozen", "passed"
# Forward passes that a step costs: forward with both gradients; forward alone; forward with the gradient of the input.
PASSES = {TRAINED: 3.0, FROZEN: 1.0, PASSED: 2.0}


@dataclass(frozen=True)
class Component:
    """One part of a network.

    macs, elements and scores are of one forward of one sample (`scores`: the multiply-accumulates of attention
    within macs; `logits`: elements of score matrices, written where attention is not fused). `tokens`, `hidden`,
    `heads` and `blocks` decide how the part is split over GPUs; 0 where it has no such thing. Blocks of a VAE are the
    latent frames of a clip, which it decodes in turn.
    """

    name: str
    kind: str
    parameters: int
    macs: float = 0.0
    elements: float = 0.0
    scores: float = 0.0
    logits: float = 0.0
    launches: int = 0
    state: str = TRAINED
    runs: float = 1.0  # forwards a sample: images of a sample, steps of a denoiser
    tokens: float = 0.0
    hidden: int = 0
    heads: int = 0
    blocks: int = 0
    fast_macs: float = 0.0  # of macs: those of kernels of 3 and more at stride 1, which fp32 algorithms shorten
    bare: float = 0.0  # of elements of a convolution net: those of layers that no norm follows
    looked_up: float = 0.0  # rows of tables that a sample reads
    width: int = 0  # of a row
    tables: int = 0

    def times(self, runs: float) -> Component:
        """The component run `runs` times a sample."""
        return replace(self, runs=self.runs * runs)

    def in_state(self, state: str) -> Component:
        """The component trained, frozen, or passed through."""
        return replace(self, state=state)


@dataclass(frozen=True)
class Network:
    """A model as components; `net` is the kind of net whose rates stand for it, `sample` what is counted."""

    name: str
    net: str
    sample: str
    components: tuple[Component, ...]
    positions: int = 0  # the longest sequence it takes; 0 = any
    steps: int = 0  # denoising steps by default; 0: not a diffusion model
    guided: bool = False  # two forwards a step by default
    guided_in_turn: bool = False  # one after the other, not in one batch
    size: dict[str, int | str] = field(default_factory=dict)  # the sizes that the counts are of

    @property
    def core(self) -> tuple[Component, ...]:
        """The components that the name stands for: of a diffusion model its denoiser, else all of them."""
        denoisers = tuple(part for part in self.components if part.name == "denoiser")
        return denoisers or self.components

    @property
    def parameters(self) -> int:
        """Parameters of what the name stands for."""
        return sum(part.parameters for part in self.core)

    @property
    def macs(self) -> float:
        """Multiply-accumulates of one forward of one sample."""
        return sum(part.macs for part in self.core)

    @property
    def elements(self) -> float:
        """Elements that one forward of one sample writes, score matrices among them."""
        return sum(part.elements + part.logits for part in self.core)


@dataclass
class Count:
    """A running count of layers of one component."""

    parameters: int = 0
    macs: float = 0.0
    elements: float = 0.0
    scores: float = 0.0
    logits: float = 0.0
    launches: int = 0
    fast_macs: float = 0.0
    bare: float = 0.0

    def component(self, name: str, kind: str, **more: Any) -> Component:
        """The count as a component."""
        return Component(
            name,
            kind,
            self.parameters,
            self.macs,
            self.elements,
            self.scores,
            self.logits,
            self.launches,
            fast_macs=self.fast_macs,
            bare=self.bare if kind == CONV else 0.0,
            **more,
        )

    def vector(self, parameters: int) -> None:
        """Parameters without products: norms, biases, tokens."""
        self.parameters += parameters

    def linear(self, inputs: int, outputs: int, rows: float = 1, bias: bool = True) -> None:
        """A linear layer on `rows` rows.

        >>> count = Count()
        >>> count.linear(2048, 1000)
        >>> count.parameters, count.macs, count.elements
        (2049000, 2048000.0, 1000.0)
        """
        self.parameters += inputs * outputs + (outputs if bias else 0)
        self.macs += rows * inputs * outputs
        self.elements += rows * outputs
        self.launches += 1

    def conv(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...] | int,
        size: tuple[int, ...],
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        norm: bool = True,
        valid: bool = False,
    ) -> tuple[int, ...]:
        """A convolution in as many dimensions as `size` has, with its norm; the size of what it writes.

        >>> count = Count()
        >>> count.conv(3, 64, 7, (224, 224), 2)
        (112, 112)
        >>> count.parameters, count.macs, count.elements
        (9536, 118013952.0, 802816.0)
        """
        taps = 1
        kernels = kernel if isinstance(kernel, tuple) else (kernel,) * len(size)
        for k in kernels:
            taps *= k
        if valid:
            out = tuple((n - k) // stride + 1 for n, k in zip(size, kernels, strict=True))
        else:
            out = tuple(-(-n // stride) for n in size)
        pixels = 1
        for n in out:
            pixels *= n
        self.parameters += taps * inputs * outputs // groups + (outputs if bias else 0) + (2 * outputs if norm else 0)
        macs = float(taps * inputs * outputs // groups * pixels)
        self.macs += macs
        if stride == 1 and groups == 1 and min(kernels) >= 3 and inputs >= 16:
            self.fast_macs += macs
        self.elements += float(outputs * pixels)
        self.bare += 0.0 if norm else float(outputs * pixels)
        self.launches += 1
        return out

    def attention(
        self,
        width: int,
        tokens: float,
        heads: int,
        *,
        inner: int = 0,
        context: float | None = None,
        context_width: int = 0,
        bias: bool = True,
        qkv_bias: bool | None = None,
        causal: bool = False,
        fused_qkv: bool = True,
    ) -> None:
        """Attention of `tokens` on themselves, or on `context` tokens: projections, scores and their product.

        A causal mask halves the score products of a kernel that skips; a bidirectional one does not.
        """
        inner = inner or width
        on = tokens if context is None else context
        source = width if context is None else context_width or width
        qb = bias if qkv_bias is None else qkv_bias
        self.linear(width, inner, tokens, qb)
        self.linear(source, inner, on, qb)
        self.linear(source, inner, on, qb)
        self.linear(inner, width, tokens, bias)
        scores = 2 * tokens * on * inner * (0.5 if causal else 1.0)
        self.macs += scores
        self.scores += scores
        self.logits += tokens * on * heads
        self.elements += tokens * inner
        self.launches += 1

    def feed_forward(self, width: int, inner: int, tokens: float, *, gated: bool = False, bias: bool = True) -> None:
        """A feed-forward block; a gated one has two matrices in."""
        for _ in range(2 if gated else 1):
            self.linear(width, inner, tokens, bias)
        self.linear(inner, width, tokens, bias)
