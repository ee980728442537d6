"""`twin`: the smallest model of a configuration that builds and runs, and its inputs."""

import warnings
from typing import Any

import pytest
import torch

import paramsym
from paramsym import audit, find_symmetry, twin
from paramsym.checkpoints import twins
from paramsym.checkpoints.inputs import inputs_from_config
from paramsym.checkpoints.twins import NoTwin, build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

pytestmark = pytest.mark.filterwarnings("ignore")


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_model_is_small_runs_and_is_what_an_audit_takes() -> None:
    config = transformers.GPT2Config()
    model, inputs = twin(config, kind=transformers.GPT2Model)
    assert size(model) < 4000 and not model.training
    assert model(**inputs).last_hidden_state.shape[:2] == (2, 7)
    with torch.device("meta"):
        large = transformers.GPT2Model._from_config(config).eval()
    found = audit(large, {"input_ids": torch.zeros(2, 7, dtype=int)}, twin=(model, inputs))
    assert found.full is not None and found.complete
    assert config.n_embd == 768


@pytest.mark.parametrize(
    ("config", "options", "name"),
    [
        (transformers.BertConfig(), {}, "BertLMHeadModel"),
        (transformers.BertConfig(architectures=["BertForMaskedLM"]), {}, "BertForMaskedLM"),
        (transformers.BertConfig(architectures=["BertForMaskedLM"]),
         {"kind": "BertModel"}, "BertModel"),
        (transformers.T5Config(), {}, "T5ForConditionalGeneration"),
        (transformers.DebertaConfig(), {}, "DebertaForMaskedLM"),
        (transformers.ViTConfig(), {"kind": transformers.ViTModel}, "ViTModel"),
        (transformers.ResNetConfig(), {}, "ResNetForImageClassification"),
        (transformers.VitDetConfig(), {}, "VitDetModel"),
    ],
    ids=lambda item: type(item).__name__ if hasattr(item, "to_dict") else str(item)[:20],
)  # fmt: skip
def test_the_class_is_the_one_that_was_asked_or_the_first_that_is_known(
    config: Any, options: dict[str, Any], name: str
) -> None:
    assert type(twin(config, **options)[0]).__name__ == name


def test_a_text_model_takes_the_configuration_of_the_text() -> None:
    model, inputs = twin(transformers.Emu3Config(), kind="Emu3ForCausalLM")
    assert size(model) < 20_000
    assert [*inputs] == ["input_ids"]


def test_an_image_has_its_places_in_the_text() -> None:
    config = transformers.LlavaConfig()
    model, inputs = twin(config)
    assert {"input_ids", "pixel_values"} <= inputs.keys()
    other = {**inputs, "pixel_values": inputs["pixel_values"] + 1}
    assert not torch.equal(model(**inputs).logits, model(**other).logits)


def test_numbers_whose_names_say_nothing_shrink_by_trying() -> None:
    model, inputs = twin(transformers.BambaConfig())
    assert size(model) <= 20_000
    assert find_symmetry(model, inputs).checked is not None


@pytest.mark.parametrize(
    "config",
    [transformers.DeepseekV3Config(), transformers.GlmConfig(), transformers.CwmConfig()],
    ids=lambda config: type(config).__name__,
)
def test_a_small_model_is_as_narrow_and_as_wide_as_the_large_one(config: Any) -> None:
    """Freedom that comes of a vocabulary below the width is not that of the large model."""
    small = twin(config)[0].config
    names = ["vocab_size", "hidden_size", "intermediate_size", "q_lora_rank", "kv_lora_rank"]
    sizes = [(getattr(config, name, None), getattr(small, name, None)) for name in names]
    sizes.append((_one_head(config), _one_head(small)))
    known = [pair for pair in sizes if pair[0] is not None]
    assert all((a < c) <= (b <= d) for a, b in known for c, d in known), known
    assert small.vocab_size > small.hidden_size


def _one_head(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


@pytest.mark.parametrize(
    "name", ["Speech2Text", "Wav2Vec2Bert", "SeamlessM4T", "Segformer", "DPT"], ids=str
)
def test_spectrograms_and_stages_are_built(name: str) -> None:
    model, inputs = twin(getattr(transformers, f"{name}Config")())
    assert size(model) <= 20_000 and inputs


def test_building_leaves_no_trace_in_the_global_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    twin(transformers.GPT2Config())
    assert torch.equal(torch.rand(1), expected)


def test_a_configuration_that_builds_nothing_says_why() -> None:
    config = transformers.GPT2Config(activation_function="no such function")
    with pytest.raises(NoTwin) as caught:
        twin(config)
    for part in ("twin(config=GPT2Config", "no such function", "was expected", "by hand"):
        assert part in str(caught.value)


def test_a_class_without_a_forward_pass_is_refused_at_once() -> None:
    with pytest.raises(NoTwin, match="BarkModel.*no forward pass.*kind="):
        twin(transformers.BarkConfig(), kind="BarkModel")


def test_what_is_too_large_is_not_tried_again_with_less_of_what_made_it_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[dict] = []
    monkeypatch.setattr(twins, "_shrunk", lambda kind, found, ordered: found)
    monkeypatch.setattr(
        twins, "changed", lambda config, changes: tried.append({**changes}) or config
    )
    with pytest.raises(NoTwin):  # nothing is changed, so that all are too large
        twin(transformers.GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=999))
    asked = [one for one in tried if one]  # building asks without changes
    assert len(asked) > 2
    assert not any(
        one.items() <= other.items() for k, one in enumerate(asked) for other in asked[:k]
    )


def test_no_picture_of_its_own_size_has_small_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeViT counts the pairs of its patches in Python: with 112² of them that takes a minute."""
    tried: list[Any] = []
    attempt = twins._attempt

    def noted(kind: Any, config: Any, *most: int) -> Any:
        tried.append((config.image_size, config.patch_size))
        return attempt(kind, config, *most)

    monkeypatch.setattr(twins, "_attempt", noted)
    with pytest.raises(NoTwin):
        twin(transformers.LevitConfig())
    assert len(tried) > 10
    assert not any(side > 64 and patch < 4 for side, patch in tried), tried


@pytest.mark.parametrize(("side", "runs"), [(700, True), (900, False)])
def test_a_picture_that_stayed_large_is_not_run(side: int, runs: bool) -> None:
    config = transformers.ViTConfig(
        image_size=side, patch_size=100, hidden_size=8, num_attention_heads=2,
        num_hidden_layers=1, intermediate_size=8,
    )  # fmt: skip
    model = build(transformers.ViTForImageClassification, config, "cpu")
    if runs:
        assert twins._running_inputs(model, config)["pixel_values"].shape[-1] == side
    else:
        with pytest.raises(RuntimeError, match="more than 500000 pixels"):
            twins._running_inputs(model, config)


@pytest.mark.parametrize(("strides", "samples"), [((2, 1), 70), ((5, 4), 634), ((80, 60), 4000)])
def test_sound_is_as_long_as_some_frames(strides: tuple[int, int], samples: int) -> None:
    config = transformers.Wav2Vec2Config(
        conv_dim=(8, 8), conv_kernel=(4, 3), conv_stride=strides, hidden_size=8,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        num_conv_pos_embedding_groups=2, num_conv_pos_embeddings=4,
    )  # fmt: skip
    model = build(transformers.Wav2Vec2Model, config, "cpu")
    sound = inputs_from_config(model, config)["input_values"]
    assert sound.shape == (2, samples)
    if samples < 4000:
        assert model(sound).last_hidden_state.shape[1] == 32


def test_too_few_parameters_are_refused_with_the_number() -> None:
    with pytest.raises(NoTwin, match="more than 100"):
        twin(transformers.ViTConfig(), limit=100)


@pytest.mark.parametrize(
    ("config", "kind", "parts"),
    [
        ({"n_embd": 8}, None, ("a dict came", "was expected", "AutoConfig")),
        (transformers.GPT2Config(), "NoSuchModel", ("NoSuchModel", "was expected", "kind=")),
        (transformers.GPT2Config(), "GPT2Config", ("GPT2Config", "was expected", "kind=")),
    ],
    ids=["table", "unknown", "no-model"],
)
def test_what_is_no_configuration_or_no_class_is_refused(
    config: Any, kind: Any, parts: tuple[str, ...]
) -> None:
    with pytest.raises(TypeError) as caught:
        twin(config, kind=kind)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_the_name_is_public() -> None:
    assert paramsym.twin is twin
    assert "twin" in dir(paramsym)
