"""Refutation: before a symmetry is returned, it is tried on numbers, and what fails is taken out.

The derivation proves what it claims from the rules of operators; a wrong rule or a misread view
would make the proof worthless without a sign. Finite random moves at generic weights are a net of
another mesh: they know no rules. They refute and never complete. What they cannot see has to be
ruled out by structure: parameters that overlap in storage, integers that round back to where they
were, rows and branches that the given shapes never reach.

An alarm of one trial counts only if it repeats at fresh weights and inputs, in float64, at the
shapes that the user gave, beyond what rounding does to the outputs. What holds there and falls at
other lengths of the inputs is no defect; it is taken out all the same, and said to be so.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from paramsym.algebra import AbstractMonomial
from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.checking.bench import progress
from paramsym.checking.ends import Ends
from paramsym.checking.lengths import Lengths
from paramsym.checking.moves import Pass, moved, moves_nothing
from paramsym.checking.search import TOLERANCES, Search, all_passes, at_half_strength
from paramsym.checking.trial import Outputs, State, Trial, Unseen, Unusable
from paramsym.checking.trials import FURTHER, Trials
from paramsym.checking.weaker import fitting
from paramsym.recording.record import Inputs, preserved, split_inputs
from paramsym.structure.checked import Checked
from paramsym.structure.symmetry import ParameterSymmetry

LARGEST = 2 << 30  # bytes of parameters in float32 beyond which refutation is left out
MATRICES = 1 << 27  # entries of the changes of basis of an element, likewise
_COINS = (1, 2, 3)  # seeds that are tried, as one of them may draw the same


def refute(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    outputs: Outputs = None,
    training: bool = False,
    lengths: dict[int, int] | None = None,
    elsewhere: bool = True,
) -> ParameterSymmetry:
    """Try every claim of a symmetry by finite moves at generic weights; keep what holds.

    Three passes: everything at once, everything at half the strength, every other space of each
    size. A space that is refuted keeps what survives of its group (its scale alone, its order
    alone) and is `Trivial` otherwise; a refuted shift is removed. The weights are drawn by shape,
    in float64 for models below a million parameters and in float32 above.

    Args:
        model: only read; its weights are not even read.
        symmetry: what was derived, or a hand-written one.
        inputs: as for `find_symmetry`; generic ones of the same shapes take their place.
        outputs: as for `find_symmetry`.
        training: try the function of the training mode, with dropout left out.
        lengths: of the tables that integer inputs index, by position; see `table_lengths`.
        elsewhere: try other lengths of the inputs as well.

    Returns:
        The symmetry that survives, equal to the given one where nothing is refuted. Its `checked`
        says what was done, or why nothing could be compared; no error of the model is raised.
    """
    if reason := _unsuitable(model, symmetry, inputs):
        return symmetry.with_checked(Checked(note=reason))
    with preserved(model, training):
        trials = Trials(model, symmetry, inputs, outputs, training, lengths or {}, elsewhere)
        try:
            try:
                found = _outcome(trials, symmetry)
            except Unseen as error:  # other lengths may show what these do not
                found = symmetry.with_checked(Checked(note=str(error)))
            return _at_other_lengths(trials, found)
        except Unusable as error:
            return symmetry.with_checked(Checked(note=str(error)))


def _unsuitable(model: torch.nn.Module, symmetry: ParameterSymmetry, inputs: Inputs) -> str:
    tensors = [*model.parameters(), *model.buffers()]
    leaves = pytree.tree_leaves(split_inputs(inputs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(t.device.type == "meta" for t in [*tensors, *given]):
        return (
            "it needs a forward pass on numbers, and the model or its inputs are on the meta "
            "device; derive a small model of the same configuration to have its symmetry tried"
        )
    size = 4 * sum(p.numel() for p in model.parameters())
    if size > LARGEST:
        return f"{size / 1e9:.1f} GB of parameters are above the limit of {LARGEST / 1e9:.1f} GB"
    matrices = sum(
        symmetry.copies(space.name) * space.size**2
        for space in symmetry.spaces.values()
        if not isinstance(space.group, (AbstractMonomial, AbstractComplexScaling))
    )
    if matrices > MATRICES:
        return (
            f"an element has {matrices:,} entries of matrices, above the limit of {MATRICES:,}; "
            "a space is that large where features that change basis are many, as logits are"
        )
    return ""


# -- what to do with a trial -----------------------------------------------------------------------


def _outcome(trials: Trials, symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """All passes on a quick trial, and the search for what is wrong after an alarm."""
    trial = trials.quick()
    symmetry, refuted = fitting(symmetry, trial.state, trial.interfaces())
    passes = all_passes(symmetry, trials.small)
    if moves_nothing(symmetry):
        return symmetry.with_checked(Checked(refuted=refuted, note="nothing moves"))
    notes = _steadiness(trial, symmetry) if trials.small else []
    some = [*passes[:1], *passes[2:]] if trials.others else passes  # the second is made there
    alarm, worst = _compare(trial, symmetry, some)
    dtype, notes, count = trial.dtype, [*notes, *trial.notes()], len(passes)
    brief = [each for k, each in enumerate(passes) if not k or each[0].lone]
    for seed in FURTHER if trials.tiny else ():
        if alarm:
            break
        try:
            alarm, error = _compare(trials.quick(seed), symmetry, brief, seed)
        except Unusable:  # of weights that happen to show nothing
            continue
        worst, count = max(worst, error), count + len(brief)
    if alarm:
        del trial  # of a large model: the search needs the memory
        trials.forget()
        search = Search(trials, symmetry)
        if search.first.is_random():
            raise Unusable("the forward pass draws random numbers, so that outputs do not repeat")
        symmetry, found, worst = search.run()
        refuted, dtype = (*refuted, *found), search.first.dtype
    name = str(dtype).removeprefix("torch.")
    checked = Checked(count, name, TOLERANCES[dtype], worst, refuted, "; ".join(notes))
    return symmetry.with_checked(checked)


def _steadiness(trial: Trial, symmetry: ParameterSymmetry) -> list[str]:
    """What to say of a forward pass that is no function of its inputs and parameters.

    Raises `Unusable` where it draws numbers, or counts, out of the sight of the record.
    """
    if trial.is_steady():
        return []
    if not symmetry.random and trial.is_random(_COINS):
        raise Unusable(
            "the forward pass gives other outputs when it is run again, by random numbers or a "
            "count that the record does not see; what was found holds for the recorded run alone"
        )
    if trial.is_stateful():
        return [
            "the forward pass keeps something from call to call; what was found holds for the "
            "state that the model is in"
        ]
    return []


def _compare(
    trial: Trial, symmetry: ParameterSymmetry, passes: list[tuple[Pass, float]], start: int = 0
) -> tuple[bool, float]:
    """Whether a pass raised an alarm, and the worst error; moves are drawn from `start`."""
    worst = 0.0
    with progress(len(passes), "refutation") as advance:
        for seed, (one, tolerance) in enumerate(passes, start):
            generator = torch.Generator().manual_seed(seed)
            try:
                state, ends = moved(symmetry, one, trial.state, generator, trial.dtype)
                tolerance = max(tolerance, TOLERANCES[trial.dtype])
                error = trial.error(state, ends, tolerance, hasty=True)
            except Exception:  # an `act` that refuses what was derived is a refutation
                return True, math.inf
            worst = max(worst, error)
            if error > tolerance:
                return True, worst
            if seed == start and not error:  # rounding shows that an output depends on what moved
                _require_sight(trial, state, ends, one)
            advance()
    return False, worst


def _require_sight(trial: Trial, moved_state: State, ends: Ends, one: Pass) -> None:
    """Raise `Unseen` if no output notices a wrong move either: then nothing was learned.

    The wrong move is one half of a right one: every other tensor that moved. Of freed inputs it is
    a random one.
    """
    changed = [n for n, t in moved_state.items() if t is not trial.state[n]]
    half = {n: moved_state[n] for n in changed[::2]}
    if len(changed) == 1:
        half = {n: _other(t) for n, t in half.items()}
    limit = TOLERANCES[trial.dtype]
    wrong, astray = {**trial.state, **half}, ends.astray(torch.Generator().manual_seed(0))
    tried = ((wrong, None), (trial.state, astray))
    try:
        seen = any(trial.error(state, way, limit) > limit for state, way in tried)
    except Exception:  # a forward pass that stops has noticed
        seen = True
    if not seen and any(claim.kind in ("space", "shift") for claim in one.claims):
        raise Unseen("at generic weights no output depends on what moves")


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same size, entry by entry: an order or a scale may change nothing."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.flip(0) if tensor.ndim else 2 * tensor
    drawn = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0))
    return tensor * (0.5 + drawn).to(tensor)


def _at_other_lengths(trials: Trials, symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """What holds at other lengths as well; where something falls, these and what fell are noted.

    What nothing reads at the given lengths may be read at others, and is left out.
    """
    checked, kept = symmetry.checked, replace(symmetry, dead=(), unreached={})
    if checked is None or moves_nothing(kept) or not trials.others:
        return symmetry
    fallen, lengths = list[str](), list[Lengths]()
    for start, (changes, there) in enumerate(trials.others, 1):
        try:
            if not _compare(there, kept, at_half_strength(kept), start)[0]:
                continue
            search = Search(trials.at(changes), symmetry, at_half_strength)
            symmetry, found, _ = search.run()
        except Unusable:  # at other weights: nothing was learned
            continue
        kept = replace(symmetry, dead=(), unreached={})
        fallen, lengths = [*fallen, *found], [*lengths, *[changes] * bool(found)]
    if not fallen:
        return symmetry
    text = f"true at the lengths of the example alone: {'; '.join(fallen)}"
    note = "; ".join(filter(None, (checked.note, text)))
    return symmetry.with_checked(replace(checked, lengths=tuple(dict.fromkeys(lengths)), note=note))
