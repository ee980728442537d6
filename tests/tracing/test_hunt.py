"""What far inputs say of suspects: weak words are asked for once, and none is louder than noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramsym.checking.hunt import _left

COUNT = 4  # suspects, which are the first parameters


class Call:
    """Inputs at which the function moves along some suspects."""

    def __init__(self, *moving: int) -> None:
        self.moving, self.asked = moving, 0

    def bears_out(self, network: Any, direction: torch.Tensor) -> bool:
        self.asked += 1
        return int(direction.abs().argmax()) in self.moving


def rows(*given: tuple[int, float]) -> torch.Tensor:
    """Rows that see one suspect each, so much."""
    found = torch.zeros(len(given), COUNT, dtype=torch.float64)
    for k, (suspect, size) in enumerate(given):
        found[k, suspect] = size
    return found


def left(seen: torch.Tensor, made: list[Call], known: list[torch.Tensor]) -> int:
    found: Any = SimpleNamespace(suspects=torch.eye(6, COUNT, dtype=torch.float64))
    calls: Any = made
    return _left(SimpleNamespace(), found, seen, calls, known)  # type: ignore[arg-type]


def test_what_is_seen_clearly_is_not_asked() -> None:
    call = Call()
    assert left(rows((0, 1.0), (1, 1e-3)), [call, call], []) == 2 and call.asked == 0


def test_a_weak_word_is_asked_for_once() -> None:
    call, known = Call(0), list[torch.Tensor]()
    seen = rows((0, 1e-7))
    assert left(seen, [call], known) == 3 and call.asked == 1
    more = torch.cat([seen, rows((0, 3e-7), (2, 1.0))])
    assert left(more, [call, Call(), Call()], known) == 2 and call.asked == 1


def test_a_weak_word_that_the_function_denies_is_forgotten() -> None:
    call, known = Call(), list[torch.Tensor]()
    seen = rows((0, 1e-7))
    assert left(seen, [call], known) == 4 and not seen.any() and not known
    assert left(seen, [call], known) == 4 and call.asked == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_call_is_believed_where_it_is_louder_than_its_noise(same: bool) -> None:
    """Noise says nothing of what other calls see as weakly, nor of what its own sees better."""
    noisy, other = Call(1, 2), Call(1)
    seen = rows((0, 2e-7), (1, 1e-7), (2, 3e-7))
    made = [noisy, noisy if same else other, noisy]
    assert left(seen, made, []) == (3 if same else 2)
    assert bool(seen[1].any()) != same and seen[2].any() and not seen[0].any()


def test_what_is_denied_leaves_what_the_row_sees_clearly() -> None:
    """Of two rows alike but for noise both stay, and see the same."""
    seen = rows((0, 1.0), (0, 1.0))
    seen[0, 2] = 2e-7
    assert left(seen, [Call(), Call()], []) == 3
    assert torch.allclose(seen, rows((0, 1.0), (0, 1.0)), atol=2e-7)
    assert int(torch.linalg.matrix_rank(seen, rtol=1e-10)) == 1
