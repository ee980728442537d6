"""`python -m tests.distributed.ranks FOLDER`: every check, by four ranks of gloo on this machine.

A process of its own imports everything, computes what one process gets, and forks the ranks. Each
rank writes what it found, check by check: an empty word, or why it failed.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from paramsym import act, act_dual, act_state, balance, find_symmetry, moment_map
from paramsym.algebra import AbstractMonomial
from paramsym.dynamics.ledger import ConservationLedger
from paramsym.recording.refusals import TraceError
from paramsym.structure.action import act_tensor, infinitesimal
from paramsym.structure.axes import spaces_of
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent

WORLD = 4
Params = dict[str, Tensor]


def llama() -> nn.Module:
    """Sizes that four ranks cannot share evenly, one that leaves nothing for the last, and half
    a head of keys for each."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=37, hidden_size=24, intermediate_size=5, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=16,
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def gpt2() -> nn.Module:
    """Fused queries, keys and values, biases, and tied embeddings."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=37, n_embd=12, n_inner=9, n_layer=1, n_head=2, n_positions=16,
        attn_implementation="eager",
    )  # fmt: skip
    return GPT2LMHeadModel(config).double().eval()


@dataclass
class Single:
    """A model with what one process finds of it."""

    model: nn.Module
    symmetry: ParameterSymmetry
    element: GroupElement
    scaling: GroupElement
    params: Params
    moved: Params
    gradients: Params


def single(make: Callable[[], nn.Module]) -> Single:
    """Everything that one process computes."""
    model = make()
    for p in model.parameters():  # gains and biases that are not all alike
        p.data += 0.1 * torch.randn(p.shape, dtype=p.dtype)
    symmetry = find_symmetry(model, {"input_ids": tokens()})
    params = {n: t.detach() for n, t in model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    element = symmetry.sample(generator)
    monomial = [n for n, s in symmetry.spaces.items() if isinstance(s.group, AbstractMonomial)]
    scaling = symmetry.sample(torch.Generator().manual_seed(4), only=monomial)
    gradients = {n: torch.randn(p.shape, dtype=p.dtype) for n, p in model.named_parameters()}
    return Single(
        model, symmetry, element, scaling, params, act(symmetry, element, params), gradients
    )


def tokens() -> Tensor:
    return torch.arange(14).reshape(2, 7) * 5 % 37


# -- layouts ---------------------------------------------------------------------------------------


def fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP2, layer by layer: the first axis of every tensor."""
    made = copy.deepcopy(model)
    for block in made.model.layers if hasattr(made, "model") else made.transformer.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def tensor_parallel(params: Params, mesh: DeviceMesh) -> Params:
    """Rows, columns and copies in turn."""
    found = {}
    for k, (name, tensor) in enumerate(params.items()):
        placement = (Shard(0), Shard(min(1, tensor.ndim - 1)), Replicate())[k % 3]
        found[name] = distribute_tensor(tensor, mesh, [placement])
    return found


def megatron(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Columns and rows of `parallelize_module`, and FSDP2 on top, on a mesh of two by two."""
    made = copy.deepcopy(model)
    plan = {f"self_attn.{n}_proj": ColwiseParallel() for n in "qkv"}
    plan |= {f"mlp.{n}_proj": ColwiseParallel() for n in ("gate", "up")}
    plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for block in made.model.layers:
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(made, mesh=mesh["dp"])


# -- checks ----------------------------------------------------------------------------------------


class Checks:
    """All checks of one rank, by name; what they share is made when it is first read."""

    def __init__(self, rank: int, folder: Path, known: dict[str, Single]):
        self.rank, self.folder, self.known = rank, folder, known
        self.mesh = init_device_mesh("cpu", (WORLD,))
        self.square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def run(self) -> dict[str, str]:
        found = {}
        for name in self.known:
            for check in [n for n in dir(self) if n.startswith("check_")]:
                try:
                    getattr(self, check)(self.known[name])
                    said = ""
                except Exception:
                    said = traceback.format_exc()
                found[f"{name}: {check.removeprefix('check_')}"] = said
                dist.barrier()
        return found

    def check_act_under_fsdp(self, one: Single) -> None:
        model = fsdp(one.model, self.mesh)
        self._acts(one, dict(model.state_dict()))
        own = dict(model.named_parameters())  # which gradients are computed through
        moved = act(one.symmetry, one.element, own)
        assert any(t.grad_fn is not None for t in moved.values())
        close({n: t.detach() for n, t in moved.items()}, {n: one.moved[n] for n in own})

    def check_act_under_tensor_parallel(self, one: Single) -> None:
        self._acts(one, tensor_parallel(one.params, self.mesh))

    def check_act_on_a_mesh_of_two_dimensions(self, one: Single) -> None:
        if hasattr(one.model, "model"):
            self._acts(one, dict(megatron(one.model, self.square).state_dict()))

    def _acts(self, one: Single, given: Params) -> None:
        before = {n: local(t).clone() for n, t in given.items()}
        assert any(not t.placements[0].is_replicate() for t in given.values())
        moved = act(one.symmetry, one.element, given)
        placed_as(moved, given)
        close(moved, one.moved)
        assert all(torch.equal(local(t), before[n]) for n, t in given.items())

    def check_slices_move_by_themselves_along_other_axes(self, one: Single) -> None:
        """By what acts on columns, rows are moved where they are: as by the slow twin."""
        params = {n: t for n, t in one.params.items() if n not in one.symmetry.ties}
        for axis in (0, 1):
            given = {
                n: distribute_tensor(t, self.mesh, [Shard(axis) if t.ndim == 2 else Replicate()])
                for n, t in params.items()
            }
            for space in ("residual", next(n for n in one.symmetry.spaces if n.endswith(".mlp"))):
                element = one.symmetry.sample(torch.Generator().manual_seed(5), only=[space])
                with CommDebugMode() as sent:
                    moved = act(one.symmetry, element, given)
                placed_as(moved, given)
                expected = act(one.symmetry, element, params)
                close(moved, expected)
                across = [
                    n for n, axes in one.symmetry.signature.items()
                    if len(axes) == 2 and space in spaces_of(axes[axis])
                ]  # fmt: skip
                count = sum(v for k, v in sent.comm_counts.items() if "gather" in str(k))
                assert count == len(across), (space, axis, count, across)
                stays = {n for n in expected if torch.equal(expected[n], params[n])}
                assert not stays & {*across}

    def check_one_tensor_alone(self, one: Single) -> None:
        given = tensor_parallel(one.params, self.mesh)
        for name in [*one.symmetry.signature][:6]:
            made = act_tensor(one.symmetry, one.element, name, given)
            close({name: made}, {name: one.moved[name]})

    def check_gradients(self, one: Single) -> None:
        expected = act_dual(one.symmetry, one.element, one.params, one.gradients)
        given = tensor_parallel(one.params, self.mesh)
        gradients = tensor_parallel(one.gradients, self.mesh)
        made = act_dual(one.symmetry, one.element, given, gradients)
        placed_as(made, {n: gradients[n] for n in made})
        close(made, expected)
        sums = {  # as tensor parallelism leaves the gradients of what is copied
            n: DTensor.from_local(t / WORLD, self.mesh, [Partial()])
            for n, t in one.gradients.items()
        }
        made = act_dual(one.symmetry, one.element, given, sums)
        assert all(t.placements == (Replicate(),) for t in made.values())
        close(made, expected)

    def check_velocities(self, one: Single) -> None:
        size = tangent(one.symmetry, one.params).shape[0]
        velocity = one.symmetry.algebra(torch.linspace(-1.0, 1.0, size, dtype=torch.float64))
        given = tensor_parallel(one.params, self.mesh)
        close(infinitesimal(one.symmetry, velocity, given),
              infinitesimal(one.symmetry, velocity, one.params))  # fmt: skip

    def check_moments(self, one: Single) -> None:
        for given in (fsdp(one.model, self.mesh).state_dict(),
                      tensor_parallel(one.params, self.mesh)):  # fmt: skip
            close(moment_map(one.symmetry, given), moment_map(one.symmetry, one.params))

    def check_balance(self, one: Single) -> None:
        given = tensor_parallel(one.params, self.mesh)
        made, expected = (balance(one.symmetry, p, rounds=2) for p in (given, one.params))
        assert made.status is expected.status and abs(made.value / expected.value - 1.0) < 1e-12
        placed_as(made.params, given)
        close(made.params, expected.params)
        close(act(one.symmetry, made.element, given), expected.params, 1e-9)

    def check_state_of_adamw(self, one: Single) -> None:
        def stepped(model: nn.Module) -> dict[str, dict[str, Any]]:
            named = dict(model.named_parameters())
            optimizer = torch.optim.AdamW(named.values(), lr=1e-3)
            for _ in range(2):
                loss_of(model).backward()
                optimizer.step()
                optimizer.zero_grad()
            return {n: optimizer.state[p] for n, p in named.items()}

        mine, expected = stepped(fsdp(one.model, self.mesh)), stepped(copy.deepcopy(one.model))
        made = act_state(one.symmetry, one.scaling, mine)
        wanted = act_state(one.symmetry, one.scaling, expected)
        for key in ("exp_avg", "exp_avg_sq"):
            placed_as({n: e[key] for n, e in made.items()}, {n: e[key] for n, e in mine.items()})
            close({n: e[key] for n, e in made.items()}, {n: e[key] for n, e in wanted.items()})
            stays = {n: whole(e[key]) for n, e in mine.items()}
            assert distance({n: e[key] for n, e in made.items()}, stays) > 1e-2  # it did move
        assert all(made[n]["step"] == mine[n]["step"] for n in made)

    def check_ledger(self, one: Single) -> None:
        def kept(model: nn.Module, nesterov: bool) -> ConservationLedger:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=1e-2, momentum=0.9, nesterov=nesterov, weight_decay=1e-3
            )
            ledger = ConservationLedger(one.symmetry, model, optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
                ledger.step()
            return ledger

        nesterov = "GPT2" in type(one.model).__name__  # it alone reads gradients
        mine = kept(fsdp(one.model, self.mesh), nesterov)
        alone = kept(copy.deepcopy(one.model), nesterov)
        assert mine.steps == alone.steps == 2 and mine.skipped == 0
        close(mine.measured, alone.measured)
        close(mine.predicted, alone.predicted)
        assert not mine.report().broken and not alone.report().broken, str(mine)

    def check_a_ledger_sees_what_one_rank_writes(self, one: Single) -> None:
        model = fsdp(one.model, self.mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        ledger = ConservationLedger(one.symmetry, model, optimizer)
        loss_of(model).backward()
        with CommDebugMode() as sent:
            optimizer.step()
            ledger.step()
        gathers = sum(v for k, v in sent.comm_counts.items() if "gather" in str(k))
        # each momentum, or twice where two kinds of laws read it, and entries before and after
        assert gathers <= 2 * len(ledger.params) + 2
        name = next(n for n in ledger.params if ledger.params[n].shape[0] >= WORLD)
        if self.rank == 1:
            local(ledger.params[name].detach()).mul_(2.0)
        refused(lambda: ledger.measured, f"'{name}' was changed since the step before")

    def check_distributed_checkpoints(self, one: Single) -> None:
        given = tensor_parallel(one.params, self.mesh)
        path = str(self.folder / type(one.model).__name__)
        dcp.save(act(one.symmetry, one.element, given), checkpoint_id=path)
        for target in (given, dict(fsdp(one.model, self.mesh).state_dict())):  # or another layout
            read = {n: torch.zeros_like(t) for n, t in target.items()}
            dcp.load(read, checkpoint_id=path)
            placed_as(read, target)
            close(read, one.moved)

    def check_ranks_with_different_elements_are_refused(self, one: Single) -> None:
        generator = torch.Generator().manual_seed(10 + self.rank // 3)  # the last rank alone
        element = one.symmetry.sample(generator)
        given = tensor_parallel(one.params, self.mesh)
        name = next(n for n in one.symmetry.signature if one.symmetry.movers[n])
        for call in (
            lambda: act(one.symmetry, element, given),
            lambda: act_tensor(one.symmetry, element, name, given),
            lambda: act_dual(one.symmetry, element, given, given),
        ):
            refused(call, "the ranks of their mesh hold different elements")

    def check_models_are_traced_before_they_are_spread(self, one: Single) -> None:
        made = fsdp(one.model, self.mesh)
        refused(lambda: find_symmetry(made, {"input_ids": tokens()}), "before fully_shard")

    def check_slices_are_refused(self, one: Single) -> None:
        given = fsdp(one.model, self.mesh).state_dict()
        slices = {n: local(t) for n, t in given.items()}
        name = next(n for n in one.symmetry.signature if given[n].shape[0] >= WORLD)
        said = rf"'{name}' has shape .*whole shape is .*pass the DTensor"
        for call in (
            lambda: act(one.symmetry, one.element, slices),
            lambda: moment_map(one.symmetry, slices),
            lambda: act_tensor(one.symmetry, one.element, name, slices),
        ):
            refused(call, said)

    def check_another_element_differs(self, one: Single) -> None:
        given = tensor_parallel(one.params, self.mesh)
        other = one.symmetry.sample(torch.Generator().manual_seed(99))
        assert distance(act(one.symmetry, other, given), one.moved) > 1e-2


def loss_of(model: nn.Module) -> Tensor:
    return model(input_ids=tokens(), labels=tokens(), use_cache=False).loss


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_as(made: Params, given: Params) -> None:
    assert made.keys() == given.keys()
    for name, tensor in given.items():
        assert isinstance(made[name], DTensor), name
        assert made[name].placements == tensor.placements, name
        assert made[name].device_mesh == tensor.device_mesh, name
        assert local(made[name]).shape == local(tensor).shape, name


def distance(made: Params, expected: Params) -> float:
    """The largest difference, relative to the largest entry of a tensor."""
    assert made.keys() == expected.keys()
    return max(
        float((whole(made[n]) - t).abs().max() / t.abs().max().clamp_min(1e-30))
        for n, t in expected.items() if t.numel() and t.is_floating_point()
    )  # fmt: skip


def close(made: Params, expected: Params, tolerance: float = 1e-12) -> None:
    found = distance(made, expected)
    assert found <= tolerance, f"{found:.1e}"


def refused(call: Callable[[], object], said: str) -> None:
    try:
        call()
    except (ValueError, TraceError) as error:
        assert re.search(said, str(error)), str(error)
    else:
        raise AssertionError(f"nothing was raised that says {said!r}")


# -- processes -------------------------------------------------------------------------------------


def rank(number: int, folder: Path, known: dict[str, Single]) -> None:
    """What one rank does."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=WORLD
    )
    found = Checks(number, folder, known).run()
    (folder / f"rank{number}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    """Fork the ranks, and wait for them."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    known = {"Llama": single(llama), "GPT-2": single(gpt2)}
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=(n, folder, known)) for n in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
