"""Example inputs from text and from configurations."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from paramsym.checkpoints import CheckpointError, open_checkpoint, parse_inputs
from paramsym.checkpoints.inputs import inputs_from_config


def test_shapes_dtypes_and_ranges_are_read():
    x, y, z = parse_inputs("2x3x4, 2x7:int64<50, 5:bool")
    assert x.shape == (2, 3, 4) and x.dtype == torch.float32
    assert y.shape == (2, 7) and y.dtype == torch.int64 and 0 <= y.min() and y.max() < 50
    assert z.dtype == torch.bool and len({int(v) for v in y.flatten()}) > 3


def test_names_make_keyword_inputs():
    found = parse_inputs("a=2x3:float64,b=4:bfloat16")
    assert isinstance(found, dict)
    assert {n: t.dtype for n, t in found.items()} == {"a": torch.float64, "b": torch.bfloat16}


def test_the_same_text_gives_the_same_numbers():
    assert torch.equal(parse_inputs("3x3")[0], parse_inputs("3x3")[0])
    assert parse_inputs("3x3", torch.float64)[0].dtype == torch.float64


@pytest.mark.parametrize("text", ["", "2x", "2x3,a=4", "2x3:float99", "2x3;4", "a=b"])
def test_what_cannot_be_read_is_refused_with_examples(text: str):
    with pytest.raises(CheckpointError, match="2x3x32x32"):
        parse_inputs(text)


def test_inputs_take_the_dtype_of_the_model():
    opened = open_checkpoint("tests.models:Small", inputs="3x5")
    assert opened.inputs[0].dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["GPT2Model", "T5Model", "ViTModel", "RobertaModel", "ResNetModel"]
)
def test_configurations_say_what_a_model_takes(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    sizes = {
        "GPT2Model": {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 50},
        "T5Model": {"d_model": 8, "d_ff": 12, "d_kv": 4, "num_heads": 2, "num_layers": 1},
        "ViTModel": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                     "intermediate_size": 12, "image_size": 16, "patch_size": 8},
        "RobertaModel": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                         "intermediate_size": 12, "vocab_size": 30, "max_position_embeddings": 9},
        "ResNetModel": {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1]},
    }[name]  # fmt: skip
    kind = getattr(transformers, name)
    config = kind.config_class(**sizes)
    model = kind(config).eval()
    inputs = inputs_from_config(model, config)
    assert all(tensor.shape[0] == 2 for tensor in inputs.values())
    model(**inputs)
    if name == "T5Model":
        assert set(inputs) == {"input_ids", "decoder_input_ids"}
    if name == "RobertaModel":
        assert not (inputs["input_ids"] == config.pad_token_id).any()


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [({}, 32), ({"subsampling_factor": 8}, 80), ({"max_source_positions": 20}, 40)],
)
def test_sound_leaves_places_behind_the_first_steps(sizes: dict[str, int], frames: int):
    """Four places would be fewer input vectors than a layer has directions."""

    class Listener(torch.nn.Linear):
        main_input_name = "input_features"

    config = SimpleNamespace(num_mel_bins=16, **sizes)
    found = inputs_from_config(Listener(16, 3), config)
    assert found["input_features"].shape == (2, 16, frames)
