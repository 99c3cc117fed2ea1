"""Tensors without numbers, their storages, and the session that counts the bytes of what is alive.

Layouts follow PyTorch's: a function of several tensors lays its result out as they are, a view shares its storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, ClassVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DType:
    """A type of numbers, as torch has it."""

    name: str
    itemsize: int
    is_floating_point: bool = False

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32, float64 = DType("float32", 4, True), DType("float64", 8, True)
bfloat16, float16 = DType("bfloat16", 2, True), DType("float16", 2, True)
int64, int32, uint8, bool_ = DType("int64", 8), DType("int32", 4), DType("uint8", 1), DType("bool", 1)
DTYPES = {t.name: t for t in (float32, float64, bfloat16, float16, int64, int32, uint8, bool_)}
_RANK = {bool_: 0, uint8: 1, int32: 2, int64: 3, float16: 4, bfloat16: 4, float32: 5, float64: 6}


@dataclass(frozen=True)
class Device:
    """Where all tensors are: there is one place."""

    type: str = "cpu"
    index: int | None = None


@dataclass(frozen=True)
class Profile:
    """What differs from one kind of execution to another."""

    name: str
    dropout_mask: bool = False
    """Dropout keeps a mask of one byte, not the numbers it multiplies with."""
    fused_rmsnorm: bool = False
    """One kernel that saves its input and a float32 number for each row."""
    float_statistics: bool = False
    """Norms save their statistics in float32 whatever the type."""
    flash: bool = False
    """Attention by the kernels of CUDA."""
    step_copies: bool = False
    """The optimizer works on all weights at once, and makes copies of that size."""


CPU = Profile("cpu-eager")
CUDA = Profile("cuda-eager", dropout_mask=True, fused_rmsnorm=True, float_statistics=True, flash=True, step_copies=True)


class Storage:
    """Bytes that tensors share. They are counted as long as a tensor has them."""

    __slots__ = ("fixed", "home", "nbytes", "serial")

    def __init__(self, nbytes: int, fixed: bool = False) -> None:
        session = now()
        self.nbytes = nbytes
        self.serial = session.serial = session.serial + 1
        self.fixed = fixed or session.fixed
        self.home = session
        if not self.fixed:
            session.take(nbytes)

    def __del__(self) -> None:
        if not self.fixed:
            self.home.live -= self.nbytes


class Session:
    """One run: the bytes that are alive, the most that ever were, and what was saved for the backward pass."""

    def __init__(self, profile: Profile = CPU) -> None:
        self.profile = profile
        self.live = self.peak = self.serial = self.sequence = 0
        self.fixed = True
        """Whether what is made now (weights, inputs) is counted elsewhere."""
        self.bounded = False
        """Whether some size, which only a run knows, was taken for the most that it can be."""
        self.grad = True
        self.where: list[str] = [""]
        """The path of each module that runs now."""
        self.enter: Callable[[str], None] = lambda path: None
        """Told of every module that begins, forwards and backwards."""
        self.hold: Callable[[Tensor], Tensor | Held] | None = None
        """Within a checkpoint: what a step of the backward pass has in the place of a tensor that it saves."""
        self.keeping: tuple[frozenset[str], list[Tensor]] | None = None
        """Within a checkpoint: the functions whose results are kept, and those so far."""
        self.keeps: tuple[frozenset[str], list[Tensor]] | None = None
        """Where a checkpoint is computed again: the same, the next one last."""
        self.given = 0
        """The number of the last storage that was kept, and given where it would be made again."""
        self.before = 0
        """The peak before the last storage was made."""

    def take(self, nbytes: int) -> None:
        self.before = self.peak
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def undo(self, result: Tensor) -> None:
        """A function did not run after all that has this result: nothing was made, and what is kept is not given."""
        if result.storage.serial == self.serial:
            self.peak = self.before
        elif self.keeps is not None and result.storage.serial == self.given:
            self.keeps[1].append(result.alias())

    def scratch(self, nbytes: int) -> None:
        """Bytes that a kernel takes and gives back at once."""
        self.peak = max(self.peak, self.live + nbytes)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """A stretch in which nothing is recorded."""
        before, self.grad = self.grad, False
        try:
            yield
        finally:
            self.grad = before

    @contextmanager
    def running(self) -> Iterator[Session]:
        """Make this the session of all tensors that are made."""
        _SESSIONS.append(self)
        try:
            yield self
        finally:
            _SESSIONS.pop()


_SESSIONS: list[Session] = []


def now() -> Session:
    """The session that runs."""
    return _SESSIONS[-1]


Gradients = Sequence["Tensor | None"]


class Held:
    """What stands for a tensor that a step within a checkpoint saves: computed again, it is given to its holder."""

    __slots__ = ("__weakref__", "frame")

    def __init__(self, frame: Any) -> None:
        self.frame = frame


class Enough(Exception):  # noqa: N818
    """All that a checkpoint's backward pass needs has been computed again."""


class Node:
    """One step of the backward pass: what it saved, and where its gradients go."""

    __slots__ = ("backward", "edges", "inputs", "made", "name", "outputs", "read", "saved", "sequence", "where")

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        saved: Sequence[Tensor],
        backward: Callable[..., Gradients],
        outputs: Sequence[Tensor],
    ) -> None:
        session = now()
        self.name = name
        self.sequence = session.sequence = session.sequence + 1
        self.where = session.where[-1]
        self.backward = backward
        self.saved = [t.alias() if session.hold is None else session.hold(t) for t in saved]
        self.inputs = [(t.shape, t.dtype) for t in inputs]
        self.edges = [t.edge() if t.requires_grad else None for t in inputs]
        self.outputs = [(t.shape, t.dtype) for t in outputs]
        # What is computed within a checkpoint is computed again there, and for nothing else.
        plain = session.hold is None
        self.read = [t.storage.serial for t in inputs if not t.storage.fixed] if plain else []
        self.made = [t.storage.serial for t in outputs] if plain else []


class Tensor:
    """A tensor without numbers. Its methods are those of torch that emitted code calls."""

    __slots__ = ("dtype", "grad", "index", "is_view", "node", "requires_grad", "shape", "storage", "strides")
    methods: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(
        self, shape: Sequence[int], dtype: DType, strides: Shape | None = None, storage: Storage | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.strides = contiguous_strides(self.shape) if strides is None else strides
        self.storage = Storage(prod(self.shape) * dtype.itemsize) if storage is None else storage
        self.requires_grad = False
        self.node: Node | None = None
        self.index = 0
        self.grad: Tensor | None = None
        self.is_view = False
        """Whether it is seen in another tensor, which is there as long as it is."""

    def alias(self) -> Tensor:
        """The same bytes without a past."""
        found = Tensor(self.shape, self.dtype, self.strides, self.storage)
        found.is_view = self.is_view
        return found

    def view_of(self, shape: Sequence[int], strides: Shape) -> Tensor:
        """The same bytes seen otherwise."""
        found = Tensor(shape, self.dtype, strides, self.storage)
        found.is_view = True
        return found

    def edge(self) -> tuple[Node, int] | Tensor:
        """Where a gradient of this tensor goes: to what made it, or, a weight, to the tensor itself."""
        return self if self.node is None else (self.node, self.index)

    def __getattr__(self, name: str) -> Any:
        found = Tensor.methods.get(name)
        if found is None:
            raise Unknown(f"Tensor.{name}")
        return lambda *args, **kwargs: found(self, *args, **kwargs)

    # --- what is known of it ---

    @property
    def device(self) -> Device:
        return Device()

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def data(self) -> Tensor:
        return self.alias()

    @property
    def mT(self) -> Tensor:  # noqa: N802
        return self.transpose(-2, -1)  # type: ignore[no-any-return]

    @property
    def T(self) -> Tensor:  # noqa: N802
        return self.transpose(0, -1) if self.ndim > 1 else self

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self) -> Shape:
        return self.strides

    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        self.requires_grad = wanted
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise Unknown("a branch that depends on numbers")

    __index__ = __int__ = __float__ = __bool__


class Unknown(Exception):  # noqa: N818
    """What emitted code asked for and this torch has not."""


def contiguous_strides(shape: Sequence[int]) -> Shape:
    found = []
    step = 1
    for n in reversed(shape):
        found.append(step)
        step *= max(n, 1)
    return tuple(reversed(found))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1:
            if stride != step:
                return False
            step *= n
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the places are side by side in some order of the axes."""
    ordered = sorted(zip(shape, strides, strict=True), key=lambda axis: -axis[1])
    return is_contiguous([n for n, _ in ordered], [step for _, step in ordered])


def broadcast(*shapes: Sequence[int]) -> Shape:
    """The common shape; axes from the right are equal or 1."""
    if all(s == shapes[0] for s in shapes):
        return tuple(shapes[0])
    rank = max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                if found[i] not in (1, n):
                    raise ValueError(f"shapes {shapes} do not go together")
                found[i] = n
    return tuple(found)


def spread(t: Tensor, shape: Sequence[int]) -> Shape:
    """The strides of a tensor seen in a larger shape."""
    missing = len(shape) - t.ndim
    own = (0 if n == 1 and wide != 1 else s for n, s, wide in zip(t.shape, t.strides, shape[missing:], strict=True))
    return (0,) * missing + tuple(own)


def last_strides(shape: Shape) -> Shape:
    """Rows of channels, side by side."""
    inner = [shape[1] * prod(shape[axis + 1 :]) for axis in range(2, len(shape))]
    return (prod(shape[1:]), 1, *inner)


def has_last_strides(x: Tensor) -> bool:
    """Whether the numbers of four axes lie with the channels innermost, without gaps."""
    return all(n == 1 or a == b for n, a, b in zip(x.shape, x.strides, last_strides(x.shape), strict=True))


def layout(shape: Shape, operands: Sequence[Tensor]) -> Shape:
    """The strides of the result of a function element by element: the order of axes that its operands have."""
    if not operands or all(t.shape == shape and t.is_contiguous() for t in operands):
        return contiguous_strides(shape)
    first = operands[0]
    if len(shape) == 4 and all(t.shape == shape and has_last_strides(t) for t in operands):
        return last_strides(shape)
    if all(t.shape == shape and t.strides == first.strides for t in operands) and is_dense(shape, first.strides):
        return first.strides
    strides = [spread(t, shape) for t in operands]
    rank = len(shape)
    order = list(range(rank - 1, -1, -1))

    def swaps(a: int, b: int) -> int:
        for own in strides:
            if own[a] == 0 or own[b] == 0:
                continue
            if own[a] != own[b]:
                return -1 if own[a] < own[b] else 1
            if shape[a] > shape[b]:
                return 1
        return 0

    for i in range(1, rank):
        at = i
        for before in range(i - 1, -1, -1):
            verdict = swaps(order[before], order[at])
            if verdict > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict < 0:
                break
    found = [0] * rank
    step = 1
    for axis in order:
        found[axis] = step
        step *= max(shape[axis], 1)
    return tuple(found)


def viewed(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> Shape | None:
    """The strides of a tensor seen in another shape without a copy; None where there are none."""
    if prod(shape) == 0:
        return contiguous_strides(wanted)
    found = [0] * len(wanted)
    at = len(wanted) - 1
    base = strides[-1] if strides else 1
    inner, seen = 1, 1
    for axis in range(len(shape) - 1, -1, -1):
        inner *= shape[axis]
        if axis == 0 or (shape[axis - 1] != 1 and strides[axis - 1] != inner * base):
            while at >= 0 and (seen < inner or wanted[at] == 1):
                found[at] = seen * base
                seen *= wanted[at]
                at -= 1
            if seen != inner:
                return None
            if axis > 0:
                base = strides[axis - 1]
                inner = seen = 1
    if at != -1 and any(n != 1 for n in wanted[: at + 1]):
        return None
    for i in range(at + 1):
        found[i] = 1
    return tuple(found)


def result_type(*operands: Tensor | float | int | bool) -> DType:
    """The type of a result: by kind, tensors with axes before those without, and those before plain numbers."""
    tensors = [t for t in operands if isinstance(t, Tensor)]
    plain = [
        bool_ if isinstance(n, bool) else int64 if isinstance(n, int) else float32
        for n in operands
        if not isinstance(n, Tensor)
    ]
    found: DType | None = None
    for group in ([t.dtype for t in tensors if t.ndim], [t.dtype for t in tensors if not t.ndim], plain):
        if group:
            own = reduce(_wider, group)
            found = own if found is None or _kind(own) > _kind(found) else found
    assert found is not None
    return found


def _kind(dtype: DType) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == bool_ else 1


def _wider(a: DType, b: DType) -> DType:
    if {a, b} == {float16, bfloat16}:
        return float32
    return a if _RANK[a] >= _RANK[b] else b
