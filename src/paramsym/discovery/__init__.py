"""Symmetries that nobody wrote down: found by linear algebra, learned, built, and inherited.

An action of a group G on parameters may depend on the data: a_X(g, θ) with a_X(I, θ) = θ,
a_X(g₂, a_X(g₁, θ)) = a_X(g₂g₁, θ) and L(a_X(g, θ), X) = L(θ, X).
"""

from paramsym.arguments import behind_doors as _behind_doors

from .acting.action_check import ActionCheck as ActionCheck
from .acting.action_check import Row as Row
from .acting.action_check import Verdict as Verdict
from .acting.actions import check_action as check_action
from .acting.commutators import commutator_defect as commutator_defect
from .acting.commutators import field as field
from .acting.commutators import published_associativity as published_associativity
from .acting.constructed import ConstructedAction as ConstructedAction
from .acting.constructed import constructed_action as constructed_action
from .acting.estimates import Estimate as Estimate
from .acting.inheritance import inherit as inherit
from .acting.inheritance import on_units as on_units
from .acting.inheritance import with_appended as with_appended
from .acting.level_sets import RankDrops as RankDrops
from .activations.intertwiners import Intertwiners as Intertwiners
from .activations.intertwiners import intertwiners as intertwiners
from .activations.lift import lift as lift
from .activations.registration import register_rule as register_rule
from .activations.relation import Family as Family
from .activations.relation import Relation as Relation
from .algebras.comparison import Comparison as Comparison
from .algebras.lie_algebra import LieAlgebra as LieAlgebra
from .algebras.lie_algebra import lie_algebra as lie_algebra
from .general_linear.cocycle import AbstractChange as AbstractChange
from .general_linear.cocycle import change_between as change_between
from .general_linear.cocycle import cocycle as cocycle
from .general_linear.data_dependent import DataDependentAction as DataDependentAction
from .general_linear.data_dependent import data_dependent_action as data_dependent_action
from .general_linear.degenerate import Degenerate as Degenerate
from .general_linear.frames import HouseholderFrame as HouseholderFrame
from .general_linear.frames import NearJump as NearJump
from .general_linear.frames import SphericalFrame as SphericalFrame
from .general_linear.layers import lipschitz_bound as lipschitz_bound
from .general_linear.layers import move_layers as move_layers
from .general_linear.layers import move_two_layers as move_two_layers
from .learned import Learned as Learned
from .learned import layered as layered
from .learned import learn as learn
from .learned import terms_on as terms_on
from .linear.found import LinearSymmetries as LinearSymmetries
from .linear.generators import Gap as Gap
from .linear.generators import Generator as Generator
from .linear.linear_symmetries import linear_symmetries as linear_symmetries

_behind_doors(globals())
