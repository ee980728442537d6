"""Audits of twins: what is accepted as the same structure, what is refused by name, and what an
accepted twin does not hide."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, find_symmetry, orbit_dimension
from paramsym.algebra import PositiveScaling
from paramsym.checking import trials
from paramsym.checking import twin as twins
from paramsym.checking.audit import AuditTooLarge
from paramsym.checking.find import derived
from paramsym.checking.twin import NotATwin, differences_between, structure_of
from paramsym.structure.same_structure import Roles, differences
from tests.tracing.networks import randomise


class Chain(nn.Module):
    """Linear layers in a list, with a function between them."""

    def __init__(
        self, width: int = 12, depth: int = 4, act: nn.Module | None = None, bias: bool = True,
        tied: bool = False, cut: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.first = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))
        if tied:
            for layer in self.layers:
                layer.weight = self.layers[0].weight
        self.act, self.cut = act or nn.Tanh(), cut
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        for layer in self.layers:
            h = self.act(layer(h))
        return self.last(h.detach() if self.cut else h)


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def small(**options: Any) -> nn.Module:
    return Chain(**{"width": 4, "depth": 3, **options})


def on_meta(kind: type[nn.Module], *args: Any, **options: Any) -> nn.Module:
    with torch.device("meta"):
        return kind(*args, **options)


def test_the_large_model_may_be_on_the_meta_device() -> None:
    found = audit(on_meta(Chain, 4000, 6), (X,), twin=(small(), (X[:2],)))
    assert found.complete and found.full is not None and found.full.parameters > 9e7


def test_a_convolution_gets_inputs_of_the_dtype_of_its_generic_weights() -> None:
    def pixels(width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2, 1))

    assert audit(pixels(30), (torch.randn(4, 3, 5, 5),), twin=pixels(5)).complete


class Summed(nn.Module):
    """A network on sets that adds their elements up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, width), nn.Linear(width, width)
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        pooled = 0.2 * self.second(torch.tanh(self.first(x))).sum(1)
        return torch.tanh(self.last(pooled)).sum(-1)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("limit", [100, 10**6], ids=["large", "small"])
def test_a_twin_is_looked_at_as_its_model_is(
    monkeypatch: pytest.MonkeyPatch, device: str, limit: int
) -> None:
    """Other lengths are not tried of models without numbers, and then not of their twins."""
    monkeypatch.setattr(trials, "SMALL", limit)
    sets = (torch.randn(5, 7, 3),)
    models = Summed(20).to(device), Summed(5)
    checked = [find_symmetry(model, sets).checked for model in models]
    assert [bool(each and each.lengths) for each in checked] == [device == "cpu", True]
    assert audit(models[0], sets, twin=models[1]).complete


def test_a_twin_is_audited_at_generic_weights_and_keeps_its_own() -> None:
    """At zero almost everything is dead: the twin's own weights would certify nothing."""
    twin = small()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert audit(twin, (X,)).undeclared > 80
    found = audit(Chain(), (X,), twin=twin)
    assert found.complete and not found.undeclared
    assert not any(bool(p.any()) for p in twin.parameters())


REFUSED = {
    "a twin without biases": (Chain(), small(bias=False), "the model alone has 'layers.*.bias"),
    "a model without biases": (Chain(bias=False), small(), "the twin alone has 'layers.*.bias"),
    "another group": (Chain(), small(act=nn.ReLU()), "operators: the model alone has 'tanh'"),
    "the same group": (Chain(act=nn.GELU()), small(act=nn.SiLU()), "twin alone has 'silu'"),
    "ties": (Chain(tied=True), small(), "tied parameters: the model alone has 'layers.*.weight = "),
    "no layers": (Chain(), small(depth=0), "the model alone has 'layers.*"),
    "too few layers": (Chain(), small(depth=2), "'layers.*.weight': the spaces that it carries"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_structure_is_refused_by_name(name: str) -> None:
    model, twin, difference = REFUSED[name]
    with pytest.raises(NotATwin) as refused:
        audit(model, (X,), twin=twin)
    assert difference in str(refused.value)
    assert "Build the twin like the model" in str(refused.value)


def test_types_alone_tell_two_activations_apart() -> None:
    """Without the names of operators, the difference is one of groups, and is named as such."""
    a, b = (find_symmetry(m, (X,)) for m in (Chain(act=nn.Tanh()), small(act=nn.ReLU())))
    found = differences(a, b)
    assert any("'layers.*.weight': the model has (SignedPerm" in text for text in found), found
    assert differences(a, find_symmetry(small(act=nn.Tanh()), (X,))) == ()


def test_indices_that_agree_are_part_of_a_role() -> None:
    """The steps of a sequence are no repeated layers, even where the sets of types agree."""

    def sequence(width: int, *acts: nn.Module) -> nn.Module:
        a, b = acts
        return nn.Sequential(
            nn.Linear(3, width), a, nn.Linear(width, width), b, nn.Linear(width, 2)
        )

    model = sequence(9, nn.ReLU(), nn.Tanh())
    assert audit(model, (X,), twin=sequence(4, nn.ReLU(), nn.Tanh())).complete
    with pytest.raises(NotATwin, match="types of '0.bias'"):
        audit(model, (X,), twin=sequence(4, nn.Tanh(), nn.ReLU()))


def test_roles_leave_out_the_indices_that_differ() -> None:
    role = Roles(["a.0.b.1.w", "a.1.b.1.w", "a.1.b.0.w", "c.0"], ["a.0.b.1.w", "a.0.b.0.w", "c.0"])
    assert role("a.1.b.0.w") == "a.*.b.0.w" and role("c.0") == "c.0"


class Attention(nn.Module):
    """One attention whose key and value heads serve groups of query heads."""

    def __init__(self, heads: int, groups: int, width: int = 4):
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, width
        self.q = nn.Linear(5, heads * width, bias=False)
        self.k = nn.Linear(5, heads // groups * width, bias=False)
        self.v = nn.Linear(5, heads // groups * width, bias=False)
        self.o = nn.Linear(heads * width, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
                   for f in (self.q, self.k, self.v))  # fmt: skip
        k, v = (t.repeat_interleave(self.groups, dim=1) for t in (k, v))
        y = torch.softmax(q @ k.mT, -1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


SEQUENCES = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1))


def test_a_twin_is_audited_in_the_place_of_a_large_model() -> None:
    model, twin = Attention(8, 2), Attention(4, 2)
    found = audit(model, (SEQUENCES,), twin=twin, limit=250)
    assert found.complete and found.full is not None
    assert found.parameters == sum(p.numel() for p in twin.parameters()) == 240
    assert found.nullity == 2 * 2 * 16  # a change of basis of keys and one of values, per head
    assert found.full.parameters == sum(p.numel() for p in model.parameters())
    state = dict(randomise(Attention(8, 2)).state_dict())
    expected = orbit_dimension(find_symmetry(model, (SEQUENCES,)), state)
    assert found.full.redundant.value == expected == 4 * 2 * 16
    assert found.verdict == (
        "complete on the twin of 240 parameters; the same structure at full size "
        "(480 parameters, 128 redundant directions): evidence, not proof"
    )
    assert found.verdict in str(found)


def test_another_grouping_of_heads_is_refused() -> None:
    with pytest.raises(NotATwin, match="types of 'k.weight'"):
        audit(Attention(8, 2), (SEQUENCES,), twin=Attention(4, 1))


def test_a_false_claim_about_the_model_is_refused() -> None:
    model, twin = Chain(), small()
    true = find_symmetry(model, (X,))
    false = scaled(true)
    assert audit(model, (X,), symmetry=true, twin=twin).complete
    with pytest.raises(NotATwin, match="PositiveScaling"):
        audit(model, (X,), symmetry=false, twin=twin)


def scaled(symmetry: Any) -> Any:
    """A claim that tanh passes positive scales, of every space."""
    spaces = {n: replace(s, group=PositiveScaling(s.size)) for n, s in symmetry.spaces.items()}
    return replace(symmetry, spaces=spaces)


def test_a_false_claim_about_both_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation that is wrong for both passes the comparison, and the twin refutes it."""
    monkeypatch.setattr(twins, "derived", lambda *a, **k: scaled(derived(*a, **k)))
    found = audit(Chain(), (X,), twin=small())
    assert found.refuted and not found.complete
    assert found.verdict.startswith("on the twin of 86 parameters: refuted")


def test_a_missing_claim_about_both_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*args: Any, **options: Any) -> Any:
        return replace(derived(*args, **options), spaces={}, signature={})

    monkeypatch.setattr(twins, "derived", lacking)
    found = audit(Attention(8, 2), (SEQUENCES,), twin=Attention(4, 2))
    assert found.unexplained == 64 and not found.complete
    assert found.verdict.startswith("on the twin of 240 parameters: not complete: 64 directions")


class Table(nn.Module):
    """Token vectors, and a network that sees nothing else."""

    def __init__(self, vocabulary: int, width: int = 4):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(nn.Linear(width, width + 2), nn.GELU(), nn.Linear(width + 2, 6))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.table(tokens))


def test_a_twin_too_small_for_its_weights_is_not_certified() -> None:
    """Its structure is the same; but few token vectors span less than the space of the weights."""
    model = on_meta(Table, 50_000, 256)
    tokens = torch.arange(4).reshape(2, 2)
    found = audit(model, (tokens,), twin=Table(5))
    assert found.unexplained > 0 and not found.complete
    assert audit(model, (tokens,), twin=Table(40)).complete


def test_what_is_no_twin_is_said() -> None:
    with pytest.raises(TypeError, match="a module was expected"):
        audit(Chain(), (X,), twin="small")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="any weights will do"):
        audit(Chain(), (X,), twin=on_meta(Chain, 4, 3))
    with pytest.raises(AuditTooLarge, match="twin=…"):
        audit(Chain(), (X,), twin=small(), limit=85)


def test_structures_compare_both_ways() -> None:
    a, b = (structure_of(model, (X,)) for model in (Chain(bias=False), small()))
    there, back = differences_between(a, b), differences_between(b, a)
    assert len(there) == len(back) > 0
    assert "the twin alone has" in there[0] and "the model alone has" in back[0]
