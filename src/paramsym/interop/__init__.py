"""Maps and blocks for other tools, from a derived symmetry: what quantisers and optimisers keep in
tables by hand."""

from paramsym.interop.blocks import Block, OptimizerGroups, optimizer_groups
from paramsym.interop.checking import Checked, MappingCheck, check
from paramsym.interop.entries import MappingError, read_mapping
from paramsym.interop.equivariance import assert_equivariant
from paramsym.interop.exporting import Export, NotProved, export
from paramsym.interop.formats import awq, quark, smoothquant
from paramsym.interop.maps import Refused, ScaleMap, Verdict

__all__ = [
    "Block", "Checked", "Export", "MappingCheck", "MappingError", "NotProved", "OptimizerGroups",
    "Refused", "ScaleMap", "Verdict", "assert_equivariant", "awq", "check", "export",
    "optimizer_groups", "quark", "read_mapping", "smoothquant",
]  # fmt: skip
