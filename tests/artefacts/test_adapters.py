"""Adapters in full: saved modules, biases, lengths of rows, ties, and what is refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from paramsym import act, find_symmetry, transport
from paramsym.artefacts import verify_adapter
from paramsym.artefacts.checking import worst
from paramsym.artefacts.merging import lengths_of, merged, summed
from paramsym.artefacts.transport import recognised
from tests.artefacts.attached import CONFIG, lora_of, model_of, settings_of, tokens

EXACT, BROKEN = 1e-12, 1e-2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Base:
    def __init__(self, name: str):
        self.config = settings_of(name)
        self.model = model_of(name, torch.float64)
        self.symmetry = find_symmetry(self.model, (tokens(),))
        self.params = dict(self.model.state_dict())
        self.lora = lora_of(self.model, dtype=torch.float64)

    def sample(self, *without: str):
        names = [n for n in self.symmetry.spaces if not n.endswith(without)] if without else None
        return self.symmetry.sample(seeded(1), only=names)

    def saved(self, *parts: str) -> dict[str, torch.Tensor]:
        """Tensors of the model, trained further."""
        return {
            f"base_model.model.{n}": p.detach() + 0.2 * torch.randn(p.shape, generator=seeded())
            for n, p in self.model.named_parameters()
            if any(part in n for part in parts)
        }

    def check(self, tensors, g, **config):
        config = {**self.config, **config}
        found = recognised(tensors, self.symmetry, config=config)
        moved = transport(tensors, g, self.params, config=config)
        done = verify_adapter(self.model, found, moved, g, (tokens(),), self.params)
        assert done.error <= EXACT and done.control >= BROKEN, done


@pytest.fixture(scope="module")
def llama() -> Base:
    return Base("llama")


@pytest.fixture(scope="module")
def gpt2() -> Base:
    return Base("untied gpt2")


def pair_of(module: str, A: tuple[int, int], B: tuple[int, int]) -> dict[str, torch.Tensor]:
    stem = f"base_model.model.{module}"
    return {f"{stem}.lora_A.weight": torch.ones(A), f"{stem}.lora_B.weight": torch.ones(B)}


# -- exact ---------------------------------------------------------------------------------------


def test_saved_tables_and_heads_go_along(llama):
    lora = {n: t for n, t in llama.lora.items() if "lm_head" not in n and "embed" not in n}
    llama.check({**lora, **llama.saved("embed_tokens", "lm_head")}, llama.sample())


def test_saved_gains_go_along_but_for_what_acts_in_their_frame(llama):
    both = {**llama.lora, **llama.saved("norm")}
    llama.check(both, llama.sample("residual"))
    with pytest.raises(ValueError, match="in the frame of the gain .*which the artefact replaces"):
        transport(both, llama.sample(), llama.params, config=llama.config)


def test_shifts_move_saved_biases_by_what_the_adapted_weights_say(gpt2):
    """All biases are saved: the whole of g·(θ + Δ) − g·θ has its place."""
    lora = {n: t for n, t in gpt2.lora.items() if "lm_head" not in n}
    gpt2.check({**lora, **gpt2.saved(".bias")}, gpt2.sample())


def test_shifts_that_read_an_adapted_weight_are_refused_where_biases_are_not_saved(gpt2):
    lora = {n: t for n, t in gpt2.lora.items() if "c_attn" in n}
    with pytest.raises(ValueError) as error:
        transport(lora, gpt2.sample(), gpt2.params, config=gpt2.config)
    said = str(error.value)
    assert "'shift:" in said and "c_attn.weight' says, which the artefact changes" in said
    assert "only=" in said


def test_a_shift_that_reads_nothing_adapted_is_followed(gpt2):
    """A direction that nobody reads is added to a weight whether it is adapted or not."""
    name = next(n for n in gpt2.symmetry.shift_of if n.endswith("0.attn.c_proj.weight"))
    lora = {n: t for n, t in gpt2.lora.items() if "h.0.attn.c_proj" in n}
    g = gpt2.symmetry.sample(seeded(), only=[name])
    moved = transport(lora, g, gpt2.params, config=gpt2.config)
    found = recognised(lora, gpt2.symmetry, config=gpt2.config)
    assert verify_adapter(gpt2.model, found, moved, g, (tokens(),)).error <= EXACT
    assert all(torch.equal(moved[n], t) for n, t in lora.items())


def with_lengths(base: Base, lora: dict) -> dict[str, torch.Tensor]:
    """The same with lengths of rows that are not those of the sum."""
    made = dict(lora)
    for pair in recognised(lora, base.symmetry, config=base.config).pairs:
        lengths = lengths_of(pair, summed(pair, lora, base.params[pair.weight]))
        name = pair.A.replace("lora_A.weight", "lora_magnitude_vector")
        made[name] = lengths * (1 + 0.5 * torch.rand(lengths.shape, generator=seeded()))
    return made


def test_lengths_of_rows_go_along_orders_and_scales(llama):
    lora = {n: t for n, t in llama.lora.items() if "embedding" not in n}
    mixing = ("residual", ".vo", ".qk")
    llama.check(with_lengths(llama, lora), llama.sample(*mixing), use_dora=True)
    with pytest.raises(ValueError, match="the element mixes the outputs of"):
        llama.check(with_lengths(llama, lora), llama.sample(), use_dora=True)
    gated = {n: t for n, t in lora.items() if "gate_proj" in n or "up_proj" in n}
    llama.check(with_lengths(llama, gated), llama.sample(), use_dora=True)  # inputs may mix


def test_rows_with_lengths_do_not_slide(gpt2):
    name = next(n for n in gpt2.symmetry.shift_of if n.endswith("0.attn.c_proj.weight"))
    lora = {n: t for n, t in gpt2.lora.items() if "h.0.attn.c_proj" in n}
    g = gpt2.symmetry.sample(seeded(), only=[name])
    with pytest.raises(ValueError, match="whose rows the artefact scales"):
        transport(with_lengths(gpt2, lora), g, gpt2.params, config=gpt2.config)


def test_one_use_of_a_tied_table_can_be_adapted():
    base = Base("tied")
    head = {n: t for n, t in lora_of(base.model, 3, dtype=torch.float64).items() if "head" in n}
    assert head
    base.check({**base.lora, **head}, base.sample())


def test_convolutions_are_adapted():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    ).double().eval()  # fmt: skip
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,))
    g = symmetry.sample(seeded(), only=[*symmetry.spaces])
    lora = {
        "base_model.model.2.lora_A.weight": torch.randn(2, 4, 3, 3, dtype=torch.float64),
        "base_model.model.2.lora_B.weight": torch.randn(6, 2, 1, 1, dtype=torch.float64),
    }
    found = recognised(lora, symmetry, config=CONFIG)
    check = verify_adapter(model, found, transport(lora, g, config=CONFIG), g, (x,))
    assert check.error <= EXACT and check.control >= BROKEN
    product = torch.einsum("orab,rikl->oikl", lora[found.pairs[0].B], lora[found.pairs[0].A])
    weight = merged(found, dict(model.state_dict()))["2.weight"]
    assert torch.allclose(weight, model[2].weight + 0.75 * product)


def test_the_bias_of_a_pair_moves_as_a_column_of_its_outputs(llama):
    name = "base_model.model.model.layers.0.self_attn.v_proj.lora_B"
    lora = {n: t for n, t in llama.lora.items() if n.startswith(name[:-1])}
    bias = lora[f"{name}.weight"][:, 0].clone()
    g, config = llama.sample(), {**llama.config, "lora_bias": True}
    moved = transport({**lora, f"{name}.bias": bias}, g, llama.params, config=config)
    assert torch.allclose(moved[f"{name}.bias"], moved[f"{name}.weight"][:, 0])
    assert not torch.allclose(moved[f"{name}.bias"], bias)


def test_a_new_head_in_an_adapter_is_typed_by_the_user(llama):
    """It reads the stream behind the last norm, as the head of the model does."""
    lora = {n: t for n, t in llama.lora.items() if "lm_head" not in n}
    new, g = torch.randn(2, 16, dtype=torch.float64, generator=seeded()), llama.sample()
    name, head = "base_model.model.score.weight", "base_model.model.lm_head.weight"
    types = {name: "2, residual[model.norm.weight]*⊙norm*"}
    both = {**lora, name: new, head: new.repeat(25, 1)}
    moved = transport(both, g, llama.params, types=types, config=llama.config)
    assert torch.allclose(moved[name], moved[head][:2])
    assert not torch.allclose(moved[name], new)


def test_half_precision_is_kept(llama):
    half = {n: t.bfloat16() for n, t in llama.lora.items()}
    moved = transport(half, llama.sample(), llama.params, config=llama.config)
    wide = transport(
        {n: t.double() for n, t in half.items()}, llama.sample(), llama.params, config=llama.config
    )
    assert all(t.dtype == torch.bfloat16 for t in moved.values())
    assert all((moved[n].double() - t).norm() <= 1e-2 * t.norm() for n, t in wide.items())


def test_names_with_the_adapter_and_without_the_head(llama):
    """`default` in the names, and an adapter of the body alone."""
    plain = {n: t for n, t in llama.lora.items() if "layers.0" in n}
    g = llama.sample()
    moved = transport(plain, g, llama.params, config=CONFIG | {"fan_in_fan_out": False})
    for old, new in ((".weight", ".default.weight"), ("model.model.model", "model.model")):
        names = {n: n.replace(old, new) for n in plain}
        again = transport(
            {names[n]: t for n, t in plain.items()}, g, llama.params, config=llama.config
        )
        assert all(torch.equal(again[names[n]], t) for n, t in moved.items())


# -- files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(llama, tmp_path: Path) -> Path:
    save_file(llama.lora, tmp_path / "adapter_model.safetensors")
    config = {**CONFIG, "peft_type": "LORA", "fan_in_fan_out": False, "lora_dropout": 0.1}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_folder_and_the_weights_of_the_model_as_files(llama, folder, tmp_path_factory):
    weights = tmp_path_factory.mktemp("base") / "model.safetensors"
    save_file({n: t.contiguous() for n, t in llama.params.items()}, weights)
    g = llama.sample()
    moved = transport(folder, g, base=weights)
    same = transport(llama.lora, g, llama.params, config=llama.config)
    assert all(torch.equal(moved[n], t) for n, t in same.items())


def test_a_folder_without_its_files_is_refused(folder, llama):
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match="it is no JSON"):
        transport(folder, llama.sample())
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match="the folder has no adapter_config.json"):
        transport(folder, llama.sample())
    with pytest.raises(ValueError, match="there is no such file or folder"):
        transport(folder / "nothing", llama.sample())


# -- refused -------------------------------------------------------------------------------------

UP, Q = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
SQUARE = pair_of(Q, (3, 16), (16, 3))


@pytest.mark.parametrize(
    ("tensors", "config", "says"),
    [
        (pair_of(UP, (3, 18), (24, 3)), {}, ("(24, 16)", "A (3, 16) and B (24, 3)", "another")),
        (pair_of("model.layers.7.mlp.up_proj", (3, 16), (24, 3)), {}, ("has no tensor", "such as")),
        (dict([*pair_of(UP, (3, 16), (24, 3)).items()][:1]), {}, ("lora_B of", "is missing")),
        (SQUARE, {}, ("is square", "fan_in_fan_out")),
        (SQUARE, {"peft_type": "LOHA"}, ("peft_type='LOHA'", "LORA, with DoRA")),
        (SQUARE, {"init_lora_weights": "pissa"}, ("decomposed", "path_initial_model")),
        (SQUARE, {"target_parameters": ["a"]}, ("target_parameters", "Merge the adapter")),
        ({"base_model.model.a.hada_w1_a": torch.ones(3, 16)}, {"r": 3}, ("hada_w1_a", "lora_A")),
        ({**SQUARE, "base_model.model.score.weight": torch.ones(2, 16)},
         {"fan_in_fan_out": False}, ("no tensor 'score.weight'", "state its type")),
        ({**SQUARE, **{n.replace(".weight", ".other.weight"): t for n, t in SQUARE.items()}},
         {"fan_in_fan_out": False}, ("another adapter", "one by one")),
        ({}, {}, ("no tensors",)),
        ({"a": 3}, {}, ("a int", "a tensor by each name")),
    ],
)  # fmt: skip
def test_bad_adapters_are_named(llama, tensors, config, says):
    with pytest.raises(ValueError) as error:
        transport(tensors, llama.sample(), llama.params, config=config)
    said = str(error.value)
    assert said.startswith("transport(") and "Expected " in said
    for text in says:
        assert text in said, f"{text!r} is not in {said}"


def test_gains_that_are_needed_are_named(llama):
    with pytest.raises(ValueError, match="'model.layers.0.input_layernorm.weight'.*base=model"):
        transport(SQUARE, llama.sample(), config={"fan_in_fan_out": False})


def test_the_bias_says_which_axis_of_a_square_weight_has_the_outputs(gpt2):
    """The configuration has one word for all modules, which a linear head may have had last."""
    lora = {n: t for n, t in gpt2.lora.items() if "attn.c_proj" in n}
    moved = [
        transport(lora, gpt2.sample("nothing"), gpt2.params, config={**CONFIG, **said})
        for said in ({"fan_in_fan_out": True}, {"fan_in_fan_out": False}, {})
    ]
    assert all(torch.equal(moved[0][n], other[n]) for other in moved[1:] for n in lora)


def test_what_is_no_number_is_no_small_error(llama):
    assert math.isnan(worst([0.0, math.nan, 1.0])) and worst([]) == 0.0
    lora = {n: t for n, t in llama.lora.items() if "lm_head" in n}
    found, g = recognised(lora, llama.symmetry, config=llama.config), llama.sample()
    moved = transport(lora, g, llama.params, config=llama.config)
    broken = {n: torch.full_like(t, math.nan) for n, t in moved.items()}
    assert math.isnan(verify_adapter(llama.model, found, broken, g, (tokens(),)).error)


def test_the_moved_model_with_the_adapter_is_the_moved_sum(llama):
    """g·(W + s B A) = g·W + s (g·B)(g·A), tensor by tensor."""
    g = llama.sample()
    found = recognised(llama.lora, llama.symmetry, config=llama.config)
    whole = act(llama.symmetry, g, merged(found, llama.params))
    moved = transport(llama.lora, g, llama.params, config=llama.config)
    there = recognised(moved, llama.symmetry, config=llama.config)
    parts = merged(there, act(llama.symmetry, g, llama.params))
    assert all(torch.allclose(parts[n], t, atol=1e-11) for n, t in whole.items())
