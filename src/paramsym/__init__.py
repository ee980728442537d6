"""Parameter symmetries of neural networks: find them, prove them, move along them."""

from paramsym.structure.action import act as act
from paramsym.structure.action import act_dual as act_dual
from paramsym.structure.action import infinitesimal as infinitesimal
from paramsym.structure.element import AlgebraElement as AlgebraElement
from paramsym.structure.element import GroupElement as GroupElement
from paramsym.structure.symmetry import ParameterSymmetry as ParameterSymmetry
from paramsym.structure.symmetry import Shift as Shift
from paramsym.structure.symmetry import Space as Space
from paramsym.tracing import TraceError as TraceError
from paramsym.tracing import find_symmetry as find_symmetry
from paramsym.tracing import rule as rule

__version__ = "0.1.0"
