"""The smallest model of a configuration: how sizes shrink, and which models are no twins."""

import warnings
from typing import Any

import pytest
import torch

from paramsym.checking.twin import differences_between, structure_of
from paramsym.checkpoints import folder, smallest
from paramsym.checkpoints.inputs import inputs_from_config
from paramsym.checkpoints.roles import role_of
from paramsym.checkpoints.shrinking import Profile, changed, changes_of
from paramsym.checkpoints.smallest import NoTwin, has_configuration, smallest_twin
from tests.models import Small

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

pytestmark = pytest.mark.filterwarnings("ignore")
GROUPED = {
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 200,
}  # fmt: skip
PLAIN = {**GROUPED, "num_key_value_heads": 8}


def small(config: Any, **options: Any) -> dict[str, Any]:
    """The changes of the fields of a configuration."""
    return {".".join(path): value for path, value in changes_of(config, Profile(**options)).items()}


def built(config: Any, kind: Any, device: str = "cpu") -> tuple[Any, dict[str, torch.Tensor]]:
    with folder.quiet(), torch.random.fork_rng(), torch.device(device):
        model = kind._from_config(config).eval()
    return model, inputs_from_config(model, config)


def test_words_in_names_say_what_numbers_are_for() -> None:
    for role, names in {
        "layers": "n_layer num_hidden_layers encoder_layers num_decoder_layers depth num_layers",
        "heads": "n_head num_heads num_attention_heads decoder_attention_heads attention_heads",
        "few heads": "num_key_value_heads num_kv_heads n_head_kv",
        "head": "head_dim d_kv", "vocabulary": "vocab_size", "token": "pad_token_id",
        "width": "hidden_size n_embd d_model intermediate_size encoder_ffn_dim embedding_size",
        "": "type_vocab_size num_channels chunk_size_feed_forward sliding_window num_labels",
    }.items():  # fmt: skip
        assert [role_of(name) for name in names.split()] == [role] * len(names.split())


def test_equal_sizes_stay_equal_and_others_in_order() -> None:
    changes = small(transformers.LlamaConfig(**GROUPED))
    assert (changes["num_attention_heads"], changes["num_key_value_heads"]) == (4, 2)
    assert changes["hidden_size"] == 16 == 4 * changes["head_dim"] < changes["intermediate_size"]
    assert changes["num_hidden_layers"] == 2
    assert changes["vocab_size"] > 2 * changes["intermediate_size"] + changes["hidden_size"]
    narrow = small(transformers.LlamaConfig(**{**GROUPED, "hidden_size": 48}))
    assert narrow["hidden_size"] < 4 * narrow["head_dim"]  # heads together are wider there, too
    electra = small(transformers.ElectraConfig(embedding_size=16, hidden_size=32))
    assert electra["embedding_size"] < electra["hidden_size"]


def test_one_layer_of_each_kind_over_all_lists() -> None:
    kinds = ["full_attention"] + 3 * ["sliding_attention", "full_attention"]
    config = transformers.Gemma2Config(**{**GROUPED, "num_hidden_layers": 7}, layer_types=kinds)
    changes = small(config)
    assert changes["num_hidden_layers"] == 2
    assert changes["layer_types"] == ["full_attention", "sliding_attention"]


def test_four_of_eight_coordinates_turn() -> None:
    config = transformers.GPTNeoXConfig(hidden_size=96, num_attention_heads=3, rotary_pct=0.25)
    changes = small(config)
    assert changes["hidden_size"] // changes["num_attention_heads"] == 8
    assert changes["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_a_configuration_is_copied_and_tokens_have_a_place() -> None:
    config = transformers.LlamaConfig(**PLAIN, bos_token_id=190, eos_token_id=[190, 191])
    twin = changed(config, changes_of(config, Profile()))
    assert config.hidden_size == 64 and config.bos_token_id == 190
    assert 0 < twin.bos_token_id < twin.vocab_size


def test_the_twin_has_the_structure_of_the_large_model() -> None:
    config = transformers.LlamaConfig(**GROUPED)
    model, inputs = built(config, transformers.LlamaForCausalLM, "meta")
    before = torch.get_rng_state()
    twin, its = smallest_twin(model, inputs)
    assert torch.equal(before, torch.get_rng_state())
    found = differences_between(structure_of(model, inputs), structure_of(twin, its))
    assert found == () and sum(p.numel() for p in twin.parameters()) < 6000


@pytest.mark.parametrize(
    "field, value, difference",
    [
        ("attention_bias", True, "self_attn.q_proj.bias"),
        ("hidden_act", "relu", "operators: the model alone has 'silu'"),
        ("hidden_act", "gelu", "the twin alone has 'gelu'"),
        ("tie_word_embeddings", True, "tied parameters: the twin alone has 'lm_head.weight"),
        ("num_key_value_heads", 4, "types of 'model.layers.*.self_attn"),
    ],
)
def test_another_configuration_is_no_twin(field: str, value: Any, difference: str) -> None:
    kind = transformers.LlamaForCausalLM
    large = built(transformers.LlamaConfig(**{**GROUPED, "num_hidden_layers": 3}), kind, "meta")
    sizes = {**GROUPED, "hidden_size": 16, "head_dim": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": 2}  # fmt: skip
    other = built(transformers.LlamaConfig(**{**sizes, field: value}), kind, "meta")
    found = differences_between(structure_of(*large), structure_of(*other))
    assert any(difference in text for text in found), found


def test_a_field_that_must_not_shrink_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that unties a size from what it must be: the search restores that field alone."""
    wrong = lambda config, profile: {  # noqa: E731
        **changes_of(config, Profile()), ("attention_bias",): True,
    }  # fmt: skip
    monkeypatch.setattr(smallest, "changes_of", wrong)
    model, inputs = built(transformers.LlamaConfig(**PLAIN), transformers.LlamaForCausalLM, "meta")
    twin, _ = smallest_twin(model, inputs)
    assert not twin.config.attention_bias and twin.config.hidden_size == 8


def test_where_there_is_no_twin_the_nearest_is_named() -> None:
    model, inputs = built(transformers.LlamaConfig(**PLAIN), transformers.LlamaForCausalLM, "meta")
    with pytest.raises(NoTwin, match=r"differs in its size: \d+ parameters, more than 300"):
        smallest_twin(model, inputs, limit=300)
    assert has_configuration(model) and not has_configuration(Small())
