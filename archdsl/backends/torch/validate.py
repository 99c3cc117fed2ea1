"""Translation validation: the finished file, run on terms, against what was meant.

The text is parsed and run: `__init__`, then each method, once for every instance of every class.  Numbers are Python
numbers, submodules are themselves (so loops, slices and `zip` just run), tensors are terms, equal if they are made
alike, effects are a list.  What was lowered is run likewise, its numbers being those of the IR.  Modules, results and
effects must be equal.  It shares with what writes files no code but the tables of Python's operators.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from archdsl.backends.torch import init
from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.lower import ClassUse, Lowered, Make, Method, Parameter, parameter_names
from archdsl.backends.torch.numbers import BUILT_IN, function, value_of
from archdsl.backends.torch.program import (
    PURE,
    Bind,
    Check,
    Conditional,
    Do,
    LayerLoop,
    Leave,
    Put,
    ScanLoop,
    Step,
    Suite,
    Target,
)
from archdsl.backends.torch.python import field_name
from archdsl.backends.torch.text import quoted
from archdsl.backends.torch.tree import PYTHON, Made, NumberLeaf, Part, PyNode, Read, Variable, frozen
from archdsl.diagnostics import InternalError, error
from archdsl.frozen import Entity, Frozen
from archdsl.ir import dims
from archdsl.ir.dims import Poly, Symbol
from archdsl.ir.graph import Block, Model, Value
from archdsl.ir.ranges import ROUND
from archdsl.ir.weights import weights

STEPS = 3
"""How many steps of a recurrence are run."""


class InvalidError(InternalError):
    """A file that is not what was meant."""


class Term(Frozen):
    """A tensor, or something else that is known by how it is made."""

    id: int


class PartRef(Frozen):
    """A submodule or raw weight of the instance: an attribute, or an item of one."""

    name: str
    index: int | None = None


class ClassInstance(Frozen):
    """The instance of a class of the file, by its arguments."""

    name: str
    arguments: tuple[tuple[str, Any], ...]


class Self(Entity):
    """The instance whose methods are run."""


class Config(Entity):
    """The Config, with the spec's own numbers."""

    fields: Mapping[str, Any]


SELF = Self()
RANDOM = {
    "F.dropout",
    "torch.rand",
    "torch.randn",
    "torch.randint",
    "torch.rand_like",
    "torch.randn_like",
    "torch.bernoulli",
}
"""Functions of which two equal calls may give different results."""


def validate(text: str, classes: Classes) -> None:
    """Raises InvalidError where the file is not what was lowered."""
    Validator(text, classes).run()


class FractionError(Exception):
    """The sizes chosen for axes give a size that is not whole."""

    def __init__(self, size: Poly, number: Any) -> None:
        self.size = size
        self.divided = {a.name for m, _ in size.terms for a, power in m if isinstance(a, Symbol) and power > 0}
        self.denominator = Fraction(number).denominator


class Terms:
    """Terms of one class: the same for what is made alike, whether by the IR or by the text."""

    def __init__(self) -> None:
        self.known: dict[Any, Term] = {}
        self.alike: dict[Any, list[Any]] = {}
        """The keys that differ in whether a number is whole."""
        self.shapes: dict[Term, tuple[int, ...]] = {}
        """Of tensors of the IR."""

    def meant(self, *key: Any) -> Term:
        """The term that the IR makes so."""
        return self._of(tuple(map(_meant, key)))

    def found(self, *key: Any) -> Term:
        """The term that the text makes so. A whole number may stand where the IR has a real one."""
        own = tuple(map(_meant, key))
        if own in self.known:
            return self.known[own]
        other = next((k for k in self.alike.get(_as_real(own), ()) if _stands_for(own, k)), own)
        return self._of(other)

    def _of(self, key: Any) -> Term:
        if key not in self.known:
            self.known[key] = Term(len(self.known))
            self.alike.setdefault(_as_real(key), []).append(key)
        return self.known[key]


class Real(Frozen):
    """A number that need not be whole."""

    value: float


def _meant(x: Any) -> Any:
    if type(x) is Term or type(x) is str:  # as nearly all are
        return type(x), x
    if isinstance(x, tuple | list):
        return tuple(map(_meant, x))
    if isinstance(x, Real):
        return ("real", f"{x.value:.12g}")
    return ("real", f"{x:.12g}") if type(x) is float else (type(x), x)


def _as_real(key: Any) -> Any:
    """The key with every number as a real one."""
    if isinstance(key, tuple):
        return ("real", f"{float(key[1]):.12g}") if key[:1] == (int,) else tuple(map(_as_real, key))
    return key


def _stands_for(text: Any, meant: Any) -> bool:
    """Whether two keys are equal when a whole number of the text may be a real one of the IR."""
    if text == meant:
        return True
    if not isinstance(text, tuple) or not isinstance(meant, tuple):
        return False
    if text[:1] == (int,):
        return bool(_as_real(text) == meant)
    return len(text) == len(meant) and all(map(_stands_for, text, meant))


class Evaluator:
    """Runs expressions and statements for one instance."""

    def __init__(self, terms: Terms, term: Callable[..., Term], names: frozenset[str]) -> None:
        self.terms, self.term, self.names = terms, term, names
        self.effects: list[Any] = []
        self.calls: Counter[Any] = Counter()
        self.fields: dict[str, Any] = {}
        self.stateful: set[Term] = set()
        """What steps of decoding keep."""
        self.modules: set[Term] = set()
        """Modules that a method is handed."""
        self.bound: frozenset[str] = frozenset()
        """Locals of the function that runs."""

    # --- expressions ---

    def eval(self, x: Any, env: Mapping[Any, Any]) -> Any:
        if isinstance(x, tuple):
            return tuple(self.eval(i, env) for i in x)
        if not isinstance(x, PyNode):
            return x if x is None or isinstance(x, str) else self.leaf(x, env)
        return getattr(self, f"on_{x.kind.lower()}", self.leaf)(x, env)

    def leaf(self, x: Any, env: Mapping[Any, Any]) -> Any:
        raise InvalidError("an expression nobody writes")

    def on_constant(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        return _literal(x.fields[0])

    def on_name(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        name = x.fields[0]
        if name in env:
            return env[name]
        if name in self.bound:
            raise InvalidError(f"`{name}` is read before it is bound")
        if name not in self.names:
            raise InvalidError(f"nothing is called `{name}`")
        return self.term("global", name)

    def on_attribute(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        if _dotted(x) == "torch.inf":
            return math.inf
        return self.attribute(self.eval(x.fields[0], env), x.fields[1])

    def attribute(self, of: Any, name: str) -> Any:
        if of is SELF:
            return self.fields[name] if name in self.fields else self.term("self", name)
        if isinstance(of, Config):
            if name not in of.fields:
                raise InvalidError(f"nothing there is called `{name}`")
            return of.fields[name]
        return self.term("attribute", of, name)

    def on_tuple(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        return tuple(self._items(x.fields[0], env))

    def on_list(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        return list(self._items(x.fields[0], env))

    def on_dict(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        return self.term("dict", *(self.eval(f, env) for f in x.fields))

    def _items(self, xs: Sequence[Any], env: Mapping[Any, Any]) -> Iterator[Any]:
        for x in xs:
            if isinstance(x, PyNode) and x.kind == "Starred":
                many = self.eval(x.fields[0], env)
                if not isinstance(many, list | tuple):
                    many = [self.term("starred", many)]
                yield from many
            else:
                yield self.eval(x, env)

    def on_generatorexp(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        item, generators = x.fields
        envs = [dict(env)]
        for target, source, tests, _ in (g.fields for g in generators):
            if tests:
                raise InvalidError("an expression nobody writes")
            wider = []
            for inner in envs:
                for value in self.iterated(self.eval(source, inner)):
                    wider.append({**inner, **self._matched(target, value)})
            envs = wider
        return [self.eval(item, inner) for inner in envs]

    on_listcomp = on_generatorexp

    def on_lambda(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        named = [a.fields[0] for a in x.fields[0].fields[1]]
        given = {name: self.term("given", i) for i, name in enumerate(named)}
        return self.term("lambda", len(named), self.eval(x.fields[1], {**env, **given}))

    def on_slice(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        ends = [self.eval(f, env) for f in x.fields]
        return slice(*ends) if all(e is None or type(e) is int for e in ends) else self.term("slice", *ends)

    def on_subscript(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        of, at = self.eval(x.fields[0], env), self.eval(x.fields[1], env)
        if isinstance(of, list | tuple) and isinstance(at, slice | int):
            return of[at]
        self._tensors(of)
        return self.term("subscript", of, _sliced(at))

    def on_binop(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        left, right = self.operand(x.fields[0], env), self.operand(x.fields[2], env)
        op = x.fields[1].kind
        if _number(left) and _number(right) and op in PYTHON:
            return _real(PYTHON[op](_plain(left), _plain(right)), left, right)
        if isinstance(left, list) or isinstance(right, list):
            return PYTHON[op](left, right)  # `3 * [mask]`, `[a] + [b]`
        self._tensors(left, right)
        if op == "Div" and _number(right) and _plain(right):  # `x * (1 / n)` is written so
            op, right = "Mult", _real(1 / _plain(right), right)
        return self.term("binary", op, left, right)

    def operand(self, x: Any, env: Mapping[Any, Any]) -> Any:
        """What arithmetic is done with: a comparison of numbers is 1 or 0 there."""
        if not isinstance(x, PyNode) or x.kind != "Compare":
            return self.eval(x, env)
        kinds, found = self.sides(x, env)
        if len(kinds) == 1 and all(map(_number, found)):
            return int(PYTHON[kinds[0]](*map(_plain, found)))
        return self.compared(kinds, found)

    def on_unaryop(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        op, of = x.fields[0].kind, self.eval(x.fields[1], env)
        if _number(of) and op in PYTHON:
            return _real(PYTHON[op](_plain(of)), of)
        self._tensors(of)
        return self.term("unary", op, of)

    def on_compare(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        return self.compared(*self.sides(x, env))

    def sides(self, x: PyNode, env: Mapping[Any, Any]) -> tuple[tuple[str, ...], list[Any]]:
        """The operators of a comparison, and what is compared: each evaluated once, for a module may be called."""
        left, ops, rights = x.fields
        return tuple(o.kind for o in ops), [self.eval(left, env), *(self.eval(r, env) for r in rights)]

    def compared(self, kinds: tuple[str, ...], found: Sequence[Any]) -> Any:
        """The result of a comparison."""
        if kinds in (("Is",), ("IsNot",)) and found[1] is None and (found[0] is None or found[0] in self.stateful):
            return (found[0] is None) is (kinds == ("Is",))
        return self.term("compare", kinds, *found)

    def on_boolop(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        decisive = x.fields[0].kind == "Or"  # one that is so decides, and those behind it are not asked
        values = []
        for i, operand in enumerate(x.fields[1], start=1):
            value = self.eval(operand, env)
            if value is decisive:
                return decisive
            if value is not (not decisive) or i == len(x.fields[1]):
                values.append(value)
        return values[0] if len(values) == 1 else self.term("BoolOp", x.fields[0].kind, *values)

    def on_ifexp(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        test, a, b = x.fields
        known = self.eval(test, env)
        if isinstance(known, bool):
            return self.eval(a if known else b, env)
        one, other = self.either(known, lambda: self.eval(a, env), lambda: self.eval(b, env))
        return one if one == other else self.term("choice", known, one, other)

    def either(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> list[Any]:
        """Return what both arms of a choice give, and note what each of them changes."""
        around, results, changes = self.effects, [], []
        for arm in (then, otherwise):
            self.effects = []
            results.append(arm())
            changes.append(tuple(self.effects))
        self.effects = around
        if any(changes):
            self.effects.append(("if", test, *changes))
        return results

    def on_call(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        text, args, keywords = x.fields
        of = NOTHING
        if isinstance(text, PyNode) and text.kind == "Attribute":
            of = self.eval(text.fields[0], env)
        given = list(self._items(args, env))
        named = {k.fields[0]: self.eval(k.fields[1], env) for k in keywords}
        if not named:
            known = self.function(text, given, env) if isinstance(text, PyNode) else NOTHING
            if known is NOTHING and of is not NOTHING:
                known = self.method(of, text.fields[1], given)
            if known is not NOTHING:
                return known
        called = self.eval(text, env) if of is NOTHING else self.attribute(of, text.fields[1])
        if not isinstance(called, Term | PartRef):
            raise InvalidError(f"a call of {called!r}")
        module = isinstance(called, PartRef) or called in self.modules
        if module or any(isinstance(g, PartRef) for g in given):  # what is None is not given
            given = [g for g in given if g is not None]
            named = {k: g for k, g in named.items() if g is not None}
        own = isinstance(of, Term) and of in self.stateful and text.fields[1] not in PURE
        if own or any(isinstance(g, Term) and g in self.stateful for g in (*given, *named.values())):
            made = self.term("change", len(self.effects), called, tuple(given), tuple(named.items()))
            self.effects.append(("change", made))
            return made
        return self.call(called, given, named, text)

    def call(self, called: Any, given: list[Any], named: dict[str, Any], text: Any) -> Any:
        """A call of what is no method of a list and no function of numbers."""
        key = ("call", called, tuple(given), tuple(named.items()))
        if isinstance(called, PartRef) or _dotted(text) in RANDOM:
            what = _meant(key)
            self.calls[what] += 1
            return self.term(*key, self.calls[what])
        return self.term(*key)

    def method(self, of: Any, name: str, given: list[Any]) -> Any:
        """A method of what is known here: the size of a tensor, the steps of a sequence, a list's."""
        if isinstance(of, list) and name == "append":
            of.append(*given)
            return None
        if isinstance(of, Term) and name == "unbind" and given == [1]:
            return [self.term("step", of, i) for i in range(STEPS)]
        if isinstance(of, Term) and name == "size" and len(given) == 1 and of in self.terms.shapes:
            shape = self.terms.shapes[of]
            if type(given[0]) is not int or not -len(shape) <= given[0] < len(shape):
                raise InvalidError(f"the size of axis {given[0]}")
            return shape[given[0]]
        if isinstance(of, Term) and name == "transpose" and given == [1, 2]:
            return self.transposed(of)
        return NOTHING

    def transposed(self, x: Term) -> Term:
        """`x.transpose(1, 2)`: twice is not at all."""
        back = self.terms.known.get(("there and back", x))
        if back is not None:
            return back
        made = self.term("call", self.term("attribute", x, "transpose"), (1, 2), ())
        self.terms.known["there and back", made] = x
        return made

    def function(self, x: PyNode, given: list[Any], env: Mapping[Any, Any]) -> Any:
        """A function of numbers or lists of Python's own."""
        name = x.fields[0] if x.kind == "Name" else ""
        if name in env or name in self.bound:
            return NOTHING
        if name in ("zip", "range", "enumerate", "list", "len") and not any(isinstance(g, Term) for g in given):
            return list(getattr(builtins, name)(*given)) if name != "len" else len(given[0])
        if all(map(_number, given)) and given and (name in BUILT_IN or x.kind == "Attribute"):
            try:
                made = function(x)(*map(_plain, given))
            except (TypeError, AttributeError):
                return NOTHING
            return _real(made, *given)
        return NOTHING

    @staticmethod
    def _tensors(*found: Any) -> None:
        if any(isinstance(x, list | ClassInstance) or x is SELF for x in found):
            raise InvalidError("arithmetic on modules")

    def iterated(self, x: Any) -> Sequence[Any]:
        """The items of a list; of a tensor one that stands for each."""
        if isinstance(x, Term):
            return [self.term("each", x)]
        if not isinstance(x, list | tuple):
            raise InvalidError("a loop over what is no list")
        return x

    def _matched(self, target: Any, value: Any) -> dict[Any, Any]:
        """What a target of an assignment binds, by name."""
        if target.kind == "Name":
            return {target.fields[0]: value}
        if target.kind != "Tuple":
            raise InvalidError("a variable that nobody binds so")
        many = target.fields[0]
        if not isinstance(value, list | tuple):
            value = [self.term("item", value, k, len(many)) for k in range(len(many))]
        if len(value) != len(many):
            raise InvalidError(f"{len(many)} names for {len(value)} values")
        return {k: v for t, x in zip(many, value, strict=True) for k, v in self._matched(t, x).items()}

    # --- statements of a text ---

    def run(self, body: Sequence[ast.stmt], env: dict[Any, Any]) -> Any:
        """The value that the statements return; NOTHING where none does."""
        for s in body:
            match s:
                case ast.Return():
                    return self.eval(_frozen(s.value), env)
                case ast.Assign(targets=[target]):
                    self.assign(_frozen(target), self.eval(_frozen(s.value), env), env)
                case ast.Expr():
                    self.do(s, env)
                case ast.Assert():
                    self.check(_frozen(s.test), _frozen(s.msg), env)
                case ast.For():
                    for item in self.iterated(self.eval(_frozen(s.iter), env)):
                        env |= self._matched(_frozen(s.target), item)
                        if self.run(s.body, env) is not NOTHING:
                            raise InvalidError("a return nobody writes")
                case ast.If():
                    test, arms = s.test, (s.body, s.orelse)
                    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                        test, arms = test.operand, (s.orelse, s.body)
                    returned = self.branch(self.eval(_frozen(test), env), *arms, env)
                    if returned is not NOTHING:
                        return returned
                case ast.Pass():
                    pass
                case _:
                    raise InvalidError(f"a statement nobody writes: {ast.unparse(s)}")
        return NOTHING

    def do(self, s: ast.Expr, env: dict[Any, Any]) -> None:
        if isinstance(s.value, ast.Constant):
            return  # a docstring
        if ast.unparse(s.value) == "super().__init__()":
            return
        if ast.unparse(s.value) == "super().__init__(config)":  # which keeps it
            self.fields["config"] = env["config"]
            return
        made = self.eval(_frozen(s.value), env)
        if made is not None:
            self.effects.append(("do", made))

    def check(self, test: Any, message: Any, env: Mapping[Any, Any]) -> None:
        self.effects.append(("assert", self.eval(test, env), self.eval(message, env)))

    def assign(self, target: PyNode, value: Any, env: dict[Any, Any]) -> None:
        if target.kind == "Subscript":
            self.effects.append(("put", self.eval(target.fields[0], env), self.eval(target.fields[1], env), value))
        else:
            env |= self._matched(target, value)

    def branch(self, test: Any, then: Sequence[ast.stmt], otherwise: Sequence[ast.stmt], env: dict[Any, Any]) -> Any:
        """Run both arms, or the one that is known to be run; the value that is returned then, NOTHING else."""
        if isinstance(test, bool):
            return self.run(then if test else otherwise, env)
        before, effects = dict(env), self.effects
        ends, arms = [], []
        for body in (then, otherwise):
            inner = dict(before)
            self.effects = []
            returned = self.run(body, inner)
            if returned is not NOTHING:
                if body is not then or otherwise:
                    raise InvalidError("a return nobody writes")
                self.effects = [*effects, ("leave", test, returned)]
                return NOTHING
            ends.append(inner)
            arms.append(self.effects)
        self.effects = effects
        if any(arms):
            self.effects.append(("if", test, tuple(arms[0]), tuple(arms[1])))
        for name in {*ends[0], *ends[1]}:
            if name not in ends[0] or name not in ends[1]:
                env.pop(name, None)
            else:
                a, b = ends[0][name], ends[1][name]
                env[name] = a if a is b or a == b else self.term("choice", test, a, b)
        return NOTHING


NOTHING = object()


class Sizes(dict[dims.Value, Any]):
    """Sizes by the numbers of their symbols, each computed once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        super().__init__()
        self.symbols = symbols

    def __missing__(self, size: dims.Value) -> Any:
        self[size] = found = dims.evaluate(size, self.symbols)
        return found


class Meaning(Evaluator):
    """Runs what was lowered, with the numbers of the IR."""

    def __init__(self, terms: Terms, names: frozenset[str], sizes: Sizes, lists: Mapping[str, Sequence[Any]]) -> None:
        # What is dead may name a module that the file does not import; what is read is compared with the file.
        super().__init__(terms, terms.meant, names | {"torch", "F"})
        self.sizes = sizes
        self.lists = lists
        self.base: Counter[str] = Counter()
        """How many modules of each list iterations before have used."""

    def leaf(self, x: Any, env: Mapping[Any, Any]) -> Any:
        if isinstance(x, Read):
            return env[x.value]
        if isinstance(x, NumberLeaf):
            return self.number(x)
        if isinstance(x, Part):
            if x.index is None:
                return refs(x.name, self.lists.get(x.name))
            assert isinstance(x.index, int)
            return PartRef(x.name, self.base[x.name] + x.index)
        assert isinstance(x, Made), x
        return x.site

    def on_indexed(self, x: PyNode, env: Mapping[Any, Any]) -> Any:
        """What makes a layer, whatever its index is."""
        return self.eval(x.fields[0], env)

    def number(self, n: NumberLeaf) -> Any:
        if isinstance(n.value, Poly):
            found = self.sizes[n.value]
            if not isinstance(found, int) and not n.real:
                raise FractionError(n.value, found)
            return Real(float(found)) if n.real else found
        plain = value_of(n.value)
        return plain if isinstance(plain, int) and not n.real else Real(float(plain))

    def bind(self, target: Any, value: Any, env: dict[Any, Any]) -> None:
        env[target] = value
        if isinstance(target, Value) and isinstance(value, Term) and value not in self.terms.shapes:
            try:
                shape = tuple(self.sizes[d.value] for d in target.shape)
            except (KeyError, ArithmeticError):
                return
            self.terms.shapes[value] = tuple(int(d) for d in shape)

    def steps(self, steps: Sequence[Step], env: dict[Any, Any]) -> None:
        for s in steps:
            match s:
                case Bind(targets=(target,)):
                    self.bind(target, self.eval(s.expr, env), env)
                case Bind():
                    many = self.eval(s.expr, env)
                    if not isinstance(many, list | tuple):
                        many = [self.term("item", many, k, len(s.targets)) for k in range(len(s.targets))]
                    for target, value in zip(s.targets, many, strict=True):
                        self.bind(target, value, env)
                case Check():
                    self.effects.append(("assert", self.eval(s.test, env), escaped(s.message)))
                case Put():
                    assert isinstance(s.target, PyNode)
                    of, at = self.eval(s.target.fields[0], env), self.eval(s.target.fields[1], env)
                    self.effects.append(("put", of, at, self.eval(s.expr, env)))
                case Do():
                    made = self.eval(s.expr, env)
                    if made is not None:
                        self.effects.append(("do", made))
                case LayerLoop():
                    self.repeat(s, env)
                case ScanLoop():
                    self.scan(s, env)
                case Conditional():
                    self.arms(s, env)
                case Leave():
                    self.effects.append(("leave", self.eval(s.test, env), self.eval(s.result, env)))

    def body(self, body: Suite, given: Sequence[Any], env: dict[Any, Any]) -> tuple[Any, ...]:
        for target, value in zip(body.inputs, given, strict=True):
            self.bind(target, value, env)
        self.steps(body.steps, env)
        return tuple(self.eval(t, env) for t in body.outputs)

    def repeat(self, s: LayerLoop, env: dict[Any, Any]) -> None:
        now = tuple(self.eval(t, env) for t in s.starts)
        outer = Counter(self.base)
        self.base = self.base + s.offset
        for value in s.absent:
            env.setdefault(value, None)
        for t, which in enumerate(s.iterations):
            found = self.body(s.bodies[which], now, env)
            now = found[: len(now)]
            for value, item in zip(s.collected[t] if s.collected else (), found[len(now) :], strict=True):
                self.bind(value, item, env)
            self.base = self.base + s.counts[which]
        self.base = outer
        for target, value in zip(s.outputs, now, strict=True):
            self.bind(target, value, env)

    def scan(self, s: ScanLoop, env: dict[Any, Any]) -> None:
        now = tuple(self.eval(t, env) for t in s.starts)
        sequences = [self.eval(t, env) for t in s.sequences]
        collected: list[list[Any]] = [[] for _ in s.collected]
        for i in range(STEPS):
            slices = [self.term("step", x, i) for x in sequences]
            found = self.body(s.body, (*now, *slices), env)
            now = found[: len(now)]
            for kept, item in zip(collected, found[len(now) :], strict=True):
                kept.append(item)
        for target, kept in zip(s.collected, collected, strict=True):
            env[target] = kept
        for target, value in zip(s.finals, now, strict=True):
            self.bind(target, value, env)

    def arms(self, s: Conditional, env: dict[Any, Any]) -> None:
        test = self.eval(s.test, env)
        if isinstance(test, bool):
            for target, value in zip(s.outputs, self.body(s.then if test else s.otherwise, (), env), strict=True):
                self.bind(target, value, env)
            return
        ends = self.either(test, lambda: self.body(s.then, (), env), lambda: self.body(s.otherwise, (), env))
        for target, a, b in zip(s.outputs, *ends, strict=True):
            self.bind(target, a if a == b else self.term("choice", test, a, b), env)


# --- a whole file -----------------------------------------------------------------------------------------------------


@dataclass
class Validator:
    """Judges one file."""

    text: str
    classes: Classes

    def run(self) -> None:
        tree = ast.parse(self.text)
        self.model: Model = self.classes.model
        self.defined: dict[str, ast.stmt] = {}
        names: set[str] = {*dir(builtins)}
        for s in tree.body:
            if isinstance(s, ast.ClassDef | ast.FunctionDef):
                if s.name in self.defined:
                    raise InvalidError(f"`{s.name}` is defined twice")
                self.defined[s.name] = s
            elif isinstance(s, ast.Import | ast.ImportFrom):
                names |= {a.asname or a.name.partition(".")[0] for a in s.names}
            elif isinstance(s, ast.Assign):
                names |= {t.id for t in s.targets if isinstance(t, ast.Name)}
        self.names = frozenset({*names, *self.defined})
        self.functions()
        self.groups = {g.name: g for g in self.classes.groups}
        symbols = sorted({s.name for s in self.model.symbols})
        for start, apart, multiple in SIZES:
            try:
                return self.judge_whole(dict(zip(symbols, primes(start, apart), strict=False)), multiple)
            except OverflowError as e:  # a power of a size
                beyond = e
        raise error("E0503", f"a number of this model is too large for any size of its axes: {beyond}")

    def judge_whole(self, numbers: Mapping[str, int], multiple: int) -> None:
        """Judge the file with one number for each symbol. If a size then comes out as a fraction, try again with
        `multiple` times the numbers, and with others that make it whole. Raises OverflowError if a power of a size is
        too large, ArchError if no numbers are found that make every size whole."""
        try:
            return self.judge(numbers)
        except FractionError:
            found = {name: n * multiple for name, n in numbers.items()}
        for _ in numbers:
            try:
                return self.judge(found)
            except FractionError as e:  # and of sizes: what one divides becomes a multiple of it
                found = {name: n * (e.denominator if name in e.divided else 1) for name, n in found.items()}
        steps = dict.fromkeys(numbers, 1)  # by which numbers may grow and leave whole what is whole
        found = dict(numbers)
        for _ in range(FITS):
            try:
                return self.judge(found)
            except FractionError as e:
                d = e.size.denominator
                grown = ({**found, n: found[n] + k * steps[n]} for n in sorted(e.divided) for k in range(d))
                found = next((g for g in grown if Fraction(dims.evaluate(e.size, g)).denominator == 1), found)
                steps = {name: n * (d if name in e.divided else 1) for name, n in steps.items()}
        try:
            self.judge(found)
        except FractionError as e:
            raise error("E0503", f"found no sizes of axes for which {e.size} is a whole number", help=ROUND) from None

    def functions(self) -> None:
        """Judge the functions that ops have defined."""
        every = (c.lowered.functions.items() for c in self.classes.classes.values())
        for name, (parameters, result) in itertools.chain(*every):
            f = self.defined.get(name)
            if not isinstance(f, ast.FunctionDef) or [a.arg for a in f.args.args] != [*parameters]:
                raise InvalidError(f"`{name}` has other parameters")
            if len(f.body) != 1 or not isinstance(f.body[0], ast.Return) or _frozen(f.body[0].value) != result:
                raise InvalidError(f"`{name}` returns something else")

    def judge(self, numbers: Mapping[str, int]) -> None:
        """Judge every class, for all instances of it, with a number for each symbol."""
        self.sizes = Sizes(numbers)
        seen: set[tuple[str, Block]] = set()
        config = self.config()
        root = ClassInstance(self.classes.root_class, (("config", config),))
        waiting: list[tuple[ClassInstance, Block]] = [(root, self.model.block)]
        while waiting:
            instance, block = waiting.pop()
            if (instance.name, block) not in seen:  # a block has numbers of its own
                seen.add((instance.name, block))
                try:
                    waiting += self.instance(instance, block, config)
                except OverflowError:
                    raise
                except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, AttributeError) as e:
                    raise InvalidError(f"{instance.name}: {type(e).__name__}: {e}") from e

    def config(self) -> Config:
        """The numbers of the Config, which must be the spec's."""
        body = self.defined[self.classes.config_class]
        assert isinstance(body, ast.ClassDef)
        fields = {
            s.target.id: self.literal(s.value)
            for s in body.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        }
        for name, value in self.classes.library_fields.items():
            if fields.pop(name, None) != value:
                raise InvalidError(f"the Config's `{name}` is not {value}")
        for name, choice in self.classes.choices.items():
            if fields.pop(field_name(name), ...) != choice:
                raise InvalidError(f"the Config's `{name}` is not {choice}")
        meant = {field_name(f.name): f.value.value for f in self.model.config}
        if fields.keys() != meant.keys():
            raise InvalidError("the Config has other fields")
        for name, value in meant.items():
            plain = value_of(value)
            if type(fields[name]) is not type(plain) or abs(fields[name] - plain) > 1e-12 * abs(plain):
                raise InvalidError(f"the Config's `{name}` is {fields[name]}, not {plain}")
        return Config({**fields, **self.classes.library_fields, **{n: n for n in self.classes.settings}})

    @staticmethod
    def literal(x: ast.expr | None) -> Any:
        return ast.literal_eval(x) if x is not None else None

    def instance(self, instance: ClassInstance, block: Block, config: Config) -> list[tuple[ClassInstance, Block]]:
        """Judge a class as the instance for one block; the instances that it makes, each with the block that it must
        be."""
        group = self.groups.get(instance.name)
        lowered = self.lowered(group, block)
        body = self.defined[instance.name]
        assert isinstance(body, ast.ClassDef)
        methods = {s.name: s for s in body.body if isinstance(s, ast.FunctionDef)}
        if len(methods) < sum(isinstance(s, ast.FunctionDef) for s in body.body):
            raise InvalidError(f"{instance.name} has two methods of one name")
        terms = Terms()
        steps = [*lowered.init, *self.classes.classes[group].demands]
        fields, made = self.init(methods, instance, lowered, steps, config, terms)
        for name in fields.keys() & methods.keys():
            raise InvalidError(f"{instance.name}.{name} is a method and an attribute")
        merged = self.classes.merged.get(group)
        own = [(m, m) for m in self.classes.methods(group, block)]
        taken = group.taken_over.items() if group is not None else ()
        for model, method in (*own, *((m, means) for (b, m), means in taken if b is block)):
            assert method is not None
            if merged is not None and (model is merged.step or model.name == "forward"):
                written, given = methods["forward"], merged.given(model)
                names = parameter_names(merged.method)
            else:
                written, given = methods[model.name], [p.target for p in model.parameters]
                names = parameter_names(model)
            here = {p.target: q.target for p, q in zip(model.parameters, method.parameters, strict=True)}
            given = [here.get(target) for target in given]
            rest = [written.args.kwarg.arg] if written.args.kwarg is not None else []
            if [*(a.arg for a in written.args.args), *rest] != ["self", *names]:
                raise InvalidError(f"{instance.name}.{written.name} has other parameters")
            self.method(written, method, given, fields, terms, lowered, instance.name)
            if any(p.target in given and p.type.endswith(" | None") for p in method.parameters if is_state(p)):
                self.method(written, method, given, fields, terms, lowered, instance.name, stateless=True)
        return made

    def lowered(self, group: ClassGroup | None, block: Block) -> Lowered:
        return self.classes.root if group is None else group.lowered[group.members.index(block)]

    # --- __init__ ---

    def init(
        self,
        methods: Mapping[str, ast.FunctionDef],
        instance: ClassInstance,
        lowered: Lowered,
        steps: Sequence[Any],
        config: Config,
        terms: Terms,
    ) -> tuple[dict[str, Any], list[tuple[ClassInstance, Block]]]:
        lists = lowered.modules.lists_meant
        meaning = Meaning(terms, self.names, self.sizes, lists)
        meant: dict[str, Any] = {}
        self.make(steps, meaning, meant, {"self": SELF})
        meant |= {name: [meaning.eval(t, {}) for t in constructors] for name, constructors in lists.items()}
        machine = Construction(terms, self.names, self)
        root = instance.name == self.classes.root_class
        drawn_by = self.classes.drawn_by if root else "reset_parameters"
        f, draws = methods.get("__init__"), methods.get(drawn_by)
        if f is not None:
            env: dict[Any, Any] = {"self": SELF, **dict(instance.arguments)}
            named = [a.arg for a in f.args.args]
            for a, d in zip(named[len(named) - len(f.args.defaults) :], f.args.defaults, strict=True):
                env.setdefault(a, config if isinstance(d, ast.Call) else self.literal(d))
            if {*env} != {*named}:
                raise InvalidError(f"{instance.name} is made with other arguments than it takes")
            machine.bound = _locals(f)
            machine.run(self.own_part(f, instance.name), env)
        if any(e[0] != "assert" for e in machine.effects):
            raise InvalidError(f"{instance.name} draws weights where it is made")
        if draws is not None:
            machine.bound = _locals(draws)
            machine.run(self.own_part(draws, instance.name), {a.arg: SELF for a in draws.args.args})
        if drawn_by == "init_weights" and (draws is not None) != any(True for _ in weights(self.model)):
            raise InvalidError(f"{instance.name} has no `init_weights`, or no weights")
        found: list[tuple[ClassInstance, Block]] = []
        for name in [name for name, thing in meant.items() if _number(thing)]:
            if not math.isclose(machine.fields.get(name, math.nan), _plain(meant.pop(name)), rel_tol=1e-12):
                raise InvalidError(f"{instance.name}.{name} is another number")
        if machine.made.keys() != meant.keys():
            raise InvalidError(f"{instance.name} makes other modules: {machine.made.keys() ^ meant.keys()}")
        order = [s.name for s in steps if isinstance(s, Make)]
        for name, thing in sorted(meant.items(), key=lambda item: order.index(item[0]) if item[0] in order else -1):
            self.same(machine.made[name], thing, f"{instance.name}.{name}", found)
        self.in_order(dict(instance.arguments), found)
        drawn = [[e for e in m.effects if e[0] != "assert"] for m in (machine, meaning)]
        if drawn[0] != drawn[1]:
            raise InvalidError(f"{instance.name} draws its weights otherwise")
        demanded = [e for e in meaning.effects if e[0] == "assert"]
        for e in machine.effects:
            if e[0] == "assert" and e not in demanded:
                raise InvalidError(f"{instance.name} demands something else: {e[2]}")
        return machine.fields, found

    def in_order(self, arguments: Mapping[str, Any], made: Sequence[tuple[ClassInstance, Block]]) -> None:
        """Whether each layer is given the next index of a cache, in the order in which layers are made."""
        following = [arguments.get("layer_idx", 0)] * 2  # of those that attend to the source alone, too
        for instance, block in made:
            taken = [self.classes.layers(block), self.classes.layers(block, True)]
            source = not taken[0]
            index = following[source]
            given = dict(instance.arguments).get("layer_idx", index)
            if any(taken) and block is not self.model.block and given != index:
                raise InvalidError(f"{instance.name} is given another index than {index}")
            following[source] += taken[source]

    def own_part(self, f: ast.FunctionDef, name: str) -> list[ast.stmt]:
        """The statements of a class's `__init__` or of what draws weights; without those that begin and end it and are
        of no block, which must be there."""
        ends = ["", "\n".join(self.classes.closing.get((name, f.name), ()))]
        if f.name == "init_weights":
            ends[0] = init.DRAW_PARTS
        first, last = (ast.parse(text).body for text in ends)
        start, end = len(first), len(f.body) - len(last)
        if [*map(ast.dump, [*f.body[:start], *f.body[end:]])] != [*map(ast.dump, [*first, *last])]:
            raise InvalidError(f"`{f.name}` of the model does not begin or end as it must")
        return f.body[start:end]

    def make(self, steps: Sequence[Any], meaning: Meaning, meant: dict[str, Any], env: dict[Any, Any]) -> None:
        """Run the statements of `__init__`, and those that draw weights, that are meant."""
        for s in steps:
            match s:
                case Make():
                    if s.name not in meaning.lists:
                        meant[s.name] = meaning.eval(s.tree, env)
                case Check():
                    meaning.effects.append(("assert", meaning.eval(s.test, env), escaped(s.message)))
                case Do():
                    assert isinstance(s.expr, PyNode)
                    meant[ast.literal_eval(s.expr.fields[1][0].fields[0])] = meaning.eval(s.expr, env)
                case init.InitCall():
                    meaning.effects.append(("do", meaning.eval(s.tree, env)))
                case init.InitLoop():
                    for item in meaning.iterated(meaning.eval(s.iterated, env)):
                        self.make(s.body, meaning, meant, {**env, s.variable: item})

    def same(self, found: Any, meant: Any, what: str, made: list[tuple[ClassInstance, Block]]) -> None:
        """Whether what `__init__` makes is what is meant."""
        if isinstance(meant, list):
            if not isinstance(found, list) or len(found) != len(meant):
                raise InvalidError(f"{what} has another length")
            for i, (a, b) in enumerate(zip(found, meant, strict=True)):
                self.same(a, b, f"{what}.{i}", made)
        elif isinstance(meant, ClassUse):
            if not isinstance(found, ClassInstance) or found.name != meant.group.name:
                raise InvalidError(f"{what} is of another class")
            made.append((found, meant.block))
        elif found != meant:
            raise InvalidError(f"{what} is made otherwise")

    # --- methods ---

    def method(
        self,
        f: ast.FunctionDef,
        method: Method,
        targets: Sequence[Target | None],
        fields: dict[str, Any],
        terms: Terms,
        lowered: Lowered,
        name: str,
        stateless: bool = False,
    ) -> None:
        """Judge that a function does what a method does. `targets` says which of its parameters each argument is; the
        others are not given, nor is a cache to what is `stateless`."""
        meaning = Meaning(terms, self.names, self.sizes, lowered.modules.lists_meant)
        known = {*self.classes.given, "config", *(s.name for s in lowered.init if isinstance(s, Make))}
        meaning.fields = {k: v for k, v in fields.items() if k in known or not isinstance(v, int | float | Config)}
        env: dict[Any, Any] = {"self": SELF}
        for i, p in enumerate(method.parameters):
            term = terms.meant("parameter", method.name, i)
            meaning.bind(p.target, None if stateless and is_state(p) else term, env)
            if is_state(p):
                meaning.stateful.add(term)
            if p.type == "nn.Module":
                meaning.modules.add(term)
        given = [env[t] if t is not None else None for t in targets]
        meaning.steps(method.steps, env)
        results = tuple(meaning.eval(t, env) for t in method.results)
        meant = results[0] if len(results) == 1 else results
        parameters = [a.arg for a in (*f.args.args, *filter(None, [f.args.kwarg]))]
        machine = Evaluator(terms, terms.found, self.names)
        machine.fields = fields
        machine.bound = _locals(f)
        machine.stateful, machine.modules = meaning.stateful, meaning.modules
        found = machine.run(f.body, dict(zip(parameters, [SELF, *given], strict=True)))
        if found != meant:
            raise InvalidError(f"{name}.{f.name} returns something else")
        if machine.effects != meaning.effects:
            raise InvalidError(f"{name}.{f.name} has other effects")


class Construction(Evaluator):
    """Runs the `__init__` of a text, which makes instances of the file's classes."""

    def __init__(self, terms: Terms, names: frozenset[str], validator: Validator) -> None:
        super().__init__(terms, terms.found, names)
        self.validator = validator
        self.made: dict[str, Any] = {}
        """What each attribute is that is no number."""

    def assign(self, target: PyNode, value: Any, env: dict[Any, Any]) -> None:
        if target.kind == "Attribute" and self.eval(target.fields[0], env) is SELF:
            self.keep(target.fields[1], value)
        else:
            super().assign(target, value, env)

    def keep(self, name: str, value: Any) -> None:
        """An attribute gets its value: later it is itself, unless it is a number."""
        if name in self.fields:
            raise InvalidError(f"`{name}` is made twice")
        if isinstance(value, int | float | Config):
            self.fields[name] = value
        else:
            self.made[name] = value
            self.fields[name] = refs(name, value)

    def call(self, called: Any, given: list[Any], named: dict[str, Any], text: Any) -> Any:
        own = next((name for name in self.validator.groups if called is self.term("global", name)), None)
        if own is not None:
            arguments: dict[str, Any] = dict(named)
            arguments |= dict(zip(("config", *self.validator.classes.given), given, strict=False))
            return ClassInstance(own, tuple(sorted(arguments.items())))
        if _dotted(text) in ("nn.ModuleList", "nn.ParameterList", "Tensors"):
            return list(given[0])
        made = super().call(called, given, named, text)
        if _dotted(text) == "self.register_buffer":
            self.keep(given[0], made)
            return None
        return made


def is_state(parameter: Parameter) -> bool:
    """Whether a parameter is what steps of decoding keep."""
    return isinstance(parameter.target, Variable) and parameter.target.state


def refs(name: str, made: Any) -> Any:
    """An attribute as it is read: itself, or the items of a list."""
    return [PartRef(name, i) for i in range(len(made))] if isinstance(made, list) else PartRef(name)


MANY, FEW = 720_720, 12
"""The least numbers that 1 to 16, and 1 to 4, divide."""
FITS = 8
"""How often numbers are changed so that one more size is whole."""
SIZES = ((10_000, 10_000, MANY), (30, 1, FEW), (3, 1, 1))
"""Where primes for the symbols begin and how far apart they are, and what they are multiplied by if a size is to be
whole. The smaller ones are for models in which a size, or a number, is raised to the power of a size."""


def primes(start: int, apart: int) -> Iterator[int]:
    """Primes from `start` on, each larger than the one before by at least `apart`."""
    n = start
    while True:
        n = next(k for k in itertools.count(n) if all(k % d for d in range(2, math.isqrt(k) + 1)))
        yield n
        n += apart


def escaped(message: str) -> str:
    """A message as Python has it once it was written."""
    found: str = ast.literal_eval(f'"{quoted(message)}"')
    return found


@lru_cache(maxsize=4096)  # what stands in a loop, and what several instances run, is asked for often
def _frozen(x: ast.AST | None) -> Any:
    return frozen(x, {}) if x is not None else None


@lru_cache(maxsize=4096)
def _literal(text: str) -> Any:
    return ast.literal_eval(text)


@lru_cache(maxsize=4096)
def _locals(f: ast.FunctionDef) -> frozenset[str]:
    """The names that statements of a function bind."""
    found: set[str] = set()
    waiting: list[Any] = [*f.body]
    while waiting:
        match waiting.pop():
            case ast.Assign(targets=targets):
                waiting += targets
            case ast.For(target=target, body=body):
                waiting += [target, *body]
            case ast.If(body=then, orelse=otherwise):
                waiting += [*then, *otherwise]
            case ast.Tuple(elts=elts):
                waiting += elts
            case ast.Name(id=name):
                found.add(name)
    return frozenset(found)


def _number(x: Any) -> bool:
    return isinstance(x, Real) or type(x) in (int, float)


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, Real) else x


def _real(made: Any, *of: Any) -> Any:
    return Real(float(made)) if any(isinstance(x, Real) for x in of) and type(made) in (int, float) else made


def _sliced(x: Any) -> Any:
    if isinstance(x, slice):
        return ("slice", x.start, x.stop, x.step)
    return tuple(map(_sliced, x)) if isinstance(x, tuple) else x


def _dotted(x: Any) -> str:
    """A dotted name as text; '' for any other expression."""
    if isinstance(x, PyNode) and x.kind == "Name":
        return str(x.fields[0])
    if isinstance(x, PyNode) and x.kind == "Attribute":
        of = _dotted(x.fields[0])
        return f"{of}.{x.fields[1]}" if of else ""
    return ""


__all__ = ["InvalidError", "validate"]
