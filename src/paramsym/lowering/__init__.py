"""From the graph of a model to primitives between typed tensors: normal forms and rules."""

from paramsym.lowering import rules as rules  # first, so that a rule of the user replaces ours
from paramsym.lowering.builder import Builder as Builder
from paramsym.lowering.registry import rule as rule
