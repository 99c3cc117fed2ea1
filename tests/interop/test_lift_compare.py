"""How a lifted spec is held against its module: weights by a table of names, outputs, a training step, first values;
and blocks that stand for modules, which are held against them in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interop.test_lift_operators import compared, lifted, recorded
from torch import Tensor, nn
from torch.nn import functional as F

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.interop.lift import compare
from archdsl.interop.lift.compare import Drawn, Measured, Side, _scheme, drawn
from archdsl.interop.lift.declared import read, standing
from archdsl.interop.lift.export import Lengths, export
from archdsl.interop.lift.inputs import Input
from archdsl.interop.lift.lifting import _mapped
from archdsl.interop.lift.table import Row, Table, _starred, written
from archdsl.syntax.format import format_tree


class Two(nn.Module):
    """Two linear layers, of a sequence or of words."""

    def __init__(self, words: int = 0, fails: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, 4) if words else None
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] >= self.fails:
            raise ValueError("too long")
        y: Tensor = self.b(self.a(x if self.words is None else self.words(x)))
        return y


SPEC = "model m(x: [batch, time, 4]) -> [batch, time, 4] { return x -> linear(4) as a -> linear(4) as b }"
WORDS = (
    "model m(x: token[batch, time]) -> [batch, time, 4]"
    " { return x -> embedding(9, 4) as words -> linear(4) as a -> linear(4) as b }"
)
ENDS = ("weight", "bias")
SAME = {name: Row(name, name) for name in ("words.weight", "a.weight", "a.bias", "b.weight", "b.bias")}


def side(module: nn.Module, kind: str = "float", lengths: Lengths | None = None) -> Side:
    axes: tuple[int | str, ...] = ("batch", "time", 4) if kind == "float" else ("batch", "time")
    return Side(module.eval(), {}, {}, [Input("x", kind, axes, 9)], [0], lengths or Lengths())


@pytest.mark.parametrize(
    ("spec", "rows", "said"),
    [
        (SPEC, SAME, "40 parameters in 4 tensors"),
        (SPEC, SAME | {"a.bias": Row("a.bias", "c.bias")}, "`a.bias` is nothing of the module's; the spec has no"),
        (SPEC.replace("linear(4) as a", "linear(5) as a"), SAME, "`a.weight` is [5, 4], and `a.weight` [4, 4]; "),
        (SPEC.replace("linear(4)", "linear(4, bias: false)"), SAME, "the spec has no `a.bias` [4]; the spec has"),
        (SPEC, {}, "`b.weight` is nothing of the module's and 5 more"),
        (SPEC.replace("as a", "as a -> linear(4) as c"), SAME | {f"c.{n}": Row(f"c.{n}", f"a.{n}") for n in ENDS},
         "the spec has 60 parameters, and the module 40"),
    ],
)  # fmt: skip
def test_weights_that_are_not_the_modules_are_told(spec: str, rows: dict[str, Row], said: str) -> None:
    check = compare.parameters(side(Two()), archdsl.load(text=spec), Table(rows.values()), ())
    assert said in check.message
    assert check.passed == (check.message == "40 parameters in 4 tensors")


@pytest.mark.parametrize(
    ("module", "spec", "rows", "said"),
    [
        (Two(), SPEC, SAME, "outputs are equal to "),
        (Two(), SPEC, {}, "the emitted module cannot be called: KeyError: "),
        (Two(), SPEC, SAME | {"a.bias": Row("a.bias", "a.weight")}, "emitted module cannot be called: RuntimeError: "),
        (Two(), SPEC, SAME | {"a.bias": Row("a.bias", "b.bias")}, "outputs differ by "),
        (Two(fails=12), SPEC, SAME, "`Two` cannot be called: ValueError: too long"),
        (Two(), SPEC.replace("[batch, time, 4] {", "[batch, time] {").replace("as b", "as b -> sum"), SAME,
         "outputs are [[2, 11]], and the module's [[2, 11, 4]]"),
    ],
)  # fmt: skip
def test_outputs_that_are_not_the_modules_are_told(
    module: nn.Module, spec: str, rows: dict[str, Row], said: str
) -> None:
    check = compare.outputs(side(module), archdsl.load(text=spec), Table(rows.values()), ["x"])
    assert said in check.message
    assert check.passed == ("equal" in said)


@pytest.mark.parametrize(
    ("side", "rows", "said"),
    [
        (side(Two(words=9), "token"), SAME, "24 decode steps with a cache are equal to "),
        (side(Two(words=9), "token"), {}, "decode steps of the emitted module fail: KeyError: "),
        (side(Two(words=9, fails=12), "token"), SAME, "`Two` cannot be called: ValueError: too long"),
        (side(Two(words=9), "token", Lengths(1, 1)), SAME, None),
        (side(Two(), "float"), SAME, None),
    ],
)
def test_decode_steps_that_are_not_the_modules_are_told(side: Side, rows: dict[str, Row], said: str | None) -> None:
    check = compare.decode_steps(side, archdsl.load(text=WORDS), Table(rows.values()), ["x"])
    if said is None:
        assert check is None
    else:
        assert not isinstance(check, str | None)
        assert said in check.message
        assert check.passed == ("equal" in said)


# --- training ---------------------------------------------------------------------------------------------------------


class Trained(nn.Module):
    """What training has otherwise, once of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(x.mT).mT)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.25 if self.training else 0.0)
        x = F.leaky_relu(x, 0.2 if self.training else 0.1).relu()
        return (x + torch.rand_like(x)).relu() if self.training else x


class Halting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training and x.sum() > 0 else x


def remarks(module: nn.Module) -> list[str]:
    own, example = side(module), {"x": torch.randn(3, 7, 4)}
    found = export(module.eval(), example, {"x": own.inputs[0].open}, types=False)
    texts = compare.in_training(own, found, example)
    assert not module.training
    return texts


def test_what_a_training_step_does_otherwise_is_told() -> None:
    assert sorted(remarks(Trained())) == [
        "in training, `add` is called 1 times, not 0: `Trained`",
        "in training, `leaky_relu` has the numbers [0.2], not [0.1]: `Trained`",
        "in training, `relu` is called 2 times, not 1: `Trained`",
        "in training, attention has dropout (0.25): `Trained`",
        "in training, statistics of the batch take the place of running ones: `norm` (BatchNorm1d)",
        "in training, there is noise (`rand_like`): `Trained`",
    ]
    assert [text.partition(": ")[0] for text in remarks(Halting())] == ["its training step cannot be traced"]


class Counting(nn.Module):
    """A module that counts its calls, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        y: Tensor = self.inner(x)
        return y


def test_what_a_module_writes_into_its_buffers_is_no_result() -> None:
    module = Counting()
    exported = recorded(module)
    assert "-> linear(8) as inner" in format_tree(lifted(exported).tree)
    compared(exported, [module])


# --- first values -----------------------------------------------------------------------------------------------------


def test_whole_numbers_stay_what_they_are() -> None:
    module = Two()
    module.places = nn.Parameter(torch.arange(5), requires_grad=False)
    moved = compare.perturbed(module)
    assert torch.equal(moved["places"], torch.arange(5))
    assert not torch.equal(moved["a.weight"], module.a.weight)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.norm = nn.Embedding(9, 4), nn.Dropout(0.1), nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return F.dropout(self.drop(self.words(tokens)), 0.2, self.training)


def test_dropout_is_what_training_is() -> None:
    """Its rates are in the spec; that it is on is no difference."""
    report = archdsl.lift(Dropped(), torch.randint(0, 9, (2, 5)))
    assert "dropout(0.1) -> dropout(0.2)" in report.text
    assert not any("dropout" in remark for remark in report.remarks), report.remarks


def test_how_weights_are_drawn() -> None:
    luck = np.random.default_rng(0)
    many = {
        "normal(0.02": [luck.normal(0, 0.02, 10_000) for _ in range(4)],
        "normal(0.02, 1)": [luck.normal(1, 0.02, 10_000) for _ in range(4)],
        "uniform(0.5": [luck.uniform(-0.5, 0.5, 10_000) for _ in range(4)],
        "zeros": [np.zeros(10)] * 4,
        "ones": [np.ones(10)] * 4,
        "constant(0.25)": [np.full(10, 0.25)] * 4,
        "the same numbers whatever the seed": [np.arange(10)] * 4,
    }
    found = {said: drawn(samples) for said, samples in many.items()}
    for said, one in found.items():
        rounded = Drawn(one.kind, round(one.mean, 2), round(one.std, 2) if one.kind == "normal" else one.std, one.count)
        assert str(rounded).startswith(said.rstrip(")"))
        for other, another in found.items():
            assert one.like(another) == (said == other and not said.startswith("the same"))
    assert Drawn("normal", 0, 0.02, 100).like(Drawn("uniform", 0, 0.02, 100)), "few numbers tell no law"


@pytest.mark.parametrize(
    ("stds", "layers", "said"),
    [
        ((0.02, 0.02), (2, 8), "normal(0.02)"),
        ((0.01, 0.005), (2, 8), "depth_scaled(0.02, depth)"),
        ((0.02, 0.04), (2, 8), None),
        ((0.01, 0.005), (0, 0), None),
    ],
)
def test_a_scheme_fits_every_configuration(stds: Sequence[float], layers: Sequence[int], said: str | None) -> None:
    theirs = [Drawn("normal", 0.0, std, 100_000) for std in stds]
    pairs = [Measured(d, d, (i, i), float(n)) for i, (d, n) in enumerate(zip(theirs, layers, strict=True))]
    assert _scheme(pairs, "depth") == said


# --- the table --------------------------------------------------------------------------------------------------------


def test_names_that_follow_from_no_number_are_none() -> None:
    table = Table(
        [
            Row("a.0.w", "x.0.1.w"),
            Row("a.1.w", "x.3.1.w"),
            Row("a.2.w", "x.4.1.w"),
            Row("b.0.c.1.w", "y.0.2.w"),
            Row("b.1.c.1.w", "y.1.2.w"),
            Row("only.3.w", "z.3.w"),
            Row("other.3.w", "z.4.w"),
        ]
    )
    assert table.of("a.5.w") is None
    assert table.of("b.4.c.1.w") == Row("b.4.c.1.w", "y.4.2.w")
    assert table.of("only.7.w") == Row("only.7.w", "z.7.w")
    assert table.of("other.7.w") == Row("other.7.w", "z.4.w")


def test_rows_that_are_not_alike_stay_apart() -> None:
    for theirs in (("x.0.w", "x.2.w"), ("x.0.w", "y.1.w"), ("x.0.w", "x.1.v.w")):
        rows = [Row(f"a.{i}.w", name) for i, name in enumerate(theirs)]
        assert _starred(rows) == rows
    assert _starred([Row("a.0.w", "x.0.w"), Row("a.1.w", "x.1.w")]) == [Row("a.*.w", "x.*.w")]
    turned = [Row("a.0.w", "x.0.w", True), Row("a.1.w", "x.1.w")]
    assert _starred(turned) == turned


def test_the_table_of_a_class_of_transformers_imports_its_config(tmp_path: Path) -> None:
    """What the spec has a hyper-parameter for is read, and all else has to be what it was."""
    spec = (
        "model m(width = 8, layers = 2)(x: [batch, time, 4]) -> [batch, time, width]\n"
        "{ x = x -> linear(width) as first\n for i in layers {\n"
        "x = x -> linear(width, bias: false) as rest }\n return x }"
    )
    config = {
        "model_type": "mine",
        "width": 8,
        "layers": 2,
        "act": "silu",
        "scales": [0.5, 0.25],
        "deep": {"width": 3, "eps": 1e-05, "on": True},
        "a b": 3,
        "nothing": None,
        "text": "with {braces}",
        "vocab_size": 7,
        "bos_token_id": 3,
    }
    rows = [
        Row("first.weight", "f.w", True),
        Row("first.bias", "f.b"),
        *(Row(f"rest.{i}.weight", f"r.{i}.weight") for i in (0, 1)),
    ]
    (tmp_path / "m.arch").write_text(spec, encoding="utf-8")
    made = written(
        Table(rows),
        archdsl.load(tmp_path / "m.arch"),
        tmp_path / "m.arch",
        origin="mine",
        stored=[*(r.theirs for r in rows), "gone.0", "copy"],
        ties={"copy": "f.w"},
        kind="mine",
        config=config,
    )
    assert made.text is not None
    assert made.text.splitlines() == [
        "# What the weights of `m.arch` are called in mine.",
        "",
        "type mine = m",
        "",
        "config {",
        "  width = width",
        "  layers = layers",
        '  act | "silu" = "silu"',
        "  scales = [0.5, 0.25]",
        "  deep.width = width",
        "  deep.eps | 1e-05 = 1e-05",
        "  deep.on | true = true",
        "  vocab_size | 7 = 7",
        "}",
        "ignore text",
        "",
        "f.w [i o] = first.weight [o i]",
        "f.b = first.bias",
        "r = rest",
        "tie copy = f.w",
        "drop gone.*",
    ]
    check = _mapped(made, archdsl.load(tmp_path / "m.arch"), Two())
    assert not check.passed
    assert check.message.startswith("")


# --- blocks that stand for modules ------------------------------------------------------------------------------------


class Parts(nn.Module):
    """Several results, of which one is none."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))
        self.groups = groups

    def forward(self, x: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        y = x * self.gain
        last = [y[:, t] for t in range(y.shape[1])][-1]
        return torch.cat([y, y], -1), None, y[..., :3], y[..., : 8 // self.groups] + 0 * last[:, None, :1]


class Parted(nn.Module):
    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.parts = Parts(groups)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, _, b, c = self.parts(x)
        return a, b, c


PARTS = """
block parts(groups)(x: [..., width]) -> (a: [..., 2 * width], b: [..., 3], c: [..., width / groups]) {
  param gain: [width] = ones
  y = x * gain
  return concat(y, y), y[..., :3], y[..., :width / groups]
}
"""


def declared(tmp_path: Path, text: str, cls: str = "Parts") -> Any:
    (tmp_path / "block.arch").write_text(text, encoding="utf-8")
    return read(f"{cls}={tmp_path / 'block.arch'}")


def test_a_block_stands_for_a_module_with_several_results(tmp_path: Path) -> None:
    module = Parted().eval()
    example, axes = {"x": torch.randn(3, 7, 8)}, {"x": ("batch", "time", None)}
    exported = export(module, example, axes, [declared(tmp_path, PARTS)], types=False)
    assert "-> parts(groups: 2) as parts" in format_tree(lifted(exported).tree)
    compared(exported, [lambda x, i=i: module(x)[i] for i in range(3)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("groups)", "count)"), "`Parts` has no attribute `count`, a hyper-parameter of the block without a default"),
        (("* width]", "* gain(width)]"), "a result of a block that stands for a module has sizes of its inputs"),
        (("y[..., :3]", "y[..., :3] / 0"), "the block that stands for `Parts` does not fit it: "),
        (("[width] = ones", "[1] = ones"), "does not fit it: `gain` is [1] in the block, and [8] in the module"),
        (("[..., 3]", "[..., 4]"), "the block that stands for `Parts` does not fit it: "),
    ],
)
def test_a_block_that_does_not_fit_a_module_is_refused(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ArchError) as problem,
        standing(Parted(), {"x": torch.randn(3, 7, 8)}, [declared(tmp_path, PARTS.replace(*change))]),
    ):
        pass
    (found,) = problem.value.diagnostics
    assert found.code == "E0546"
    assert said in found.message


def test_what_declares_nothing_is_refused() -> None:
    for text in ("Parts", "=block.arch", "a b=block.arch", "Parts="):
        with pytest.raises(ArchError, match=r"E0546.*declares nothing"):
            read(text)


class Mixer(nn.Module):
    """The weights of a Mamba mixer, and something else that is computed with them; `wide` is no mixer's kernel."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.A_log, self.D = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.ones(8))
        self.in_proj = nn.Linear(4, 16, bias=False)
        self.conv1d = nn.Conv1d(8, 8, 3, groups=1 if wide else 8)
        self.x_proj, self.dt_proj = nn.Linear(8, 7, bias=False), nn.Linear(3, 8)
        self.out_proj = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.out_proj.weight[:, :4]) + self.D[:4]


@pytest.mark.parametrize("wide", [False, True])
def test_a_module_with_the_weights_of_a_known_one_that_is_another_is_itself(wide: bool) -> None:
    module = Mixer(wide)
    with standing(module, {"x": torch.randn(3, 7, 4)}, ()):
        assert "forward" not in module.__dict__
