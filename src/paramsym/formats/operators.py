"""Which functions the node of an exported program may name.

torch resolves the text `torch.a.b.c` of a node by `getattr`, one part after the other, so that it
may name any function that is reachable from `torch`, `math` or `operator`; and running the program
calls it. Known are the operators of PyTorch that compute tensors from tensors and numbers, and the
few functions of Python that an export writes.
"""

from __future__ import annotations

from paramsym.formats.expressions import Untrusted, shown

# Namespaces of `torch.ops` whose operators are part of PyTorch (or torchvision) and compute.
NAMESPACES = frozenset("aten prims torchvision quantized_decomposed rngprims".split())
# Their operators that open files, print, or run on the texts they are given.
_REFUSED = frozenset("from_file save load warn _print as_tensor".split())
# Those of them whose names look like Python's own.
_DUNDER = frozenset(
    f"__{i}{name}__" for name in "and or xor lshift rshift".split() for i in ("", "i")
)
# Operators that take graphs as arguments. Not among them: those that call kernels, delegates,
# compiled code or objects that a file brings along.
HIGHER_ORDER = frozenset(
    """
    cond while_loop scan associative_scan map_impl map wrap hints_wrapper invoke_subgraph
    wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint
    tag_activation_checkpoint strict_mode checkpoint flex_attention flex_attention_backward
    auto_functionalized auto_functionalized_v2 out_dtype autograd_function_apply switch
    """.split()
)
_OPERATOR = """
    getitem add mul sub truediv ge le gt lt eq ne floordiv mod and_ or_ not_ pow neg pos abs lshift
    rshift xor
""".split()
_PREDISPATCH = """
    _add_batch_dim _remove_batch_dim _vmap_increment_nesting _vmap_decrement_nesting
    lazy_load_decompositions _make_dual _unpack_dual _jvp_increment_nesting
    _jvp_decrement_nesting _unwrap_for_grad _enter_dual_level _exit_dual_level
""".split()
FUNCTIONS = frozenset(
    [
        *(f"_operator.{name}" for name in _OPERATOR),
        *(f"math.{name}" for name in "ceil floor trunc".split()),
        *(f"torch.sym_{name}" for name in "int float ite max min not sqrt sum".split()),
        *(f"torch._functorch.predispatch.{name}" for name in _PREDISPATCH),
        "torch.autograd.grad_mode.set_grad_enabled",
        "torch._C._set_grad_enabled",
        "torch.amp.autocast_mode._enter_autocast",
        "torch.amp.autocast_mode._exit_autocast",
        "torch.fx.experimental.symbolic_shapes.cast_symbool_to_symint_guardless",
    ]
)


def check_operator(text: object) -> None:
    """Refuse a text that names no known operator.

    Raises:
        Untrusted: with the text.
    """
    expected = (
        "an operator of PyTorch, such as torch.ops.aten.linear.default, that computes tensors"
    )
    if not isinstance(text, str):
        raise Untrusted(f"a {type(text).__name__}", expected)
    if text in FUNCTIONS:
        return
    root, ops, *rest = (*text.split("."), "", "")
    parts = [part for part in rest if part]
    if (root, ops) != ("torch", "ops") or not all(_word(part) for part in parts):
        raise Untrusted(f"the function {shown(text)}", expected)
    space, name = (*parts, "", "")[:2]
    if space == "higher_order" and name in HIGHER_ORDER and len(parts) == 2:
        return
    if space not in NAMESPACES or name in _REFUSED or len(parts) not in (2, 3):
        raise Untrusted(f"the operator {shown(text)}", expected)


def _word(part: str) -> bool:
    """An identifier that is not one of Python's own: no `__class__`, no `__globals__`."""
    own = part[:2] == "__" == part[-2:] and part not in _DUNDER
    return part.isascii() and part.isidentifier() and not own
