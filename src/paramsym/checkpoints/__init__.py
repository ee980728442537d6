"""Files ⇄ tensors: the only place that opens weights, and it never unpickles an object."""

from paramsym.arguments import behind_doors as _behind_doors
from paramsym.checkpoints.aligned import WrittenAligned as WrittenAligned
from paramsym.checkpoints.aligned import write_aligned as write_aligned
from paramsym.checkpoints.alike import Alike as Alike
from paramsym.checkpoints.alike import open_alike as open_alike
from paramsym.checkpoints.balanced import WrittenBalanced as WrittenBalanced
from paramsym.checkpoints.balanced import write_balanced as write_balanced
from paramsym.checkpoints.checkpoint import Checkpoint as Checkpoint
from paramsym.checkpoints.compared import Compared as Compared
from paramsym.checkpoints.compared import compare_checkpoints as compare_checkpoints
from paramsym.checkpoints.converting import SymmetryConverter as SymmetryConverter
from paramsym.checkpoints.equivalent import Transformed as Transformed
from paramsym.checkpoints.errors import CheckpointError as CheckpointError
from paramsym.checkpoints.fitting import fitting as fitting
from paramsym.checkpoints.inputs import parse_inputs as parse_inputs
from paramsym.checkpoints.keys import Ask as Ask
from paramsym.checkpoints.keys import Freeing as Freeing
from paramsym.checkpoints.mapped import Exported as Exported
from paramsym.checkpoints.mapped import MappingChecked as MappingChecked
from paramsym.checkpoints.mapped import check_mapping as check_mapping
from paramsym.checkpoints.mapped import export_maps as export_maps
from paramsym.checkpoints.mapped import open_mapped as open_mapped
from paramsym.checkpoints.merged import WrittenMerged as WrittenMerged
from paramsym.checkpoints.merged import write_merged as write_merged
from paramsym.checkpoints.moved_loader import MovedLoader as MovedLoader
from paramsym.checkpoints.moving import Writing as Writing
from paramsym.checkpoints.plan import Plan as Plan
from paramsym.checkpoints.protected import WrittenDecoded as WrittenDecoded
from paramsym.checkpoints.protected import WrittenEncoded as WrittenEncoded
from paramsym.checkpoints.protected import write_decoded as write_decoded
from paramsym.checkpoints.protected import write_encoded as write_encoded
from paramsym.checkpoints.quantized import WrittenPrepared as WrittenPrepared
from paramsym.checkpoints.quantized import write_prepared as write_prepared
from paramsym.checkpoints.source import Source as Source
from paramsym.checkpoints.sources import needs_weights as needs_weights
from paramsym.checkpoints.sources import open_checkpoint as open_checkpoint
from paramsym.checkpoints.sources import open_movable as open_movable
from paramsym.checkpoints.tensors import read_tensors as read_tensors
from paramsym.checkpoints.transformed import plan_transform as plan_transform
from paramsym.checkpoints.transformed import transform as transform
from paramsym.checkpoints.transported import WrittenTransported as WrittenTransported
from paramsym.checkpoints.transported import write_transported as write_transported
from paramsym.checkpoints.writing import refuse_existing as refuse_existing
from paramsym.checkpoints.writing import write_tensors as write_tensors

_behind_doors(globals())
