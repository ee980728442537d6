"""A loader of a moved model gives what `act` gives, tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from paramsym import act, find_symmetry
from paramsym.checkpoints import CheckpointError, MovedLoader
from tests.checkpoints.test_converting import gpt2, in_files, llama

TOKENS = {"input_ids": torch.arange(7)[None]}


class Files:
    """The tensors of a model, as mergekit's `LazyTensorLoader` gives them."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.tensors, self.flushed = tensors, False
        self.index = SimpleNamespace(tensor_paths=dict.fromkeys(tensors, "model.safetensors"))

    def get_tensor(self, key: str, device: str = "cpu") -> torch.Tensor:
        return self.tensors[key].to(device)

    def flush(self) -> None:
        self.flushed = True


@pytest.mark.parametrize("build", [llama, gpt2])
def test_each_tensor_is_that_of_the_moved_model(build) -> None:
    model = build()
    symmetry = find_symmetry(model, TOKENS)
    g, state = symmetry.sample(torch.Generator().manual_seed(1)), in_files(model, symmetry)
    files = Files(state)
    moved, wanted = MovedLoader(files, symmetry, g), act(symmetry, g, state)
    for name in state:
        found = moved.get_tensor(name)
        assert found is not None and torch.equal(found, wanted[name])
        found = moved.get_tensor("another", aliases=["none", name])
        assert found is not None and torch.equal(found, wanted[name])
    assert moved.get_tensor("another", raise_on_missing=False) is None
    with pytest.raises(KeyError, match="another"):
        moved.get_tensor("another")
    moved.flush()
    assert files.flushed


def test_a_model_of_other_names_is_refused() -> None:
    model = llama()
    symmetry = find_symmetry(model, TOKENS)
    with pytest.raises(CheckpointError, match="missing among"):
        MovedLoader(Files({"x": torch.ones(2)}), symmetry, symmetry.sample(torch.Generator()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mergekit_itself_merges_a_model_with_its_moved_copy(tmp_path: Path) -> None:
    """Half of a model and half of its moved copy, moved back, are that model."""
    pytest.importorskip("mergekit")
    from mergekit.common import ModelReference
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    model = llama()
    symmetry = find_symmetry(model, TOKENS)
    g = symmetry.sample(torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "a")
    before = {n: t.clone() for n, t in model.state_dict().items()}
    model.load_state_dict(act(symmetry, g, before))
    model.save_pretrained(tmp_path / "b")
    other = ModelReference.model_validate(str(tmp_path / "b"))
    LoaderCache().loaders[other] = MovedLoader(other.lazy_loader(), symmetry, ~g)
    config = MergeConfiguration.model_validate({
        "merge_method": "linear", "dtype": "float32",
        "models": [{"model": str(tmp_path / x), "parameters": {"weight": 0.5}} for x in "ab"],
    })  # fmt: skip
    run_merge(config, str(tmp_path / "out"), MergeOptions(device="cpu", write_model_card=False))
    merged = {
        n: t for f in (tmp_path / "out").glob("*.safetensors") for n, t in load_file(f).items()
    }
    for name, tensor in merged.items():
        assert torch.allclose(tensor, before[name], atol=1e-4), name
    assert merged
