"""Symmetries that nobody wrote down: found by linear algebra, learned, built, and inherited.

An action of a group G on parameters may depend on the data: a_X(g, θ) with a_X(I, θ) = θ,
a_X(g₂, a_X(g₁, θ)) = a_X(g₂g₁, θ) and L(a_X(g, θ), X) = L(θ, X).
"""

from .comparison import Comparison as Comparison
from .found import LinearSymmetries as LinearSymmetries
from .generators import Gap as Gap
from .generators import Generator as Generator
from .lie_algebra import LieAlgebra as LieAlgebra
from .lie_algebra import lie_algebra as lie_algebra
from .linear_symmetries import linear_symmetries as linear_symmetries
