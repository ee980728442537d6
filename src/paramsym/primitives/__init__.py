"""The language that every network is lowered to: typed tensors, and one class per primitive."""

from paramsym.primitives.base import NEGLIGIBLE as NEGLIGIBLE
from paramsym.primitives.base import Entrywise as Entrywise
from paramsym.primitives.base import NotComputed as NotComputed
from paramsym.primitives.base import Primitive as Primitive
from paramsym.primitives.base import Values as Values
from paramsym.primitives.base import untold as untold
from paramsym.primitives.maps import POWERS as POWERS
from paramsym.primitives.maps import Map as Map
from paramsym.primitives.maps import Opaque as Opaque
from paramsym.primitives.products import Contract as Contract
from paramsym.primitives.products import Mask as Mask
from paramsym.primitives.ranks import Chosen as Chosen
from paramsym.primitives.reductions import Center as Center
from paramsym.primitives.reductions import Normalize as Normalize
from paramsym.primitives.reductions import Reduce as Reduce
from paramsym.primitives.reductions import Softmax as Softmax
from paramsym.primitives.sums import Choice as Choice
from paramsym.primitives.sums import Concatenate as Concatenate
from paramsym.primitives.sums import Shifted as Shifted
from paramsym.primitives.sums import ShiftedDiagonal as ShiftedDiagonal
from paramsym.primitives.sums import ShiftedWindows as ShiftedWindows
from paramsym.primitives.sums import Sum as Sum
from paramsym.primitives.sums import Tie as Tie
from paramsym.primitives.windows import Lookup as Lookup
from paramsym.primitives.windows import Mix as Mix
from paramsym.primitives.windows import Rotate as Rotate
