"""What nobody said: decay that a name leaves open, training of a model that is evaluated now."""

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.geometry.updates import updates_of
from paramsym.privacy import Key, commuting_subgroup, encode


def generator():
    return torch.Generator().manual_seed(1)


def parameter():
    return [nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_a_name_leaves_decay_open_and_an_optimiser_says_it(kind):
    assert updates_of(kind)[0].decays
    assert updates_of(kind.__name__)[0].decays
    assert not updates_of(kind(parameter(), lr=0.1))[0].decays
    assert updates_of(kind(parameter(), lr=0.1, weight_decay=0.1))[0].decays


@pytest.mark.parametrize("name", ["lbfgs", "rprop", "clip_grad_norm"])
def test_what_cannot_decay_does_not(name):
    assert not updates_of(name)[0].decays


def test_translations_need_to_know_that_nothing_decays():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train()
    symmetry = find_symmetry(layer, (torch.randn(3, 5, 8),), training=True)
    assert symmetry.shifts
    assert commuting_subgroup(symmetry, torch.optim.SGD(layer.parameters(), lr=0.1)).shifts
    assert not commuting_subgroup(symmetry, "sgd").shifts


@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["still", "dropout"])
@pytest.mark.parametrize("optimizer", [None, "adam"], ids=["inference", "training"])
def test_a_key_for_training_is_tried_in_training(rate, optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 4)).eval()
    x = torch.randn(16, 6)
    key = Key.generate(find_symmetry(model, (x,), free_inputs=True), generator(), optimizer)
    if rate and optimizer:
        with pytest.raises(ValueError, match="draws random numbers"):
            encode(model, x, key)
    else:
        encode(model, x, key)
    assert not model.training


@pytest.mark.parametrize("optimizer", ["lion", "rprop", ("sgd", "clip_grad_norm"), "sgd"])
def test_scales_are_refused_at_once_where_no_rates_undo_them(optimizer):
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(5, 6)
    symmetry = find_symmetry(model, (x,), training=True)
    if optimizer == "sgd":
        assert Key.generate(symmetry, generator(), optimizer, scalings=True).learning_rates
        return
    with pytest.raises(ValueError, match="no rates are known"):
        Key.generate(symmetry, generator(), optimizer, scalings=True)


def test_wrappers_and_lists_are_told_apart_from_other_models():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(5, 6)
    key = Key.generate(find_symmetry(model, (x,), free_inputs=True), generator())
    encode(model, x, key)
    with pytest.raises(ValueError, match="pass the model inside"):
        encode(nn.Sequential(model), x, key)
    with pytest.raises(ValueError, match="type list came"):
        encode(model, [x], key)


def test_the_check_leaves_each_module_in_its_own_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    x = torch.randn(16, 6)
    model[2].eval()
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    key = Key.generate(symmetry, generator(), "adam")
    encode(model, x, key)
    assert model.training and not model[2].training
    model[2].train()
    with pytest.raises(ValueError, match="draws random numbers"):
        encode(model, x, key)
