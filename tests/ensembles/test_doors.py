"""What comes in and goes out of ensembles: pickles, keywords, chunks, ties and kinds of numbers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

from paramsym.ensembles import MemberEnsemble, OrbitEnsemble, attack
from tests.ensembles.networks import CLIP, digits, seeded, trained


def made(correction: str = "fitted") -> OrbitEnsemble:
    x, _ = digits()
    return OrbitEnsemble(
        trained("Tanh"), x[:200], "mlp", 3, 0.4, generator=seeded(), correction=correction
    )


def saved(ensemble: OrbitEnsemble) -> OrbitEnsemble:
    file = io.BytesIO()
    torch.save(ensemble, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def test_ensembles_come_back_from_files() -> None:
    x, y = digits()
    ensemble = made()
    for other in (pickle.loads(pickle.dumps(ensemble)), saved(ensemble)):
        assert torch.equal(other.logits(x[:50]), ensemble.logits(x[:50]))
        assert torch.equal(other.vote(x[:50]), ensemble.vote(x[:50]))
        assert other.fits == ensemble.fits and other.names == ensemble.names
        attacks = [attack(e, x[:20], y[:20], epsilon=0.1, clip=CLIP) for e in (other, ensemble)]
        assert torch.equal(attacks[0], attacks[1])
        with pytest.raises(RuntimeError, match="this ensemble was unpickled; a site"):
            _ = other.site
        again = pickle.loads(pickle.dumps(other))
        assert torch.equal(again.logits(x[:50]), ensemble.logits(x[:50]))


def test_copies_keep_the_layer_and_the_wrapper_is_not_pickled() -> None:
    x, _ = digits()
    for correction in ("fitted", "batch"):
        ensemble = made(correction)
        for other in (copy.deepcopy(ensemble), copy.copy(ensemble)):
            assert other.site.name == ensemble.site.name
            assert torch.equal(other.logits(x[:50]), ensemble.logits(x[:50]))
    with pytest.raises(TypeError, match="came to be pickled.*published wrapper"):
        pickle.dumps(made("batch"))


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True])
def test_chunks_are_refused_when_the_ensemble_is_made(chunk: int) -> None:
    x, _ = digits()
    with pytest.raises(ValueError, match=f"chunk={chunk}.*at least one"):
        OrbitEnsemble(trained(), x, "mlp", 3, generator=seeded(), chunk=chunk)
    with pytest.raises(ValueError, match=f"chunk={chunk}"):
        MemberEnsemble(trained(), [{}], chunk=chunk)


def test_inputs_by_keyword_are_refused_by_name() -> None:
    x, _ = digits()
    for inputs, came in (({"input": x}, "dict"), ([x], "list")):
        with pytest.raises(ValueError, match=f"a {came} came; a tensor or a tuple"):
            OrbitEnsemble(trained(), inputs, "mlp", generator=seeded())  # pyright: ignore[reportArgumentType]


def test_kinds_of_numbers_that_the_network_cannot_hold() -> None:
    class Counted(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(2).long())

        def forward(self, x: Tensor) -> Tensor:
            return x * self.count

    weight = trained().state_dict()["0.weight"]
    with pytest.raises(ValueError, match="'0.weight' of member 1 is torch.complex128; a tensor"):
        MemberEnsemble(trained(), [{}, {"0.weight": weight * (1 + 1j)}])
    with pytest.raises(ValueError, match="'count' of member 0 is torch.float32"):
        MemberEnsemble(Counted(), [{"count": torch.tensor([1.5, 2.0])}])
    with pytest.raises(ValueError, match="is list; a tensor was"):
        MemberEnsemble(Counted(), [{"count": [1, 2]}])  # pyright: ignore[reportArgumentType]
    held = MemberEnsemble(trained(), [{"0.weight": (2 * weight).float()}])  # to double: exact
    assert held.member(0)["0.weight"].dtype == torch.float64
    assert MemberEnsemble(Counted(), [{"count": torch.tensor([1, 2])}]).names == ("count",)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()) + self.mask


def test_tied_names_have_one_value() -> None:
    model = Tied()
    own = dict(model.state_dict())
    moved = 2 * own["first.weight"]
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        held = MemberEnsemble(model, [{name: moved.clone() for name in names}])
        member = held.member(0)
        assert torch.equal(member["first.weight"], moved)
        assert torch.equal(member["second.weight"], moved)
    other = own | {"first.weight": moved, "second.weight": 3 * moved}
    for member in (other, own | {"first.weight": moved}, own | {"second.weight": moved}):
        with pytest.raises(ValueError, match="member 1 has other entries for 'second.weight'"):
            MemberEnsemble(model, [own, member])
    both = {**own, "first.weight": moved, "second.weight": moved}
    held = MemberEnsemble(model, [own, both])
    assert held.names == ("first.weight",)  # what is not finite in the network itself is shared
