"""One module per operator family; importing the package registers every rule."""

from paramsym.tracing.rules import attention as attention
from paramsym.tracing.rules import linear as linear
from paramsym.tracing.rules import lookup as lookup
from paramsym.tracing.rules import normalization as normalization
from paramsym.tracing.rules import pointwise as pointwise
from paramsym.tracing.rules import recurrent as recurrent
from paramsym.tracing.rules import reduction as reduction
from paramsym.tracing.rules import shape as shape
from paramsym.tracing.rules import spatial as spatial
