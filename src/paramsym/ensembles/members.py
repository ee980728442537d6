"""Many members of one network, evaluated together without a copy of what they share.

Only the tensors in which members differ are stacked, along a first axis that `torch.vmap` maps
over; all others are those of the network itself. Whatever depends on shared tensors alone, like
the layers before the first that is moved, carries no such axis, and is computed once for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramsym.recording.running import exclusive

from .voting import majority_vote

State = Mapping[str, Tensor]


class MemberEnsemble(nn.Module):
    """An ensemble of one network at several points of its parameter space.

        ensemble = MemberEnsemble(model, [act(symmetry, g, model.state_dict()) for g in elements])

    The network is evaluated in evaluation mode whatever mode it is in, and shares its parameters
    and buffers with the given one. What members own is what they were made with, so make a new
    ensemble after the network has been trained further. `.to(…)` moves the network as well.

    Attributes:
        model: the network, with the tensors of the given one.
        names: the tensors in which members differ.
        count: how many members there are.

    Args:
        model: any module whose forward pass `torch.vmap` can map over.
        members: for each the parameters and buffers by name. A tensor that *is* the network's own
            (or lies in the same memory) is shared; one that is missing is shared too.
        outputs: from what the model returns to its logits, (batch, …, classes); by default what it
            returns.
        chunk: how many members are evaluated at a time; by default all.

    Raises:
        ValueError: no member, a name that the network does not have, another shape or a kind of
            number that the network's precision cannot hold, one that is not finite, different
            values for tied names, or a chunk below one.
    """

    def __init__(
        self, model: nn.Module, members: Iterable[State],
        outputs: Callable[[Any], Tensor] | None = None, chunk: int | None = None,
    ):  # fmt: skip
        super().__init__()
        self._hold(model, outputs, chunk)
        given = [*members]
        self._stack(given, len(given))

    def _hold(
        self, model: nn.Module, outputs: Callable[[Any], Tensor] | None, chunk: int | None
    ) -> None:
        _require_chunk(chunk)
        self.model = sharing_copy(model)
        self.outputs, self.chunk = outputs, chunk
        self.names: tuple[str, ...] = ()
        self.count = 0

    def _stack(self, members: Iterable[State], count: int) -> None:
        """Stack what differs between members, which may be made one after the other."""
        if count < 1:
            raise ValueError(
                "MemberEnsemble(members=[]): no member came; at least one was expected. Pass a "
                "state dict for each, for example [act(symmetry, g, model.state_dict())]."
            )
        own, first = own_state(self.model), _first_names(self.model)
        stacked: dict[str, Tensor] = {}
        for place, member in enumerate(members):
            for name, tensor in _distinct(member, place, own, first).items():
                mine = own[name]
                if _same(tensor, mine):
                    continue
                if name not in stacked:
                    stacked[name] = mine.expand(count, *mine.shape).clone()
                stacked[name][place] = tensor.detach()
        for name, tensors in stacked.items():
            self.register_buffer(_buffer(name), tensors)
        self.names, self.count = tuple(stacked), count

    def train(self, mode: bool = True) -> MemberEnsemble:
        """The mode of the ensemble alone: its network stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def stacked(self) -> dict[str, Tensor]:
        """What members own, by name: (members, …)."""
        return {name: self.get_buffer(_buffer(name)) for name in self.names}

    def member(self, place: int) -> dict[str, Tensor]:
        """The complete state of one member by all names; what it shares is the network's own."""
        state = own_state(self.model) | {n: t[place] for n, t in self.stacked().items()}
        return {name: state[first] for name, first in _first_names(self.model).items()}

    def logits(self, *inputs: Any) -> Tensor:
        """What each member answers: (members, batch, …, classes).

        Args:
            inputs: as the model takes them.
        """
        return self._mapped(self.stacked(), inputs)

    def _mapped(self, stacked: dict[str, Tensor], inputs: tuple[Any, ...]) -> Tensor:
        def one(moved: dict[str, Tensor]) -> Tensor:
            made = functional_call(self.model, moved, inputs)
            return made if self.outputs is None else self.outputs(made)

        with _layer_by_layer():
            if stacked:
                return torch.vmap(one, chunk_size=self.chunk)(stacked)
            made = one({})  # all members are the network itself
            return made.expand(self.count, *made.shape)

    def mean_logits(self, *inputs: Any) -> Tensor:
        """The mean over members of their logits: (batch, …, classes)."""
        return self.logits(*inputs).mean(0)

    def vote(self, *inputs: Any) -> Tensor:
        """The class that most members choose; among equals the one of largest mean logit."""
        return majority_vote(self.logits(*inputs))

    def forward(self, *inputs: Any) -> Tensor:
        """`mean_logits`, so that the ensemble stands wherever one network did."""
        return self.mean_logits(*inputs)


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Without the fused encoder layer, one opaque kernel that vmap runs member by member."""
    with exclusive:
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(enabled)


def sharing_copy(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with modules of its own and the same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return made.eval()


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, each under its first name, without their graphs."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items()}


def _first_names(model: nn.Module) -> dict[str, str]:
    """For every name of a tensor the first one; tied tensors have several."""
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _buffer(name: str) -> str:
    return "member:" + name.replace(".", ":")  # no name of a buffer may have a dot


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one, as they are in `state_dict` and `named_parameters`."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
    )


def _unknown(name: str, place: int, own: State) -> str:
    return (
        f"MemberEnsemble(members=…): member {place} has a tensor {name!r}; parameters and buffers "
        f"of the model were expected, among them {[*own][:6]}. Pass state dicts of this model."
    )


def _distinct(member: State, place: int, own: State, first: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of one member by first names; those of tied names have to be one."""
    found: dict[str, Tensor] = {}
    for name, tensor in member.items():
        if name not in first:
            raise ValueError(_unknown(name, place, own))
        mine = own[first[name]]
        if not isinstance(tensor, Tensor) or not _same(tensor, mine):  # a mask of −∞ may be shared
            _require_fits(tensor, mine, name, place)
        known = found.setdefault(first[name], tensor)
        if not _same(known, tensor) and not torch.equal(known.to(mine), tensor.to(mine)):
            raise ValueError(
                f"MemberEnsemble(members=…): member {place} has other entries for {name!r} than "
                f"for another name of the same tensor, {first[name]!r}; equal ones were expected, "
                "since the model ties them. Leave one of the names out."
            )
    return found


def _require_chunk(chunk: Any) -> None:
    good = isinstance(chunk, Integral) and not isinstance(chunk, bool) and int(chunk) >= 1
    if chunk is not None and not good:
        raise ValueError(
            f"MemberEnsemble(chunk={chunk!r}): a whole number of members at a time was expected, "
            "at least one. Leave it out for all at once."
        )


def _require_fits(tensor: Any, own: Tensor, name: str, place: int) -> None:
    if not isinstance(tensor, Tensor) or not torch.can_cast(tensor.dtype, own.dtype):
        came = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(
            f"MemberEnsemble(members=…): {name!r} of member {place} is {came}; a tensor was "
            f"expected that {own.dtype} can hold, as in the model. Convert the member, or the "
            "model with model.to(…) before the ensemble is made."
        )
    if tensor.shape != own.shape:
        raise ValueError(
            f"MemberEnsemble(members=…): {name!r} of member {place} has shape "
            f"{tuple(tensor.shape)}; {tuple(own.shape)} was expected, as in the model. Pass state "
            "dicts of this model."
        )
    if not bool(tensor.isfinite().all()):
        raise ValueError(
            f"MemberEnsemble(members=…): {name!r} of member {place} has entries that are not "
            "finite; finite ones were expected. Draw this member anew, or with less strength."
        )
