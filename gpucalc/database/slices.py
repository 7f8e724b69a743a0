"""The sides of a torus: of the slice of chips that a job takes, or of the nodes of a torus network."""

from __future__ import annotations

import functools
from math import inf, prod

from gpucalc.core.errors import UsageError

Sides = tuple[int, ...]


def torus_sides(text: str, count: int, dimensions: int, what: str) -> Sides:
    """The sides that a text such as `4x4x8` states, which must multiply to `count` of `what`, ascending.

    >>> torus_sides("8x4x4", 128, 3, "chips"), torus_sides("4x4", 16, 3, "chips")
    ((4, 4, 8), (1, 4, 4))

    Raises UsageError with the nearest shapes.
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(p.strip().isdecimal() and 1 <= int(p) <= 10**9 for p in parts) or len(parts) > dimensions:
        example = "x".join(map(str, usual_sides(count, dimensions)))
        raise UsageError(f"torus_sides is {text!r}, expected {dimensions} whole numbers such as {example}")
    sides = sorted(int(p) for p in parts)
    if prod(sides) != count:
        near = " or ".join("x".join(map(str, shape)) for shape in _nearest(sides, count, dimensions))
        raise UsageError(f"torus_sides {text} multiply to {prod(sides):,}, expected {count:,} {what}: {near}")
    return (1,) * (dimensions - len(sides)) + tuple(sides)


@functools.lru_cache(maxsize=1024)
def shapes(count: int, dimensions: int) -> tuple[Sides, ...]:
    """All ways to write `count` as a product of `dimensions` sides, each ascending.

    >>> shapes(12, 2)
    ((1, 12), (2, 6), (3, 4))
    """
    found: list[Sides] = []
    low = 1
    while low**dimensions <= count:
        if count % low == 0:
            rest: tuple[Sides, ...] = ((count // low,),)
            if dimensions > 2:
                rest = shapes(count // low, dimensions - 1)
            found += [(low, *sides) for sides in rest if low <= sides[0]]
        low += 1
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def usual_sides(count: int, dimensions: int) -> Sides:
    """The most compact box of `count` chips: of cubes of four a side where they suffice, as TPU slices are sold.

    >>> usual_sides(16, 3), usual_sides(4096, 3), usual_sides(6144, 3), usual_sides(8, 2)
    ((2, 2, 4), (16, 16, 16), (16, 16, 24), (2, 4))
    """

    def sold(sides: Sides) -> bool:
        return all(side in {1, 2} or side % 4 == 0 for side in sides)

    return min(shapes(count, dimensions), key=lambda sides: (not sold(sides), sides[-1], -sides[0]))


def _nearest(stated: list[int], count: int, dimensions: int) -> list[Sides]:
    wanted = (1,) * (dimensions - len(stated)) + tuple(stated)

    def distance(sides: Sides) -> float:
        return sum(max(a / b, b / a) for a, b in zip(sides, wanted, strict=True)) if sides else inf

    return sorted(shapes(count, dimensions), key=lambda sides: (distance(sides), sides))[:2]
