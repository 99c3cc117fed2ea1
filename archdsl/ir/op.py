"""The contract of a primitive: one class, or one row of a table, answers everything the compiler asks of it.

A primitive's signature is a line of the language itself, `linear(features: size, bias: bool = true)(x: [..., inputs])
-> [..., features]`; it gives the options with kinds and defaults, the tensors, and, where names of axes suffice, the
shape rule and what is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source, Span
from archdsl.frozen import Frozen
from archdsl.ir.cost import Amount, Cost, elements, times
from archdsl.ir.dims import Num, Shape, mul
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CallNode, Input, OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.syntax import ast

# --- what ops write themselves through ------------------------------------------------------------------------------


class Tree(Frozen):
    """A Python expression as a tree, made by `TorchScope.py`: its leaves are tensors, numbers and submodules."""


class TorchScope(Protocol):
    """What a primitive is handed to write itself as PyTorch: expressions for `forward`, unless said otherwise."""

    def py(self, template: str, /, **holes: Any) -> Tree:
        """An expression of Python with typed holes: `e.py("F.pad({0}, {widths})", widths=(1, 0))`.

        `{0}` is input 0, a tensor or a number; `{x}` what the keyword says: a tree, a `Num`, a Python number, string or
        None, or a tuple of these; without a keyword, the node's option of that name, `axis` as the spec has it. `{*xs}`
        are several arguments, `{**options}` keyword arguments, `{*inputs}` all inputs that were given, `{module}` the
        submodule that the node has (see `Primitive.torch_module`). Parentheses
        are written where they are needed. Names in a template are torch's (`torch`, `F`, `nn`), `math`, `self`,
        built-ins, and the helpers of `backends/torch/runtime`, which the file then has."""

    def input(self, i: int) -> Tree:
        """Input i: a tensor or a number."""

    def has(self, i: int) -> bool:
        """Whether input i was given."""

    def mask(self, i: int) -> tuple[str, Tree | None]:
        """Input i, a mask: ("", None) where there is none, ("causal", None) where it is just causal and needs no
        tensor, ("tensor", tree), or ("either", tree) where the same class also stands where the tree is None and the
        mask just causal."""

    def stateless(self, name: str, constructor: Tree) -> Tree:
        """A submodule without weights (`nn.Dropout({rate})`), one for all uses in the block: `self.dropout`."""

    def child(self, name: str) -> Tree:
        """The submodule of one of the node's own `blocks`: `self.experts`."""

    def let(self, hint: str, tree: Tree) -> Tree:
        """Bind an expression to a local in a statement of its own, one for all ops that bind the same; what reads
        it."""

    def unpack(self, hints: Sequence[str], tree: Tree, note: str = "") -> tuple[Tree, ...]:
        """Bind the several results of an expression to locals of the op's own, with a comment; what reads them."""

    def define(self, name: str, parameters: Mapping[str, str], result: Tree) -> Tree:
        """Put a function above the classes that returns an expression of its parameters (names and types), which stand
        in the expression as names; what reads the function."""

    def like(self) -> Tree:
        """Some tensor at hand, for its device."""

    def device(self) -> Tree:
        """`x.device` of some tensor at hand."""

    def dtype(self) -> Tree:
        """The model's own type: `x.dtype` of some tensor of that type at hand, else that of a weight."""

    @property
    def in_steps(self) -> bool:
        """Whether this is a step of decoding, in which the new positions read those before them."""

    @property
    def trains(self) -> bool:
        """Whether what is written may be run in training, or is a step of decoding alone."""

    @property
    def for_few_rows(self) -> bool:
        """Whether this is a step of decoding in a file with fast paths for a CPU."""

    @property
    def varlen(self) -> bool:
        """Whether the file has FlashAttention for sequences of different lengths in one tensor."""

    @property
    def divided(self) -> bool:
        """Whether the file can have each rank compute a shard of the blocks that the op applies: what they give is then
        summed."""

    def causal(self, mask: Tree) -> Tree | None:
        """In a step, whether a mask that is not there stands for causality; None where it stands for no mask."""

    @property
    def linear(self) -> str:
        """The name of the function of a product with a matrix [outputs, inputs]: `F.linear`, and in a step what is for
        few rows."""

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        """The positions 0 to length - 1 [length], counted from `offset`; in a step of an op that is written
        `at_positions`, the new ones [1 or batch, …, new]."""

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        """In a step, the positions of its queries and those of the keys, which broadcast to [batch, …, query, key],
        with so many axes between; None where neither number is the length of the sequence."""

    def varies_by_row(self, i: int) -> bool:
        """In a step, whether input i has a further axis of batch in front, being made of positions."""

    def newest(self, i: int) -> Tree:
        """The new positions of input i, of which all are read."""


class OnnxScope(Protocol):
    """What a primitive is handed to write itself as ONNX nodes.

    `g.Add(a, b)` adds a standard operator and gives its output, or a tuple of them with `outputs=2`; keywords are
    attributes. Among the inputs None is one left out; a Python number or a `Num` becomes a constant of the type of the
    first tensor, a list of them an int64 vector, of which items may be sizes that only the running model knows. A
    result of another type than the node's is cast to it. Types are named as in the IR (`float`, the model's own;
    `float32`, `bfloat16`, `int`, `bool`), or `int32` and `double`."""

    by_row: bool
    """Whether the rows of a batch stand at positions of their own: what is made of positions then has an axis of
    batch."""
    in_steps: bool
    """Whether this is a step of decoding, in which queries may be the newest of the keys."""
    own: str
    """What `float` is in this graph: `float32`, `float16` or `bfloat16`."""

    def __getattr__(self, operator: str) -> Callable[..., Any]: ...

    def contrib(self, operator: str, *inputs: Any, **attributes: Any) -> Any:
        """The same for an operator of onnxruntime's own (`com.microsoft`). Ask `offers` first."""

    def offers(self, operator: str, dtype: str = "float") -> bool:
        """Whether the target runs an operator of onnxruntime's own in that type where it is asked to be fast."""

    def arg(self, i: int, dtype: str | None = None) -> Any:
        """Input i as a tensor, in another type if one is given; a number is a scalar of that type."""

    def args(self, dtype: str | None = None) -> list[Any]:
        """All inputs as tensors of one type: that of the first result unless one is given."""

    def has(self, i: int) -> bool:
        """Whether input i was given."""

    def weight(self, name: str) -> Any:
        """One of the node's weights, in torch's layout."""

    def number(self, n: Num, dtype: str = "int") -> Any:
        """A number as a scalar tensor."""

    def size(self, i: int, axis: int) -> Any:
        """The size of an axis of input i: a number, or a vector of one int64 that may stand in a list."""

    def cast(self, x: Any, dtype: str) -> Any:
        """The tensor in another type; itself where it has that one."""

    def dtype(self, x: Any) -> str:
        """The type of a tensor: `float32`, `float16`, `bfloat16`, `double`, `int`, `int32` or `bool`."""

    def constant(self, value: Any, dtype: str = "float") -> Any:
        """Numbers (also nested lists, or a numpy array) as a tensor."""

    def memo(self, x: Any, name: str, make: Callable[[], Any]) -> Any:
        """What is made of a tensor, once for all nodes that ask for it by that name."""

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """`x weightᵀ + bias` for a weight [out, in] of the model's: the one place where that product is written."""

    def lookup(self, weight: Any, ids: Any) -> Any:
        """The rows of a weight [rows, width] of the model's, by number."""

    def positions(self, length: Num) -> Any:
        """The positions 0, 1, … length - 1 as int64; in a step of decoding those of the tokens that are new, `by_row`
        [batch, length]."""

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Any, Any]:
        """The positions of queries [queries, 1] and of keys [1, keys], int64, the last query standing at the last key:
        what masks and distances are made of. `by_row` they are [batch, …, queries, 1] and [batch, …, 1, keys], with so
        many axes of size 1 between."""

    def of_positions(self, made: Any, i: int, make: Callable[[Any], Any]) -> None:
        """Tell the passes behind what a tensor would be for all positions from 0 on, the same for every row: `make(t)`
        of such a form `t` of input i, from which `made` was made alike. Only where the target has a use for it, and
        where the input has such a form."""

    def varies_by_row(self, i: int) -> bool:
        """Whether input i has a further axis of batch in front, being made of positions by row."""

    def newest(self, i: int) -> Any:
        """Input i along the axis of queries rather than that of keys: where the keys are all positions, its newest."""

    @property
    def appends(self) -> bool:
        """Whether the node may append to its caches itself: every row of the sequence then begins with real tokens."""

    def new(self, i: int) -> Any:
        """Input i, of which all positions are kept: its new ones."""

    def cached(self, *inputs: int) -> tuple[Any, ...]:
        """What was kept of inputs before the new positions (None outside of decoding); then how many positions of each
        row are real, less 1 (int32 [batch]), and how many positions there are in all (int32)."""

    def keep(self, kept: Mapping[int, Any]) -> None:
        """Keep these tensors of inputs, by their number, for the next step."""

    @property
    def valid(self) -> Any:
        """Which of the new positions are real [batch, time], where rows may be padded; else None."""

    @property
    def first(self) -> Any:
        """In a step of decoding: whether there are no positions before the new ones (bool [1])."""

    def gated(self, x: Any, fill: Any, rank: int, axis: int) -> Any:
        """A tensor of `rank` axes, batch first, with a number in place of what stands along `axis` where the sequence
        is padding."""

    def tail(self, x: Any, count: int, rank: int, axis: int) -> Any:
        """The last `count` real positions of what was kept and the new ones, put together along `axis`."""

    def turned(self, x: Any, back: bool = False) -> Any:
        """[batch, time, …] with the padding in front of each row put behind it, or back again."""

    def dimension(self, x: Any, axis: int) -> Any:
        """The size of an axis, counted from the right, as a vector of one int64 that may stand in a list."""

    def scan(
        self, body: Callable[..., Sequence[Any]], states: Sequence[Any], sequences: Sequence[Any]
    ) -> tuple[Any, ...]:
        """A recurrence along axis 0 of the sequences: `body(*states, *slices)` gives the next states, then what is
        emitted. The last states, then the stacked emissions."""

    def experts(self, name: str, rows: Any, weights: Any, chosen: Any, count: Num) -> Any:
        """The node's own block `name`, of which `count` copies exist, applied to rows [n, width]: each row goes to its
        `chosen` [n, k] copies, whose results are added by `weights` [n, k]."""


# --- which positions an op reads --------------------------------------------------------------------------------------


class At(Frozen):
    """The latest position read along one axis of an input: sum of `scale` x (position along an output axis), plus
    `offset`.

    `axes` holds (output axis from 0, scale). Bounds from above are what causality needs. Positions in `also` are read
    too: the latest of them all is what counts. `earlier` says that positions before it are read as well: what these
    hold is not always less, as where an axis runs through the rows of a batch one after the other."""

    axes: tuple[tuple[int, Fraction], ...] = ()
    offset: Fraction = Fraction(0)
    also: tuple[At, ...] = ()
    earlier: bool = False


@cache
def same(axis: int, offset: int = 0) -> At:
    """The place of that output axis itself (or `offset` positions later)."""
    return At(((axis, Fraction(1)),), Fraction(offset))


@cache
def up_to(axis: int, offset: int = 0) -> At:
    """All positions up to that of the output axis (or `offset` positions later)."""
    return At(((axis, Fraction(1)),), Fraction(offset), earlier=True)


Lengths = Callable[[DimValue], int]
"""Gives the number that a size is, for a sequence of one length."""
EVERYWHERE = None
Reads = tuple["At | None", ...]
"""For one input: for each of its axes the latest position read, or EVERYWHERE."""


class Joint(Frozen):
    """A sum, or a mean with weights, of what elements of several inputs make together.

    `terms` names the axes of each input (() for one that is no tensor), `result` those of the result; a name that the
    result has not is summed over. Where input i is the number `nothing[i]`, what it takes part in counts for nothing;
    None where no number does that."""

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    nothing: tuple[float | None, ...]
    weighing: tuple[int, ...] = ()
    """Inputs that give the weights of a mean along the axis `over`, and nothing else. Of a single position the weight
    is 1, whatever these inputs are."""
    over: str = ""
    """The axis whose weights `weighing` gives."""


class Regrouping(Frozen):
    """What an op does that only cuts, moves and merges the axes of its first input. `cuts` are the sizes that each
    input axis is cut into, the last running fastest; `axes` the (input axis, cut) that each output axis is made of,
    again the last running fastest."""

    cuts: tuple[tuple[Num, ...], ...]
    axes: tuple[tuple[tuple[int, int], ...], ...]


class Parts(Frozen):
    """How an op works where some of its tensors are cut into equal parts, one on each device.

    `axis` is the axis of every output that is cut, from 0; None where the outputs are whole: the parts of the only one
    are then sums that are still to be added up. `weights` are the axes along which weights are cut, the others are
    whole. `own` are the axes of whole inputs of which each device takes its own part; `numbers` those of the op's
    numbers that would have to count one part; `sizes` what the number of devices has to divide."""

    axis: int | None
    weights: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[int, int] = field(default_factory=dict)
    numbers: tuple[Num, ...] = ()
    sizes: tuple[Num, ...] = ()


class Saved(Frozen):
    """What the gradients of one use of an op need, where the op is one kernel: inputs and outputs by their number, and
    numbers of its own, each with their type. Of `factors` each input is needed for the gradients of the others alone.
    `scores` are what the core of attention keeps too where it is no single kernel."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    own: tuple[tuple[Amount, str], ...] = ()
    scores: tuple[tuple[Amount, str], ...] = ()
    sides: bool = True
    """Whether the sides of contractions are needed as they came in; False where `own` counts copies of them."""


class Attends(Frozen):
    """What attention of whole sequences asks of a kernel, its inputs 0 to 2 being queries, keys and values."""

    mask: int | None
    """The number of the input that is a mask or a bias; None where there is none, or the kernel makes it itself."""
    causal: bool
    drops: bool


# --- one application --------------------------------------------------------------------------------------------------


class Application(Protocol):
    """One use of a primitive in a spec, checked against its signature: what `shapes`, `weights` and `build` may ask."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options by name, defaults included."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors (or numbers) in the order of the signature, None for one that was left out."""

    @property
    def masks(self) -> Mapping[int, Mask]:
        """The inputs that were given as a mask, by their number; they are None among `inputs`."""

    @property
    def axes(self) -> Mapping[str, Num]:
        """The sizes of the signature's axes by name."""

    @property
    def span(self) -> Span:
        """Where the primitive is applied."""

    def shape(self, i: int) -> Shape:
        """The shape of input i; () of a number."""

    def tensor(self, i: int) -> Value:
        """Input i, a tensor."""

    def size(self, option: str) -> Num:
        """An option that is a whole number."""

    def error(
        self,
        code: str,
        message: str,
        *,
        option: str = "",
        input: int | None = None,
        help: str = "",
        notes: Sequence[str] = (),
    ) -> ArchError:
        """A diagnostic at the application (or at one of its options or inputs), ready to be raised."""

    def condition(self, op: str, left: Num, right: Num, message: str) -> None:
        """Demand `left op right` (`==`, `<=`, or `%` for "right divides left") of sizes: checked now if they are
        static, else when the model runs. An error E0401 if it does not hold."""

    def holds(self, op: str, a: Num, b: Num | float, message: str = "") -> bool:
        """Whether `a op b` (`==` `!=` `<` `<=` `>` `>=`) of static numbers. Whatever is decided by the value of a
        number is asked by one of these: the answer becomes a condition that the emitted code holds its user's numbers
        to, and `message` says what it is about."""

    def keeps(self, a: Num, op: str, b: Num, message: str) -> None:
        """Note what holds of two sizes whatever the running model's are: a condition on other numbers of a Config."""

    def same(self, a: Num, b: Num, message: str = "") -> bool:
        """Whether two sizes are equal. Only that they are becomes a condition: what stands for sizes that differ has to
        stand for equal ones too."""

    def fits(self, a: Num, b: Num) -> bool:
        """Whether an axis of size a can stand for one of size b: equal, or 1."""

    def is_number(self, n: Num, value: float) -> bool:
        """Whether a number is that one, be it static. Only that it is becomes a condition."""

    def is_whole(self, n: Num) -> bool:
        """Whether a number is a whole one, whatever the run-time sizes are."""

    def fixed(self, n: Num) -> int:
        """A static whole number on which the graph depends: the emitted code takes no other."""

    def node(
        self,
        *,
        inputs: Sequence[Input] | None = None,
        blocks: Mapping[str, CallNode] | None = None,
        copies: Num | None = None,
        active: Num | None = None,
    ) -> tuple[Value, ...]:
        """Put this application into the graph as one node (with other inputs than it was written with, if given); its
        outputs."""

    def apply(self, name: str, *inputs: Input, called: str = "", **options: Any) -> Value:
        """Apply another primitive (with one output) in the same graph; what it gives is `called` so."""

    def apply_block(
        self,
        block: Any,
        inputs: Sequence[Input],
        label: str,
        called: Sequence[str] = (),
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Value, ...]:
        """Apply a block value (a position with weights, an activation) at this position, with further hyper-parameters,
        also if it is shared; what it gives and has no name is `called` so."""

    def apply_position(
        self, position: Any, inputs: Sequence[Input], options: Mapping[str, Any], called: str = "", outputs: int = 1
    ) -> Any:
        """A position with weights of its own at this position, under the name `position`; the output, or a tuple of
        them, `called` so."""

    def expert(self, block: Any, copies: Num, width: Num) -> CallNode:
        """A block elaborated for rows `[rows, width]`, every weight with a leading axis of `copies`: for
        `node(blocks=…)`."""

    def model_input(self, kind: str, length: Num) -> Value:
        """The model's input of kind `padding` or `documents` that belongs to the axis of that length (strides
        included)."""

    def bring(self, value: Value) -> Value:
        """A tensor of a block around (a mask's tensor that came through a hyper-parameter), made available here."""


# --- primitives -------------------------------------------------------------------------------------------------------

NumpyFunction = Callable[..., Any]
Family = Literal[
    "", "attention", "linear attention", "recurrence", "convolution", "transposed convolution", "linear", "embedding",
    "slice", "position encoding",
]  # fmt: skip


class State(Frozen):
    """What a recurrence hands from one step of decoding to the next: zeros before the first position."""

    name: str
    shape: Shape
    dtype: str
    axis: int
    """The axis of the output along which it runs."""


class Primitive:
    """Base of all primitives. A subclass gives `signature`, its docstring (the first line is the reference's), `torch`
    or `expression`, and whatever of `check`, `shapes`, `dtypes`, `weights`, `reads`, `build` the signature cannot
    say."""

    signature: str
    elementwise: ClassVar[bool] = False
    """Output = broadcast shape of the inputs; numbers may stand for tensors; applied to numbers alone it is computed
    now."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Options that it has not, and what an error says of who has them."""
    variadic: ClassVar[bool] = False
    """The last tensor of the signature may be given any number of times."""
    further_inputs: ClassVar[int] = 0
    """The number of inputs of its nodes beside those of the signature, which `build` adds: the mask of attention. Below
    0 it is that of the inputs that `build` makes other nodes of."""
    takes_masks: ClassVar[tuple[int, ...]] = ()
    """Inputs of the signature for which a mask may be given: see `Application.masks`."""
    one_type: ClassVar[tuple[str, ...]] = ()
    """Tensors of the signature that must be of one type, because PyTorch does not bring them together."""
    mixes: ClassVar[bool] = True
    """Whether positions other than the own may be read (then it cannot be in an expert unless the axis is the last)."""
    family: ClassVar[Family] = ""
    """What kind of layer or op it is, of those that readers of a model tell apart."""
    title: ClassVar[str] = ""
    """What a drawing calls it where the field has another name for it."""
    makes_mask: ClassVar[bool] = False
    """Whether the output says which keys each query of attention sees: its option `mask` is the rule."""
    adds_mask: ClassVar[bool] = False
    """Whether the first input, a bias of attention's scores, is joined with the second, a mask."""
    sign: ClassVar[str] = ""
    """The operator of the language that arithmetic is written as: `*`."""
    symbol: str = ""
    """How the language writes what is neither arithmetic nor a `relation`: `~`, `[]`; '' for what is called by name."""
    hoisted: ClassVar[bool] = False
    """Whether it is computed where all that it reads is known, once for all blocks and layers that read it."""
    worth_hoisting: ClassVar[bool] = False
    """Whether a block is split in two where this op, inside it, is the same in every step of a scan."""
    noisy: ClassVar[bool] = False
    """Whether it draws random numbers in training: one use of it does not stand for several."""
    neutral: ClassVar[tuple[str, int] | None] = None
    """An option, and the number with which the op changes nothing."""
    keeps_branch: ClassVar[bool] = False
    """Whether a residual branch still ends where it ended before: numbers are only scaled, dropped, cast or moved."""
    keeps_projection: ClassVar[bool] = False
    """Whether queries and keys behind it still come from the projection before it."""
    of_numbers: bool = False
    """Whether it may be applied to numbers alone."""
    batch_statistics: ClassVar[bool] = False
    """Whether training takes statistics of the batch, and evaluation running ones."""
    typed: ClassVar[str | int | None] = None
    """The type of every result where neither its signature nor all inputs together give it: a type, or the number of
    the input that has it."""
    relative: ClassVar[bool] = False
    """Whether it compares the numbers along an axis with each other, as softmax does. The result of a single number is
    then the same for every number."""
    for_type: ClassVar[tuple[int, ...]] = ()
    """Inputs of which the type alone is read."""
    own_type: ClassVar[bool] = False
    """Whether its kernel wants real inputs in the type of its weights: others are cast to it first."""
    router_bias: ClassVar[bool] = False
    """Whether its buffer, `bias`, is moved between steps of training towards experts that get too few tokens: by what
    its block chooses, a result of whole numbers."""
    shares_weights: ClassVar[bool] = False
    """Whether devices may apply its weights, which each has whole, to their parts of its input: torch's style
    `SequenceParallel` of modules adds up their gradients."""
    in_place: ClassVar[bool] = False
    """Whether its PyTorch kernel takes the steps of a recurrence in place: of what it computes inside nothing can be
    kept to be used again."""
    numpy: str | NumpyFunction | None = None
    """How to compute it with numpy in a weight's first value: a function's name in numpy, or a function; None where it
    cannot stand there."""
    positional: ClassVar[bool] = False
    """Whether its ONNX form asks for positions by `positions` and `pairs` alone, so that it can stand at any step."""
    alike: bool = False
    """Whether no place of the result differs from another."""
    by_rows: ClassVar[bool] = False
    """Whether its ONNX form takes tensors with a further axis in front: positions that differ by row. Element-wise ops
    do."""
    expression: str = ""
    """The template of its PyTorch (see `TorchScope.py`), where options do not change it."""
    operator: str = ""
    """The ONNX operator that it is, its inputs being brought to the type of the result."""
    examples: tuple[Example, ...] = ()
    hints: ClassVar[tuple[str, ...]] = ()
    """What to call the outputs in emitted code where the spec has no name for them; `=` is the name of the first
    input."""
    passes: ClassVar[int] = 1
    """Element-wise operations for each number of the result; 0 where numbers are only moved or chosen."""
    additive: bool = False
    """Whether it is linear in all inputs that have gradients, so that these need none of them."""
    by_result: bool = False
    """Whether its gradient follows from its result, which is kept in place of the inputs (sigmoid, softmax)."""
    statistics: ClassVar[int] = 0
    """Of a norm: how many float32 numbers of each row its gradients need beside the input."""
    moves: ClassVar[bool] = False
    """Whether each element of the result is that of the first input at exactly the position that `reads` gives."""
    fills: ClassVar[bool] = False
    """Whether it moves positions along, and puts `absent` where none comes from."""
    joins: ClassVar[bool] = False
    """Whether each element of the result is that of one input, at the position that `reads` gives of it, if it has
    that."""
    relation: str = ""
    """`<=`, `==`, …, where the result says whether the first input stands in that relation to the second."""
    chosen: ClassVar[tuple[int, ...]] = ()
    """Inputs of which others decide what is read, or whether it is."""
    indices: ClassVar[tuple[int, ...]] = ()
    """Results that say at which index along the axis that it reads whole something stands."""
    moves_axes: ClassVar[bool] = False
    """Whether as many axes come out in another order: worth a comment with the shape in emitted code."""

    @cached_property
    def _parsed(self) -> tuple[str, ast.Header]:
        from archdsl.syntax.parse import parse_header

        return parse_header(Source(f"{self.name} (primitive)", self.signature, library=True))

    @cached_property
    def name(self) -> str:
        return self.signature[: self.signature.index("(")].strip()

    @property
    def header(self) -> ast.Header:
        return self._parsed[1]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.__doc__ or "").strip().splitlines()[0]

    def check(self, call: Application) -> None:
        """Raise a diagnostic for options or shapes that the signature admits and the primitive does not."""

    def shapes(self, call: Application) -> Sequence[Shape]:
        """Shapes of the outputs; by default those of the signature, or the broadcast shape if elementwise."""
        from archdsl.ir.signature import broadcast, result_shapes

        if self.elementwise:
            return (broadcast(call, self.name),)
        return result_shapes(self, call)

    def dtypes(self, call: Application) -> Sequence[str]:
        """Types of the outputs; by default as `typed` says, those of the signature, or that of the inputs together."""
        from archdsl.ir.signature import promoted, result_types

        if self.typed is not None:
            kind = self.typed if isinstance(self.typed, str) else promoted([call.inputs[self.typed]])
            return (kind,) * len(self.header.results or (None,))
        return result_types(self, call)

    def weights(self, call: Application) -> Sequence[Weight]:
        """Weights, in the order of the emitted module's own."""
        return ()

    @classmethod
    def may_have_weights(cls) -> bool:
        """Whether an application may have weights of its own."""
        return cls.weights is not Primitive.weights

    def reads_latent(self, node: OpNode) -> bool:
        """Whether it can read keys and values in the form of what they are projections of: see `onnx_absorbed`."""
        return False

    def build(self, call: Application) -> Sequence[Value]:
        """What an application becomes in the graph; by default one node, or its input where it is `neutral`."""
        if self.neutral is not None and call.is_number(call.size(self.neutral[0]), self.neutral[1]):
            return (call.tensor(0),)
        return call.node()

    def rotated_pairs(self, node: OpNode) -> str:
        """Of a rotation of channels, which of them turn together: `halves` (i and i + n / 2) or `pairs` (2i and 2i +
        1); '' for other ops."""
        return ""

    def at_positions(self, node: OpNode) -> bool:
        """Whether its PyTorch form is made of `TorchScope.positions` alone and takes positions of any shape."""
        return False

    def reads(self, node: OpNode) -> Sequence[Reads]:
        """For each input (tensors and numbers alike; () for a number) the latest position read along each axis, as a
        function of the position in the first output. By default: axes of one name stand at the same position, `...` and
        broadcast axes too, all others are read whole."""
        from archdsl.ir.signature import named_reads

        return named_reads(self, node)

    def reads_of(self, node: OpNode, result: int) -> Sequence[Reads]:
        """The same for the position in another result, for ops whose results read different positions."""
        return self.reads(node)

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        """Narrow what `reads_of` says of an axis of input i: return the only position that result k depends on at
        `position`, by the lengths of axes; None where it says all."""
        return None

    def taken_from(self, node: OpNode, index: Sequence[int | None], length: Lengths) -> int | None:
        """Return which input the element at an index of the result is taken from, by the lengths of axes; None where it
        may be any."""
        return None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        """The number that an element of the result is, where the elements that it is made of at its own position are
        the numbers `known` (None: any finite one; truth values are 0 and 1). None where that does not fix it. By
        default what numpy makes of numbers that are all known."""
        from archdsl.ir.signature import computed

        return computed(self, known)

    def constants(self, node: OpNode) -> Sequence[tuple[At, float]]:
        """Forms of the position in the result, and the number that the result is wherever the form is larger than 0,
        whatever the inputs are."""
        return ()

    def element(self, node: OpNode, index: Sequence[int]) -> float | None:
        """The number at a position of the result, where that follows from the position alone; else None."""
        return None

    def picks(self, node: OpNode, known: Sequence[float | None]) -> int | None:
        """The input whose element an element of the result is, given what is known of those at its position (None: any
        number); None where that is not clear, or the op does not pick."""
        return None

    def positions(self, node: OpNode) -> At | None:
        """A form of the position in the result that its whole numbers are equal to."""
        return None

    def combines(self, node: OpNode) -> Sequence[Fraction] | None:
        """The factors of the inputs where the result is the sum of them, each times a number; None otherwise."""
        return None

    def absent(self, node: OpNode) -> float | None:
        """The number that counts as if it were not there where positions are read: 0 in a sum. None for none."""
        return None

    def joint(self, node: OpNode) -> Joint | None:
        """How elements of several inputs make one of the result, where that is a sum of products or the like: it says
        more than `reads`, which knows one input at a time."""
        return None

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> DimValue | None:
        """The largest number of the first result, one of whole numbers, given those of the inputs (numbers stand for
        themselves); None where it is not known."""
        return None

    def table(self, node: OpNode) -> tuple[int, Num] | None:
        """Of an op that looks up rows: the input that says which, and how many there are."""
        return None

    def regroups(self, node: OpNode) -> Regrouping | None:
        """How axes are cut and merged, for ops that do nothing else: it says more than `reads` can, which knows one
        axis at a time."""
        return None

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """How the op works where input i is cut along axis `cut[i]` (None: whole on each device); None where no device
        can do its part alone. By default it can element by element, where axes are only cut, moved and merged, and
        where no position but the own is read."""
        from archdsl.ir.signature import default_parts

        return default_parts(self, node, cut)

    def opens(self, node: OpNode) -> Parts | None:
        """How weights are cut so that whole inputs give outputs that are cut; None where they cannot be."""
        return None

    def is_mask(self, options: Mapping[str, Any]) -> bool:
        """Whether the output is a mask that its readers ask for by `TorchScope.mask`: with some inputs it needs no
        tensor."""
        return False

    def needs_tensor(self, options: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
        """Whether the output must exist: not a mask that is just causal. Only inputs that are numbers may be asked what
        they are."""
        return True

    def result_type(self, options: Mapping[str, Any], varlen: bool) -> str:
        """What PyTorch has the output as, where it is handed from block to block; `varlen` as in `TorchScope`."""
        return "Tensor"

    def torch(self, node: OpNode, e: TorchScope) -> Tree | Sequence[Tree]:
        """The PyTorch expression: one whose value is the output (or, of several outputs, their tuple), or one for each
        output."""
        if not self.expression:
            raise TypeError(f"{type(self).__name__} says nothing of PyTorch")
        return e.py(self.expression)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        """What makes the node's submodule in `__init__`, where it has one: an expression of static numbers alone."""
        raise TypeError(f"{type(self).__name__} has no module")

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        """The same where every weight has a leading axis of experts."""
        raise TypeError(f"{type(self).__name__} says nothing of experts")

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree | None:
        """The same where every weight has a leading axis of experts and the rows of the input are sorted by expert.
        `ends` is a local, the rows at which those of each expert end.
        None: no weights, `torch` will do."""
        if node.weights:
            raise TypeError(f"{type(self).__name__} says nothing of experts")
        return None

    def flops(self, node: OpNode) -> Cost:
        """The FLOPs of one use, forwards. By default no contraction, and `passes` for each real number that comes
        out."""
        return Cost(elementwise=self.pointwise(node))

    def step_flops(self, node: OpNode) -> Cost:
        """The same in a step of decoding: the axis of time is 1 where only the new position is computed, and the whole
        length where all positions are read. A recurrence says what its step costs."""
        return self.flops(node)

    def pointwise(self, node: OpNode) -> tuple[Amount, ...]:
        """`passes` operations for each real number that comes out."""
        if not self.passes or self.regroups(node) is not None:
            return ()
        return tuple(Amount(mul(self.passes, elements(v.shape))) for v in node.outputs if v.is_float)

    def torch_step(
        self, node: OpNode, e: TorchScope, past: Sequence[Tree]
    ) -> tuple[Tree | Sequence[Tree], Sequence[Tree]]:
        """What `torch` says for the new positions of a sequence, given the states after those before them (locals,
        zeros before the first position): the output (or one for each), and the states after the last of them."""
        raise TypeError(f"{type(self).__name__} has states and says nothing of steps")

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        """The states before the first position; None for zeros."""
        return (None,) * len(self.states(node))

    def leading(self, node: OpNode, i: int) -> int | None:
        """Of input i, a table that has rows for positions: how many axes it has before those that align with the
        result. None where the op cannot take rows that differ by batch."""
        return None

    def differentiates(self, node: OpNode, i: int) -> bool:
        """Whether a gradient flows back to input i."""
        return True

    def saves(self, node: OpNode) -> Saved:
        """What its gradients need beside the sides of its contractions. By default all inputs of an op that computes
        (or its result, `by_result`), unless it is `additive` or has contractions."""
        if self.additive or not self.passes or self.flops(node).contractions:
            return Saved()
        if self.by_result:
            return Saved(outputs=(0,))
        rows = Amount(times((self.statistics, *node.outputs[0].shape[:-1])))
        own = ((rows, "float32"),) if self.statistics else ()
        return Saved(tuple(i for i, v in enumerate(node.inputs) if isinstance(v, Value)), own=own)

    def cached_inputs(self, node: OpNode) -> Mapping[int, tuple[int, str]]:
        """Of inputs of which every position up to the own is read: the axis along which that is so, and what to call
        them. In decoding they are cached."""
        return {}

    def lookback(self, node: OpNode, i: int) -> int | None:
        """How many positions before the own are read of input i, one of those that `cached_inputs` names; None where
        there is no bound."""
        return None

    def window(self, node: OpNode) -> tuple[int, Num] | None:
        """Where the inputs that `cached_inputs` names are read through a mask that shows the last positions alone: the
        input that is the mask, and how many positions these are. Then no more of them must be kept."""
        return None

    def states(self, node: OpNode) -> Sequence[State]:
        """What a recurrence along an axis hands from one step of decoding to the next."""
        return ()

    def needs_full_sequence(self, node: OpNode) -> str:
        """What the op does that needs a whole sequence at once, though it may read no later position; '' for
        nothing."""
        return ""

    def is_projection(self, node: OpNode) -> bool:
        """Whether the output is, position by position, a projection of the inputs' last axis that knows nothing of
        positions: then whatever reads it whole may be kept in the form of the inputs."""
        return False

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """The output in ONNX (or a sequence of one for each output), made of nodes that `g` adds."""
        if not self.operator:
            raise TypeError(f"{type(self).__name__} says nothing of ONNX")
        return getattr(g, self.operator)(*g.args())

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The same for the new positions of a sequence, given the states after those before them: the output (or a
        sequence of one for each), and the states after the last of them."""
        raise TypeError(f"{type(self).__name__} has states and says nothing of steps")

    def torch_absorbed(self, node: OpNode, e: TorchScope, rows: Tree, keys: Tree, values: Tree) -> Tree:
        """The same in PyTorch, given `rows` [batch, source, dim] and the maps, [1, heads, dim, key_dim] and [1, heads,
        dim, value_dim]."""
        raise TypeError(f"{type(self).__name__} does not absorb maps")

    def torch_hosted(self, node: OpNode, e: TorchScope, mask: Tree, rest: Mapping[Any, Tree]) -> Tree | None:
        """The call of the attention function that transformers has chosen, as a method of the module: its outputs
        [batch, time, heads, value_dim], then weights or None. `mask` is one of its making, `rest` are further keyword
        arguments. None where its cache and kernels have no place for the op."""
        return None

    def torch_scaling(self, node: OpNode, e: TorchScope) -> Tree:
        """What attention multiplies its scores with, as an expression of numbers."""
        raise TypeError(f"{type(self).__name__} is no attention")

    def kernels(self, node: OpNode) -> frozenset[str]:
        """Which of transformers' fused kernels (`sdpa`, `flex`, `flash`) compute what `torch_hosted` calls them for."""
        return frozenset()

    def attends(self, node: OpNode) -> Attends | None:
        """What a kernel of `scaled_dot_product_attention` is asked for; None of an op that calls none."""
        return None

    def untied(self, node: OpNode) -> OpNode | None:
        """The node as one with a weight of its own, where it multiplies with that of another module; else None."""
        return None

    def caches_itself(self, node: OpNode, g: OnnxScope) -> bool:
        """Whether on this target the operator that it becomes appends to caches itself."""
        return False

    def onnx_absorbed(self, node: OpNode, g: OnnxScope, rows: Any, keys: Any, values: Any) -> Any:
        """The output where keys and values are projections of `rows` [batch, 1, source, dim]: the maps are `keys` [1,
        heads, dim, key_dim] and `values` [1, heads, dim, value_dim]."""
        raise TypeError(f"{type(self).__name__} does not absorb maps")

    def has_grouped(self) -> bool:
        return type(self).torch_grouped is not Primitive.torch_grouped


REAL_INPUTS = "x: [2, 5, 8]"


class Example(Frozen):
    """A use of a primitive, for the contract test and the reference: an expression over tensors `name: shape`, all
    sizes fixed.

    `inputs` is written as in a signature: `x: [2, 5, 8], ids: int[2, 5]`. Ints are drawn below `below`."""

    expression: str
    inputs: str = REAL_INPUTS
    below: int = 5
    statements: str = ""
    """Lines before the `return`."""
    gradients: bool = True


def shown(*uses: str) -> tuple[Example, ...]:
    """Examples as `archdsl explain` prints them: `x -> squeeze(1)  # x: [2, 1, 8]`; without a comment over real numbers
    x: [2, 5, 8]. Where all inputs are whole numbers or truth values there are no gradients."""
    found = []
    for use in uses:
        expression, _, inputs = use.partition("  # ")
        given = re.findall(r": (\w*)\[", inputs or REAL_INPUTS)
        found.append(Example(expression, inputs or REAL_INPUTS, gradients=not {*given} <= {"int", "bool"}))
    return tuple(found)
