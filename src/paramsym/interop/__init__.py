"""Maps and blocks for other tools, from a derived symmetry: what quantisers and optimisers keep in
tables by hand."""

from paramsym.arguments import behind_doors as _behind_doors
from paramsym.interop.blocks import Block, OptimizerGroups, optimizer_groups
from paramsym.interop.checking import Checked, MappingCheck, check
from paramsym.interop.entries import MappingError, read_mapping
from paramsym.interop.equivariance import assert_equivariant
from paramsym.interop.exporting import Export, NotProved
from paramsym.interop.formats import Exports, awq, export, quark, smoothquant, spinquant
from paramsym.interop.maps import Refused, ScaleMap, Verdict
from paramsym.interop.parametrizing import parametrize
from paramsym.interop.permutations import (
    PermutationSpec,
    parameter_classes,
    permutation_spec,
    symmetry_of_spec,
)
from paramsym.interop.rotations import Fold, Rotation, untied
from paramsym.interop.spinning import RotationExport

__all__ = [
    "Block", "Checked", "Export", "Exports", "Fold", "MappingCheck", "MappingError", "NotProved",
    "OptimizerGroups", "PermutationSpec", "Refused", "Rotation", "RotationExport", "ScaleMap",
    "Verdict",
    "assert_equivariant", "awq", "check", "export", "optimizer_groups", "parameter_classes",
    "parametrize", "permutation_spec", "quark", "read_mapping",
    "smoothquant", "spinquant", "symmetry_of_spec", "untied",
]  # fmt: skip

_behind_doors(globals())
