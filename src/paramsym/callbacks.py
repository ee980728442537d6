"""The base class of callbacks for a `Trainer`, which is imported here alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _callback() -> type:
    """Lightning's class of callbacks, by either name; without it nobody calls the hooks."""
    for module in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(module).Callback
        except ImportError:
            continue
    return object


Callback: Any = _callback()
