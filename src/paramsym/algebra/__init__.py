"""Groups that act on feature spaces: no network in sight."""

from .complex_scaling import ComplexScaling as ComplexScaling
from .complex_scaling import UnitComplex as UnitComplex
from .element import Element as Element
from .element import Tangent as Tangent
from .element import dense as dense
from .element import first_order as first_order
from .group import Group as Group
from .group import Power as Power
from .group import default_tolerance as default_tolerance
from .group import meet as meet
from .lattice import monomial as monomial
from .linear import GeneralLinear as GeneralLinear
from .linear import Orthogonal as Orthogonal
from .linear import OrthogonalFixingOnes as OrthogonalFixingOnes
from .monomial import AbstractMonomial as AbstractMonomial
from .monomial import Monomial as Monomial
from .monomial import Permutation as Permutation
from .monomial import PositiveScaling as PositiveScaling
from .monomial import Scaling as Scaling
from .monomial import SignedPermutation as SignedPermutation
from .monomial import Signs as Signs
from .monomial import Trivial as Trivial
from .text import parse_group as parse_group
from .wreath import Wreath as Wreath
