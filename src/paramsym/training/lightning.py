"""`Rebalance` as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from paramsym.callbacks import Callback
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.training.rebalance import Rebalance


class RebalanceCallback(Callback):
    """Rebalances while a `Trainer` fits a module.

        symmetry = find_symmetry(module.net, inputs, training=True)
        trainer = Trainer(callbacks=[RebalanceCallback(symmetry, "net", every=10)])

    Attributes:
        rebalance: there from the start of the fit on; it follows the optimiser until the end.

    Args:
        symmetry: as for `Rebalance`.
        module: where in the LightningModule the model is that it was derived from; by default the
            LightningModule itself.
        optimizer: which of several optimisers.
        options: those of `Rebalance` from `every` on, but for `model`.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, module: str = "", optimizer: int = 0, **options: Any
    ):
        super().__init__()
        self.symmetry, self.module, self.optimizer = symmetry, module, optimizer
        self.options = options
        self.rebalance: Rebalance | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow the optimiser, and none that an earlier fit left behind."""
        self.on_train_end(trainer, pl_module)
        if not 0 <= self.optimizer < len(trainer.optimizers):
            raise ValueError(
                f"RebalanceCallback(optimizer={self.optimizer!r}): the trainer has "
                f"{len(trainer.optimizers)} optimisers; the number of one of them was expected, "
                "from 0 on. Pass optimizer=0."
            )
        self.rebalance = Rebalance(
            self.symmetry, trainer.optimizers[self.optimizer],
            model=pl_module.get_submodule(self.module), **self.options,
        )  # fmt: skip

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Follow it no longer."""
        if self.rebalance is not None:
            self.rebalance.remove()
