"""What goes over the wire: tensors by name with a few words, and what each step expects of them.

Names are paths of two parts: what a tensor is, and its name there (`parameters/0.weight`,
`masks/mlp`, `inputs/input`, `outputs/output`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

PARAMETERS, MASKS, INPUTS, OUTPUTS = "parameters", "masks", "inputs", "outputs"


class Refusal(ValueError):
    """What the other side sent is not taken; `status` is the HTTP status code that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, eq=False)
class Message:
    """A few words and tensors by name: all that one step sends.

    Attributes:
        header: words by name.
        tensors: by `kind/name`.
    """

    header: Mapping[str, str]
    tensors: Mapping[str, Tensor]

    def of(self, kind: str) -> dict[str, Tensor]:
        """The tensors of a kind, by their own names."""
        start = f"{kind}/"
        return {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}


def named(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as a message names those of a kind."""
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Slot:
    """What is expected of one tensor.

    Attributes:
        shape: with None for an axis whose length the sender chooses, from 1 to `longest`.
        dtypes: any of these.
        longest: the most entries along an axis that is free.
        optional: whether it may be missing.
    """

    shape: tuple[int | None, ...]
    dtypes: frozenset[torch.dtype]
    longest: int = 1 << 16
    optional: bool = False

    def refuses(self, shape: Collection[int], dtype: torch.dtype) -> str:
        """What is wrong with a shape and a dtype; empty if they fit."""
        if dtype not in self.dtypes:
            return f"the dtype {_name(dtype)}, and {' or '.join(sorted(map(_name, self.dtypes)))}"
        expected = ", ".join(f"1 to {self.longest}" if n is None else str(n) for n in self.shape)
        fits = len(shape) == len(self.shape) and all(
            given == n if n is not None else 1 <= given <= self.longest
            for given, n in zip(shape, self.shape, strict=True)
        )
        return "" if fits else f"the shape {tuple(shape)}, and ({expected})"


Expected = Mapping[str, Slot]


@dataclass(frozen=True)
class Layout:
    """What is expected of a message: words in its header, and a slot for each of its tensors."""

    what: str  # of the message, in an error
    slots: Expected
    words: Mapping[str, int] = field(default_factory=dict)  # names of words, and their most letters
    others: frozenset[torch.dtype] = frozenset()  # dtypes of tensors of which no more is known

    def check_names(self, words: Collection[str], tensors: Collection[str]) -> None:
        """Raise a `Refusal` unless exactly the expected words and tensors are there."""
        needed = {n for n, slot in self.slots.items() if not slot.optional}
        missing = [*(needed - {*tensors}), *({*self.words} - {*words})]
        unknown = set() if self.others else {*tensors} - {*self.slots}
        strange = [*unknown, *({*words} - {*self.words})]
        if missing or strange:
            fault = f"lacks {sorted(missing)[0]!r}" if missing else (
                f"has {sorted(strange)[0][:80]!r}, which nobody reads"
            )  # fmt: skip
            raise Refusal(
                422,
                f"{self.what}: it {fault}; {len(self.slots)} tensors and the words "
                f"{[*self.words]} were expected. Send what the protocol's own step makes.",
            )

    def check_tensor(self, name: str, shape: Collection[int], dtype: torch.dtype) -> None:
        """Raise a `Refusal` unless a tensor that is expected has a shape and a dtype that are."""
        # of a tensor of which no more is known the body alone bounds the axes: logits are wide
        unknown = Slot((None,) * len(shape), self.others, longest=1 << 48)
        slot = self.slots.get(name) or unknown
        if fault := slot.refuses(shape, dtype):
            raise Refusal(
                422,
                f"{self.what}: {name!r} has {fault} was expected. Send the tensors of the model "
                "whose symmetry was found.",
            )

    def check(self, message: Message) -> Message:
        """A message that is all that is expected, every float finite; `Refusal` if it is not."""
        self.check_names(message.header, message.tensors)
        for name, tensor in message.tensors.items():
            self.check_tensor(name, tensor.shape, tensor.dtype)
            require_finite(self.what, name, tensor)
        return message


def require_finite(what: str, name: str, tensor: Tensor) -> None:
    """Raise a `Refusal` for NaN or infinity."""
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise Refusal(
            422,
            f"{what}: {name!r} holds numbers that are not finite, and finite ones were expected. "
            "Look for an overflow on the side that sent it.",
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
