"""What is assumed of networks and software stacks before rows are fitted: physical sizes, and how sure they are.

Four constants each: share of the peak that products reach, bytes moved for an element of two bytes that a layer writes,
host seconds of a layer, seconds of a step besides. Those of `base` are of eager PyTorch on a convolution net's forward;
all others are factors on them.
"""

from __future__ import annotations

SAME = (1.0, 1.0, 1.0, 1.0)
WIDTHS = (1.6, 1.8, 2.5, 2.0)  # factors by which a constant may well lie off
CELL_WIDTH = 0.5  # of these, of one combination of stack, mode, net and precision beyond its factors
PRIORS: dict[str, tuple[float, float, float, float]] = {
    # A layer is a convolution, its norm and its activation: write, read, write, read, write, read, 2 bytes each, and
    # sums of residuals; three to four kernels of 20 to 40 µs of Python and dispatch each.
    "base": (0.94, 14.0, 1.2e-4, 1e-3),
    # Norm and activation joined with what wrote their input: a write and a read; a captured graph starts in no time.
    "mark compiled": (1.1, 0.45, 0.4, 1.0),
    "mark nhwc": (1.1, 0.9, 1.0, 1.0),  # no transposition before matrix units
    "stack tuned": (1.15, 0.5, 0.1, 0.2),
    "stack hugectr": (1.15, 0.5, 0.1, 0.2),
    "stack nemo": (1.1, 0.6, 0.6, 0.5),
    "stack jax": (0.8, 0.7, 0.3, 1.0),
    "stack xdit": (1.0, 0.8, 1.0, 1.0),
    # An engine is fused and captured, and has products of 8 bits where nobody states a precision.
    "stack tensorrt": (1.9, 0.45, 0.07, 0.3),
    # Of three passes two go backward: norms read their input again, gradients are written and added.
    "mode training": (1.0, 1.5, 0.5, 3.0),
    "mode generation": (1.0, 1.0, 1.0, 10.0),
    # Transformers: one norm and one activation for several products.
    "net vit": (1.0, 0.6, 0.6, 1.0),
    "net encoder": (1.0, 0.55, 0.5, 1.0),
    "net dit": (1.0, 0.5, 0.5, 1.0),
    "net hierarchical": (0.65, 0.65, 0.8, 1.0),  # windows: small products, and their partition copies
    "net recommender": (1.0, 1.0, 1.0, 0.1),  # a step of a millisecond has no more around it
    "net unet": (1.0, 0.6, 0.6, 1.0),
    "precision fp32": (0.85, 0.9, 1.0, 1.0),
    "precision tf32": (0.9, 1.0, 1.0, 1.0),
    "precision 8": (0.8, 0.7, 1.0, 1.0),  # norms and sums stay in 16 bits
    "memory gddr": (1.15, 1.0, 1.0, 1.0),  # GeForce boards run above the boost clock that their peak is quoted at
}
