"""Symmetries that nobody wrote down: found by linear algebra, learned, built, and inherited.

An action of a group G on parameters may depend on the data: a_X(g, θ) with a_X(I, θ) = θ,
a_X(g₂, a_X(g₁, θ)) = a_X(g₂g₁, θ) and L(a_X(g, θ), X) = L(θ, X).
"""

from .action_check import ActionCheck as ActionCheck
from .action_check import Row as Row
from .action_check import Verdict as Verdict
from .actions import check_action as check_action
from .activations.lift import lift as lift
from .activations.registration import register_rule as register_rule
from .activations.relation import Family as Family
from .activations.relation import Relation as Relation
from .cocycle import AbstractChange as AbstractChange
from .cocycle import change_between as change_between
from .cocycle import cocycle as cocycle
from .commutators import commutator_defect as commutator_defect
from .commutators import field as field
from .commutators import published_associativity as published_associativity
from .constructed import ConstructedAction as ConstructedAction
from .constructed import constructed_action as constructed_action
from .data_dependent import DataDependentAction as DataDependentAction
from .data_dependent import data_dependent_action as data_dependent_action
from .degenerate import Degenerate as Degenerate
from .estimates import Estimate as Estimate
from .frames import HouseholderFrame as HouseholderFrame
from .frames import NearJump as NearJump
from .frames import SphericalFrame as SphericalFrame
from .inheritance import inherit as inherit
from .inheritance import on_units as on_units
from .inheritance import with_appended as with_appended
from .intertwiners import Intertwiners as Intertwiners
from .intertwiners import intertwiners as intertwiners
from .layers import lipschitz_bound as lipschitz_bound
from .layers import move_layers as move_layers
from .layers import move_two_layers as move_two_layers
from .learned import Learned as Learned
from .learned import layered as layered
from .learned import learn as learn
from .learned import terms_on as terms_on
from .level_sets import RankDrops as RankDrops
