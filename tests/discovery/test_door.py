"""What is refused, in words that say what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paramsym.discovery import linear_symmetries

from .networks import Apply, example, perceptron

RELU = perceptron((3, 4, 3), torch.relu)


def refused(words: list[str], model: nn.Module = RELU, inputs: object = None, **options) -> None:
    """The search stops with a message that has all of these fragments."""
    with pytest.raises(ValueError) as caught:
        linear_symmetries(model, example(3) if inputs is None else inputs, **options)  # pyright: ignore[reportArgumentType]
    message = str(caught.value)
    assert message.startswith("linear_symmetries(")
    assert [w for w in words if w not in message] == [], message


def test_weights_that_are_not_finite():
    model = perceptron((3, 4, 3), torch.relu)
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    refused(["model=Sequential", "1 of 12 entries of '0.weight'", "numbers were expected",
             "Load weights"], model)  # fmt: skip
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.inf
    refused(["NaN or infinite"], model)


def test_buffers_that_are_not_numbers():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    next(model.buffers())[0] = torch.nan
    refused(["'1.running_mean'", "constants of the function", "reset_running_stats"], model)


def test_inputs_that_are_not_numbers():
    x = torch.randn(2, 3)
    x[0, 0] = torch.nan
    refused(["inputs[0] has entries that are NaN", "random ones do"], inputs=(x,))


def test_one_sample_that_stays():
    words = ["(1, 3)", "one sample only", "fresh=False", "torch.randn(2, …)"]
    refused(words, inputs=example(3), fresh=False)
    # copies of one sample are one sample
    refused(["(5, 3)", "up to copies"], inputs=(torch.randn(1, 3).expand(5, 3),), fresh=False)
    refused(["one sample only"], inputs=(torch.tensor([[1.0, torch.inf, 0.0]]),))
    # two values at most are an example, where nothing else is one
    for one in (torch.ones(1, 3), torch.zeros(2, 3), torch.eye(3)):
        found = linear_symmetries(RELU, (one,))
        assert found.dimension == 4 and "given inputs" not in found.searched
    # but one sample that is drawn anew at each weight is as good as many, and so are two that stay
    assert linear_symmetries(RELU, example(3)).dimension == 4
    given = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    assert linear_symmetries(RELU, (given,), fresh=False).dimension == 4


def test_one_sample_that_stays_has_more_symmetries_which_is_why():
    """Two samples of three inputs leave one direction of the first map without effect."""
    few = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    found = linear_symmetries(RELU, (few,), fresh=False)
    assert found.dimension > 4 and "at the given inputs only" in found.searched


def test_outputs_without_values():
    model = nn.Sequential(nn.Linear(3, 3), Apply(lambda x: x.argmax(-1)))
    refused(["no floating tensor", "argmax", "outputs=…"], model)


@pytest.mark.parametrize(
    "function", [torch.sign, torch.round, lambda x: x.detach()], ids=["sign", "round", "detach"]
)
def test_outputs_that_are_not_differentiable(function):
    model = perceptron((3, 4, 3), function)
    refused(["'0.weight'", "derivative by it is zero", "differentiable model", "Replace"], model)


def test_outputs_that_depend_on_no_parameter():
    model = nn.Sequential(nn.Linear(3, 3), Apply(lambda x: 0.0 * x))
    refused(["none of the 2 parameters", "Choose outputs"], model)


def test_random_outputs():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3))
    refused(
        ["two runs at the same weights and inputs differ", "training=False"], model, training=True
    )
    assert linear_symmetries(model, example(3), "sides").dimension > 0
    noisy = nn.Sequential(nn.Linear(3, 3), Apply(lambda x: x + torch.randn(x.shape)))
    refused(["two runs", "an input of the model"], noisy)


def test_a_state_that_a_forward_pass_writes():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    words = ["writes to the buffer '1.", "training=False", "track_running_stats=False"]
    refused(words, model, (torch.randn(4, 3),), training=True)
    before = {n: b.clone() for n, b in model.named_buffers()}
    stateless = nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)
    )
    assert linear_symmetries(stateless, (torch.randn(4, 3),), "sides", training=True).generators
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())


def test_derivatives_that_are_not_finite():
    model = nn.Sequential(nn.Linear(3, 3), Apply(lambda x: (x.square() * -1 - 1).log()))
    refused(["outputs are NaN or infinite", "logarithm", "outputs=…"], model)

    class Power(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, *grad_outputs: Tensor) -> Tensor:
            return grad_outputs[0] * torch.nan

    model = nn.Sequential(nn.Linear(3, 3), Apply(Power.apply))
    refused(["derivatives are NaN or infinite", "outputs=…"], model)


def test_outputs_that_are_infinite_in_part_are_read_in_part():
    """As masked scores: −∞ has no derivative, and hides nothing of its neighbours."""
    mask = torch.tensor([0.0, -torch.inf, 0.0])
    model = nn.Sequential(perceptron((3, 4, 3), torch.relu), Apply(lambda x: x + mask))
    found = linear_symmetries(model, example(3))
    assert found.dimension == 4 and found.idle == 4 * 24  # a row of the last map is never read


def test_derivatives_that_are_seldom_finite():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight - 0.75).log()  # of three numbers, all of which must be positive

    refused(["NaN or infinite", "numbers were expected", "logarithm"], Root())


def test_derivatives_that_are_often_zero_are_drawn_again():
    model = nn.Sequential(
        *(
            layer
            for n, m in ((2, 8), (8, 2), (2, 2))
            for layer in (nn.Linear(n, m, bias=False), nn.ReLU())
        )
    )
    assert linear_symmetries(model, example(2)).dimension == 10  # a scale of each hidden unit


DETACHED = {
    "factor": lambda z: z * z.detach(),
    "gate": lambda z: z * torch.sigmoid(z).detach(),
    "norm": lambda z: z / z.detach().norm(),
    "straight through": lambda z: z + (z.round() - z).detach(),
}


@pytest.mark.parametrize("name", DETACHED)
def test_derivatives_of_another_function(name: str):
    words = ["of 64 random weights", "the derivative differs", "detach()", "saved ones"]
    refused(words, perceptron((2, 3, 2), DETACHED[name]), example(2))


class Again(torch.autograd.Function):
    """A checkpoint by hand: the backward pass runs the module again, at its own weights."""

    @staticmethod
    def forward(ctx, module: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            wanted = [x, *ctx.module.parameters()]
            return None, *torch.autograd.grad(ctx.module(x), wanted, grads)


class Recomputed(nn.Module):
    """A hidden layer that `again` computes a second time in the backward pass."""

    def __init__(self, again: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.again(self.a, x))


def test_backward_passes_that_read_the_weights_of_the_module():
    by_hand = Recomputed(lambda a, x: Again.apply(a, x, *a.parameters()))  # pyright: ignore[reportArgumentType]
    refused(["the backward pass failed", "weights that they saved"], by_hand, example(2))
    refused(["the derivative differs", "not the saved ones"], by_hand.double(), example(2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool):
    """What torch would compute again in the backward pass, at the model's own weights, is kept."""
    model = Recomputed(lambda a, x: checkpoint(a, x, use_reentrant=reentrant))
    assert linear_symmetries(model, example(2)).dimension == 2
    x = torch.randn(3, 2, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None and model.b.weight.grad is not None


def test_derivatives_that_are_right_but_for_kinks_jumps_and_rounding():
    for function in (torch.relu, nn.Hardshrink(), lambda z: z + (8 * z).round() / 8, torch.sin):
        model = perceptron((2, 2, 2), function)
        for dtype in (torch.float64, torch.float32):
            linear_symmetries(model, example(2), dtype=dtype)


def test_models_that_are_none():
    with pytest.raises(TypeError, match="a torch.nn.Module was expected"):
        linear_symmetries(lambda x: x, example(3))  # pyright: ignore[reportArgumentType]
    refused(["model=ReLU", "no floating parameter", "Give a module"], nn.ReLU())
    refused(["'weight' has no shape yet", "Run the model once"], nn.LazyLinear(2))
    norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, device="meta", affine=False))
    refused(["'1.running_mean' is on the meta device"], norm)


def test_an_empty_tensor_is_not_looked_at():
    model = perceptron((2, 3, 2), torch.relu)
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    found = linear_symmetries(model, example(2))
    assert found.dimension == 3 and "empty" not in found.shapes


def test_inference_mode_is_left():
    with torch.inference_mode():
        inside = perceptron((2, 3, 2), torch.relu)
        assert linear_symmetries(inside, example(2)).dimension == 3
        given = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
        assert linear_symmetries(inside, (given,), fresh=False).dimension == 3
        assert torch.is_inference_mode_enabled()


def test_more_unknowns_than_the_limit():
    model = perceptron((30, 32, 30), torch.relu)
    words = ["level='full'", "3,686,400 unknowns", "P = 1,920", "limit=6,000", "467 TB",
             "years", "level='sides', with 3,848 unknowns", "pass limit=3686400"]  # fmt: skip
    refused(words, model, example(30), level="full")
    words = ["level='tensors'", "1,843,200 unknowns", "level='sides'"]
    refused(words, model, example(30), level="tensors")
    words = ["level='auto'", "3,848 unknowns", "level 'sides'", "509 MB", "seconds",
             "names=…", "a smaller network"]  # fmt: skip
    refused(words, model, example(30), limit=100)


def test_settings_that_are_none():
    refused(["level='blocks'", "'full', 'tensors', 'sides'", "Choose 'auto'"], level="blocks")
    refused(["threshold=0.0", "between 0 and 1", "Leave it out"], threshold=0.0)
    refused(["limit=0", "one unknown or more"], limit=0)
    refused(["dtype=torch.float16", "float64 or torch.float32"], dtype=torch.float16)


def test_names_that_are_none():
    refused(["'3.weight' matches no floating parameter", "0.weight"], names=["3.weight"])

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x).relu()

    refused(["names='unused.*'", "depend on none of these"], Layer(), names="unused.*")
    assert linear_symmetries(Layer(), example(3)).dead == ("unused.weight", "unused.bias")


def test_weights_without_numbers():
    model = nn.Linear(3, 2, device="meta")
    refused(["'weight' is on the meta device", "to_empty", "are not read"], model)
