"""What is attached to a model goes with it, exactly; what stays behind does not fit any more."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from paramsym import act, act_state, find_symmetry, transport
from paramsym.artefacts import verify_adapter, verify_types
from paramsym.artefacts.transport import recognised
from paramsym.recording.precision import lifted
from tests.artefacts.attached import (
    MODELS,
    Autoencoder,
    Draft,
    lora_of,
    model_of,
    randomised,
    settings_of,
    tokens,
)

EXACT = {torch.float32: 1e-6, torch.float64: 1e-12}
BROKEN = 1e-2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max() / a.detach().abs().max())


class Pair:
    """A tiny Llama and where a random element of everything takes it."""

    def __init__(self, dtype: torch.dtype, name: str = "llama"):
        self.model = model_of(name, dtype)
        self.symmetry = find_symmetry(self.model, (tokens(),))
        self.g = self.symmetry.sample(seeded(1))
        self.before = dict(self.model.state_dict())
        self.after = copy.deepcopy(self.model)
        self.after.load_state_dict(act(self.symmetry, self.g, self.before))


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def pair(request) -> Pair:
    return Pair(request.param)


@pytest.fixture(autouse=True)
def lift(request):
    """Norms of transformers compute in float32; where the weights are float64, so are they."""
    pair = request.node.funcargs.get("pair")
    if pair is None or next(pair.model.parameters()).dtype != torch.float64:
        yield
    else:
        with lifted(), torch.no_grad():
            yield


def dtype_of(pair: Pair) -> torch.dtype:
    return next(pair.model.parameters()).dtype


def streams(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedded tokens, and the stream after the first layer."""
    states = model(tokens(), output_hidden_states=True).hidden_states
    return states[0], states[1]


# -- each kind of artefact -----------------------------------------------------------------------


def test_adapters_of_all_layers_go_with_the_model(pair):
    lora = lora_of(pair.model, dtype=dtype_of(pair))
    config = settings_of("llama")
    found = recognised(lora, pair.symmetry, config=config)
    moved = transport(lora, pair.g, pair.before, config=config)
    check = verify_adapter(pair.model, found, moved, pair.g, (tokens(),))
    assert check.error <= EXACT[dtype_of(pair)] and check.control >= BROKEN
    assert {n: t.shape for n, t in moved.items()} == {n: t.shape for n, t in lora.items()}
    assert all(t.dtype == dtype_of(pair) for t in moved.values())


@pytest.mark.parametrize("how", ["derived", "stated"])
def test_a_draft_head_goes_with_the_model(pair, how):
    head = randomised(Draft(pair.model.config), dtype_of(pair), 5)

    def predicted(model: nn.Module, state: dict) -> torch.Tensor:
        found = functional_call(head, state, streams(model))
        return model.lm_head(model.model.norm(found))

    state = dict(head.state_dict())
    example = tuple(torch.randn(1, 6, 16, dtype=dtype_of(pair)) for _ in range(2))
    own = find_symmetry(head, example, free_inputs=True, free_outputs=True)
    types = own
    if how == "stated":
        readers, gains = {"q", "k", "v", "gate", "up"}, ("input", "post_attention")
        types = {"fc.weight": "residual, (residual + residual)*"}
        for name, tensor in state.items():
            part = name.rpartition(".")[0].rpartition(".")[2].removesuffix("_proj")
            gain = f"layer.{gains['mlp' in name]}_layernorm.weight"
            if part in readers:
                types[name] = f"{len(tensor)}, residual[{gain}]*"
            elif part in ("o", "down"):
                types[name] = f"residual, {tensor.shape[1]}"
            elif name not in types:
                types[name] = "16"
    moved = transport(state, pair.g, pair.before, types=types)
    first = predicted(pair.model, state)
    assert apart(first, predicted(pair.after, moved)) <= EXACT[dtype_of(pair)]
    assert apart(first, predicted(pair.after, state)) >= BROKEN


def test_a_sparse_autoencoder_goes_with_the_model(pair):
    sae = randomised(Autoencoder(16, 40), dtype_of(pair), 3)
    state = dict(sae.state_dict())
    there = copy.deepcopy(sae)
    there.load_state_dict(transport(state, pair.g))
    x, y = streams(pair.model)[1], streams(pair.after)[1]
    assert apart(sae.encode(x), there.encode(y)) <= EXACT[dtype_of(pair)]
    assert apart(sae.encode(x), sae.encode(y)) >= BROKEN
    back = transport({"x": there(y)}, ~pair.g, types={"x": "1, 6, residual"})["x"]
    assert apart(sae(x), back) <= EXACT[dtype_of(pair)]


def test_control_vectors_and_probes_go_with_the_model(pair):
    given = torch.randn(16, generator=seeded(), dtype=dtype_of(pair))
    kept = {"direction.1": given, "probe.weight": given[None], "probe.bias": given[:1]}
    moved = transport(kept, pair.g)

    def steered(model: nn.Module, vector: torch.Tensor) -> torch.Tensor:
        def add(module, args, result):
            return (
                (result[0] + vector, *result[1:])
                if isinstance(result, tuple)
                else (result + vector)
            )

        hook = model.model.layers[0].register_forward_hook(add)
        try:
            return model(tokens()).logits
        finally:
            hook.remove()

    first = steered(pair.model, given)
    assert apart(first, steered(pair.after, moved["direction.1"])) <= EXACT[dtype_of(pair)]
    assert apart(first, steered(pair.after, given)) >= BROKEN
    x, y = streams(pair.model)[1], streams(pair.after)[1]
    assert apart(x @ given, y @ moved["probe.weight"][0]) <= EXACT[dtype_of(pair)]
    assert apart(x @ given, y @ given) >= BROKEN
    assert moved["probe.bias"] is kept["probe.bias"]


def test_caches_of_activations_go_with_the_model(pair):
    x, y = streams(pair.model)[1], streams(pair.after)[1]
    moved = transport({"layer 1": x}, pair.g, types={"layer 1": "1, 6, residual"})["layer 1"]
    assert apart(y, moved) <= EXACT[dtype_of(pair)] < BROKEN <= apart(y, x)


def test_the_state_of_an_optimiser_goes_with_the_model(pair):
    g = pair.symmetry.sample(seeded(), only=["layers.0.mlp", "layers.0.mlp.scale"])
    name = "model.layers.0.mlp.down_proj.weight"
    state = {name: {"step": 3, "exp_avg": pair.before[name], "exp_avg_sq": pair.before[name] ** 2}}
    moved, same = transport(state, g), act_state(pair.symmetry, g, state)
    assert all(torch.equal(moved[name][k], same[name][k]) for k in ("exp_avg", "exp_avg_sq"))
    assert moved[name]["step"] == 3


def test_calibration_goes_with_scales_and_orders_and_with_no_rotation(pair):
    """The largest activation of each unit, in front of `down_proj`."""
    g = pair.symmetry.sample(seeded(), only=["layers.0.mlp", "layers.0.mlp.scale"])
    after = copy.deepcopy(pair.model)
    after.load_state_dict(act(pair.symmetry, g, pair.before))

    def ranges(model: nn.Module) -> torch.Tensor:
        kept = []
        hook = model.model.layers[0].mlp.down_proj.register_forward_pre_hook(
            lambda module, args: kept.append(args[0].abs().amax((0, 1)))
        )
        model(tokens())
        hook.remove()
        return kept[0]

    types = {"act_scale": "|(layers.0.mlp layers.0.mlp.scale)|"}
    moved = transport({"act_scale": ranges(pair.model)}, g, types=types)["act_scale"]
    assert apart(ranges(after), moved) <= EXACT[dtype_of(pair)]
    found = recognised({"act_scale": ranges(pair.model)}, pair.symmetry, types)
    check = verify_types(found, {"act_scale": moved}, g, seeded())
    assert check.error <= EXACT[dtype_of(pair)] and check.control >= BROKEN
    with pytest.raises(ValueError, match="the element mixes coordinates"):
        transport({"s": torch.ones(16)}, pair.g, types={"s": "|residual|"})


# -- the action ----------------------------------------------------------------------------------


def close(a: dict, b: dict, tolerance: float) -> bool:
    return all(apart(a[n], b[n]) <= tolerance for n in a)


def test_transport_is_an_action(pair):
    lora, config = lora_of(pair.model, dtype=dtype_of(pair)), settings_of("llama")
    h = pair.symmetry.sample(seeded(7))
    tolerance = 30 * EXACT[dtype_of(pair)]
    halfway = transport(lora, h, pair.before, config=config)
    between = act(pair.symmetry, h, pair.before)
    two = transport(halfway, pair.g, between, config=config)
    assert close(transport(lora, pair.g @ h, pair.before, config=config), two, tolerance)
    same = transport(lora, pair.symmetry.identity(), pair.before, config=config)
    assert all(torch.equal(same[n], t) for n, t in lora.items())
    there = act(pair.symmetry, pair.g, pair.before)
    moved = transport(lora, pair.g, pair.before, config=config)
    assert close(transport(moved, ~pair.g, there, config=config), lora, tolerance)


def test_pairings_do_not_change(pair):
    sae = dict(randomised(Autoencoder(16, 40), dtype_of(pair), 3).state_dict())
    found, moved = recognised(sae, pair.symmetry), transport(sae, pair.g)
    check = verify_types(found, moved, pair.g, seeded())
    assert check.error <= EXACT[dtype_of(pair)] and check.control >= BROKEN


@pytest.mark.parametrize("name", [*MODELS])
def test_adapters_go_with_every_architecture_along_all_spaces(name):
    """Spaces alone: what shifts ask for is below."""
    model = model_of(name, torch.float64)
    symmetry = find_symmetry(model, (tokens(),))
    lora, config = lora_of(model, dtype=torch.float64), settings_of(name)
    g = symmetry.sample(seeded(2), only=[*symmetry.spaces])
    moved = transport(lora, g, dict(model.state_dict()), config=config)
    found = recognised(lora, symmetry, config=config)
    check = verify_adapter(model, found, moved, g, (tokens(),))
    assert check.error <= 1e-12 and check.control >= BROKEN


@settings(max_examples=6, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    name=st.sampled_from(["llama", "biased", "tied", "gpt2", "untied gpt2", "neox"]),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.1, 0.4, 1.0]),
)
def test_random_adapters_along_random_parts_go_or_are_refused(name, seed, share):
    """One space or shift at a time, and everything: the change is exact, or an error says why."""
    model = model_of(name, torch.float64, seed)
    symmetry = find_symmetry(model, (tokens(),))
    lora, config = lora_of(model, seed, share, torch.float64), settings_of(name)
    if not lora:
        return
    found, base = recognised(lora, symmetry, config=config), dict(model.state_dict())
    for part in (None, *[*symmetry.spaces][:3], *symmetry.shift_of):
        g = symmetry.sample(seeded(seed), only=None if part is None else [part])
        try:
            moved = transport(lora, g, base, config=config)
        except ValueError:
            assert part is None or part in symmetry.shift_of
            continue
        assert verify_adapter(model, found, moved, g, (tokens(seed),)).error <= 1e-11
