"""The backward pass, in autograd's order: the latest step first, what it saved let go of once it is done.

A gradient that arrives at a tensor for the second time is added in place where nothing else holds the first, which a
view does that it is. A weight has its gradient once all of it has arrived: as it came, or a copy where something else
holds it or its layout is not the weight's (`torch/csrc/autograd`: `engine.cpp`, `input_buffer.cpp`,
`functions/accumulate_grad.h`). Checkpoints follow `torch/utils/checkpoint.py`.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary, ref

from archdsl.eager.functions import cast, sum_to
from archdsl.eager.tensors import Enough, Held, Node, Tensor, is_dense, now

UNSHARED = 2
"""References that `sys.getrefcount` finds of a storage that one tensor has: the tensor's, and its own argument."""


def backward(root: Tensor) -> None:
    """Give every weight that the root depends on its gradient. Steps let go of what they saved; the root and its own
    gradient are there to the end."""
    session = now()
    if root.node is None:
        return
    start = Tensor(root.shape, root.dtype)
    waiting: dict[Node | int, list[Tensor | None]] = {}
    queue: list[tuple[int, Node]] = []
    depends = dependencies(root.node)

    def arrive(edge: tuple[Node, int] | Tensor, gradient: Tensor) -> None:
        if isinstance(edge, Tensor):
            slots, index = waiting.setdefault(id(edge), [None]), 0
        else:
            node, index = edge
            slots = waiting.setdefault(node, [None] * len(node.outputs))
        held = slots[index]
        if held is None:
            slots[index] = gradient
        elif held.is_view or sys.getrefcount(held.storage) > UNSHARED or not is_dense(held.shape, held.strides):
            slots[index] = Tensor(held.shape, held.dtype)

    def keep(weight: Tensor) -> None:
        """Make what has arrived the gradient of a weight."""
        gradient = waiting.pop(id(weight))[0]
        assert gradient is not None
        if sys.getrefcount(gradient.storage) > UNSHARED or not laid_out_as(gradient, weight):
            gradient = Tensor(gradient.shape, gradient.dtype)
        weight.grad = gradient

    def finished(edge: tuple[Node, int] | Tensor) -> None:
        """An edge is done; a step that no gradient reaches is passed by."""
        done = [edge]
        while done:
            edge = done.pop()
            node = id(edge) if isinstance(edge, Tensor) else edge[0]
            depends[node] -= 1
            if depends[node]:
                continue
            if isinstance(edge, Tensor):
                if node in waiting:
                    keep(edge)
            elif node in waiting:
                heapq.heappush(queue, (-edge[0].sequence, edge[0]))
            else:
                done += [inner for inner in edge[0].edges if inner is not None]
                edge[0].edges, edge[0].saved = [], []

    with session.no_grad():
        arrive((root.node, root.index), start)
        heapq.heappush(queue, (-root.node.sequence, root.node))
        while queue:
            _, node = heapq.heappop(queue)
            arrived = waiting.pop(node)
            session.where.append(node.where)
            session.enter(node.where)
            given = [
                Tensor(shape, dtype) if g is None else g
                for g, (shape, dtype) in zip(arrived, node.outputs, strict=True)
            ]
            del arrived
            saved = [t.frame.take(t) if isinstance(t, Held) else t for t in node.saved]
            # Each of its own, so that one that goes to two places is known to be shared.
            found = [None if g is None else g.alias() for g in node.backward(saved, given)]
            del saved
            for i, (shape, dtype) in enumerate(node.inputs):
                gradient, found[i] = found[i], None
                if gradient is not None and node.edges[i] is not None:
                    found[i] = cast(sum_to(gradient, shape), dtype)
                del gradient
            del given
            node.saved = []
            edges, node.edges = node.edges, []
            for i, edge in enumerate(edges):
                gradient, found[i] = found[i], None
                if edge is not None and gradient is not None:
                    arrive(edge, gradient)
                del gradient
            for edge in edges:
                if edge is not None:
                    finished(edge)
            node.backward = _done
            session.where.pop()


def _done(saved: list[Tensor], gradients: list[Tensor]) -> list[Tensor | None]:
    raise RuntimeError("the backward pass was run twice")


def laid_out_as(gradient: Tensor, weight: Tensor) -> bool:
    """Whether a gradient can be kept as it came."""
    if not is_dense(weight.shape, weight.strides):
        return gradient.is_contiguous()
    steps = zip(gradient.shape, gradient.strides, weight.strides, strict=True)
    return all(own == wanted if n != 1 else own != 0 for n, own, wanted in steps)


def dependencies(root: Node) -> dict[Node | int, int]:
    """How many edges of the graph lead to each step, and to each weight, by its identity."""
    found: dict[Node | int, int] = {root: 0}
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            to = id(edge) if isinstance(edge, Tensor) else edge[0]
            if to not in found:
                found[to] = 0
                if isinstance(to, Node):
                    stack.append(to)
            found[to] += 1
    return found


class Frame:
    """A call through `torch.utils.checkpoint`, not reentrant. Its steps are recorded as any others, but what they save
    is let go of. The first of them to be done backwards has all of it computed again, up to the last tensor that one of
    them saves; from then on each lets go of its own."""

    name = "Checkpoint"

    def __init__(
        self,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: list[Tensor],
        again: AbstractContextManager[Any],
    ) -> None:
        """`results` are those that are kept, `again` is what the function is computed in for the second time."""
        session = now()
        self.where, self.sequence = session.where[-1], session.sequence + 1
        self.forward, self.kwargs, self.results, self.again = forward, kwargs, results, again
        self.args = [Input(a) if isinstance(a, Tensor) else a for a in args]
        self.held: list[ref[Held]] = []
        self.found: WeakKeyDictionary[Held, Tensor] = WeakKeyDictionary()
        self.done = False

    def kept(self) -> list[Tensor]:
        """What is kept from the forward pass to the backward pass."""
        given = [a.own if isinstance(a, Input) else a for a in self.args]
        return [*tensors_of(given), *tensors_of(self.kwargs), *self.results]

    def hold(self, t: Tensor) -> Held:
        """What a step saves of a tensor."""
        holder = Held(self)
        self.held.append(ref(holder))
        return holder

    def take(self, holder: Held) -> Tensor:
        """Give a step the tensor."""
        if not self.done:
            self.compute()
        return self.found.pop(holder)

    def compute(self) -> None:
        """Go through the function again."""
        session = now()
        count = 0

        def hold(t: Tensor) -> Tensor:
            nonlocal count
            holder, own = self.held[count](), t.alias()
            count += 1
            if holder is not None:
                self.found[holder] = own
            if count == len(self.held):
                raise Enough
            return own

        args = [a.tensor() if isinstance(a, Input) else a for a in self.args]
        before = session.grad, session.hold
        session.grad, session.hold = True, hold
        try:
            with self.again:
                self.forward(*args, **self.kwargs)
        except Enough:
            pass
        finally:
            session.grad, session.hold = before
        self.done = True


class Input:
    """A tensor that a checkpoint is given: kept as it is or, where the call stands in another one, computed again with
    what that one saves."""

    def __init__(self, t: Tensor) -> None:
        hold = now().hold
        self.own: Tensor | Held = t if hold is None else hold(t)
        self.past = t.requires_grad, t.node, t.index

    def tensor(self) -> Tensor:
        if isinstance(self.own, Tensor):
            return self.own
        found: Tensor = self.own.frame.take(self.own)
        found.requires_grad, found.node, found.index = self.past
        return found


def checkpointed(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    results: list[Tensor],
    first: AbstractContextManager[Any],
    again: AbstractContextManager[Any],
) -> Any:
    """Call a function of which only the inputs are kept, and the `results` of some functions within: what `first` is
    about. The backward pass computes the rest again, in `again`."""
    session = now()
    if not session.grad:
        return forward(*args, **kwargs)
    frame = Frame(forward, args, kwargs, results, again)
    before, session.hold = session.hold, frame.hold
    try:
        with first:
            return forward(*args, **kwargs)
    finally:
        session.hold = before


def tensors_of(found: Any) -> list[Tensor]:
    """All tensors of a result, those of a tuple or a dictionary in their order."""
    if isinstance(found, Tensor):
        return [found]
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, tuple | list) else ()
    return [t for part in inner for t in tensors_of(part)]
