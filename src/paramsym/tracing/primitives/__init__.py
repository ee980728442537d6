"""The primitives that every network is lowered to, one class each."""

from paramsym.tracing.primitives.base import NEGLIGIBLE as NEGLIGIBLE
from paramsym.tracing.primitives.base import Entrywise as Entrywise
from paramsym.tracing.primitives.base import NotComputed as NotComputed
from paramsym.tracing.primitives.base import Primitive as Primitive
from paramsym.tracing.primitives.base import Values as Values
from paramsym.tracing.primitives.base import untold as untold
from paramsym.tracing.primitives.maps import POWERS as POWERS
from paramsym.tracing.primitives.maps import Map as Map
from paramsym.tracing.primitives.maps import Opaque as Opaque
from paramsym.tracing.primitives.products import Contract as Contract
from paramsym.tracing.primitives.products import Mask as Mask
from paramsym.tracing.primitives.reductions import Normalize as Normalize
from paramsym.tracing.primitives.reductions import Reduce as Reduce
from paramsym.tracing.primitives.reductions import Softmax as Softmax
from paramsym.tracing.primitives.sums import Choice as Choice
from paramsym.tracing.primitives.sums import Concatenate as Concatenate
from paramsym.tracing.primitives.sums import Shifted as Shifted
from paramsym.tracing.primitives.sums import ShiftedDiagonal as ShiftedDiagonal
from paramsym.tracing.primitives.sums import Sum as Sum
from paramsym.tracing.primitives.sums import Tie as Tie
from paramsym.tracing.primitives.windows import Lookup as Lookup
from paramsym.tracing.primitives.windows import Mix as Mix
from paramsym.tracing.primitives.windows import Rotate as Rotate
