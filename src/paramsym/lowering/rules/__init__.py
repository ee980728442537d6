"""One module per operator family; importing the package registers every rule."""

from paramsym.lowering.rules import attention as attention
from paramsym.lowering.rules import fourier as fourier
from paramsym.lowering.rules import linear as linear
from paramsym.lowering.rules import lookup as lookup
from paramsym.lowering.rules import normalization as normalization
from paramsym.lowering.rules import placement as placement
from paramsym.lowering.rules import pointwise as pointwise
from paramsym.lowering.rules import recurrent as recurrent
from paramsym.lowering.rules import reduction as reduction
from paramsym.lowering.rules import routing as routing
from paramsym.lowering.rules import shape as shape
from paramsym.lowering.rules import solving as solving
from paramsym.lowering.rules import spatial as spatial
