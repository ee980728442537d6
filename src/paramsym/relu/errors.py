"""Errors of this package, worded in four parts: what came, what was expected, where, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paramsym.terminal import four_parts


class ReLUError(ValueError):
    """A network, a number or a domain that this package cannot read.

    The message always has the same four parts, in this order.
    """

    def __init__(self, came: str, expected: str, where: str, todo: str) -> None:
        self.came, self.expected, self.where, self.todo = came, expected, where, todo
        super().__init__(f"{where}: got {came}; expected {expected}. {todo}")

    def lines(self) -> str:
        """The four parts one below the other, for a terminal."""
        return four_parts(self.where, self.came, self.expected, self.todo)


class Place:
    """Gives the errors of what runs within it their place in the user's model."""

    def __init__(self, where: str, came: Callable[[str], str] = str) -> None:
        self.where, self.came = where, came

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ReLUError):
            came = self.came(error.came)
            raise ReLUError(came, error.expected, self.where, error.todo) from None


class CertificateError(AssertionError):
    """A certificate that the independent checker rejects: a bug of this package, never of the user.

    No verdict is returned in this case.
    """
