"""Polynomial – rectified-monomial networks: sums of powers of affine forms, and max(z, 0)^p.

f = P_L ∘ σ_{L−1} ∘ … ∘ σ_1 ∘ P_1. The group of such a network is known in closed form; the
same group is what `find_symmetry` derives from its operators.
"""

from .decompose import decompose as decompose
from .decomposition import Decomposition as Decomposition
from .generic_rank import generic_rank as generic_rank
from .monomial import RectifiedMonomial as RectifiedMonomial
from .network import network as network
from .network import require_finite as require_finite
from .polynomial import Polynomial as Polynomial
from .regulariser import Regulariser as Regulariser
from .regulariser import regulariser as regulariser
from .terms import Term as Term
