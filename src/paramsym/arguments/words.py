"""Types in the words of errors: what they are called, and what to pass where they are expected."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin

# By the names of the types, so that no layer above has to be imported for a word.
_NAMES = {
    "NoneType": "None", "int": "a whole number", "float": "a number", "bool": "True or False",
    "str": "a text", "dict": "a dict", "Mapping": "a dict", "Sequence": "a list",
    "Iterable": "a list", "Collection": "a list", "Module": "a torch.nn.Module",
    "Tensor": "a tensor", "Generator": "a torch.Generator", "dtype": "a torch.dtype",
    "Optimizer": "a torch.optim.Optimizer", "Callable": "a function", "Path": "a path",
}  # fmt: skip
_INSTEAD = {
    "Module": "the model itself, since weights do not say what is computed with them",
    "ParameterSymmetry": "what find_symmetry(model, inputs) gives",
    "SymmetryData": "what find_symmetry(model, inputs) gives",
    "GroupElement": "symmetry.sample(torch.Generator().manual_seed(0)), or one of your own, "
    "symmetry.element({…})",
    "AlgebraElement": "symmetry.velocity({…})",
    "Generator": "torch.Generator().manual_seed(0)",
    "Optimizer": "what calls .step() in the training loop",
    "Tensor": "torch.as_tensor(…) of numbers",
    "Callable": "a function, and not what it returns",
    "tuple": "a tuple, (x,)",
    "dtype": "torch.float64, for example",
}


def a(noun: str) -> str:
    """A noun with its article; None has none."""
    if noun == "NoneType":
        return "None"
    return f"{'an' if noun[:1] in 'aeiouAEIO' else 'a'} {noun}"


def words(hint: Any) -> str:
    """What a type is called in a sentence."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        *first, last = sorted(dict.fromkeys(map(words, inner)), key="None".__eq__)
        return f"{', '.join(first)} or {last}" if first else last
    if hint is Any:
        return "a value"
    name = getattr(origin or hint, "__name__", "value")
    return _NAMES.get(name, a(name)) + _contents(origin, inner)


def _contents(origin: Any, inner: tuple[Any, ...]) -> str:
    """What a container holds, if it is tensors or dicts of these."""
    entry = next((each for each in reversed(inner) if each is not ...), None)
    if entry is None:
        return ""
    many = {"a tensor": "tensors", "a dict of tensors by name": "state dicts"}.get(words(entry), "")
    if not many or origin is Callable:
        return ""
    return f" of {many} by name" if origin is not tuple and _is_mapping(origin) else f" of {many}"


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def instead(hint: Any, value: Any, optional: str = "") -> str:
    """What to pass, as a sentence; an optional argument may be left out."""
    ways = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    ways = [each for each in ways if each not in (None, type(None))] or [hint]
    left = f", or leave {optional}= out" if optional else ""
    return f"Pass {' or '.join(dict.fromkeys(_way(each, value) for each in ways))}{left}."


def _way(hint: Any, value: Any) -> str:
    name = getattr(get_origin(hint) or hint, "__name__", "")
    if name == "Generator" and isinstance(value, int) and not isinstance(value, bool):
        return f"torch.Generator().manual_seed({value})"
    word = words(hint)
    return f"{word}, such as model.state_dict()" if "by name" in word else _INSTEAD.get(name, word)
