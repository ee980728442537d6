"""Ensembles along data-dependent orbits, and what attacks leave of them."""

from paramsym.arguments import behind_doors as _behind_doors

from .attacks.attack import attack as attack
from .attacks.robustness import RobustAccuracy as RobustAccuracy
from .attacks.robustness import robust_accuracy as robust_accuracy
from .correction import Correction as Correction
from .correction import fitted_correction as fitted_correction
from .members import MemberEnsemble as MemberEnsemble
from .orbit_ensemble import MemberFit as MemberFit
from .orbit_ensemble import OrbitEnsemble as OrbitEnsemble
from .voting import majority_vote as majority_vote

_behind_doors(globals())
