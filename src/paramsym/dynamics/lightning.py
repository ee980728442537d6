"""The ledger as a callback of Lightning."""

from __future__ import annotations

from typing import Any

import torch

from paramsym.callbacks import Callback
from paramsym.structure.symmetry import ParameterSymmetry

from .ledger import ConservationLedger


class LedgerCallback(Callback):
    """Keeps a ledger of the conserved quantities while a `Trainer` fits a module.

        trainer = Trainer(callbacks=[LedgerCallback(find_symmetry(module.net, inputs), "net")])

    `ledger_residual`, relative to the largest quantity, is logged at the end of each epoch.

    Attributes:
        ledger: there from the start of the fit on.

    Args:
        symmetry: as for `ConservationLedger`.
        module: where in the LightningModule the model is that it was derived from; by default the
            LightningModule itself.
        optimizer: which of several optimisers.
        decoupled: as for `ConservationLedger`.
        precision: as for `ConservationLedger`, with a `Trainer` of mixed precision.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, module: str = "", optimizer: int = 0,
        decoupled: float | str = 0.0, precision: torch.dtype | None = None,
    ):  # fmt: skip
        super().__init__()
        self.symmetry, self.module, self.optimizer = symmetry, module, optimizer
        self.decoupled, self.precision = decoupled, precision
        self.ledger: ConservationLedger | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin at the parameters as they are."""
        self.ledger = ConservationLedger(
            self.symmetry, pl_module.get_submodule(self.module),
            trainer.optimizers[self.optimizer], self.decoupled, self.precision,
        )  # fmt: skip

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Enter the step, if this batch ended one."""
        if self.ledger is not None and self.ledger.due:
            self.ledger.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the residual."""
        if self.ledger is not None:
            pl_module.log("ledger_residual", self.ledger.report().relative)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop following the optimiser; the ledger can still be read."""
        if self.ledger is not None:
            self.ledger.close()
