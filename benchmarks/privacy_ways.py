"""Ways to have a network evaluated by somebody else: who sends which bytes, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Way:
    """One way to get from an input to the network's answer, through an evaluator.

    Attributes:
        name: what the tables call it.
        working: who has parameters that work on plain inputs: evaluator, asker, or both.
        set_up: bytes that are sent once, both directions together.
        send: (queries, 64) inputs to bytes, by the owner of the data.
        answer: bytes to bytes, by the evaluator.
        read: bytes to (queries, 10) logits, by the owner of the data.
        seen: bytes that were sent to one row of numbers per query, as the evaluator has them.
        answers: bytes of an answer to (queries, 10) numbers, as the evaluator has them; None where
            it has no such numbers.
        held: the parameters that the evaluator computes with.
        batch: queries in one message, for the time per query.
        before: parameters that the evaluator knew before these, where it sent them.
    """

    name: str
    working: str
    set_up: int
    send: Callable[[Tensor], bytes]
    answer: Callable[[bytes], bytes]
    read: Callable[[bytes], Tensor]
    seen: Callable[[bytes], Tensor]
    answers: Callable[[bytes], Tensor] | None
    held: State
    batch: int = 1
    before: State | None = None


def size(state: State) -> int:
    """Bytes of tensors."""
    return sum(value.numel() * value.element_size() for value in state.values())


def packed(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


def rows(width: int) -> Callable[[bytes], Tensor]:
    """float32 rows out of bytes."""
    return lambda data: torch.from_numpy(np.frombuffer(bytearray(data), np.float32)).reshape(
        -1, width
    )


def by_tensors(
    name: str, model: nn.Module, held: State, *, working: str, set_up: int,
    encode: Callable[[Tensor], Tensor] = lambda x: x,
    decode: Callable[[Tensor], Tensor] = lambda y: y,
    before: State | None = None,
) -> Way:  # fmt: skip
    """Inputs and answers are float32 tensors, and the evaluator runs `model` with `held`."""

    @torch.no_grad()
    def answer(data: bytes) -> bytes:
        return packed(torch.func.functional_call(model, dict(held), (rows(64)(data),)))

    return Way(
        name, working, set_up, lambda x: packed(encode(x)), answer,
        lambda data: decode(rows(10)(data)), rows(64), rows(10), held, before=before,
    )  # fmt: skip
