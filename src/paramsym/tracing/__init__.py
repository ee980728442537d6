"""From a model to its parameter symmetry, and the proof that it is one."""

from paramsym.tracing.builder import Builder as Builder
from paramsym.tracing.builder import rule as rule
from paramsym.tracing.find import find_symmetry as find_symmetry
from paramsym.tracing.record import TraceError as TraceError
