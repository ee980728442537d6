"""Freed inputs and outputs: f(g·x; g·θ) = g·f(x; θ) for every element of the symmetry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import (
    Feature,
    GroupElement,
    ParameterSymmetry,
    TraceError,
    act,
    act_inputs,
    act_outputs,
    assert_invariant,
    audit,
    find_symmetry,
    orbit_dimension,
    verify,
)
from paramsym.algebra import GeneralLinear, Monomial, Orthogonal, Permutation, SignedPermutation
from paramsym.checking.refute import MATRICES, refute
from paramsym.recording.outputs import named_outputs
from paramsym.recording.precision import lifted
from paramsym.recording.record import Inputs, split_inputs
from paramsym.structure.axes import AxisType, Carried, Fixed, carried, parse_axis, spaces_of
from paramsym.structure.counting import generic_dimension


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ready(model: nn.Module) -> nn.Module:
    """A model in float64 whose every parameter is random."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    return model


def mlp() -> nn.Module:
    return ready(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)))


def errors(
    model: nn.Module, symmetry: ParameterSymmetry, inputs: Inputs, element: GroupElement
) -> tuple[float, float]:
    """How far f(g·x; g·θ) is from g·f(x; θ), and how far f(x; g·θ) is from f(x; θ)."""
    args, kwargs = split_inputs(inputs)
    names = [n for n in symmetry.inputs if n not in kwargs]
    positional = {n: x for n, x in zip(names, args, strict=False)}
    params = {n: p.detach() for n, p in model.state_dict().items()}
    moved = act(symmetry, element, params)
    there = act_inputs(symmetry, element, {**positional, **kwargs}, params)
    first = tuple(there[n] for n in names) + args[len(names) :]

    def function(at: dict[str, Tensor], args: tuple, kwargs: dict) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(named_outputs(torch.func.functional_call(model, at, args, kwargs)))

    before = function(params, args, kwargs)
    wanted = act_outputs(symmetry, element, before, params)
    found = function(moved, first, {n: there[n] for n in kwargs})
    alone = function(moved, args, kwargs)

    def worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
        return max(float((a[n] - b[n]).abs().max() / b[n].abs().max()) for n in b)

    return worst(found, wanted), worst(alone, before)


def element_of(symmetry: ParameterSymmetry, seed: int = 1) -> GroupElement:
    return symmetry.sample(torch.Generator().manual_seed(seed))


# -- networks ------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Beside(nn.Module):
    """The input passes a ReLU on one of two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.straight, self.bent = nn.Linear(5, 7), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.straight(x) + self.bent(torch.relu(x))


class Normed(nn.Module):
    """A norm with a gain, a second input, and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(6, eps=0.0)
        self.weight = nn.Parameter(torch.zeros(2, 3, 4))
        self.other = nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        heads = (x + self.norm(x)).unflatten(-1, (2, 3))
        return torch.einsum("bhd,hde->bhe", heads, self.weight).flatten(1) + self.other(z)


class Gained(nn.Module):
    """The output is the input in the frame of a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Identity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x))


class Read(nn.Module):
    """Reads its first input alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.linear(x)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3))


Case = tuple[Callable[[], nn.Module], tuple[Tensor, ...], Any, Any, dict[str, object]]
X = drawn(4, 5)
CASES: dict[str, Case] = {
    "MLP": (mlp, (X,), "input", "output",
            {"input": GeneralLinear(5), "mlp": Monomial(7), "output": GeneralLinear(3)}),
    "input alone": (mlp, (X,), True, None, {"input": GeneralLinear(5), "mlp": Monomial(7)}),
    "output alone": (mlp, (X,), None, {"output": 1},
                     {"mlp": Monomial(7), "output": GeneralLinear(3)}),
    "residual": (Residual, (X,), ["x"], True, {"x": GeneralLinear(5), "mlp": Monomial(7)}),
    "residual, input alone": (Residual, (X,), "x", None, {"mlp": Monomial(7)}),
    "beside a ReLU": (Beside, (X,), True, True, {"x": Monomial(5), "output": GeneralLinear(7)}),
    "odd": (Odd, (X,), True, None, {"x": SignedPermutation(5)}),
    "convolutions": (convolutions, (drawn(3, 4, 8, 8),), {"input": 1}, {"output": -3},
                     {"input": GeneralLinear(4), "channels": Monomial(6),
                      "output": GeneralLinear(2)}),
    "channels last": (convolutions,
                      (drawn(3, 4, 8, 8).to(memory_format=torch.channels_last),), {"input": 1}, {},
                      {"input": GeneralLinear(4), "channels": Monomial(6)}),
    "frame": (Gained, (X,), True, True, {}),
    "identity": (Identity, (X,), True, True, {"x": GeneralLinear(5)}),
    "unread": (Read, (X, drawn(4, 5, seed=2)), ["x", "z"], None, {"x": GeneralLinear(5)}),
    "norm and heads": (Normed, (drawn(5, 6), drawn(5, 4)), ["x", "z"], None, {}),
}  # fmt: skip


def found(name: str) -> tuple[nn.Module, tuple[Tensor, ...], ParameterSymmetry]:
    build, inputs, free_inputs, free_outputs, _ = CASES[name]
    model = ready(build())
    symmetry = find_symmetry(model, inputs, free_inputs=free_inputs, free_outputs=free_outputs)
    return model, inputs, symmetry


@pytest.mark.parametrize("name", CASES)
def test_moved_inputs_give_moved_outputs(name: str) -> None:
    model, inputs, symmetry = found(name)
    assert not symmetry.checked.refuted and symmetry.checked.passes
    for seed in range(3):
        error, alone = errors(model, symmetry, inputs, element_of(symmetry, seed))
        assert error <= 1e-10
        if any(space in CASES[name][4] for space in ("x", "input", "output")) or name == "frame":
            assert alone >= 1e-3 or name == "identity"  # the parameters alone change the function


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][4]])
def test_spaces_have_the_groups_that_their_readers_admit(name: str) -> None:
    symmetry = found(name)[2]
    groups = {space: symmetry.group(space) for space in symmetry.spaces}
    assert groups == CASES[name][4]


def test_a_network_counts_its_interfaces() -> None:
    model, _, symmetry = found("MLP")
    params = model.state_dict()
    assert [symmetry.dimension(s) for s in ("input", "mlp", "output")] == [25, 7, 9]
    assert orbit_dimension(symmetry, params) == 41 == generic_dimension(symmetry, params).value
    assert orbit_dimension(find_symmetry(model, (X,)), params) == 7
    assert str(symmetry.inputs["input"]) == "…, input" and "…, output" in str(symmetry)


def test_spaces_of_inputs_alone_move_no_parameters() -> None:
    model, _, symmetry = found("identity")
    params = model.state_dict()
    assert symmetry.dimension("x") == 25
    assert orbit_dimension(symmetry, params) == 2 == generic_dimension(symmetry, params).value
    assert not verify(model, symmetry, (X,)).unmoved


def test_an_unread_input_stays() -> None:
    symmetry = found("unread")[2]
    assert symmetry.inputs == {"x": Feature(carried("x")), "z": Feature(parse_axis("5"))}


# -- the explicit trick ----------------------------------------------------------------------------


class Between(nn.Module):
    """A model between two identity maps."""

    def __init__(self, model: nn.Module, size: int, after: int) -> None:
        super().__init__()
        self.front, self.model = nn.Linear(size, size, bias=False), model
        self.behind = nn.Linear(after, after, bias=False)
        with torch.no_grad():
            self.front.weight.copy_(torch.eye(size))
            self.behind.weight.copy_(torch.eye(after))

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.model(self.front(x)))


@pytest.mark.parametrize(("name", "after"), [("MLP", 3), ("residual", 5), ("beside a ReLU", 7)])
def test_it_is_the_symmetry_between_two_identity_maps(name: str, after: int) -> None:
    model, inputs, symmetry = found(name)
    (start,), (end,) = symmetry.inputs.values(), symmetry.outputs.values()
    explicit = find_symmetry(Between(model, 5, after).double(), inputs)
    mine = {
        "front.weight": (start.type, Fixed(5)),
        **{f"model.{n}": axes for n, axes in symmetry.signature.items()},
        "behind.weight": (Fixed(after), end.type.T),
    }
    theirs = explicit.signature
    assert [*mine] == [*theirs]
    seen, same = (
        [*dict.fromkeys(s for axes in types.values() for a in axes for s in spaces_of(a))]
        for types in (mine, theirs)
    )
    names = dict(zip(same, seen, strict=True))
    assert mine == {n: tuple(_named(a, names) for a in axes) for n, axes in theirs.items()}
    assert [symmetry.group(names[s]) for s in same] == [explicit.group(s) for s in same]


def _named(axis: AxisType, names: dict[str, str]) -> AxisType:
    if isinstance(axis, Carried):
        return Carried(tuple((names[s], power) for s, power in axis.factors))
    assert isinstance(axis, Fixed)
    return axis


# -- several inputs and outputs --------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, Tensor]


class Several(nn.Module):
    """Two inputs, and outputs in the form that is asked for."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form
        self.left, self.right = nn.Linear(5, 6), nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, *, z: Tensor) -> Any:
        h = torch.relu(self.left(x) + self.right(z))
        return self.form(self.head(h), h, z)


FORMS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], str, str]] = {
    "a dict": (lambda y, h, z: {"logits": y, "hidden": (h, z)}, "logits", "hidden.0"),
    "a dataclass": (lambda y, h, z: Answer(y, (h, z)), "logits", "hidden.0"),
    "a tuple": (lambda y, h, z: (y, [h, z]), "0", "1.0"),
}


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_named_by_how_they_are_reached(form: str) -> None:
    make, logits, hidden = FORMS[form]
    model = ready(Several(make))
    inputs = {"x": X, "z": drawn(4, 4)}
    symmetry = find_symmetry(model, inputs, free_inputs="x", free_outputs=[logits, hidden])
    assert [*symmetry.inputs] == ["x"] and [*symmetry.outputs] == [logits, hidden]
    groups = {str(f.type): symmetry.group(str(f.type)) for f in symmetry.features.values()}
    names = ["x", *(f"output.{n}" if n[0].isdigit() else n for n in (logits, hidden))]
    assert groups == dict(
        zip(names, [GeneralLinear(5), GeneralLinear(3), Monomial(6)], strict=True)
    )
    error, alone = errors(model, symmetry, inputs, element_of(symmetry))
    assert error <= 1e-10 and alone >= 1e-3
    some = find_symmetry(model, inputs, free_outputs=[logits])
    assert [*some.spaces] == [names[1]]  # the hidden units are given out as they are


def test_what_outputs_chooses_is_freed() -> None:
    model = ready(Several(lambda y, h, z: {"logits": y, "hidden": h}))
    inputs = {"x": X, "z": drawn(4, 4)}
    symmetry = find_symmetry(model, inputs, lambda y: y["logits"], free_outputs="output")
    assert [*symmetry.outputs] == ["output"] and symmetry.group("mlp") == Monomial(6)
    verified = verify(model, symmetry, inputs, outputs=lambda y: y["logits"])
    assert verified.error <= 1e-12 and verified.control >= 1e-3


def test_embeddings_and_logits_of_a_language_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=12, vocab_size=11, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    inputs = {"inputs_embeds": drawn(2, 7, 8)}
    symmetry = find_symmetry(model, inputs, free_inputs="inputs_embeds", free_outputs="logits")
    assert str(symmetry.inputs["inputs_embeds"]) == "…, residual"
    assert symmetry.spaces["residual"].group == Orthogonal(8)
    assert symmetry.group("logits") == GeneralLinear(11)
    assert not symmetry.checked.refuted
    with lifted():  # its norms compute in float32
        error, alone = errors(model, symmetry, inputs, element_of(symmetry))
    assert error <= 1e-10 and alone >= 1e-3


# -- elements ------------------------------------------------------------------------------------


def test_a_key_of_one_s_own() -> None:
    model, _, symmetry = found("MLP")
    key = drawn(5, 5, seed=4)
    g = symmetry.element(input=key)
    moved = act(symmetry, g, model.state_dict())
    torch.testing.assert_close(act_inputs(symmetry, g, X), X @ key.T)
    torch.testing.assert_close(moved["0.weight"], model.state_dict()["0.weight"] @ key.inverse())
    again = torch.func.functional_call(model, moved, (act_inputs(symmetry, g, X),))
    torch.testing.assert_close(again, model(X))
    alone = torch.func.functional_call(model, moved, (X,))
    assert float((alone - model(X)).detach().abs().max()) > 0.1


def test_the_axis_is_along_all_others() -> None:
    _, _, symmetry = found("MLP")
    g = symmetry.element(input=drawn(5, 5, seed=4))
    wide = drawn(2, 3, 4, 5)
    expected = act_inputs(symmetry, g, wide.reshape(-1, 5)).reshape(wide.shape)
    torch.testing.assert_close(act_inputs(symmetry, g, wide), expected)
    given = {"input": wide, "another": X}
    assert act_inputs(symmetry, g, given)["another"] is X
    assert torch.equal(given["input"], drawn(2, 3, 4, 5))  # nothing is modified


def test_interfaces_act_as_a_group() -> None:
    model, inputs, symmetry = found("MLP")
    g, h = element_of(symmetry, 1), element_of(symmetry, 2)
    twice = act_inputs(symmetry, g, act_inputs(symmetry, h, X))
    torch.testing.assert_close(act_inputs(symmetry, g @ h, X), twice)
    torch.testing.assert_close(act_inputs(symmetry, ~g, act_inputs(symmetry, g, X)), X)
    assert errors(model, symmetry, inputs, g @ ~h)[0] <= 1e-10


def test_it_is_differentiable_and_batched() -> None:
    model, _, symmetry = found("MLP")
    params = dict(model.state_dict())

    def through(key: Tensor) -> Tensor:
        g = symmetry.element(input=key)
        moved = act(symmetry, g, params)
        return torch.func.functional_call(model, moved, (act_inputs(symmetry, g, X),))

    keys = drawn(6, 5, 5)
    torch.testing.assert_close(torch.func.vmap(through)(keys), model(X).expand(6, 4, 3))
    slope = torch.func.jacrev(through)(keys[0])
    assert float(slope.abs().max()) <= 1e-8  # the function does not depend on the key

    def still(key: Tensor) -> Tensor:
        return act_inputs(symmetry, symmetry.element(input=key), X)

    assert float(torch.func.jacrev(still)(keys[0]).abs().max()) > 0.1


def test_gains_are_read_from_the_parameters() -> None:
    model, inputs, symmetry = found("frame")
    assert "[gain]" in str(symmetry.outputs["output"])
    g, y = element_of(symmetry), model(X).detach()
    with pytest.raises(ValueError, match=r"no params came.*output.*frame of gains.*params=model"):
        act_outputs(symmetry, g, y)
    assert errors(model, symmetry, inputs, g @ element_of(symmetry, 5))[0] <= 1e-10
    wrong = act_outputs(symmetry, g, y, {"gain": drawn(5, seed=9)})
    right = act_outputs(symmetry, g, y, model.state_dict())
    assert float((wrong - right).abs().max()) > 1e-3


# -- the value -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_it_is_written_and_read(name: str) -> None:
    symmetry = found(name)[2]
    again = ParameterSymmetry.from_json(symmetry.to_json())
    assert again == symmetry and again.fingerprint == symmetry.fingerprint
    assert symmetry.dual.dual.inputs == symmetry.inputs
    rows = [line for line in str(symmetry).splitlines() if line.startswith(("input ", "output "))]
    assert len(rows) >= len(symmetry.interfaces)


def test_the_fingerprint_knows_the_interfaces() -> None:
    _, _, symmetry = found("MLP")
    other = dataclasses.replace(symmetry, inputs={})
    assert other.fingerprint != symmetry.fingerprint
    plain = find_symmetry(mlp(), (X,))
    assert "inputs" not in plain.to_json() and not plain.interfaces
    assert plain == find_symmetry(mlp(), (X,), free_inputs=None, free_outputs=())


def test_restrictions_restrict_the_interfaces() -> None:
    model, inputs, symmetry = found("MLP")
    orders = symmetry.restrict(groups=Permutation)
    g = element_of(orders)
    assert errors(model, orders, inputs, g)[0] <= 1e-12
    assert torch.equal(act_inputs(orders, g, X).sort(-1).values, X.sort(-1).values)
    held = symmetry.restrict(spaces="output")
    assert held.inputs["input"].type == Fixed(5)
    assert act_inputs(held, element_of(held), X) is X
    assert errors(model, held, inputs, element_of(held))[0] <= 1e-10


def test_a_restriction_keeps_what_stands_in_an_interface() -> None:
    """An order beside scales that only the output carries cannot be written."""
    model, inputs, symmetry = found("frame")
    smaller = symmetry.restrict(groups=SignedPermutation)
    assert errors(model, smaller, inputs, element_of(smaller))[0] <= 1e-10


def test_interfaces_name_spaces_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'h' *carries|carries the space 'h'"):
        ParameterSymmetry({}, {}, inputs={"x": Feature(carried("h"))})


# -- checks ----------------------------------------------------------------------------------------


def broken(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """With the dual of the type of the input."""
    inputs = {name: feature.T for name, feature in symmetry.inputs.items()}
    return dataclasses.replace(symmetry, inputs=inputs)


def test_verify_passes_and_fails() -> None:
    model, inputs, symmetry = found("MLP")
    verified = verify(model, symmetry, inputs)
    assert verified.error <= 1e-12 and verified.control >= 1e-2 and not verified.unmoved
    assert_invariant(model, symmetry, inputs)
    assert verify(model, broken(symmetry), inputs).error >= 1e-2
    still = dataclasses.replace(symmetry, inputs={})
    assert verify(model, still, inputs).error >= 1e-2
    with pytest.raises(AssertionError, match="input"):
        assert_invariant(model, broken(symmetry), inputs)


@pytest.mark.parametrize("name", ["identity", "frame", "odd"])
def test_verify_sees_inputs_that_move_alone(name: str) -> None:
    model, inputs, symmetry = found(name)
    verified = verify(model, symmetry, inputs)
    assert verified.error <= 1e-12 and verified.control >= 1e-3
    assert verify(model, broken(symmetry), inputs).error >= 1e-3 or name == "odd"


def test_refutation_takes_out_a_wrong_type() -> None:
    model, inputs, symmetry = found("MLP")
    checked = refute(model, broken(symmetry), inputs)
    assert any("input" in text for text in checked.checked.refuted)
    assert checked.spaces["input"].group <= Orthogonal(5)  # its own dual, which is what is left
    assert checked.spaces["output"] == symmetry.spaces["output"]
    wide = dataclasses.replace(symmetry, inputs={"input": Feature(carried("mlp"))})
    assert refute(model, wide, inputs).inputs["input"].type == Fixed(7)


def test_refutation_leaves_out_elements_that_do_not_fit() -> None:
    size = int(MATRICES**0.5) + 1
    with torch.device("meta"):
        wide = nn.Linear(1, size, bias=False)
    model = wide.to_empty(device="cpu")
    symmetry = find_symmetry(model, (torch.zeros(2, 1),), free_outputs=True)
    assert "above the limit" in symmetry.checked.note
    assert symmetry.group("output") == GeneralLinear(size)


def test_an_audit_is_of_fixed_inputs() -> None:
    model, inputs, symmetry = found("MLP")
    with pytest.raises(ValueError, match=r"moves \['input input', 'output ou.*fixed.*without"):
        audit(model, inputs, symmetry=symmetry)
    still = symmetry.restrict(spaces="mlp")
    assert audit(model, inputs, symmetry=still).unexplained == 0


def test_shifts_leave_inputs_and_outputs() -> None:
    """They are those of the network between fixed inputs and outputs."""
    model, inputs, symmetry = found("beside a ReLU")
    plain = find_symmetry(model, inputs)
    assert [s.name for s in symmetry.shifts] == [s.name for s in plain.shifts] != []
    only = [shift.name for shift in symmetry.shifts]
    g = symmetry.sample(torch.Generator().manual_seed(0), only=only)
    assert torch.equal(act_inputs(symmetry, g, X), X)


# -- errors ----------------------------------------------------------------------------------------

WRONG = [
    ({"free_inputs": "y"}, r"free_inputs='y'.*'y' is no input.*\['input'\].*parameters of forward"),
    ({"free_inputs": {"input": 2}}, r"'input' has shape \(4, 5\) and no axis 2.*from -2 to 1"),
    ({"free_inputs": {"input": "last"}}, r"no axis 'last'.*\{'input': -1\}"),
    ({"free_outputs": ["logits"]}, r"'logits' is no output.*\['output'\].*reached"),
    ({"free_outputs": {"output": -3}}, r"'output' has shape \(4, 3\) and no axis -3"),
]


@pytest.mark.parametrize(("free", "message"), WRONG)
def test_what_cannot_be_freed_is_an_error(free: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        find_symmetry(mlp(), (X,), **free)


def test_integers_have_no_basis() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)

        def forward(self, tokens: Tensor, scale: float = 1.0) -> Tensor:
            return self.table(tokens) * scale

    tokens = torch.tensor([[1, 2, 3]])
    expected = r"'tokens' is of torch.int64, but a floating-point tensor was expected.*embeddings"
    with pytest.raises(TraceError, match=expected):
        find_symmetry(Table(), (tokens,), free_inputs="tokens")
    with pytest.raises(TraceError, match="'scale' is a float, but a floating-point tensor"):
        find_symmetry(Table(), (tokens, 2.0), free_inputs={"scale": 0})
    assert not find_symmetry(Table(), (tokens,), free_inputs=True).inputs


def test_tensors_that_do_not_fit_are_refused() -> None:
    _, _, symmetry = found("MLP")
    g = element_of(symmetry)
    with pytest.raises(ValueError, match=r"act_inputs.*shape \(4, 3\).*needs 5 entries.*another"):
        act_inputs(symmetry, g, drawn(4, 3))
    with pytest.raises(ValueError, match=r"act_outputs.*'output' is missing among \['logits'\]"):
        act_outputs(symmetry, g, {"logits": X})
    with pytest.raises(ValueError, match=r"one tensor.*frees 0 inputs.*by\s+name"):
        act_inputs(dataclasses.replace(symmetry, inputs={}), g, X)
    other = found("residual")[2]
    with pytest.raises(ValueError, match="belongs to another symmetry"):
        act_inputs(symmetry, element_of(other), X)


def test_a_freed_batch_keeps_its_length() -> None:
    """The check enlarges batches; one that is freed has the size of its group."""
    model = nn.Linear(3, 2).double()
    free = {"free_inputs": {"input": 0}, "free_outputs": {"output": 0}}
    symmetry = find_symmetry(model, (drawn(5, 3),), **free)
    assert not symmetry.checked.refuted
    assert any(space.size == 5 and space.group.log_order for space in symmetry.spaces.values())


def test_what_is_freed_is_named() -> None:
    with pytest.raises(TraceError, match=r"free_inputs=3\): 3 came, but names of inputs"):
        find_symmetry(nn.Linear(3, 2), (torch.zeros(5, 3),), free_inputs=3)  # type: ignore[arg-type]
