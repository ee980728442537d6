"""Groups of every kind of block, small enough for brute force."""

from paramsym.equivariant import (
    PermutationGroup,
    colour_permutations,
    image_dihedral,
    image_rotation,
    image_shift,
    symmetric_on_subsets,
)


def cycles(degree: int, *generators: list[list[int]]) -> PermutationGroup:
    return PermutationGroup.from_cycles(*generators, degree=degree)


def quaternion_group() -> PermutationGroup:
    """Q₈ acting on itself by multiplication from the left: its 4-dimensional block is over ℍ."""
    product = {("1", u): (1, u) for u in "1ijk"} | {(u, "1"): (1, u) for u in "1ijk"}
    for a, b, c in ("ijk", "jki", "kij"):
        product[a, b], product[b, a] = (1, c), (-1, c)
    for u in "ijk":
        product[u, u] = (-1, "1")
    elements = [(s, u) for s in (1, -1) for u in "1ijk"]
    number = {e: i for i, e in enumerate(elements)}

    def times(g: str, e: tuple[int, str]) -> int:
        sign, unit = product[g, e[1]]
        return number[e[0] * sign, unit]

    return PermutationGroup(tuple(tuple(times(g, e) for e in elements) for g in "ij"))


def copies(group: PermutationGroup, count: int) -> PermutationGroup:
    """The same group on several copies of its points."""
    n = group.degree
    images = (tuple(c * n + i for c in range(count) for i in g) for g in group.generators)
    return PermutationGroup(tuple(images))


# name: (group, blocks as (δ, p, d) sorted)
GROUPS = {
    "identity": (cycles(3, []), [(1, 1, 3)]),
    "source (134)(25)": (cycles(5, [[0, 2, 3], [1, 4]]), [(1, 1, 1), (1, 1, 2), (2, 2, 1)]),
    "4-cycle": (cycles(4, [[0, 1, 2, 3]]), [(1, 1, 1), (1, 1, 1), (2, 2, 1)]),
    "rotation 3x3": (image_rotation(3), [(1, 1, 2), (1, 1, 3), (2, 2, 2)]),
    "6-cycle and 4-cycle": (
        cycles(10, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]),
        [(1, 1, 2), (1, 1, 2), (2, 2, 1), (2, 2, 1), (2, 2, 1)],
    ),
    "Klein": (
        cycles(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]]),
        [(1, 1, 1)] * 4,
    ),
    "both shifts 3x4": (image_shift(3, 4, "both"), [(1, 1, 1)] * 2 + [(2, 2, 1)] * 5),
    "rows 4x5": (image_shift(4, 5), [(1, 1, 4), (2, 2, 4), (2, 2, 4)]),
    "S4 on pairs": (symmetric_on_subsets(4), [(1, 1, 1), (1, 2, 1), (1, 3, 1)]),
    "A4": (cycles(4, [[0, 1, 2]], [[1, 2, 3]]), [(1, 1, 1), (1, 3, 1)]),
    "Frobenius 21": (cycles(7, [list(range(7))], [[1, 2, 4], [3, 6, 5]]), [(1, 1, 1), (2, 6, 1)]),
    "Frobenius 21, twice": (
        copies(cycles(7, [list(range(7))], [[1, 2, 4], [3, 6, 5]]), 2),
        [(1, 1, 2), (2, 6, 2)],
    ),
    "Q8": (quaternion_group(), [(1, 1, 1)] * 4 + [(4, 4, 1)]),
    "Q8, three times": (copies(quaternion_group(), 3), [(1, 1, 3)] * 4 + [(4, 4, 3)]),
    "dihedral 4x4": (image_dihedral(4), [(1, 1, 1), (1, 1, 1), (1, 1, 3), (1, 1, 3), (1, 2, 4)]),
    "colours 2x2": (colour_permutations(2, 2), [(1, 1, 4), (1, 2, 4)]),
}
