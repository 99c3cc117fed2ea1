"""What the head of a block says: its hyper-parameters and its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archdsl.diagnostics import did_you_mean, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.modules import SpecModule, find_in_library, find_primitive
from archdsl.ir.op import Primitive
from archdsl.ir.static import BlockValue, Declared, SharedModule
from archdsl.syntax import ast

TENSOR_TYPES = ("token", "int", "bool", "padding", "documents", "float", "float32", "bfloat16")
SIGNATURE_TYPES = (*TENSOR_TYPES, "number")
"""What a signature may say that a tensor holds: `number` are whole and real ones."""


def hypers_of(value: BlockValue | SharedModule) -> Mapping[str, ast.Hyper]:
    """The hyper-parameters of a block value by name, in their order."""
    template = value.template if isinstance(value, SharedModule) else value
    target = template.target
    header = target.header if isinstance(target, Primitive) else target.node.header
    return {h.name: h for h in header.hypers or ()}


def demand_applicable(target: Primitive | Declared, span: Span) -> None:
    """Raises E0203 for a model of slots: what it takes is known where it is compiled."""
    if isinstance(target, Declared) and isinstance(target.node, ast.ModelDecl) and target.node.header.tensors is None:
        text = f"`{target.name}` is a model of slots, and cannot be applied"
        raise error("E0203", text, span, help="put what two models share into a block")


def tensor_params(target: Primitive | Declared) -> Sequence[ast.TensorParam]:
    """The tensors of a block; a block of slots that names none has `x` and, with cross-attention, `memory`.

    Raises E0202 where a hyper-parameter is called like one of those that are not named."""
    if isinstance(target, Primitive):
        return target.header.tensors or ()
    node = target.node
    if node.header.tensors is not None or isinstance(node, ast.ModelDecl):
        return node.header.tensors or ()
    found = _implied_params(node, target.module)
    tensors = {t.name for t in found}
    for hyper in node.header.hypers or ():
        if hyper.name in tensors:
            raise error(
                "E0202",
                f"`{hyper.name}` is a tensor of `{node.name}`, which names none itself, and a hyper-parameter",
                hyper.span,
                help="give the hyper-parameter another name",
            )
    return found


def _implied_params(node: ast.BlockDecl, module: SpecModule) -> Sequence[ast.TensorParam]:
    """The tensors of a block that names none."""
    if not isinstance(node.body, ast.Body):
        return _alias_params(node, module)
    if not any(s.key == "cross_attention" for s in node.body.slots):
        return _just_x(node)
    span = node.name_span
    axes = tuple(ast.Name(n, span=span) for n in ("batch", "source", "memory_width"))
    x_axes = tuple(ast.Name(n, span=span) for n in ("batch", "time", "width"))
    none = ast.Name("none", span=span)
    return (
        ast.TensorParam("x", ast.TensorType(None, x_axes, span=span), None, span=span),
        ast.TensorParam("memory", ast.TensorType(None, axes, span=span), none, span=span),
    )


def _alias_params(node: ast.BlockDecl, module: SpecModule) -> Sequence[ast.TensorParam]:
    """`block mqa(heads) = gqa(…)` has gqa's tensors. Where aliases go round in a circle it is `x` alone: applying one
    is an error of its own."""
    first, seen = node, {id(node)}
    while not isinstance(node.body, ast.Body):
        e = node.body
        while isinstance(e, ast.Call):
            e = e.function
        if not isinstance(e, ast.Name):
            break
        found = module.find(e.id) or find_in_library(e.id)
        if found is None:
            op = find_primitive(e.id)
            return (op.header.tensors if op is not None else None) or _just_x(first)
        module, declared = found
        if not isinstance(declared, ast.BlockDecl) or id(declared) in seen:
            break
        node = declared
        seen.add(id(node))
        if node.header.tensors is not None or isinstance(node.body, ast.Body):
            return tensor_params(Declared(node, module))
    return _just_x(first)


def _just_x(node: ast.BlockDecl) -> Sequence[ast.TensorParam]:
    """`x: [..., width]`."""
    span = node.name_span
    dims = (ast.Ellipsis(span=span), ast.Name("width", span=span))
    return (ast.TensorParam("x", ast.TensorType(None, dims, span=span), None, span=span),)


def is_inline(template: BlockValue) -> bool:
    target = template.target
    return isinstance(target, Declared) and isinstance(target.node, ast.BlockDecl) and target.node.inline


def default_none(hyper: ast.Hyper) -> bool:
    """Whether the hyper-parameter is optional: `= none`."""
    return isinstance(hyper.default, ast.Name) and hyper.default.id == "none"


def tensor_kind(t: ast.TensorType) -> str | None:
    """The type that a shape is written with, if any: what fits it. Raises E0203 for an unknown one."""
    if t.kind is not None and t.kind not in SIGNATURE_TYPES:
        help_ = did_you_mean(t.kind, SIGNATURE_TYPES) or f"types are {', '.join(SIGNATURE_TYPES)}"
        raise error("E0203", f"`{t.kind}` is no type of tensors", t.span, help=help_)
    return t.kind


def stored_kind(t: ast.TensorType) -> str | None:
    """The same of a tensor that is made here, and so is of one type."""
    if tensor_kind(t) == "number":
        text = "`number` is what a signature takes; a tensor that is made here is of one type"
        raise error("E0203", text, t.span, help=f"types are {', '.join(TENSOR_TYPES)}")
    return t.kind


def result_names(node: ast.BlockDecl | ast.ModelDecl, count: int) -> tuple[str | None, ...]:
    """What the signature calls the results, as far as it names them."""
    results = node.header.results
    return tuple(r.name for r in results) if results and len(results) == count else (None,) * count


def library_block(name: str) -> Declared:
    """A block of the library that the language itself refers to."""
    found = find_in_library(name)
    assert found is not None, name
    module, node = found
    assert isinstance(node, ast.BlockDecl), name
    return Declared(node, module)


def axes_of(dims: Sequence[ast.Expr], rank: int) -> list[tuple[ast.Expr, range]] | None:
    """Which axes of a tensor each entry of a written shape stands for, `...` standing for any number of them. None
    where they do not fit."""
    spot = next((i for i, d in enumerate(dims) if isinstance(d, ast.Ellipsis)), None)
    rest = rank - len(dims) + (spot is not None)
    if rest < 0 or (spot is None and rest):
        return None
    found, position = [], 0
    for i, dim in enumerate(dims):
        count = rest if i == spot else 1
        found.append((dim, range(position, position + count)))
        position += count
    return found
