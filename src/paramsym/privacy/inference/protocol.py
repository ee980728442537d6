"""Obfuscated inference in three steps between a model owner (Bob) and a data owner (Alice).

    1  Bob draws hidden moves g and masks S, and sends θ′ = S·(g·θ) with S.
    2  Alice draws A for the freed input and hidden moves h, and returns θ″ = (A, h)·θ′ with the
       masks in their new order; for each query she sends A x.
    3  Bob evaluates f(θ″, A x) = f(θ, x) and returns it.

What this does not hide, whatever is drawn:

    from Bob    his own parameters give him A and with it every x, as far as the first layer has
                full column rank, and W₁x otherwise: hidden moves act on the other side of W₁.
                An orthogonal A shows lengths, distances and angles to everybody. The answers are
                plain, unless outputs were freed as well; and then he may offer parameters of
                his choice, W₁ = (I; I), whose copies give A all the same, and no check can tell
                that they are not his network's.
    from Alice  θ′ with its masks is the network: she can run it without Bob, keep it, and find by
                canonical forms that two sessions were of one model.

The keys keep an onlooker who sees one of the messages from reading it off in the plain basis, and
no more. `privacy.audit` runs the attacks against one's own job.

Source: the source text's section IV, which says that A "is only identifiable up to a large
invariance group"; to who knows θ it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.algebra import AbstractMonomial, Group
from paramsym.privacy.coding import decode_outputs, encode_inputs
from paramsym.privacy.inference.messages import (
    INPUTS,
    MASKS,
    OUTPUTS,
    PARAMETERS,
    Layout,
    Message,
    Refusal,
    Slot,
    named,
    require_finite,
)
from paramsym.privacy.inference.polarity import Polarity
from paramsym.privacy.keys.key import Key
from paramsym.privacy.keys.randomness import secret_generator
from paramsym.recording.outputs import named_outputs
from paramsym.structure.action import act
from paramsym.structure.axes import frames_of
from paramsym.structure.symmetry import ParameterSymmetry

Given = Tensor | Mapping[str, Tensor]
_FINGERPRINT = {"fingerprint": 64}
_SIGNS = frozenset({torch.int8})
_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
ANSWER = Layout("the answer to a query", {}, others=_FLOATS)


@dataclass(frozen=True, eq=False)
class ModelOwner:
    """Who has the network, draws hidden moves for each session, and evaluates.

    Attributes:
        model: the network with its plain parameters, which is not touched.
        symmetry: of it in evaluation mode, with the inputs freed that are to be hidden.
        example: an input as queries will have it: a tensor, or tensors by the names of `forward`.
            Its dtype and all of its axes but the first are what queries must have.
        polarity: where its activations can be masked; None to send no masks.
        outputs: which tensors are answered, as for `find_symmetry`.
        samples: the most along the first axis of a query.
    """

    model: nn.Module
    symmetry: ParameterSymmetry
    example: Given
    polarity: Polarity | None = None
    outputs: Callable[[Any], Any] | None = None
    samples: int = 4096

    @staticmethod
    def of(
        model: nn.Module,
        symmetry: ParameterSymmetry,
        example: Given,
        *,
        masks: bool = True,
        outputs: Callable[[Any], Any] | None = None,
        samples: int = 4096,
    ) -> ModelOwner:
        """A model owner; with `masks`, every space of hidden units that can be masked is.

        Raises:
            ValueError: no input moves by the symmetry, or it is that of another model.
        """
        _require_moving("ModelOwner.of(model, symmetry, …)", symmetry)
        known = {*symmetry.signature, *symmetry.ties}
        if strange := [name for name in model.state_dict() if name not in known]:
            raise ValueError(
                f"ModelOwner.of(model, symmetry, …): the model has {strange[0]!r}, of which the "
                "symmetry says nothing. The symmetry of this model was expected. Find it anew."
            )
        given = (example,) if isinstance(example, Tensor) else dict(example)
        polarity = Polarity.of(model, symmetry, given, outputs) if masks else None
        return ModelOwner(model, symmetry, example, polarity, outputs, samples)

    def offer(self, generator: torch.Generator | None = None) -> Message:
        """Step 1: the parameters of a new session, moved where it is not seen, and its masks.

        Args:
            generator: the source of the moves; by default one that nobody can try out.
        """
        generator = generator or secret_generator()
        hidden = self.symmetry.restrict(spaces=_hidden(self.symmetry), translations=False)
        key = Key.generate(hidden, generator)
        params = act(hidden, key.element, _plain(self.model))
        masks = self.polarity.sample(generator) if self.polarity else {}
        if self.polarity:
            params = self.polarity.flip(params, masks)
        tensors = {**named(PARAMETERS, params), **named(MASKS, masks)}
        return Message({"fingerprint": self.symmetry.fingerprint}, tensors)

    @cached_property
    def reply_layout(self) -> Layout:
        """What step 2 must send: the tensors of the model and of its masks."""
        places = self.polarity.places if self.polarity else {}
        params = {n: _exactly(t) for n, t in self.model.state_dict().items()}
        masks = {n: Slot((p.site.units,), _SIGNS) for n, p in places.items()}
        slots = {f"{PARAMETERS}/{n}": slot for n, slot in params.items()}
        slots |= {f"{MASKS}/{n}": slot for n, slot in masks.items()}
        return Layout("the data owner's parameters", slots, _FINGERPRINT)

    @cached_property
    def query_layout(self) -> Layout:
        """What a query must send: the inputs, as the example has them."""
        slots = {
            f"{INPUTS}/{name}": Slot((None, *x.shape[1:]), frozenset({x.dtype}), self.samples)
            for name, x in _by_name(self.symmetry, self.example).items()
        }
        return Layout("a query", slots)

    def accept(self, reply: Message) -> Evaluator:
        """Step 2, received: a network at the parameters that came.

        They are taken for what they are: that they lie on the orbit of θ is not tried, since other
        ones harm only who sent them.

        Raises:
            Refusal: names, shapes or dtypes are not those of the model, a number is not finite, a
                mask is none, or the parameters belong to another symmetry.
        """
        layout = self.reply_layout
        layout.check(reply)
        _require_fingerprint(layout.what, self.symmetry, reply)
        params, masks = reply.of(PARAMETERS), reply.of(MASKS)
        _require_signs(layout.what, masks)
        if self.polarity:
            network = self.polarity.evaluator(params, masks)
        else:
            network = Polarity(self.model, {}, {}).evaluator(params, {})
        return Evaluator(self, network)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """The network of one session: θ″ with its masks, which many threads may ask at once."""

    owner: ModelOwner
    network: nn.Module

    def answer(self, query: Message) -> Message:
        """Step 3: f(θ″, A x).

        Raises:
            Refusal: the inputs are not as the example has them, the model does not take them, or
                its answer is not finite.
        """
        owner = self.owner
        owner.query_layout.check(query)
        inputs = query.of(INPUTS)
        alone = isinstance(owner.example, Tensor)
        try:
            with torch.inference_mode():
                returned = self.network(*inputs.values()) if alone else self.network(**inputs)
                chosen = returned if owner.outputs is None else owner.outputs(returned)
                answers = {name: y.contiguous() for name, y in named_outputs(chosen)}
        except Exception as error:  # whatever a model raises on numbers that it was not made for
            fault = str(error).split("\n")[0][:200]
            raise Refusal(
                422,
                f"a query: the model does not take these inputs ({type(error).__name__}: {fault})"
                ", and inputs like the example were expected. Compare them with it.",
            ) from error
        for name, answer in answers.items():
            require_finite("the answer to a query", name, answer)
        return Message({}, named(OUTPUTS, answers))


@dataclass(frozen=True, eq=False)
class DataOwner:
    """Who has the inputs, and draws a key for each session.

    Attributes:
        symmetry: of the network, found or read from who published it, and not taken from the model
            owner: what moves says what can be hidden. Freed outputs move, too, and are undone.
        groups: smaller groups for spaces by name, such as `{"input": Orthogonal(64)}`.
    """

    symmetry: ParameterSymmetry
    groups: Callable[[int], Group] | Mapping[str, Group] | None = None

    def __post_init__(self) -> None:
        _require_moving("DataOwner(symmetry)", self.symmetry)

    @cached_property
    def offer_layout(self) -> Layout:
        """What step 1 must send: the tensors of a network of this symmetry, and masks."""
        symmetry = self.symmetry
        shapes = {name: symmetry.shape(name) for name in symmetry.signature}
        shapes |= {alias: shapes[name] for alias, name in symmetry.ties.items()}
        slots = {
            # a buffer that is not saved is in no state dict
            f"{PARAMETERS}/{n}": Slot(
                shape, _FLOATS | _INTEGERS if n in symmetry.buffers else _FLOATS,
                optional=n in symmetry.buffers or n in symmetry.ties,
            )
            for n, shape in shapes.items()
        } | {
            f"{MASKS}/{space.name}": Slot((space.size,), _SIGNS, optional=True)
            for space in symmetry.spaces.values()
            if isinstance(space.group, AbstractMonomial) and not space.over
            and not space.group.signs
        }  # fmt: skip
        return Layout("the model owner's parameters", slots, _FINGERPRINT)

    def reply(
        self, offer: Message, generator: torch.Generator | None = None
    ) -> tuple[Session, Message]:
        """Step 2: a key, and the parameters that go with it.

        Args:
            offer: from the model owner.
            generator: the source of the key; by default one that nobody can try out.

        Raises:
            Refusal: the parameters are those of another network than the symmetry's (both
                fingerprints are named), or not finite, or a mask is none.
        """
        layout = self.offer_layout
        layout.check(offer)
        _require_fingerprint(layout.what, self.symmetry, offer)
        params, masks = offer.of(PARAMETERS), offer.of(MASKS)
        _require_signs(layout.what, masks)
        still = self.symmetry.restrict(translations=False)
        key = Key.generate(still, generator or secret_generator(), groups=self.groups)
        moved = act(key.acting, key.element, params)
        turned = {name: _in_order(key, name, mask) for name, mask in masks.items()}
        tensors = {**named(PARAMETERS, moved), **named(MASKS, turned)}
        reply = Message({"fingerprint": self.symmetry.fingerprint}, tensors)
        framed = any(f for each in still.features.values() for f in frames_of(each.type))
        return Session(key, params if framed else None, moved if framed else None), reply


@dataclass(frozen=True, eq=False)
class Session:
    """A data owner's key for one session, with which queries are sent and answers are read.

    Attributes:
        key: A and the hidden moves.
        params: what the key moved, where inputs are moved in the frame of gains.
        moved: what it made of that.
    """

    key: Key
    params: Mapping[str, Tensor] | None = None
    moved: Mapping[str, Tensor] | None = None

    def query(self, inputs: Given) -> Message:
        """A x as it is sent.

        Raises:
            ValueError: a freed input is missing or does not fit, or it holds integers.
        """
        given = _by_name(self.key.symmetry, inputs)
        return Message({}, named(INPUTS, encode_inputs(given, self.key, self.params)))

    def answer(self, message: Message) -> Given:
        """The outputs, by name, or the one that there is.

        Raises:
            Refusal: an answer is not finite.
        """
        outputs = message.of(OUTPUTS)
        for name, y in outputs.items():
            require_finite("the answer to a query", name, y)
        outputs = decode_outputs(outputs, self.key, self.moved)
        return outputs["output"] if [*outputs] == ["output"] else outputs


# -- what both sides do --------------------------------------------------------------------------


def _require_moving(where: str, symmetry: ParameterSymmetry) -> None:
    """Raise a `ValueError` for a symmetry by which no input moves."""
    if not any(each.spaces for each in symmetry.inputs.values()):
        freed = {name: str(each) for name, each in symmetry.inputs.items()}
        raise ValueError(
            f"{where}: no input moves by this symmetry, which frees {freed}, so that the data "
            "owner could hide nothing at all. A network whose input a linear map reads was "
            "expected, with find_symmetry(model, x, free_inputs=…), channels named by their axis: "
            'free_inputs={"images": 1}. print(symmetry.reasons) says what holds an input.'
        )


def _hidden(symmetry: ParameterSymmetry) -> list[str]:
    """The spaces that neither inputs nor outputs carry."""
    ends = symmetry.ends
    return [name for name in symmetry.spaces if name not in ends]


def _plain(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in model.state_dict().items()}


def _exactly(tensor: Tensor) -> Slot:
    return Slot(tuple(tensor.shape), frozenset({tensor.dtype}))


def _by_name(symmetry: ParameterSymmetry, inputs: Given) -> dict[str, Tensor]:
    """Inputs by name; a tensor by itself is the one input that is freed."""
    if not isinstance(inputs, Tensor):
        return dict(inputs)
    if len(symmetry.inputs) != 1:
        raise ValueError(
            f"a tensor of shape {tuple(inputs.shape)} came by itself, and the symmetry frees "
            f"{len(symmetry.inputs)} inputs, {[*symmetry.inputs][:8]}. Pass tensors by name."
        )
    return {next(iter(symmetry.inputs)): inputs}


def _in_order(key: Key, space: str, mask: Tensor) -> Tensor:
    """A mask as its units stand after a key: S ↦ P S P⁻¹. Positive scales leave it."""
    if space not in key.acting.spaces:
        return mask
    order = getattr(key.element[space], "order", None)
    return mask if order is None else mask[order]


def _require_fingerprint(what: str, symmetry: ParameterSymmetry, message: Message) -> None:
    if message.header["fingerprint"] != symmetry.fingerprint:
        raise Refusal(
            422,
            f"{what}: they belong to the symmetry {message.header['fingerprint'][:12]!r}…, and "
            f"{symmetry.fingerprint[:12]!r}… was expected. Both sides need the symmetry of one "
            "network, found with the same inputs and outputs freed.",
        )


def _require_signs(what: str, masks: Mapping[str, Tensor]) -> None:
    for name, mask in masks.items():
        if not bool((mask.abs() == 1).all()):
            raise Refusal(
                422,
                f"{what}: the mask of {name!r} holds other numbers than 1 and -1, which were "
                "expected. Send the masks that were drawn, in the order of their units.",
            )
