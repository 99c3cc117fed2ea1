"""The printed form of the IR: `archdsl show --ir`.

Every distinct block once, callers first; sizes as the block spells them, their values in its first lines.  Names of
tensors are the spec's own, numbered where they repeat: the text depends on nothing but the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from archdsl.ir.dims import Num, Poly, Shape, axis_of, expr_text, is_sayable, literal
from archdsl.ir.graph import (
    AppendNode,
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    FirstNode,
    Graph,
    Handle,
    Init,
    LoopNode,
    LossNode,
    Model,
    NewestNode,
    Node,
    OnceNode,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    Weight,
    WeightNode,
    node_outputs,
)
from archdsl.ir.masks import Mask
from archdsl.ir.static import (
    BlockValue,
    ElementRef,
    JoinedPattern,
    ListValue,
    Pattern,
    RepeatedPattern,
    Scheme,
    SharedModule,
)
from archdsl.ir.walk import calls_of, every_node, nodes_below


def print_model(model: Model) -> str:
    """The whole model as text, ending with a line end."""
    blocks = list(_blocks(model.block))
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for block in blocks:
        taken[block.name] = taken.get(block.name, 0) + 1
        names[id(block)] = block.name if taken[block.name] == 1 else f"{block.name}.{taken[block.name]}"
    parts = [_BlockPrinter(model.block, names).model(model)]
    parts += [_BlockPrinter(block, names).block_text() for block in blocks[1:]]
    return "\n".join(parts)


def _blocks(root: Block) -> Iterator[Block]:
    """Each distinct block, callers first."""
    seen: set[int] = set()
    called = {c.block for n in nodes_below(root.graph) for c in calls_of(n)}
    queue = [root]
    while queue:
        block = queue.pop(0)
        if id(block) in seen:
            continue
        seen.add(id(block))
        yield block
        queue += [i.block for i in block.instances if i.block in called]
        nodes = [i.node for i in block.instances if i.block is None and i.node is not None]
        queue += [call.block for node in (*nodes, *every_node(block.graph)) for call in calls_of(node)]


# --- numbers and static values ----------------------------------------------------------------------------------------


def number(n: Num) -> str:
    """A number as the block spells it; by its value where it has no name here."""
    return expr_text(n.expr) if is_sayable(n.expr) else exactly(n)


def exactly(n: Num) -> str:
    """A number by its value, with all its digits."""
    return str(n) if isinstance(n.value, Poly | int) else expr_text(literal(n.value))


def shape(dims: Shape) -> str:
    return f"[{', '.join(number(d) for d in dims)}]"


def static(value: Any, number: Callable[[Num], str] = number) -> str:
    """An option or hyper-parameter, with its numbers as `number` says them."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Num):
        return number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mask):
        return _mask(value, number)
    if isinstance(value, Scheme):
        return _call(value.name, {**value.lists, **value.numbers}, number)
    if isinstance(value, BlockValue):
        return _call(value.name, value.args, number)
    if isinstance(value, SharedModule):
        return f"shared {value.label or value.name}"
    if isinstance(value, ListValue):
        return (
            f"[{', '.join(static(v, number) for v in value.items)}]"
            if len(value.items) < 9 or all(isinstance(v, Num | ListValue) for v in value.items)
            else f"[{len(value.items)} elements]"
        )
    if isinstance(value, tuple | list):
        return f"({', '.join(static(v, number) for v in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {static(v, number)}' for k, v in value.items())}}}"
    if isinstance(value, Value):
        return f"%{value.name}"
    return str(value)


def _call(name: str, args: Mapping[str, Any], number: Callable[[Num], str] = number) -> str:
    return f"{name}({', '.join(f'{k}: {static(v, number)}' for k, v in args.items())})" if args else name


def _mask(mask: Mask, number: Callable[[Num], str]) -> str:
    if mask.rule in ("&", "|"):
        parts = [f"({_mask(p, number)})" if p.rule in ("&", "|") else _mask(p, number) for p in mask.parts]
        return f" {mask.rule} ".join(parts)
    if mask.rule == "~":
        return f"~({_mask(mask.parts[0], number)})"
    inner = [number(n) for n in mask.numbers]
    if mask.tensor is not None:
        inner.append(f"%{mask.tensor.name}")
    return f"{mask.rule}({', '.join(inner)})" if inner else mask.rule


def pattern(p: Pattern, items: Mapping[int, str]) -> str:
    """`3 * dense + 58 * sparse`, over the names of the list's distinct elements."""
    if isinstance(p, ElementRef):
        return items[p.index]
    if isinstance(p, RepeatedPattern):
        inner = pattern(p.part, items)
        return f"{expr_text(p.count, 70)} * {f'({inner})' if isinstance(p.part, JoinedPattern) else inner}"
    return " + ".join(pattern(part, items) for part in p.parts)


def init_text(init: Init, number: Callable[[Num], str] = number) -> str:
    """How a weight is drawn."""
    if init.graph is not None:
        return "expression"
    return _call(init.scheme, init.numbers, number)


# --- blocks -----------------------------------------------------------------------------------------------------------


class _BlockPrinter:
    """One block. Tensors get their names as they are met."""

    def __init__(self, block: Block, blocks: Mapping[int, str]) -> None:
        self.block = block
        self.blocks = blocks
        self.names: dict[int, str] = {}
        self.used: dict[str, int] = {}
        self.unnamed = 0

    def define(self, value: Value) -> str:
        if id(value) not in self.names:
            if value.name:
                n = self.used[value.name] = self.used.get(value.name, 0) + 1
                self.names[id(value)] = f"%{value.name}" if n == 1 else f"%{value.name}.{n}"
            else:
                self.names[id(value)] = f"%{self.unnamed}"
                self.unnamed += 1
        return self.names[id(value)]

    def use(self, value: Any) -> str:
        if value is None:
            return "none"
        if isinstance(value, Value):
            return self.define(value)
        if isinstance(value, Handle):
            return f"@{value.instance.label or value.instance.name}" + (f".{value.weight}" if value.weight else "")
        assert isinstance(value, Num)
        return number(value)

    # --- heads ---

    def model(self, model: Model) -> str:
        lines = [f"model {model.name} {{  # {_position(self.block)}"]
        if model.config:
            lines.append(f"  config {', '.join(f'{f.name} = {exactly(f.value)}' for f in model.config)}")
        lines += [f"  input {self.typed(value)}" for _, value in model.inputs]
        return self._finish(lines)

    def block_text(self) -> str:
        lines = [f"block {self.blocks[id(self.block)]} {{  # {_position(self.block)}"]
        given = {k: v for k, v in self.block.hypers.items() if k not in self.block.local}
        lines += [f"  hyper {name} = {_given(value)}" for name, value in given.items()]
        lines += [f"  axis {name} = {size}" for name, size in self.block.axes.items()]
        lines += [f"  input {self.typed(value)}" for value in self.block.graph.inputs]
        for context in self.block.contexts:
            if isinstance(context.value, Value):
                lines.append(f"  context {self.typed(context.value)}")
            else:
                lines.append(f"  context {self.use(context.value)}")
        return self._finish(lines)

    def _finish(self, lines: list[str]) -> str:
        block = self.block
        for name, expr in block.local.items():
            value = block.hypers.get(name)
            lines.append(f"  local {name} = {expr_text(expr)}" + (f" = {value}" if isinstance(value, Num) else ""))
        lines += [f"  assert {expr_text(left)} {op} {expr_text(right)}" for left, op, right, _ in block.asserts]
        for instance in block.instances:
            what = instance.block.name if instance.block is not None else instance.name
            step = f" as {instance.path}" if instance.path != (instance.label or instance.name) else ""
            lines.append(
                f"  shared @{instance.label or instance.name} = {self.blocks.get(id(instance.block), what)}{step}"
            )
            if instance.node is not None:
                lines += self._weights(instance.node.weights, "    ")
        lines += self._graph(block.graph, "  ")
        results = zip(block.result_names, block.graph.outputs, strict=False)
        returned = [f"{name}: {self.use(value)}" if name else self.use(value) for name, value in results]
        lines += [f"  return {', '.join(returned)}", "}", ""]
        return "\n".join(lines)

    def typed(self, value: Value) -> str:
        kind = "" if value.dtype == "float" else value.dtype
        return f"{self.define(value)}: {kind}{shape(value.shape)}"

    # --- nodes ---

    def _graph(self, graph: Graph, indent: str) -> list[str]:
        return [indent + line for node in graph.nodes for line in self._node(node)]

    def _outputs(self, node: Node) -> str:
        return ", ".join(self.typed(v) for v in node_outputs(node))

    def _node(self, node: Node) -> list[str]:
        if isinstance(node, OpNode):
            return self._op(node)
        if isinstance(node, CallNode):
            inputs = [self.use(v) for v in node.inputs] + [self.use(v) for v in node.contexts]
            shared = f"@{node.instance.label or node.instance.name}" if node.instance is not None else ""
            own = node.instance is not None and node.instance.block is node.block
            target = shared if own else self.blocks[id(node.block)]
            part = " prepare" if node.step is not None else " step" if node.block.before is not None else ""
            step = f" as {node.name}" if node.name and node.instance is None else ""
            step += f" of {shared}" if shared and not own else ""
            bound = ", ".join(
                f"{k} = {expr_text(e)}"
                for k, e in node.bind.items()
                if axis_of(k) is None and is_sayable(e) and not (" " in k and expr_text(e) == k)
            )
            return [
                f"{self._outputs(node)} = call{part} {target}({', '.join(inputs)}){step}"
                + (f" with {bound}" if bound else "")
            ]
        if isinstance(node, ParamNode):
            weight, first = node.weight, init_text(node.weight.init)
            kind = "param" if weight.trained else "buffer"
            state = weight.saved and not weight.trained and weight.init.scheme != "given"
            return [f"{self.typed(node.output)} = {kind} {node.name} {f'saved({first})' if state else first}"]
        if isinstance(node, WeightNode):
            return [f"{self.typed(node.output)} = weight @{node.instance.label or node.instance.name}.{node.weight}"]
        if isinstance(node, CheckNode):
            holds = (
                f"{number(node.left)} % {number(node.right)} == 0"
                if node.op == "%"
                else f"{number(node.left)} {node.op} {number(node.right)}"
            )
            return [f'check {holds}, "{node.message}"']
        if isinstance(node, CausalNode):
            return [f"{'assume ' if node.assumed else ''}causal {self.use(node.value)}, ahead: {node.ahead}"]
        if isinstance(node, LossNode):
            return [f"loss {node.name} = {self.use(node.value)}"]
        if isinstance(node, AppendNode):
            window = f", window: {node.window}" if node.window is not None else ""
            return [
                f"{self.typed(node.output)} = append {node.name}({self.use(node.value)}, axis: {node.axis}{window})"
            ]
        if isinstance(node, NewestNode):
            return [f"{self.typed(node.output)} = newest({self.use(node.value)}, axis: {node.axis})"]
        if isinstance(node, FirstNode):
            return [f"{self.typed(node.output)} = first({self.use(node.value)}, axis: {node.axis})"]
        if isinstance(node, OnceNode):
            return self._braced(f"{self._outputs(node)} = once {node.name}", node.body)
        if isinstance(node, LoopNode):
            return self._loop(node)
        if isinstance(node, ScanNode):
            starts = ", ".join(
                f"{self.define(v)} = {self.use(s)}" for v, s in zip(node.body.inputs, node.starts, strict=False)
            )
            over = zip(node.body.inputs[len(node.starts) :], node.sequences, strict=True)
            sequences = ", ".join(f"{self.define(v)} in {self.use(s)}" for v, s in over)
            head = f"scan {starts} for {sequences}" if starts else f"scan for {sequences}"
            return self._braced(f"{self._outputs(node)} = {head}{_kept(node)}", node.body)
        assert isinstance(node, CondNode)
        head = f"{self._outputs(node)} = " if node.outputs else ""
        lines = self._braced(f"{head}if training", node.then)
        if node.otherwise.nodes or node.outputs:
            lines[-1] = "} else {"
            lines += self._braced("", node.otherwise)[1:]
        return lines

    def _op(self, node: OpNode) -> list[str]:
        inputs = [self.use(v) for v in node.inputs]
        options = [f"{k}: {static(v)}" for k, v in node.options.items() if is_said(v)]
        target = f" of @{node.instance.label or node.instance.name}" if node.instance is not None else ""
        step = f" as {node.name}" if node.name and node.instance is None else ""
        lines = [f"{self._outputs(node)} = {node.op.name}({', '.join(inputs + options)}){target}{step}{_kept(node)}"]
        if node.instance is None:
            lines += self._weights(node.weights, "  ")
        for name, call in node.blocks.items():
            copies = f"{number(node.copies)} copies of " if node.copies is not None else ""
            active = f", {number(node.active)} active" if node.active is not None else ""
            lines.append(f"  {name} = {copies}{self.blocks[id(call.block)]}{active}")
        return lines

    def _weights(self, weights: tuple[Weight, ...], indent: str) -> list[str]:
        found = []
        for w in weights:
            kept = "" if w.trained else ", saved buffer" if w.saved else ", buffer"
            found.append(f"{indent}{w.name}: {shape(w.shape)} {w.kind}, {init_text(w.init)}{kept}")
        return found

    def _loop(self, node: LoopNode) -> list[str]:
        letters = {i: f"body {i}" if len(node.bodies) > 1 else "body" for i in range(len(node.bodies))}
        if node.pattern is not None:
            iterations = pattern(node.pattern, letters)
        else:
            iterations = (
                f"{len(node.iterations)} iterations"
                if len(node.bodies) == 1
                else f"iterations {', '.join(map(str, node.iterations))}"
            )
        outputs = ", ".join(self.typed(v) for v in node.outputs)
        lines = [
            f"{outputs} = for {node.variable} in {iterations} {{"
            if outputs
            else f"for {node.variable} in {iterations} {{"
        ]
        emitted = [self.define(v) for iteration in node.emitted for v in iteration]
        for i, body in enumerate(node.bodies):
            starts = ", ".join(
                f"{self.define(v)} = {self.use(s)}" if i == 0 else self.define(v)
                for v, s in zip(body.inputs, node.starts, strict=True)
            )
            lines += [f"  {line}" for line in self._braced(f"{letters[i]} ({starts})", body)]
        lines.append("}" + (f" emits {', '.join(emitted)}" if emitted else ""))
        return lines

    def _braced(self, head: str, graph: Graph) -> list[str]:
        lines = [f"{head} {{", *self._graph(graph, "  ")]
        if graph.outputs:
            lines.append(f"  yield {', '.join(self.use(v) for v in graph.outputs)}")
        return [*lines, "}"]


def _kept(node: OpNode | ScanNode) -> str:
    return f" keeps {node.kept}" if node.kept else ""


def _given(value: Any) -> str:
    """A hyper-parameter by what it was given, not by its own name."""
    if isinstance(value, Num) and not isinstance(value.value, Poly):
        return expr_text(literal(value.value))
    return str(value) if isinstance(value, Num) else static(value)


def _position(block: Block) -> str:
    """Where a block is declared; of the library only the file, whose lines are of no concern to a spec."""
    return block.span.source.name if block.span.source.library else str(block.span)


def is_said(option: Any) -> bool:
    """Options that were left out, and functions that an op keeps for its own use, are not printed."""
    return option is not None and option != () and option != {} and not callable(option)
