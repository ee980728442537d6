"""How a member is made of a network: five transformations of the layers around a hidden layer.

Each module has one of them, as a `Method`: which g moves what writes the layer, V → gV and b → gb,
and which π moves what reads it, U → U π.
"""

from __future__ import annotations

from .group import METHOD as GROUP
from .interpolated_permutation import METHOD as INTERPOLATED_PERMUTATION
from .inverse import METHOD as INVERSE
from .method import Draw as Draw
from .method import Method as Method
from .random_diagonal import METHOD as RANDOM
from .shuffle import METHOD as SHUFFLE

METHODS: dict[str, Method] = {
    "group": GROUP,
    "inverse": INVERSE,
    "random": RANDOM,
    "shuffle": SHUFFLE,
    "interpolated-permutation": INTERPOLATED_PERMUTATION,
}
