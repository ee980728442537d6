"""Two parties compute together, each moved along the symmetry orbit; and what that hides.

    f(g·x; g·θ) = g·f(x; θ)

The owner of a key g sends g·x and g·θ and undoes g on what comes back. That obfuscates; against
whom, and until which attack, is what `audit` measures.
"""

from paramsym.arguments import behind_doors as _behind_doors
from paramsym.geometry.commuting import commuting_subgroup as commuting_subgroup
from paramsym.geometry.plain_orders import plain_orders as plain_orders
from paramsym.geometry.updates import Kind as Kind
from paramsym.geometry.updates import Update as Update

from .attacks.attempt import Attempt as Attempt
from .attacks.attempt import NotApplicable as NotApplicable
from .audit import Audit as Audit
from .audit import audit as audit
from .coding import Encoded as Encoded
from .coding import decode as decode
from .coding import decode_outputs as decode_outputs
from .coding import decode_state as decode_state
from .coding import encode as encode
from .coding import encode_inputs as encode_inputs
from .coding import encode_outputs as encode_outputs
from .coding import encode_state as encode_state
from .coding import encode_targets as encode_targets
from .inference import DataOwner as DataOwner
from .inference import ModelOwner as ModelOwner
from .inference import Polarity as Polarity
from .job import Job as Job
from .job import View as View
from .keys.key import Key as Key
from .keys.losses import Loss as Loss
from .keys.randomness import secret_generator as secret_generator
from .keys.rates import Rates as Rates
from .keys.tokens import renumber as renumber
from .keys.tokens import with_tokens as with_tokens
from .retracing.expected import Expected as Expected
from .retracing.expected import expectation as expectation
from .retracing.runs import Retraced as Retraced
from .retracing.runs import retrace as retrace
from .retracing.table import RetracingTable as RetracingTable
from .retracing.table import retracing_table as retracing_table

_behind_doors(globals())
