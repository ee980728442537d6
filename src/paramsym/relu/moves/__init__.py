"""Moves: every sound way to change the parameters and keep the function, one function each.

A move takes a network and returns another one that computes exactly the same function; its
condition is checked, and a move that does not apply raises `MoveError` with the condition that
fails. Hidden layers count from 1, units from 0. `proposals` draws applicable moves at random, and
`walk` and `scramble` chain them: a walk through the fiber.

    permute           the units of a layer in another order
    scale             a positive factor on a unit's input, its inverse on the output
    split, merge      one unit as several of the same direction, and back
    insert_dead       a unit that is never positive
    insert_silent     a unit that nobody reads
    insert_cancelling two copies of a unit read with opposite weights
    translate         T_j: a hidden hyperplane moves freely along a half-line
    reflect           G_jk: z_k ↦ -z_k, z_j ↦ z_j - γ z_k, if column k is -γ times column j
    flip              units turned over, the linear units of the layer make up for it
    change_basis      an invertible matrix on units that are linear on their whole domain
    shift_bias        the bias of a linear unit against the biases of its readers
"""

from paramsym.relu.moves.hidden import reflect as reflect
from paramsym.relu.moves.hidden import reflection_ratio as reflection_ratio
from paramsym.relu.moves.hidden import translate as translate
from paramsym.relu.moves.hidden import translation_bound as translation_bound
from paramsym.relu.moves.linear import change_basis as change_basis
from paramsym.relu.moves.linear import flip as flip
from paramsym.relu.moves.linear import linear_units as linear_units
from paramsym.relu.moves.linear import shift_bias as shift_bias
from paramsym.relu.moves.tables import MoveError as MoveError
from paramsym.relu.moves.units import insert_cancelling as insert_cancelling
from paramsym.relu.moves.units import insert_dead as insert_dead
from paramsym.relu.moves.units import insert_silent as insert_silent
from paramsym.relu.moves.units import merge as merge
from paramsym.relu.moves.units import permute as permute
from paramsym.relu.moves.units import scale as scale
from paramsym.relu.moves.units import split as split
from paramsym.relu.moves.walks import KEEPING_WIDTHS as KEEPING_WIDTHS
from paramsym.relu.moves.walks import PROPOSALS as PROPOSALS
from paramsym.relu.moves.walks import proposals as proposals
from paramsym.relu.moves.walks import scramble as scramble
from paramsym.relu.moves.walks import walk as walk
