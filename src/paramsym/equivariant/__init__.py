"""Linear networks that are invariant or equivariant under permutations or orthogonal matrices.

The equivariant matrices of bounded rank form a real algebraic variety with many components. Each
is, after an orthogonal change of basis, a product of determinantal varieties over ℝ, ℂ and ℍ, so
that everything about it is known in closed form, the best one for given data included.
"""

from paramsym.arguments import behind_doors as _behind_doors

from .autoencoder import EquivariantAutoencoder as EquivariantAutoencoder
from .checks import assert_equivariant as assert_equivariant
from .checks import equivariance_error as equivariance_error
from .component import Component as Component
from .components import Components as Components
from .components import components as components
from .decomposition import Decomposition as Decomposition
from .decomposition import Isotypic as Isotypic
from .decomposition import decompose as decompose
from .errors import BadNumberError as BadNumberError
from .errors import EquivariantError as EquivariantError
from .errors import NearlyEqualError as NearlyEqualError
from .errors import NoSuchComponentError as NoSuchComponentError
from .errors import NotAPermutationError as NotAPermutationError
from .errors import NotASecondMomentError as NotASecondMomentError
from .errors import NotFiniteError as NotFiniteError
from .errors import NotOrthogonalError as NotOrthogonalError
from .errors import RankTooLargeError as RankTooLargeError
from .errors import ShapeMismatchError as ShapeMismatchError
from .groups import PermutationGroup as PermutationGroup
from .groups import cycle_partition as cycle_partition
from .groups import finest_common_coarsening as finest_common_coarsening
from .groups import reduce_to_cyclic as reduce_to_cyclic
from .image_groups import colour_permutations as colour_permutations
from .image_groups import image_dihedral as image_dihedral
from .image_groups import image_reflection as image_reflection
from .image_groups import image_rotation as image_rotation
from .image_groups import image_shift as image_shift
from .image_groups import symmetric_on_subsets as symmetric_on_subsets
from .invariance import InvariantVariety as InvariantVariety
from .layers import EquivariantLinear as EquivariantLinear
from .layers import InvariantLinear as InvariantLinear
from .optimum import Optimum as Optimum
from .optimum import best_component as best_component
from .optimum import best_on_component as best_on_component
from .optimum import dense_loss as dense_loss
from .optimum import loss_of as loss_of
from .orthogonal import OrthogonalGroup as OrthogonalGroup
from .orthogonal import signed_permutation as signed_permutation
from .projection import CriticalPoint as CriticalPoint
from .projection import critical_points as critical_points
from .projection import equivariant_part as equivariant_part
from .projection import nearest_component as nearest_component
from .projection import project as project
from .sharing import weight_sharing as weight_sharing

_behind_doors(globals())
