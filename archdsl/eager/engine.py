"""The backward pass, in autograd's order: the latest step first, what it saved let go of once it is done.

A gradient that arrives at a tensor for the second time is added in place where nothing else holds the first.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from typing import Any

from archdsl.eager.functions import cast, recorded_all, sum_to
from archdsl.eager.tensors import Gradients, Node, Tensor, is_dense, now

UNSHARED = 2
"""References that `sys.getrefcount` finds of a storage that one tensor has: the tensor's, and its own argument."""


def backward(root: Tensor) -> None:
    """Give every weight that the root depends on its gradient. The root's own past is let go of."""
    backward_of([(root, Tensor(root.shape, root.dtype))])


def backward_of(roots: list[tuple[Tensor, Tensor]]) -> None:
    """The same from several tensors, each with its gradient. The list is emptied."""
    session = now()
    starts = [(t.node, t.index, g) for t, g in roots if t.node is not None]
    roots.clear()
    if not starts:
        return
    waiting: dict[Node, list[Tensor | None]] = {}
    queue: list[tuple[int, Node]] = []
    depends = dependencies([node for node, _, _ in starts])

    def arrive(edge: tuple[Node, int] | Tensor, gradient: Tensor) -> None:
        if isinstance(edge, Tensor):
            if edge.grad is None:
                shared = sys.getrefcount(gradient.storage) > UNSHARED
                edge.grad = Tensor(gradient.shape, gradient.dtype) if shared else gradient.alias()
                if edge.storage.fixed:
                    session.gradients += edge.grad.storage.nbytes
            return
        node, index = edge
        slots = waiting.setdefault(node, [None] * len(node.outputs))
        held = slots[index]
        if held is None:
            slots[index] = gradient
        elif sys.getrefcount(held.storage) > UNSHARED or not is_dense(held.shape, held.strides):
            slots[index] = Tensor(held.shape, held.dtype)

    def finished(node: Node) -> None:
        """One edge that leads to the step is done; a step that no gradient reaches is passed by."""
        done = [node]
        while done:
            node = done.pop()
            depends[node] -= 1
            if depends[node]:
                continue
            if node in waiting:
                heapq.heappush(queue, (-node.sequence, node))
            else:
                edges, node.edges, node.saved = node.edges, [], []
                done += [edge[0] for edge in edges if isinstance(edge, tuple)]

    with session.no_grad():
        for node, index, given_gradient in starts:
            arrive((node, index), given_gradient.alias())
        for node in dict.fromkeys(node for node, _, _ in starts):
            if not depends[node]:
                heapq.heappush(queue, (-node.sequence, node))
        starts.clear()
        del given_gradient
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
            # Each of its own, so that one that goes to two places is known to be shared.
            found = [None if g is None else g.alias() for g in node.backward(node.saved, given)]
            del given
            node.saved = []
            edges, node.edges = node.edges, []
            for i, (edge, (shape, dtype)) in enumerate(zip(edges, node.inputs, strict=True)):
                gradient, found[i] = found[i], None
                if edge is None or gradient is None:
                    continue
                if gradient.shape != shape:
                    gradient = sum_to(gradient, shape)
                if gradient.dtype != dtype:
                    gradient = cast(gradient, dtype)
                arrive(edge, gradient)
                del gradient
            for edge in edges:
                if isinstance(edge, tuple):
                    finished(edge[0])
            node.backward = _done
            session.where.pop()


def _done(saved: list[Tensor], gradients: list[Tensor]) -> list[Tensor | None]:
    raise RuntimeError("the backward pass was run twice")


def dependencies(roots: list[Node]) -> dict[Node, int]:
    """How many edges of the graph lead to each step."""
    found = dict.fromkeys(roots, 0)
    stack = list(found)
    while stack:
        for edge in stack.pop().edges:
            if isinstance(edge, tuple):
                inner = edge[0]
                if inner not in found:
                    found[inner] = 0
                    stack.append(inner)
                found[inner] += 1
    return found


def again(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], keep: frozenset[str] = frozenset()
) -> Any:
    """Run a function of which only the inputs are kept, and the results of the functions in `keep`; the backward pass
    runs it again first."""
    session = now()
    if not session.grad:
        return forward(*args, **kwargs)
    inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    before, session.keeping = session.keeping, (keep, [])
    with session.no_grad():
        found = forward(*args, **kwargs)
    results, session.keeping = session.keeping[1], before
    wants = [t.requires_grad for t in inputs]
    tensors = [isinstance(a, Tensor) for a in args]
    plain = [None if isinstance(a, Tensor) else a for a in args]
    names = [k for k, v in kwargs.items() if isinstance(v, Tensor)]
    rest = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    count = len(inputs)

    def rerun(kept: list[Tensor], gradients: list[Tensor]) -> Gradients:
        own = kept[:count]
        for t, wanted in zip(own, wants, strict=True):
            t.requires_grad = wanted
        queue = iter(own)
        given = [next(queue) if is_tensor else a for a, is_tensor in zip(plain, tensors, strict=True)]
        more = {**rest, **dict(zip(names, queue, strict=True))}
        session.grad, session.keeps = True, (keep, kept[count:][::-1])
        del kept[count:]
        outputs = tensors_of(forward(*given, **more))
        session.grad, session.keeps = False, None
        del given, more, queue
        roots = [(t, g) for t, g in zip(outputs, gradients, strict=True) if t.node is not None]
        del outputs
        backward_of(roots)
        return [*(t.grad if wanted else None for t, wanted in zip(own, wants, strict=True)), None]

    # The weights within want gradients whether or not an input does.
    anchor = Tensor((0,), tensors_of(found)[0].dtype)
    anchor.requires_grad = True
    recorded_all("Checkpoint", tensors_of(found), [*inputs, anchor], [*inputs, *results], rerun)
    return found


def tensors_of(found: Any) -> list[Tensor]:
    """All tensors of a result, those of a tuple or a dictionary in their order."""
    if isinstance(found, Tensor):
        return [found]
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, tuple | list) else ()
    return [t for part in inner for t in tensors_of(part)]
