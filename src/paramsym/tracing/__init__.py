"""From the graph of a model to its parameter symmetry."""

from paramsym.tracing import rules as rules  # first, so that a rule of the user replaces ours
from paramsym.tracing.builder import Builder as Builder
from paramsym.tracing.primitives import Primitive as Primitive
from paramsym.tracing.registry import rule as rule
