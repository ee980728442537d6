"""Polynomial – rectified-monomial networks: sums of powers of affine forms, and max(z, 0)^p.

f = P_L ∘ σ_{L−1} ∘ … ∘ σ_1 ∘ P_1. The group of such a network is known in closed form; the
same group is what `find_symmetry` derives from its operators.
"""

from paramsym.arguments import behind_doors as _behind_doors

from .conversion import Powers as Powers
from .conversion import from_activation as from_activation
from .conversion import from_relu as from_relu
from .conversion import to_mlp as to_mlp
from .conversion import to_relu as to_relu
from .decompose import decompose as decompose
from .decomposition import Decomposition as Decomposition
from .generic_rank import generic_rank as generic_rank
from .monomial import RectifiedMonomial as RectifiedMonomial
from .network import network as network
from .network import require_finite as require_finite
from .polynomial import Polynomial as Polynomial
from .regulariser import Regulariser as Regulariser
from .regulariser import regulariser as regulariser
from .reparametrisation import reparametrised as reparametrised
from .terms import Term as Term

_behind_doors(globals())
