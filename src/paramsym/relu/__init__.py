"""Functional equivalence and parameter fibers of ReLU networks."""

from paramsym.arguments import behind_doors as _behind_doors
from paramsym.relu import moves as moves
from paramsym.relu.conservation import ConservedQuantity as ConservedQuantity
from paramsym.relu.conservation import check_conservation as check_conservation
from paramsym.relu.conservation import conserved_quantities as conserved_quantities
from paramsym.relu.deciding import decide as decide
from paramsym.relu.documents import read_verdict as read_verdict
from paramsym.relu.documents import write_verdict as write_verdict
from paramsym.relu.domains import Ball as Ball
from paramsym.relu.domains import Box as Box
from paramsym.relu.domains import Everywhere as Everywhere
from paramsym.relu.domains import Orthant as Orthant
from paramsym.relu.errors import ReLUError as ReLUError
from paramsym.relu.files import read_network as read_network
from paramsym.relu.layer_fiber import LayerFiber as LayerFiber
from paramsym.relu.network import Network as Network
from paramsym.relu.reading import as_network as as_network
from paramsym.relu.run import Budget as Budget
from paramsym.relu.shallow import CanonicalForm as CanonicalForm
from paramsym.relu.shallow import shallow_canonical_form as shallow_canonical_form
from paramsym.relu.shallow_fiber import Readouts as Readouts
from paramsym.relu.shallow_fiber import readouts as readouts
from paramsym.relu.shallow_fiber import shallow_minimal_width as shallow_minimal_width
from paramsym.relu.three_layer import ThreeLayerFiber as ThreeLayerFiber
from paramsym.relu.verdict import Bounds as Bounds
from paramsym.relu.verdict import Certificate as Certificate
from paramsym.relu.verdict import Kind as Kind
from paramsym.relu.verdict import Verdict as Verdict
from paramsym.relu.verification import verify as verify

_behind_doors(globals())
