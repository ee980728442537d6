"""What every command prints with --json: keys, their types, what they mean.

One line for a key: where it is, its type, its meaning. `a.b` is a key of an object; `a[].b` one of
each object in a list, `a{}.b` one of each in a table by names. Types are text, whole, number,
truth and object; `[]text` is a list, `{}text` a table by names, and with `?` it may be null, too.
A key that ends with `?` may be missing. Numbers that are not finite are null.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key of the JSON that a command prints."""

    path: str
    kind: str
    meaning: str


_WRITTEN = """
written                 text       what was written
error                   number     largest relative change of the outputs, on the example inputs
tolerance               number     what it was allowed to be
changed                 whole      numbers that are others now
parameters              whole      numbers that there are
element                 text?      the element by which they moved
record                  text?      the record of what was done
notes                   []text     what is to be said besides
"""
_HELD = """
held                    {}text     spaces and shifts that were left as they are, and why
"""
_BEFORE_AFTER = """
tensors                 {}object   by name of the parameter
tensors{}.before        number?    its share before
tensors{}.after         number?    and after
"""
_PLAN = """
path                    text       what would be written
files                   {}whole    bytes of each file
bytes                   whole      bytes in sum
read                    whole      bytes that are read
memory                  whole      bytes of memory, at most
free                    whole      bytes that are free where it would be written
moves                   []text     spaces and shifts that would move
tensors                 []text     tensors that would move
seconds                 number?    an estimate from a measurement
notes                   []text     what is to be said besides
"""
_UNITS = """
{0}.count               whole      units that can be told from others
{0}.clear               whole      those with a clear partner
{0}.base                number     the share of clear partners that unrelated networks may have
{0}.chance              number     the probability of so many by chance
{0}.decides             truth      whether a verdict may rest on it
"""

_BALANCED = (
    """
objective               text       l2, l1, range or error
before                  number     its value before
after                   number     and after
status                  text       what is certified
gap                     number?    how far below it the least value may be, relative
moment                  {}number   what is left of the moment, by space and shift
"""
    + _HELD
    + _BEFORE_AFTER
)
_PREPARED = """
grid.bits               whole      of a weight
grid.groups             text       tensor, channel, or how many weights share a step
grid.symmetric          truth      without a zero point
activations             number     factor by which the largest activation may grow
chosen                  text       the candidate that was written
candidates              {}object   by name
candidates{}.name       text       the same
candidates{}.change     number?    of the outputs on held-out inputs, when rounded
candidates{}.noise      number?    standard error of its difference to that of the untouched
candidates{}.divergence  number?   Kullback–Leibler, of outputs that are named logits
candidates{}.growth     number?    of the largest activation
candidates{}.where      text       the layer of that
candidates{}.verdict    text       why it was not chosen
"""
_ALIGNED = (
    """
element                 text       the element by which B moves
before                  number     distance from A before
after                   number     and after
distance                number     between the reduced points
objective               []number   after each sweep
moved                   {}object   by space and shift
moved{}.how             text       order, scale, basis, shift
moved{}.units           whole      how many units moved
moved{}.of              whole      of how many
"""
    + _HELD
    + _BEFORE_AFTER
)

_ANSWERS = {
    "inspect": """
source                  text       the model, as it was given
model                   text       its class
training                truth      whether it is the function of the training mode
parameters              whole      numbers that may be chosen
redundant               whole?     directions that leave the function unchanged
redundant_counted       text       at which weights they were counted
redundant_exact         truth      whether that is the number, and not a bound
redundant_at_most_because  text?   why it is a bound
log10_equivalent_copies number     of the finite part: how many copies there are, as a logarithm
seconds                 number     CPU time of tracing and deriving, imports excepted
spaces                  []object   what may move
spaces[].name           text       as --only and --hold take it
spaces[].group          text       how it may move
spaces[].size           whole      numbers along its axis
spaces[].over           []text     axes over which every slice moves by itself
spaces[].dimension      whole      of the group
spaces[].exact          truth      whether it moves to rounding
spaces[].why_not_freer  text       the line of the model that keeps the group from being larger
shifts                  []object   translations
shifts[].name           text       as --only and --hold take it
shifts[].family         text       what they are
shifts[].dimension      whole      directions
shifts[].dimension_exact  truth    whether that is the number, and not a bound
shifts[].space          text?      the space that it belongs to
shifts[].kind           text       of the family
dead                    []text     parameters that change nothing
unknown                 {}text     operators that are not known, and where
random                  {}text     what draws random numbers
probed                  {}text     what was found by trying
verification            object?    random moves; null with --no-verify
verification.error      number?    largest change of the function
verification.control    number?    least change by a wrong move
verification.rows       []object   the same for each space and shift
audit                   object?    the numerical count; null without --audit
audit_refused           text?      why there is none
symmetry                object     all of it, as ParameterSymmetry.from_json reads it
""",
    "discover": """
source                  text       the model, as it was given
model                   text       its class
level                   text       full, tensors or sides
affine                  truth      whether fields have constants
searched                text       the search, in words
unknowns                whole      how many numbers were searched for
samples                 whole      at how many weights and inputs
dimension               whole      independent fields that were found
residual                number     the largest on fresh samples
next                    number?    of the next direction, which is none
dead                    []text     parameters that change nothing
generators              []object?  a basis
generators[].moves      text       the entries that it moves
generators[].tensors    []text     the tensors that it moves
algebra                 object?    the Lie algebra
algebra.name            text       as far as it is recognised
algebra.closed          truth      whether brackets stay inside
algebra.defect          number?    by how much they do not
algebra.rank            whole?     of a Cartan subalgebra
algebra.centre          whole?     its dimension
algebra.derived_series  []whole    dimensions
algebra.killing_signature  []whole?  positive, negative, zero
algebra.summands        []object   simple and abelian parts
algebra_missing_because  text?     why it is null
comparison              object?    with what is derived
comparison_missing_because  text?  why it is null
""",
    "transform": _WRITTEN,
    "transform --dry-run": _PLAN,
    "balance": _WRITTEN + _BALANCED,
    "balance --dry-run": _PLAN + _BALANCED,
    "quantize-prep": _WRITTEN + _PREPARED,
    "quantize-prep --dry-run": _PLAN + _PREPARED,
    "compare": """
kind                    text       identical, same up to symmetry, derived, unrelated, undecided
reason                  text       why
distance                number?    after alignment
null                    []number?  the same for unrelated pairs
tensors                 {}object   by name
tensors{}.distance      number?    after alignment
tensors{}.null          number?    mean over unrelated pairs
tensors{}.taken         truth      whether it was taken over
tensors{}.units         object?    its units
""" + _UNITS.format("tensors{}.units") + """
spaces                  {}object   units by space of orders
""" + _UNITS.format("spaces{}") + """
element                 text?      where the element was written
""" + _HELD + """
orbit                   object?    whether one carries to the other; null for identical ones
orbit.kind              text       the verdict
orbit.residual          number?    what is left
orbit.where             text?      the first weight that forbids it
orbit.reason            text       why
notes                   []text     what is to be said besides
""",
    "align": _WRITTEN + _ALIGNED,
    "align --dry-run": _PLAN + _ALIGNED,
    "merge": """
written                 text       what was written
objective               []number   sum of squared distances from the mean, after each round
checkpoints             []object   in the order that they were given
checkpoints[].source    text       as it was given
checkpoints[].share     number     of the mean
checkpoints[].before    number     distance from A before
checkpoints[].after     number     and after
checkpoints[].moved     {}text     what moved, by space and shift
record                  text?      the record of what was done
notes                   []text     what is to be said besides
""",
    "export": """
output                  text?      where it was written
moved                   object?    what --apply wrote, with the keys of transform
tool?                   text       awq, smoothquant, quark or spinquant
entries?                []object   scales: who absorbs one, and all who read it
entries[].smooth        text       the module that absorbs it
entries[].balance       []text     the modules that read it
parents?                []text     for each entry, the module that runs all its readers
layers?                 text       the pattern of the layers
rotations?              []object   spinquant: what can be turned
rotations[].space       text       its name
rotations[].size        whole      rows of the rotation
rotations[].writers     []text     modules whose rows carry it
rotations[].readers     []text     modules whose columns carry it
folds?                  []object   gains that are folded before
refused?                []object   what the format cannot say
refused[].space         text       its name
refused[].kind          text       the kind of the reason
refused[].reason        text       the reason
error?                  number     largest relative change when all were replayed at random
note?                   text       what is to be said besides
format?                 text       optimizer: the name of the format
version?                whole      and its version
parameters?             {}[]object optimizer: the logical matrices of each parameter
""",
    "check-mapping": """
sound                   truth      whether all maps are
tool                    text       whose mapping it is
maps                    []object   in the order of the file
maps[].entry            text       as it was written
maps[].map              object?    the modules that it means
maps[].verdict.kind     text       sound, or what is wrong
maps[].verdict.reason   text       why
maps[].verdict.parameters  []text  the parameters that are concerned
maps[].change           number?    relative change of the function when it is replayed
maps[].corrected        object?    the right map of the same module
note                    text       what is to be said besides
""",
    "transport": """
written                 text       what was written
error                   number     largest relative change of what is compared
control                 number     the same for the artefact left as it is
tolerance               number     what the error was allowed to be
compared                text       what is compared
types                   {}text     of the tensors
notes                   []text     what is to be said besides
""",
    "watch": """
script                  text       the script
model                   text       the class that it trains
families                []object   of conserved quantities
families[].name         text       the space
families[].count        whole      how many quantities
families[].measured     number     their norm at the end
families[].predicted    number     and what the ledger predicts
families[].residual     number     largest difference
steps                   whole      that were entered
skipped                 whole      that a scaler skipped
scale                   number     the largest quantity
floor                   number     what rounding can do
why                     {}text     what may explain a family that is not conserved
residual                number     largest difference of all
relative                number     the same, of the largest quantity
broken                  []text     families that are not conserved
""",
    "protect encode": """
written                 text       the moved weights
key                     text       the key
fingerprint             text       of the key
data                    text?      the moved samples
samples                 whole      how many
optimizers              []text     what trains
loss                    text?      what compares outputs and targets
moved                   {}text     what the key does, by space and shift
error                   number     largest relative change of the outputs when moved back
tolerance               number     what it was allowed to be
notes                   []text     what is to be said besides
""",
    "protect decode": """
written                 text       the plain weights
fingerprint             text       of the key
checked                 truth      whether the weights named the key that encoded them
error                   number     largest relative change of the outputs
tolerance               number     what it was allowed to be
notes                   []text     what is to be said besides
""",
    "protect serve": """
address                 text       where it listens
fingerprint             text       of the symmetry
""",
    "protect query": """
written                 text       the outputs
samples                 whole      how many
outputs                 {}[]whole  their shapes
notes                   []text     what is to be said besides
""",
    "equivariant": """
images                  []whole    height and width
axis                    text       of the shifts
rank                    whole      of the bottleneck
blocks                  []object   isotypic components of the pixels
blocks[].name           text       the character
blocks[].type           text       real, complex or quaternionic
blocks[].dimension      whole      of the irreducible
blocks[].multiplicity   whole      how often it is there
components              whole      of this rank
components_of_lower_rank  whole    further ones
dense_parameters        whole      of an autoencoder without symmetry
best?                   object     the component for --data
best.ranks              []whole    of its blocks
best.dimension          whole      of the component
best.degree             text       of the component
best.ed_degree          text       Euclidean distance degree
best.parameters         whole      that are shared
best.loss_per_pixel     number     on the training images
best.certified_lower_bound  number  no component is below
losses?                 []object   of it and others
losses[].name           text       the autoencoder
losses[].ranks          []whole?   of its blocks
losses[].train          number     loss per pixel
losses[].test           number     and on the test images
pictures?               []text     files that were drawn
""",
    "relu-equal": """
kind                    text       EQUAL, EQUAL_TO_PRECISION, DIFFERENT, UNDECIDED, or ERROR
reason                  text       why
method?                 text       that decided
mode?                   text       exact or float
domain?                 text       the inputs that it is about
certificate?            text?      its kind
witness?                []text?    an input at which they differ, as rationals
values?                 [][]text?  what both give there
bounds?                 object     of the largest difference
bounds.lower            number     at least
bounds.upper            number?    at most
bounds.radius           number?    of the inputs for which that is said
bounds.precision        number?    of the storage
furthest?               []text?    an input of the largest difference that was seen
tolerance?              number?    of --tolerance
tried?                  []text     the steps
""",
    "relu-verify": """
proved                  truth      whether all that the file claims follows
claim                   text?      what is proved
reason                  text?      why nothing is
""",
}  # fmt: skip


def keys() -> dict[str, list[Key]]:
    """The keys of each command, by its name behind `paramsym`; a dry run has its own."""
    return {name: [*_by_path(text).values()] for name, text in _ANSWERS.items()}


def _by_path(text: str) -> dict[str, Key]:
    """The keys of some lines; of two lines for one key the later one counts."""
    found = (Key(*line.split(maxsplit=2)) for line in text.split("\n") if line)
    return {key.path: key for key in found}
