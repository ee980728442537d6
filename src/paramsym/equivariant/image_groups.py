"""Permutation groups of images: pixels are numbered row by row, channels outermost."""

import numpy as np
from numpy.typing import NDArray

from .arguments import whole
from .errors import EquivariantError
from .groups import PermutationGroup


def _group(*moved: NDArray[np.intp]) -> PermutationGroup:
    """From arrays whose entry at a place is the number of the pixel that moves there."""
    return PermutationGroup(tuple(tuple(np.argsort(m.ravel()).tolist()) for m in moved))


def _pixels(height: int, width: int, channels: int = 1) -> NDArray[np.intp]:
    sizes = {"channels": channels, "height": height, "width": width}
    shape = [whole(value, f"image group({name}=…)", low=1) for name, value in sizes.items()]
    return np.arange(np.prod(shape)).reshape(shape)


def image_shift(
    height: int, width: int, axis: str = "horizontal", channels: int = 1
) -> PermutationGroup:
    """Cyclic translations of a height × width image.

    Args:
        axis: "horizontal" (to the right by one pixel), "vertical" (down by one), or "both" (the
            product of the two, with two generators).
        channels: how many images move together.

    Raises:
        EquivariantError: another axis.
    """
    pixels = _pixels(height, width, channels)
    right, down = np.roll(pixels, 1, axis=2), np.roll(pixels, 1, axis=1)
    moves = {"horizontal": (right,), "vertical": (down,), "both": (down, right)}
    if axis not in moves:
        raise EquivariantError(
            f"image_shift(axis={axis!r}): expected 'horizontal', 'vertical' or 'both'. "
            "Pass one of the three."
        )
    return _group(*moves[axis])


def image_rotation(size: int, channels: int = 1) -> PermutationGroup:
    """Rotations of a size × size image by multiples of 90°."""
    return _group(np.rot90(_pixels(size, size, channels), axes=(1, 2)))


def image_reflection(
    height: int, width: int, axis: str = "horizontal", channels: int = 1
) -> PermutationGroup:
    """The mirror image: left and right exchanged ("horizontal") or top and bottom ("vertical").

    Raises:
        EquivariantError: another axis.
    """
    if axis not in ("horizontal", "vertical"):
        raise EquivariantError(
            f"image_reflection(axis={axis!r}): expected 'horizontal' or 'vertical'. "
            "Pass one of the two."
        )
    return _group(np.flip(_pixels(height, width, channels), 2 if axis == "horizontal" else 1))


def image_dihedral(size: int, channels: int = 1) -> PermutationGroup:
    """The eight symmetries of the square: rotations by 90° and reflections."""
    return image_rotation(size, channels) | image_reflection(size, size, channels=channels)


def colour_permutations(height: int, width: int, channels: int = 3) -> PermutationGroup:
    """All permutations of the colour channels, the pixels staying in place."""
    pixels = _pixels(height, width, channels)
    swap = pixels[[1, 0, *range(2, channels)]] if channels > 1 else pixels
    return _group(swap, np.roll(pixels, 1, axis=0))


def symmetric_on_subsets(points: int, size: int = 2) -> PermutationGroup:
    """The symmetric group S_points acting on the subsets of one size (66 pairs for 12 points)."""
    from itertools import combinations

    points = whole(points, "symmetric_on_subsets(points=…)", low=1)
    size = whole(size, "symmetric_on_subsets(size=…)", high=points)
    subsets = list(combinations(range(points), size))
    number = {subset: index for index, subset in enumerate(subsets)}

    def induced(images: list[int]) -> tuple[int, ...]:
        return tuple(number[tuple(sorted(images[i] for i in s))] for s in subsets)

    cycle = [*range(1, points), 0]
    swap = [1, 0, *range(2, points)] if points > 1 else [0]
    return PermutationGroup((induced(swap), induced(cycle)))
