"""The section `loss`: targets for `forward`, and cross-entropy that makes the logits in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.features import Section
from archdsl.backends.torch.features.fork import of_whole
from archdsl.backends.torch.lower import Ending, Method, Parameter, lower, method_name, parameter_names
from archdsl.backends.torch.program import Bind, Conditional, Fork, Leave, Step, Suite
from archdsl.backends.torch.python import any_of
from archdsl.backends.torch.tree import Part, Read, Variable, call_tree, leaves, mapped, py, word
from archdsl.backends.torch.tree import PyNode as Expression
from archdsl.estimates.head import head_of, made_of_weights
from archdsl.ir.graph import Graph, OpNode, node_outputs, reads
from archdsl.ir.op import Tree


def count_load(path: str, chosen: int) -> str:
    """The hook of routers whose result number `chosen` says what is chosen."""
    return f'''
def count_load(router: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
    """A hook: in training, add up how many tokens each expert gets."""
    if router.training:
        chosen, load = outputs[{chosen}].flatten(), router.{path}.load
        load.scatter_add_(0, chosen, torch.ones_like(chosen))
'''.strip()


def watched(router: str, path: str) -> str:
    """What `__init__` does to routers of a class."""
    return f"""
for router in self.modules():
    if isinstance(router, {router}):
        router.{path}.register_buffer("load", torch.zeros_like(router.{path}.bias, dtype=torch.long), persistent=False)
        router.register_forward_hook(count_load)
""".strip()


def forgotten(router: str, path: str) -> str:
    """What `init_weights` does to routers of a class."""
    return f"""
for router in self.modules():
    if isinstance(router, {router}):
        router.{path}.load.zero_()
""".strip()


def update_bias(router: str, path: str) -> str:
    """The method that balances routers of a class."""
    return f'''
@torch.no_grad()
def update_bias(self, speed: float = 0.001) -> None:
    """After a step of the optimizer: raise the bias of experts with fewer tokens than the mean since the last call,
    and lower that of the others (DeepSeek-V3, section 2.1.2)."""
    for router in self.modules():
        if isinstance(router, {router}):
            bias, load = router.{path}.bias, router.{path}.load
            bias += speed * torch.sign(load.double().mean() - load)
            load.zero_()
'''.strip()


class LossSection(Section):
    """A `forward` that takes targets, too, and then returns the loss.

    Raises ArchError E0526 where the model's result is no logits for each position, or they are not made of one
    tensor."""

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        self.model = classes.model
        self.head = head_of(classes.model)
        self.method: Method

    def settle(self) -> None:
        block, head = self.model.block, self.head
        ends = {v for n in head.nodes for v in node_outputs(n)} - made_of_weights(block.graph)
        before = tuple(n for n in block.graph.nodes if not ends & {*node_outputs(n), *reads(n)})
        body = Graph(block.graph.inputs, before, (head.hidden,))
        end = Graph((head.hidden,), head.nodes, block.graph.outputs)
        first = lower(self.classes, replace(block, graph=body, result_names=("hidden",)))
        last = lower(self.classes, replace(block, graph=end, tensor_names=("hidden",)))
        found = _expression(last.method)
        if found is None:
            last.method.name = method_name(block, "logits", "compute_logits")
            last.method.doc = "Compute the logits of hidden states [batch, time, width]."
            self.classes.further(None, last.method, last.helpers)
            function: Tree = py(f"self.{last.method.name}")
        else:
            function = found.fields[0] if isinstance(found, Expression) and _is_plain(found) else _function(found)
        self._forward(first.method, function, last.method if found is not None else None)

    def _forward(self, method: Method, logits: Tree, head: Method | None) -> None:
        """All but the head; then the loss, or the head."""
        targets = Variable("labels" if "targets" in parameter_names(method) else "targets")
        losses = method.losses
        asked, steps = py("{t} is not None", t=Read(targets)), method.steps
        before: tuple[Step, ...] = ()
        own = Variable("losses") if losses is not None else None
        if losses is not None:
            test = py("{a} and {l} is None and self.training", a=asked, l=Read(losses))
            before = (Conditional(test, Suite((), (), (py("{{}}"),)), Suite((), (), (Read(losses),)), (own,)),)
            steps = mapped(steps, lambda x: Read(own) if x == Read(losses) else x)

        def after(hidden: Tree) -> tuple[tuple[Step, ...], tuple[Tree, ...]]:
            loss = py("chunked_cross_entropy({f}, {x}, {t})", f=logits, x=hidden, t=Read(targets))
            if own is not None:
                loss = py("{a} + sum(({l} or {{}}).values())", a=loss, l=Read(own))
            if head is None:
                return (Fork((Leave(asked, loss),), (), free=True),), (call_tree(logits, (hidden,), {}),)
            made = mapped((head.steps, head.results), lambda x: hidden if x == Read(self.head.hidden) else x)
            return (Fork((Leave(asked, loss),), (), free=True), *made[0]), made[1]

        ends, results = after(method.results[0])
        self.method = replace(
            method,
            doc="Compute logits [batch, time, vocab], or their mean cross-entropy with targets (-100: ignored).",
            parameters=sorted([*method.parameters, Parameter(targets, "Tensor | None", "None")], key=_position),
            steps=(*before, *steps, *of_whole(ends)),
            results=results,
        )
        self.classes.ending = Ending(
            self.method,
            self.head.hidden,
            frozenset(self.head.nodes),
            own or Variable("losses"),
            (Fork(before, (), free=True),) if before else (),
            after,
        )

    def forward(self) -> Method:
        return self.method

    def helpers(self) -> Iterable[str]:
        return ("chunked_cross_entropy",)

    def sources(self) -> Mapping[str, str]:
        if not self.routers:
            return {}
        _, node, chosen = self.routers[0]
        return {"count_load": count_load(node.name, chosen)}

    @property
    def routers(self) -> list[tuple[ClassGroup, OpNode, int]]:
        """Classes that choose experts with a bias: the op that adds it, and which of their results says what is
        chosen. They are instances of one block, and alike in what it names."""
        found = []
        for group in self.classes.groups:
            whole = [i for i, v in enumerate(group.block.graph.outputs) if v is not None and v.is_int]
            for node in group.block.graph.nodes:
                if isinstance(node, OpNode) and node.op.router_bias and node.instance is None and len(whole) == 1:
                    found.append((group, node, whole[0]))
        return [router for router in found if (router[1].name, router[2]) == (found[0][1].name, found[0][2])]

    @property
    def _router(self) -> str:
        """The class of routers, or the tuple of them."""
        return any_of(group.name for group, _, _ in self.routers)

    def init(self) -> Iterable[str]:
        return watched(self._router, self.routers[0][1].name).splitlines() if self.routers else ()

    def draws(self) -> Iterable[str]:
        return forgotten(self._router, self.routers[0][1].name).splitlines() if self.routers else ()

    def methods(self) -> Iterable[str]:
        return [update_bias(self._router, self.routers[0][1].name)] if self.routers else []


HIDDEN = word("hidden")


def _expression(method: Method) -> Tree | None:
    """What a method of one parameter returns, as one expression of HIDDEN; None where it is too much for one."""
    known: dict[Any, Tree] = {method.parameters[0].target: HIDDEN}
    uses = Counter(x.value for x in leaves((method.steps, method.results)) if isinstance(x, Read))
    for s in method.steps:
        if not isinstance(s, Bind) or len(s.targets) != 1 or uses[s.targets[0]] != 1:
            return None
        known[s.targets[0]] = mapped(s.expr, lambda x: known[x.value] if isinstance(x, Read) else x)
    result: Tree = mapped(method.results[0], lambda x: known[x.value] if isinstance(x, Read) else x)
    return result


def _is_plain(x: Expression) -> bool:
    """Whether it is a call of a submodule with HIDDEN alone."""
    return x.kind == "Call" and isinstance(x.fields[0], Part) and x.fields[1:] == ((HIDDEN,), ())


def _function(body: Tree) -> Tree:
    """An expression of HIDDEN as a function of it."""
    return py("lambda hidden: {body}", body=body)


def _position(parameter: Parameter) -> tuple[bool, bool]:
    """Targets stand behind what is needed, and before what is no tensor."""
    return bool(parameter.default), parameter.type != "Tensor | None"
