"""The section `loss`: the model in two parts, the head's last map apart, and cross-entropy in chunks between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archdsl.analyses.params import vocabulary
from archdsl.diagnostics import ArchError, error
from archdsl.ir.dims import shape_text
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    Graph,
    Handle,
    Model,
    Node,
    OpNode,
    ParamNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
)
from archdsl.ir.op import same
from archdsl.lower.torch.block import BlockWriter, write_block
from archdsl.lower.torch.extras import Section
from archdsl.lower.torch.reading import module_names

if TYPE_CHECKING:
    from archdsl.lower.torch.file import FileWriter
    from archdsl.lower.torch.written import Group

CHUNKED_LOSS = '''
class ChunkedLoss(torch.autograd.Function):
    """The sum of a loss over chunks of rows. Gradients are computed along with it, so that no more than one chunk's
    logits are ever stored, and none are computed twice."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[[Tensor, Tensor], Tensor],
        hidden: Tensor,
        targets: Tensor,
        rows: int,
        *weights: Tensor,
    ) -> Tensor:
        sums, parts = [], []
        totals = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        for x, target in zip(hidden.split(rows), targets.split(rows)):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                value = loss(x, target)
            part, *gradients = torch.autograd.grad(value, (x, *weights))
            sums.append(value.detach())
            parts.append(part)
            for total, gradient in zip(totals, gradients):
                total += gradient
        ctx.save_for_backward(torch.cat(parts), *totals)
        return torch.stack(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *weights = ctx.saved_tensors
        return None, grad * hidden, None, None, *(grad * weight for weight in weights)
'''

CROSS_ENTROPY = '''
def cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, *weights: Tensor, rows: int = 512
) -> Tensor:
    """Mean cross-entropy of `logits(hidden)` [batch, time, vocab] with targets [batch, time], -100 where there is none;
    `rows` places at a time. `weights` are what the logits are made with."""

    def total(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits(x[None])[0].float(), target, reduction="sum")

    hidden, targets = hidden.flatten(0, 1), targets.flatten()
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        found = ChunkedLoss.apply(total, hidden, targets, rows, *(w for w in weights if w.requires_grad))
    else:  # no compiled forward computes gradients: the backward makes each chunk's logits again
        chunks = zip(hidden.split(rows), targets.split(rows))
        found = sum(checkpoint(total, x, target, use_reentrant=False) for x, target in chunks)
    return found / (targets != -100).sum()
'''


COUNT_LOAD = '''
def count_load(router: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
    """A hook: in training, add up how many tokens each expert gets."""
    if router.training:
        chosen, load = outputs[{chosen}].flatten(), router.{path}.load
        load.scatter_add_(0, chosen, torch.ones_like(chosen))
'''

WATCHED = """
for router in self.modules():
    if isinstance(router, {router}):
        router.{path}.register_buffer("load", torch.zeros_like(router.{path}.bias, dtype=torch.long), persistent=False)
        router.register_forward_hook(count_load)
"""

UPDATE_BIAS = '''
@torch.no_grad()
def update_bias(self, speed: float = 0.001) -> None:
    """After a step of the optimizer: raise the bias of experts with fewer tokens than the mean since the last call, and
    lower that of the others (DeepSeek-V3, section 2.1.2)."""
    for router in self.modules():
        if isinstance(router, {router}):
            bias, load = router.{path}.bias, router.{path}.load
            bias += speed * torch.sign(load.double().mean() - load)
            load.zero_()
'''


@dataclass(frozen=True)
class Head:
    """The end of a model's graph: from one tensor, of each place by itself, to the logits."""

    hidden: Value
    nodes: tuple[Node, ...]
    weights: tuple[str, ...]
    """The trained weights of its nodes, as the model's methods read them: `self.head.weight`."""


class Loss(Section):
    """`hidden` and `logits`, of which `forward` is made, and `loss` between them.

    Raises ArchError E0526 where the model's result is no logits for each place, or they are not made of one tensor."""

    def __init__(self, file: FileWriter) -> None:
        self.file = file
        self.head = head_of(file.model)
        self.hidden, self.logits = self._name("hidden"), self._name("logits")
        self.parts: tuple[BlockWriter, BlockWriter]

    def _name(self, base: str) -> str:
        """A method's name, another where a module of the model's has it."""
        taken = {*module_names(self.file.model.block.graph), *(i.path for i in self.file.model.block.instances)}
        return base if base not in taken else f"compute_{base}"

    def write(self) -> None:
        block, head = self.file.model.block, self.head
        ends = {v for n in head.nodes if not isinstance(n, ParamNode | WeightNode) for v in node_outputs(n)}
        before = tuple(n for n in block.graph.nodes if not ends & {*node_outputs(n), *reads(n)})
        body = Graph(block.graph.inputs, before, (head.hidden,))
        end = Graph((head.hidden,), head.nodes, block.graph.outputs)
        classes = self.file.classes
        self.parts = (
            write_block(classes, replace(block, graph=body, result_names=("hidden",)), None),
            write_block(classes, replace(block, graph=end, tensor_names=("hidden",)), None),
        )

    def further(self, group: Group | None) -> Iterable[tuple[str, BlockWriter]]:
        return zip((self.hidden, self.logits), self.parts, strict=True) if group is None else ()

    def forward(self) -> list[str]:
        """`forward` as the two parts make it, the same parameters as the first."""
        written = self.parts[0].written
        head = f"    def forward({', '.join(['self', *map(str, written.parameters)])}) -> Tensor:"
        return [head, f"        return self.{self.logits}({self._hidden()})"]

    def _hidden(self) -> str:
        return f"self.{self.hidden}({', '.join(p.name for p in self.parts[0].written.parameters)})"

    def helpers(self) -> Mapping[str, str]:
        found = {"ChunkedLoss": CHUNKED_LOSS.strip(), "cross_entropy": CROSS_ENTROPY.strip()}
        return found | ({"count_load": self._balanced(COUNT_LOAD)} if self.routers else {})

    @property
    def routers(self) -> list[tuple[Group, OpNode, int]]:
        """Classes that choose experts with a bias: the op that adds it, and which of their results says what is
        chosen."""
        found = []
        for group in self.file.classes.groups:
            whole = [i for i, v in enumerate(group.block.graph.outputs) if v is not None and v.is_int]
            for node in group.block.graph.nodes:
                if isinstance(node, OpNode) and node.op.balances and node.instance is None and len(whole) == 1:
                    found.append((group, node, whole[0]))
        return [router for router in found if (router[1].name, router[2]) == (found[0][1].name, found[0][2])]

    def _balanced(self, text: str) -> str:
        """A text for the classes of routers: they are instances of one block, and alike in what it names."""
        (_, node, chosen), names = self.routers[0], [group.name for group, _, _ in self.routers]
        router = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return text.strip().replace("{router}", router).replace("{path}", node.name).replace("{chosen}", str(chosen))

    def init(self) -> Iterable[str]:
        return self._balanced(WATCHED).splitlines() if self.routers else ()

    def methods(self) -> Iterable[str]:
        written = self.parts[0].written
        inputs = [p for p in written.parameters if p.name != "losses" or not written.losses]
        targets = "labels" if any(p.name == "targets" for p in inputs) else "targets"
        args = ", ".join([f"self.{self.logits}", "hidden", targets, *self.head.weights])
        lines = [f"def loss({', '.join(['self', *map(str, inputs)])}, {targets}: Tensor) -> Tensor:"]
        lines.append(
            f'    """Mean cross-entropy with {targets} [batch, time], -100 where there is none'
            + (';\n    in training with the losses of the blocks."""' if written.losses else '."""')
        )
        if written.losses:
            lines.append("    losses: dict[str, Tensor] | None = {} if self.training else None")
        lines.append(f"    hidden = {self._hidden()}")
        if written.losses:
            lines.append(f"    found = cross_entropy({args})")
            lines.append("    return found + sum(losses.values()) if losses else found")
        else:
            lines.append(f"    return cross_entropy({args})")
        return ["\n".join(lines), *([self._balanced(UPDATE_BIAS)] if self.routers else [])]


# --- where the head begins --------------------------------------------------------------------------------------------


def head_of(model: Model) -> Head:
    """Walk from the logits back to the map that makes them.

    Raises ArchError E0526."""
    graph = model.block.graph
    results = [v for v in graph.outputs if v is not None]
    if len(results) != 1:
        raise refuse(model, f"it has {len(results)} results")
    value = results[0]
    shape = shape_text(value.shape)
    if vocabulary(model) is None:
        raise refuse(model, f"it reads no tokens, and its result is {shape}")
    if not value.is_float or value.rank != 3:
        raise refuse(model, f"its result is {shape}, and no logits [batch, time, classes]")
    made = {v: node for node in graph.nodes for v in node_outputs(node)}
    nodes: dict[Node, None] = {}
    while True:
        node = made.get(value)
        if not isinstance(node, OpNode | CallNode) or len(node.outputs) != 1 or not _by_place(node, value):
            raise refuse(model, "its logits are not made place by place of one tensor")
        data = [v for v in node.inputs if isinstance(v, Value) and not isinstance(made.get(v), ParamNode | WeightNode)]
        given = [v for v in (node.inputs + (node.contexts if isinstance(node, CallNode) else ())) if v not in data]
        tensors = [v for v in given if isinstance(v, Value)]
        if len(data) != 1 or any(not isinstance(made.get(v), ParamNode | WeightNode) for v in tensors):
            raise refuse(model, "its logits are not made place by place of one tensor")
        nodes[node] = None
        nodes |= dict.fromkeys(made[v] for v in tensors)
        value = data[0]
        if _contracts(node):
            break
    ordered = tuple(n for n in graph.nodes if n in nodes)
    own = {v for n in ordered if not isinstance(n, ParamNode | WeightNode) for v in node_outputs(n)}
    others = (n for n in graph.nodes if n not in nodes and not isinstance(n, CausalNode))
    if any(v in own for n in others for v in reads(n)):
        raise refuse(model, "what makes its logits is read elsewhere, too")
    return Head(value, ordered, tuple(dict.fromkeys(t for n in ordered for t in _weights(n))))


def refuse(model: Model, message: str) -> ArchError:
    return error(
        "E0526",
        f"`{model.name}` has no cross-entropy over its places: {message}",
        help="compile it without `loss`; its results are what `forward` returns",
    )


def _by_place(node: OpNode | CallNode, result: Value) -> bool:
    """Whether each place of the result is made of the same place of the node's tensors of three axes alone."""
    if isinstance(node, OpNode):
        wanted = tuple(same(i) for i in range(result.rank - 1))
        tensors = [(v, r) for v, r in zip(node.inputs, node.op.reads(node), strict=True) if isinstance(v, Value)]
        return result.rank == 3 and all(r[:-1] == wanted for v, r in tensors if v.rank == 3)
    return _places_apart(node.block)


def _places_apart(block: Block) -> bool:
    """The same of all that a block does."""
    for node in block.graph.nodes:
        if isinstance(node, CheckNode | CausalNode | ParamNode | WeightNode):
            continue
        if not isinstance(node, OpNode | CallNode):
            return False
        if len(node.outputs) != 1 or not _by_place(node, node.outputs[0]):
            return False
    return True


def _contracts(node: Node) -> bool:
    """Whether there is a linear map in it."""
    if isinstance(node, CallNode):
        return any(_contracts(n) for n in node.block.graph.nodes)
    return isinstance(node, OpNode) and bool(node.op.flops(node).contractions)


def _weights(node: Node) -> Iterable[str]:
    """The trained weights of a node of the model's own block, as its methods read them."""
    if isinstance(node, WeightNode):
        yield f"self.{node.instance.path}.{node.weight}"
    elif isinstance(node, ParamNode):
        yield from (f"self.{node.name}",) if node.weight.trained else ()
    elif isinstance(node, OpNode):
        path = node.name if node.instance is None else node.instance.path
        trained = [w.name for w in node.weights if w.trained]
        yield from (
            (f"self.{path}.{trained[0]}",) if len(trained) == 1 else (f"*self.{path}.parameters()",) * bool(trained)
        )
    elif isinstance(node, CallNode):
        yield f"*self.{node.name if node.instance is None else node.instance.path}.parameters()"
        for value in node.contexts:
            if isinstance(value, Handle):
                path = value.instance.path
                yield f"self.{path}.{value.weight}" if value.weight else f"*self.{path}.parameters()"
