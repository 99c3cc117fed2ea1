"""What is written is what was lowered: files that are broken in one place are refused, before anything is written."""

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
import torch

import archdsl
from archdsl.backends.torch import Extras
from archdsl.backends.torch.module import FileWriter
from archdsl.backends.torch.schedule import measure
from archdsl.backends.torch.tree import Part, Read, Variable
from archdsl.backends.torch.validate import InvalidError, Terms, validate
from archdsl.diagnostics import ArchError
from archdsl.run.load import load_source

MODELS = (
    "gpt2",
    "llama3_8b",
    "mistral_7b",
    "mixtral_8x7b",
    "hf/gemma2",
    "deepseek_v2_lite",
    "transformer_base",
    "t5_small",
    "conformer_l",
    "mamba_130m",
    "lstm_lm_small",
    "show_attend_tell",
    "sparse_transformer_enwik8",
)
MUTANTS = 160
"""How many are judged; each is one change of one file."""


@cache
def written(name: str) -> tuple[str, FileWriter]:
    model = archdsl.load(name)
    sections = {"generate"} if name in ("llama3_8b", "hf/gemma2", "deepseek_v2_lite", "mamba_130m") else set()
    file = FileWriter(model, Extras(frozenset(sections)))  # type: ignore[arg-type]
    return file.write(), file


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_valid(name: str) -> None:
    text, file = written(name)
    validate(text, file.classes)


def test_every_instance_of_a_class_is_judged() -> None:
    """What is right for the first of them may be wrong for the others."""
    text = """
    block wide(s)(x: [batch, time, width]) -> [batch, time, width] { return x -> linear(s) as a -> linear(width) as b }
    model m(x: [batch, time, 8]) -> [batch, time, 8] { return x -> wide(4) as one -> wide(6) as two }"""
    file = FileWriter(archdsl.load(text=text), Extras())
    written = file.write()
    assert written.count("nn.Linear(width, s)") == 1
    validate(written, file.classes)
    for s in (4, 6):
        with pytest.raises(InvalidError):
            validate(written.replace("nn.Linear(width, s)", f"nn.Linear(width, {s})"), file.classes)


def test_a_local_hides_what_the_file_has_by_its_name() -> None:
    """Python does so from the first line of the function on, also where it is bound by what reads that name."""
    text, file = written("gpt2")
    broken = text.replace("y = F.scaled", "F = F.scaled").replace("self.out(y.", "self.out(F.")
    assert broken.count("F = F.") == 1
    with pytest.raises(InvalidError):
        validate(broken, file.classes)


UP = "        self.up = nn.Linear(config.width, hidden)\n"
MEAN = '        return self.down(F.gelu(self.up(x), approximate="tanh"))'
LISTED = "for block in self.blocks:\n            x = block(x)"
RETURN = f"{MEAN}\n"
BROKEN = (
    ("`Attention` is defined twice", "class MLP(", "class Attention(nn.Module):\n    pass\n\n\nclass MLP("),
    ("nothing is called `nothing`", "F.gelu(self.up(x)", "F.gelu(nothing(x)"),
    ("MLP.forward has other parameters", f"x: Tensor) -> Tensor:\n{MEAN}", f"x: Tensor, y: Tensor) -> Tensor:\n{MEAN}"),
    ("MLP.forward returns something else", MEAN, "        return"),
    ("a statement nobody writes: del x", "        x = self.dropout(x)\n", "        del x\n"),
    ("the Config's `layers` is 13, not 12", "layers: int = 12", "layers: int = 13"),
    ("the Config has other fields", "heads: int = 12\n", "heads: int = 12\n    other: int = 3\n"),
    ("Attention is made with other arguments", "Attention(config, dropout=0.1)", "Attention(config, other=0.1)"),
    ("Decoder.attention is of another class", "Attention(config, dropout=0.1)", "MLP(config, hidden=4)"),
    ("`up` is made twice", UP, 2 * UP),
    ("MLP draws weights where it is made", UP, f"{UP}        nn.init.zeros_(self.up.bias)\n"),
    ("GPT2 has no `init_weights`", "def init_weights(", "def init_other("),
    ("a loop over what is no list", "for block in self.blocks", "for block in self.norm"),
    ("2 names for 12 values", LISTED, "x, y = self.blocks\n        x = y(x)"),
    ("GPT2.blocks has another length", "range(config.layers)", "range(config.heads * 2)"),
    ("GPT2.forward has other effects", "        self.config = config\n", ""),
    ("`__init__` of the model does not begin or end as it must", "        self.init_weights()\n", ""),
    ("MLP.forward returns something else", RETURN, f"        if True:\n            return x\n{RETURN}"),
    ("MLP: TypeError: unsupported operand", "config.width, hidden)", "config.width, hidden + [])"),
    ("MLP demands something else: no", UP, f'        assert config.width == 768, "no"\n{UP}'),
    ("nothing there is called `nothing`", "nn.Linear(config.width, hidden)", "nn.Linear(config.nothing, hidden)"),
    ("the size of axis 2", "tokens.size(1)", "tokens.size(2)"),
    ("arithmetic on modules", "F.gelu(self.up(x)", "F.gelu(-self"),
    ("a variable that nobody binds so", RETURN, f"        self.kept = x\n{RETURN}"),
    ("a variable that nobody binds so", RETURN, f"        x, self.kept = x, x\n{RETURN}"),
    ("a return nobody writes", "            x = block(x)\n", "            x = block(x)\n            return x\n"),
    (
        "a return nobody writes",
        RETURN,
        f"        if x:\n            y = x\n        else:\n            return x\n{RETURN}",
    ),
    ("an expression nobody writes", RETURN, f"        y = yield x\n{RETURN}"),
    ("an expression nobody writes", RETURN, f'        y = f"{{x}}"\n{RETURN}'),
    ("an expression nobody writes", "for _ in range(config.layers)", "for _ in range(config.layers) if config.heads"),
)


@pytest.mark.parametrize(("message", "right", "wrong"), BROKEN)
def test_what_is_broken_is_said(message: str, right: str, wrong: str) -> None:
    text, file = written("gpt2")
    assert right in text
    with pytest.raises(InvalidError, match=re.escape(message)):
        validate(text.replace(right, wrong, 1), file.classes)


BLOCKS = """
model m(masked = false, width = 256)(x: [batch, time, width]) -> [batch, time, width] {
  if masked { x += x -> mha(heads: 2, mask: causal & window(4)) }
  return x -> mha(heads: 2, mask: causal & window(40))
}"""


@pytest.mark.parametrize(
    ("message", "right", "wrong"),
    [
        ("the Config's `masked` is not False", "masked: bool = False", "masked: bool = True"),
        ("`causal_and_window_mask` has other parameters", "(b: Tensor, query", "(batch: Tensor, query"),
        ("`causal_and_window_mask` has other parameters", "def causal_and_window_mask(", "def other("),
        ("`causal_and_window_mask` returns something else", "query - key <", "query - key <="),
        (
            "`causal_and_window_mask` returns something else",
            "    return (key <=",
            "    key = key + 1\n    return (key <=",
        ),
    ],
)
def test_what_is_broken_outside_of_classes_is_said(message: str, right: str, wrong: str) -> None:
    file = FileWriter(archdsl.load(text=BLOCKS), Extras())
    text = file.write()
    assert right in text
    with pytest.raises(InvalidError, match=re.escape(message)):
        validate(text.replace(right, wrong, 1), file.classes)


def test_a_whole_number_may_stand_for_a_real_one_and_no_other() -> None:
    terms = Terms()
    real, whole, within = terms.meant("times", 2.0), terms.meant("size", 2), terms.meant("f", ("g", 0.5, 3.0))
    assert terms.found("times", 2) is real
    assert terms.found("f", ("g", 0.5, 3)) is within
    assert terms.found("size", 2) is whole
    assert terms.found("size", 2.0) is not whole
    assert terms.found("f", ("h", 0.5, 3)) is not within
    assert terms.found("f", ("g", 0.5, 3, 1)) is not within


def test_a_module_of_a_list_is_as_long_as_its_local() -> None:
    """Which is what breaks lines, and decides whether an expression stands within another."""
    assert measure(Part("layers"), str) == len("self.layers")
    assert measure(Part("layers", 0), str) == len("layer")
    assert measure(Read(Variable("hidden")), lambda target: target.hint) == len("hidden")


# --- mutants ----------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module, file: FileWriter) -> list[ast.FunctionDef]:
    """The methods that are written for the model: helpers are copied, not written."""
    own = {file.classes.root_class, *(group.name for group in file.classes.groups)}
    classes = [s for s in tree.body if isinstance(s, ast.ClassDef) and s.name in own]
    written_out = ("stream", "generate")
    return [f for c in classes for f in c.body if isinstance(f, ast.FunctionDef) and f.name not in written_out]


def names(f: ast.FunctionDef) -> list[ast.Name]:
    """Where locals and parameters are read."""
    bound = {n.id for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for a in f.args.args[1:]}
    return [n for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in bound]


def bodies(f: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(f):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def reads(s: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def binds(s: ast.stmt) -> set[str]:
    if not isinstance(s, ast.Assign):
        return set()
    return {n.id for t in s.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def swap_names(f: ast.FunctionDef, r: random.Random) -> str:
    """Another local is read."""
    places = names(f)
    if len({n.id for n in places}) < 2:
        return ""
    place = r.choice(places)
    other = r.choice(sorted({n.id for n in places} - {place.id}))
    found = f"{place.id} -> {other}"
    place.id = other
    return found


def drop(f: ast.FunctionDef, r: random.Random) -> str:
    """A statement is missing that binds what is read, or makes what is part of the model."""
    every = [(b, s) for b in bodies(f) for s in b if isinstance(s, ast.Assign)]
    if not every:
        return ""
    body, s = r.choice(every)
    body.remove(s)
    body.extend([] if body else [ast.Pass()])
    return ast.unparse(s)


def number(f: ast.FunctionDef, r: random.Random) -> str:
    """A number is another."""
    every = [n for s in f.body for n in ast.walk(s) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    if not every:
        return ""
    n = r.choice(every)
    old = n.value
    n.value = old + 1 if isinstance(old, int) else old * 1.5
    return f"{old} -> {n.value}"


def reorder(f: ast.FunctionDef, r: random.Random) -> str:
    """A statement stands before the one that binds what it reads."""
    every = [(b, i) for b in bodies(f) for i in range(len(b) - 1) if binds(b[i]) & reads(b[i + 1])]
    if not every:
        return ""
    body, i = r.choice(every)
    body[i], body[i + 1] = body[i + 1], body[i]
    return ast.unparse(body[i])


def late(f: ast.FunctionDef, r: random.Random) -> str:
    """A local is bound to its value after what reads it."""
    pairs = [(b, i, j) for b in bodies(f) for i in range(len(b)) for j in range(i + 1, len(b))]
    every = [(b, i, j) for b, i, j in pairs if binds(b[i]) & reads(b[j]) and not isinstance(b[j], ast.Return)]
    if not every:
        return ""
    body, i, j = r.choice(every)
    s = body.pop(i)
    body.insert(j, s)
    return ast.unparse(s)


def module(f: ast.FunctionDef, r: random.Random) -> str:
    """Another attribute of the instance is read."""
    every = [
        n
        for n in ast.walk(f)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"
    ]
    every = [n for n in every if isinstance(n.ctx, ast.Load) and n.attr != "training"]
    if len({n.attr for n in every}) < 2:
        return ""
    n = r.choice(every)
    old = n.attr
    n.attr = r.choice(sorted({m.attr for m in every} - {old}))
    return f"self.{old} -> self.{n.attr}"


def sides(f: ast.FunctionDef, r: random.Random) -> str:
    """Operands or arguments change places."""
    every: list[ast.BinOp | ast.Call] = [
        n for n in ast.walk(f) if isinstance(n, ast.BinOp) and ast.dump(n.left) != ast.dump(n.right)
    ]
    every += [n for n in ast.walk(f) if isinstance(n, ast.Call) and len({ast.dump(a) for a in n.args}) > 1]
    every = [n for n in every if not ast.unparse(n).startswith("nn.Linear(")]  # which may be square
    if not every:
        return ""
    n = r.choice(every)
    if isinstance(n, ast.BinOp):
        if isinstance(n.op, ast.Add | ast.Mult | ast.BitOr):
            return ""  # the same
        n.left, n.right = n.right, n.left
    else:
        i = next(i for i in range(1, len(n.args)) if ast.dump(n.args[i]) != ast.dump(n.args[0]))
        n.args[0], n.args[i] = n.args[i], n.args[0]
    return ast.unparse(n)


def target(f: ast.FunctionDef, r: random.Random) -> str:
    """A value is bound to another name that is read."""
    every = [t for s in ast.walk(f) if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)]
    others = sorted({n.id for n in names(f)})
    if not every or len(others) < 2:
        return ""
    t = r.choice(every)
    old = t.id
    t.id = r.choice([n for n in others if n != old] or [old])
    return f"{old} -> {t.id}" if t.id != old else ""


WAYS = (swap_names, drop, number, reorder, late, module, sides, target)


@pytest.mark.slow
def test_what_is_broken_in_one_place_is_refused() -> None:
    r = random.Random(0)
    judged, missed = Counter[str](), []
    while sum(judged.values()) < MUTANTS:
        name, way = r.choice(MODELS), r.choice(WAYS)
        text, file = written(name)
        tree = ast.parse(text)
        f = r.choice(functions(tree, file))
        what = way(f, r)
        broken = ast.unparse(tree)
        if not what or broken == ast.unparse(ast.parse(text)):
            continue
        judged[way.__name__] += 1
        try:
            validate(broken, file.classes)
        except InvalidError:
            continue
        missed.append(f"{name} {f.name} {way.__name__}: {what}")
    assert len(missed) <= MUTANTS // 100, "\n".join(missed)
    assert min(judged[w.__name__] for w in WAYS) >= MUTANTS // 20


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("t5_small", "if cache is None or cache.first:", "if cache is None:"),
        ("t5_small", "if cache is None or cache.first:", "if cache is None or not cache.first:"),
        ("t5_small", "if cache is None or cache.first:", "if cache is None and cache.first:"),
        ("t5_small", "cache.store(k, v)", "cache.store(v, k)"),
        ("t5_small", "k, v = cache.stored()", "v, k = cache.stored()"),
        ("hf/rwkv", "cache.set_state(top, total, high)", "cache.set_state(total, top, high)"),
        ("hf/rwkv", "high = k.new_full", "high = 2 * k.new_full"),
        ("hf/rwkv", "if cache is None:\n            top", "if cache is not None:\n            top"),
    ],
)
def test_each_way_through_a_forward_with_a_cache_is_judged(name: str, right: str, wrong: str) -> None:
    """Without one, in the first step, and in those behind it."""
    file = FileWriter(archdsl.load(name), Extras(frozenset({"generate"})))
    text = file.write()
    validate(text, file.classes)
    parts = text.split(right)
    assert len(parts) > 1
    for i in range(1, len(parts)):
        with pytest.raises(InvalidError):
            validate(right.join(parts[:i]) + wrong + right.join(parts[i:]), file.classes)


DRAWN = """
block mix(layers: size)(x: [batch, time, width]) -> [batch, time, width] {
  param rates: [width] = log(1 + indices(width))
  param a: [width] = uniform(0.5)
  buffer turn: [width, width] = orthogonal
  x = x -> linear(width, init: depth_scaled(0.02, layers)) as m -> moe(experts: 4, top_k: 2, expert: turned)
  return (x -> linear(width, init: normal(0.3)) -> linear(width, init: normal(0.3))) * rates * a + sum(turn, axis: -1)
}
block turned(x: [..., width]) -> [..., width] { return x -> linear(width, init: orthogonal) }
model m(layers = 3, width = 16)(x: [batch, time, width]) -> [batch, time, width] {
  for i in layers { x += x -> mix(layers: layers) }
  param start: [width] = normal(0.5 / sqrt(width))
  return (x + start) -> linear(width, init: truncated_normal(0.02)) as head
}
"""


def changed(f: ast.FunctionDef, k: int) -> bool:
    """Leave out the k-th node of a function if a statement, make it larger if a number; return whether it is one."""
    node = [*ast.walk(f)][k]
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        node.value *= 1.5
        return True
    for body in bodies(f):
        if node in body and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            body[body.index(node)] = ast.Pass()  # type: ignore[arg-type]  # it is a statement
            return True
    return False


@pytest.mark.slow
def test_every_draw_counts() -> None:
    """A file is refused without any one statement that draws weights, and with any one number of those changed."""
    file = FileWriter(archdsl.load(text=DRAWN))
    text = file.write()
    broken = [text.replace("        self.init_weights()\n", "")]
    for i, f in enumerate(functions(ast.parse(text), file)):
        for k in range(len([*ast.walk(f)])) if f.name in ("reset_parameters", "init_weights") else ():
            tree = ast.parse(text)
            if changed(functions(tree, file)[i], k):
                broken.append(ast.unparse(tree))
    assert len(broken) > 20
    for other in broken:
        with pytest.raises(InvalidError):
            validate(other, file.classes)


def test_a_list_of_whole_numbers_takes_no_time() -> None:
    """Each may be a real number of the IR; that is asked of each alone, and not of all choices."""
    numbers = ", ".join(map(str, [*range(60), 0.5]))
    source = archdsl.torch_source(
        text=f"model m(x: [batch, 61]) -> [batch, 61] {{\n  buffer t: [61] = [{numbers}]\n  return x * t\n}}"
    )
    assert "torch.tensor(" in source


def test_a_power_of_a_part_of_an_axis_is_judged() -> None:
    body = 'return (x -> rearrange("b (n p) d -> b n (p d)", p: 4)) * 2 ** (time / 4)'
    module = archdsl.to_torch(text=f"model m(x: [batch, time, 8]) {{ {body} }}", allow_noncausal=True)
    x = torch.randn(2, 12, 8)
    torch.testing.assert_close(module(x), x.unflatten(1, (3, 4)).flatten(2) * 8)


POWERS = (
    "2 ** time",
    "3 ** batch",
    "batch ** time",
    "2 ** (time - batch)",
    "2 ** (5 * time * batch)",
    "2 ** 2 ** time",
)


@pytest.mark.parametrize("power", POWERS)
def test_a_power_of_a_size_is_judged(power: str) -> None:
    module = archdsl.to_torch(text=f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{\n  return x * {power}\n}}")
    x = torch.randn(2, 5, 8)
    expected = eval(power, {"batch": 2, "time": 5})
    torch.testing.assert_close(module(x), x * expected)


def test_a_power_that_is_too_large_for_any_size_is_refused() -> None:
    with pytest.raises(
        ArchError, match=r"error\[E0503\]: a number of this model is too large for any size of its axes"
    ):
        archdsl.torch_source(text="model m(x: [batch, time, 8]) { return x * 2 ** 2 ** (20 * time) }")


@pytest.mark.parametrize("size", ["(time * time + 1) / 3", "(time * time + time + 1) / 2"])
def test_a_size_that_is_never_whole_is_refused(size: str) -> None:
    with pytest.raises(ArchError, match=r"error\[E0503\]: found no sizes of axes for which .* is a whole number"):
        archdsl.torch_source(text=f"model m(x: [batch, time, 8]) {{ return x + mean(indices({size})) }}")


def test_a_model_may_have_many_axes() -> None:
    names = [f"x{i}" for i in range(20)]
    inputs = ", ".join(f"{x}: [a{x}, 4]" for x in names)
    body = " + ".join(f"sum({x}, axis: 0) * a{x}" for x in names)
    module = archdsl.to_torch(text=f"model m({inputs}) {{ return {body} }}", allow_noncausal=True)
    given = [torch.randn(n + 1, 4) for n in range(20)]
    torch.testing.assert_close(module(*given), sum(x.sum(0) * len(x) for x in given))


@pytest.mark.parametrize("op", ["&", "|"])
def test_modules_that_are_compared_are_called_once(op: str) -> None:
    text = f"""block own(x: [batch, time, width]) {{
      return x + where(((x -> linear(width) as a) >= 0) {op} ~((x -> linear(width) as b) > 1), x, 0)
    }}
    model m(width = 4)(x: [batch, time, width]) {{ return x -> own }}"""
    assert "self.a(x)" in archdsl.torch_source(text=text)


@pytest.mark.parametrize("factor", ["(1 / n)", "(1 / sqrt(n))", "(1 / 3)", "(1 / time)"])
def test_what_is_times_a_part_of_one_is_divided(factor: str) -> None:
    text = f"model m(n = 5)(x: float[batch, time, 8]) -> [batch, time, 8] {{ return (x -> gelu) * {factor} }}"
    file = FileWriter(archdsl.load(text=text))
    source = file.write()
    assert "F.gelu(x) / " in source
    validate(source, file.classes)
    with pytest.raises(InvalidError, match="returns something else"):
        validate(source.replace("F.gelu(x) / ", "F.gelu(x) * "), file.classes)
    made, x = load_source(source)(), torch.randn(2, 3, 8)
    value = {"(1 / n)": 5, "(1 / sqrt(n))": 5**0.5}.get(factor, 3)
    torch.testing.assert_close(made(x), torch.nn.functional.gelu(x) / value)


def test_what_is_times_a_part_of_a_tensor_stays_a_product() -> None:
    """Nor is a tensor that waits for its reader a number."""
    text = "model m(x: float[batch, time, 8]) { param s: [] = normal(1)  return (x -> gelu) * (1 / s) * (1 / 3) }"
    made, x = load_source(archdsl.torch_source(text=text))(), torch.randn(2, 3, 8)
    torch.testing.assert_close(made(x), torch.nn.functional.gelu(x) / made.s / 3)
