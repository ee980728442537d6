"""What is attached to a model, and how it moves when the model does.

    f(g·θ; g·a) = f(θ; a)

An artefact a (an adapter, a draft head, a sparse autoencoder, a control vector) reads and writes
spaces of a model. Its tensors are typed by them, as the model's own are, and the one action moves
both.
"""

from paramsym.arguments import behind_doors as _behind_doors
from paramsym.artefacts.artefact import Artefact as Artefact
from paramsym.artefacts.checking import TransportCheck as TransportCheck
from paramsym.artefacts.checking import verify_adapter as verify_adapter
from paramsym.artefacts.checking import verify_types as verify_types
from paramsym.artefacts.merging import merged as merged
from paramsym.artefacts.stated import typed as typed
from paramsym.artefacts.transport import recognised as recognised
from paramsym.artefacts.transport import transport as transport

_behind_doors(globals())
