"""Real networks as ReLU networks: the function that torch computes, and nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramsym import relu
from paramsym.relu import precision
from paramsym.relu.formats import FLOAT64, FORMATS


class Of(nn.Module):
    """A function of the input and of the parts given."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return self.function(self, x)


class Residual(nn.Module):
    """A small residual network with batch norm, in evaluation."""

    def __init__(self, channels=3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(channels)
        self.outer = nn.Conv2d(channels, channels, 1)
        self.head = nn.Linear(channels, 2)
        lively(self)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)))
        h = F.relu(h + self.outer(F.relu(self.inner_norm(self.inner(h)))))
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


def lively(module):
    """The module in evaluation, with statistics and gains as training leaves them."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None and part.running_var is not None
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            if part.affine:
                part.weight.data.uniform_(0.5, 1.5)
                part.bias.data.normal_(0.5, 0.5)
    return module.eval()


def weight_normed():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


IMAGE, ROW = (2, 4, 4), (4,)
FUNCTIONS = {
    "residual": (lambda: Residual(2), (1, 4, 4)),
    "chain": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True),
                                    nn.Dropout(0.3), nn.Linear(6, 2), nn.LeakyReLU(0.1)), None),
    "parts that recur": (lambda: nn.Sequential(*([nn.Linear(4, 4), nn.ReLU()] * 3)), None),
    "standardised": (lambda: Of(lambda m, x: m.first((x - 0.4) / 0.3).relu()), None),
    "images": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.PReLU(4),
                                     nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)), IMAGE),
    "means over nine": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU6(), nn.AvgPool2d(3)),
                        IMAGE),
    "series": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, dilation=2), nn.Hardtanh(-0.5, 0.7),
                                     nn.AdaptiveAvgPool1d(3)), (2, 9)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.MaxPool3d(2)),
                (1, 3, 3, 3)),
    "pooling beyond": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1,
                       count_include_pad=False)), IMAGE),
    "norm without gain": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)),
                          None),
    "maximum": (lambda: Of(lambda m, x: torch.maximum(m.first(x), 2 * x.flip(1))), ROW),
    "smallest": (lambda: Of(lambda m, x: torch.minimum(m.first(x).abs(), x + 1).amin(1)), ROW),
    "maxout": (lambda: Of(lambda m, x: m.first(x).view(-1, 2, 2).max(dim=2).values), ROW),
    "clamps": (lambda: Of(lambda m, x: m.first(x).clamp(min=0) + x.clamp(-0.5, 0.5) - x.clamp(
        max=torch.tensor([0.1, 0.2, 0.3, 0.4]))), ROW),
    "by sign": (lambda: Of(lambda m, x: torch.where(m.first(x) > 0, m.first(x), 0.1 * m.first(x))
                           + x * (x >= 0) - torch.where(x < 0.5, 2 * x, x + 0.5)), ROW),
    "other bends": (lambda: Of(lambda m, x: F.hardsigmoid(x) + F.softshrink(x, 0.2)
                               + F.threshold(x, 0.3, 0.3) + F.rrelu(m.first(x))), ROW),
    "arranged": (lambda: Of(lambda m, x: torch.cat([x[:, 1:3], m.first(x).roll(1, 1)[:, ::2],
                 torch.stack(x.split(2, 1)).transpose(0, 1).flatten(1), x[:, [3, 0]]], 1)), ROW),
    "padded": (lambda: Of(lambda m, x: F.pad(F.pixel_shuffle(x, 1), (1, 2, 0, 1), value=0.5)
                          + F.pad(x, (2, 1, 1, 0), mode="replicate")), IMAGE),
    "adapted": (lambda: Of(lambda m, x: x @ (m.first.weight + m.up @ m.down).T + m.first.bias,
                up=nn.Parameter(torch.randn(4, 1)), down=nn.Parameter(torch.randn(1, 4))), ROW),
    "masked weights": (lambda: Of(lambda m, x: F.linear(x, m.first.weight * (
        m.first.weight.abs() > 0.2), m.first.bias * 3)), ROW),
    "weight norm": (lambda: Of(lambda m, x: m.part(x).relu(), part=weight_normed()), ROW),
    "scaled codes": (lambda: Of(lambda m, x: F.linear(x, (m.codes.to(torch.float32) - 3) * m.scale),
                     codes=nn.Buffer(torch.randint(-128, 127, (3, 4), dtype=torch.int8)),
                     scale=nn.Buffer(torch.rand(3, 1))), ROW),
    "from the left": (lambda: Of(lambda m, x: m.first.weight @ x.relu()), (4, 2)),
    "by shape": (lambda: Of(lambda m, x: torch.zeros_like(x).add(m.first(x)).mean(1, True)
                            .expand(x.shape[0], 3) + torch.arange(3)), ROW),
}  # fmt: skip


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_function_is_that_of_torch(kind):
    torch.manual_seed(1)
    build, shape = FUNCTIONS[kind]
    module = lively(build())
    net = relu.as_network(module, input_shape=shape)
    x = torch.randn(200, *(shape or (4,))).double() * 1.5
    with torch.no_grad():
        right = copy.deepcopy(module).double()(x).reshape(200, -1).numpy()
    assert np.abs(net.batch(x.reshape(200, -1).numpy()) - right).max() < 1e-10
    assert np.abs(right).max() > 0.1 and np.ptp(right, axis=0).max() > 0.1  # there is something


# ------------------------------------------------------------------ what is refused


class Mixed(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.first, self.how = nn.Linear(4, 4), how

    def forward(self, x):
        return self.how(self.first(x))


@pytest.mark.parametrize("how, words", [
    (lambda h: h - h.mean(0), ["rows of a batch that are mixed"]),
    (lambda h: h.flip(0), ["rows of a batch that are mixed"]),
    (lambda h: h + torch.arange(2).view(2, 1), ["treated differently"]),
    (lambda h: h.t(), ["an output of shape (4, 2)", "2 rows"]),
    (lambda h: F.gelu(h), ["aten.gelu"]),
    (lambda h: h.relu() * h, ["a product of two values that both depend on the input"]),
    (lambda h: h / (1 + h.abs()), ["a quotient"]),
    (lambda h: h @ h.transpose(0, 1), ["product of two values"]),
    (lambda h: h.softmax(-1), ["softmax"]),
    (lambda h: torch.where(h > 0, h, h + 1), ["a jump"]),
    (lambda h: torch.where(h > 1, h, 0 * h), ["a jump"]),
    (lambda h: h.round(), ["aten.round"]),
    (lambda h: h.to(torch.int64).to(torch.float32), ["to integers"]),
    (lambda h: (h, h + 1), ["several outputs"]),
    (lambda h: F.dropout(h, 0.5, True), ["ropout"]),
    (lambda h: F.batch_norm(h, None, None, training=True), ["batch"]),
    (lambda h: h / torch.zeros(4), ["may be zero"]),
])  # fmt: skip
def test_what_is_not_piecewise_linear_is_named(how, words):
    with pytest.raises(relu.ReLUError) as caught:
        relu.as_network(Mixed(how), "net")
    for word in [*words, "net", "got", "expected"]:
        assert word in str(caught.value)


def test_training_mode_is_refused_with_its_place():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    with pytest.raises(relu.ReLUError, match=r"net\[1\]\[0\]: got BatchNorm1d in training mode"):
        relu.as_network(net, "net")
    assert relu.as_network(net.eval(), "net").widths == (2, 3, 3)


def test_the_size_of_images_has_to_be_said():
    with pytest.raises(relu.ReLUError, match=r"shape of its input.*input_shape=\(channels"):
        relu.as_network(nn.Conv2d(1, 2, 3))
    with pytest.raises(relu.ReLUError, match=r"cannot trace on inputs of shape \(2, 3, 5, 5\)"):
        relu.as_network(nn.Conv2d(1, 2, 3), input_shape=(3, 5, 5))
    assert relu.as_network(nn.Conv2d(1, 2, 3), input_shape=(1, 5, 5)).widths == (25, 18)


def test_programs_of_any_batch_say_their_size_themselves():
    module = Residual(2)
    right = relu.as_network(module, input_shape=(1, 4, 4))
    batch = torch.export.Dim("batch")
    for program in (
        torch.export.export(module, (torch.zeros(3, 1, 4, 4),)),
        torch.export.export(module, (torch.zeros(2, 1, 4, 4),), dynamic_shapes=({0: batch},)),
    ):
        assert relu.as_network(program) == right


# ------------------------------------------------------------------ decisions


def twin(module, powers):
    """The same function: channels of both hidden spaces permuted, and scaled through batch norm."""
    made = copy.deepcopy(module)
    state = {k: v.clone() for k, v in made.state_dict().items()}
    rng = torch.Generator().manual_seed(0)

    def carry(norm, conv, readers):
        n = len(state[f"{norm}.weight"])
        order = torch.randperm(n, generator=rng)
        scale = 2.0 ** torch.randint(-2, 3, (n,), generator=rng) if powers else (
            torch.rand(n, generator=rng) + 0.5)  # fmt: skip
        scale = scale.to(state[f"{norm}.weight"].dtype)
        state[f"{conv}.weight"] = state[f"{conv}.weight"][order]
        for key in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{key}"] = state[f"{norm}.{key}"][order]
        for key in ("weight", "bias"):
            state[f"{norm}.{key}"] *= scale
        for reader in readers:
            state[reader] = state[reader][:, order] / scale.view(1, -1, 1, 1)

    carry("inner_norm", "inner", ["outer.weight"])
    made.load_state_dict(state)
    return made


def read(module):
    return relu.as_network(module, input_shape=(1, 3, 3))


def test_a_twin_by_powers_of_two_is_equal_and_a_changed_weight_is_not():
    module = Residual(2)
    a, b = read(module), read(twin(module, True))
    assert a != b
    verdict = relu.decide(a, b, domain=(-1, 1), budget=20)
    assert verdict.kind == "EQUAL" and relu.verify(verdict, a, b)
    assert "computed, once, in float64" in verdict.reason  # the factors of batch norm
    changed = twin(module, True)
    changed.inner.weight.data[0, 0, 1, 1] += 1e-3
    c = read(changed)
    verdict = relu.decide(a, c, domain=(-1, 1), budget=20)
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, a, c)


@pytest.mark.parametrize("dtype, kind", [
    (torch.float64, "EQUAL"), (torch.float32, "EQUAL_TO_PRECISION"),
])  # fmt: skip
def test_twins_agree_up_to_their_storage_through_batch_norm(dtype, kind):
    module = Residual(2).to(dtype)
    a, b = read(module), read(twin(module, False))
    verdict = relu.decide(a, b, mode="float", domain=(-1, 1), budget=20)
    assert verdict.kind == kind and relu.verify(verdict, a, b)
    changed = twin(module, False)
    changed.inner.weight.data[0, 0, 1, 1] += 1e-2
    c = read(changed)
    verdict = relu.decide(a, c, mode="float", domain=(-1, 1), budget=20)
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, a, c)


# ------------------------------------------------------------------ roundings


def roundings_hold(build, weights, dtype, count=40):
    """Whatever reals the stored weights stand for, the layers read from them are within bounds."""
    rng = torch.Generator().manual_seed(0)
    held = FORMATS[str(dtype).removeprefix("torch.")]
    stored = [w.to(dtype) for w in weights]
    net = relu.as_network(build(*stored))
    assert precision.coarse(net) and held.name in precision.storage_name(net)
    seen = 0.0
    for _ in range(count):
        moved = []
        for w in stored:
            wide = w.double()
            sign = torch.randint(0, 2, wide.shape, generator=rng) * 2.0 - 1
            moved.append(wide + sign * (held.unit * wide.abs() + held.tiny))
        other = relu.as_network(build(*moved))
        for (u, v), p, q in zip(precision.roundings(net), net.floats, other.floats, strict=True):
            for bound, x, y in ((u, p.weight, q.weight), (v, p.bias, q.bias)):
                assert (np.abs(x - y) <= bound + 1e-14).all()
                ratio = np.abs(x - y)[bound > 1e-13] / bound[bound > 1e-13]
                seen = max(seen, ratio.max(initial=0.0))
    assert seen > 0.1  # the bounds are of the size of what they bound


def batch_normed(weight, mean, variance, gain, bias):
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    norm, last = net[1], net[3]
    net[0].weight.data = weight
    norm.running_mean, norm.running_var = mean, variance
    norm.weight.data, norm.bias.data = gain, bias
    last.weight.data, last.bias.data = weight[:2], bias[:2]
    return net.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_can_do_to_batch_norm_is_bounded(dtype):
    torch.manual_seed(0)
    weight, *vectors = torch.randn(3, 3), *torch.randn(4, 3)
    vectors[1] = vectors[1].abs() + 0.5  # variances
    roundings_hold(batch_normed, [weight, *vectors], dtype, 12)


@pytest.mark.parametrize("compute", [
    lambda w, v: (w @ v) * torch.sigmoid(v),
    lambda w, v: w * v.norm() / w.norm(dim=1, keepdim=True),
    lambda w, v: torch.softmax(w, 1).flip(0) - v.t() / 3,
])  # fmt: skip
def test_what_rounding_can_do_to_computed_weights_is_bounded(compute):
    torch.manual_seed(0)

    def build(w, v):
        module = Of(lambda m, x: F.linear(x, compute(m.w, m.v)), w=nn.Buffer(w), v=nn.Buffer(v))
        module.first = module.first.to(w.dtype)
        return module

    roundings_hold(build, [torch.randn(4, 4), torch.randn(4, 4)], torch.float32, 6)


def test_codes_of_eight_bits_stand_for_half_a_step():
    torch.manual_seed(0)
    codes, scale = torch.randint(-128, 127, (3, 4), dtype=torch.int8), torch.rand(3, 1) / 100

    def build(weight, scale):
        return Of(lambda m, x: F.linear(x, m.w.to(torch.float32) * m.s), w=nn.Buffer(weight),
                  s=nn.Buffer(scale))  # fmt: skip

    net = relu.as_network(build(codes, scale))
    assert precision.storage_name(net) == "int8 and float32"
    (bound, _), (weight, _) = precision.roundings(net)[0], net.floats[0]
    assert (weight == codes.double().numpy() * scale.double().numpy()).all()
    half = scale.double().numpy() / 2
    assert (bound >= half).all() and (bound <= half * 1.01).all()
    # A float network and its rounding to eight bits, half a step from it at most.
    fine = (codes.double() + torch.rand(3, 4) - 0.5) * scale.double()
    verdict = relu.decide([(fine, None)], net, mode="float", domain=(-1, 1))
    assert verdict.kind == "EQUAL_TO_PRECISION" and "int8" in verdict.reason
    far = (codes.double() + 5) * scale.double()
    assert relu.decide([(far, None)], net, mode="float", domain=(-1, 1)).kind == "DIFFERENT"


def test_formats_of_eight_bits_are_not_float64():
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        dtype = getattr(torch, name)
        held = FORMATS[name]
        for value in (1.0, 1.9, 0.37, 0.011, 1e-5):
            near = torch.tensor(value).to(dtype)
            assert abs(float(near) - value) <= held.unit * abs(float(near)) + held.tiny
        net = relu.as_network([(torch.randn(2, 2).to(dtype), None)])
        assert precision.coarse(net) and net.storage[0][0] == held != FLOAT64
    with pytest.raises(relu.ReLUError, match="float8_e8m0fnu.*Convert"):
        relu.as_network([(torch.ones(2, 2).to(torch.float8_e8m0fnu), None)])


# ------------------------------------------------------------------ how far apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pruned_network_and_how_far_it_is_from_its_source(dtype):
    module = Residual(2).to(dtype)
    pruned = copy.deepcopy(module)
    small = pruned.inner.weight.abs() < 0.1
    pruned.inner.weight.data[small] = 0
    assert small.any()
    a, b = read(module), read(pruned)
    verdict = relu.decide(a, b, domain=(-1, 1), mode="float", budget=20)
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, a, b)
    lower, upper = verdict.bounds.lower, verdict.bounds.upper
    assert 0 < lower <= upper < np.inf
    assert f"{lower:.3g} <= sup |f - g| <= {upper:.3g} on" in verdict.reason
    x = np.random.default_rng(0).uniform(-1, 1, (20_000, 9))
    assert np.abs(a.batch(x) - b.batch(x)).max() <= upper
    # Negative control: a bound that is claimed smaller than what is proved does not verify.
    smaller = verdict.having(bounds=verdict.bounds._replace(upper=upper / 2, offset=0.0))
    assert not relu.verify(smaller, a, b)


def test_a_function_of_the_size_of_the_batch_is_refused() -> None:
    class Mean(nn.Module):
        def __init__(self, divisor: int | None) -> None:
            super().__init__()
            self.linear, self.divisor = nn.Linear(3, 2), divisor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x)) / (self.divisor or x.shape[0])

    with pytest.raises(relu.ReLUError, match="a batch of another size"):
        relu.as_network(Mean(None))
    assert relu.as_network(Mean(2)).widths == (3, 2, 2)
