"""The module that `archdsl lift` is asked for: found, built with other numbers, and called with inputs of its own."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import archdsl
from archdsl.diagnostics import ArchError, error
from archdsl.interop.lift import compare, lifting
from archdsl.interop.lift import module as modules
from archdsl.interop.lift.inputs import Input, demand_known, of_example, of_signature, opened, parsed
from archdsl.interop.lift.lifting import _model_name, stored
from archdsl.interop.lift.module import Number, Subject, chosen, found, hollow, of_callable, of_module, taken

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
FILE = """\
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from nowhere import Missing


@dataclass
class Sizes:
    width: int = 4
    depth: int = 2


class Own:
    def __init__(self, width: int = 4, depth: int = 2):
        self.width, self.depth, self.area = width, depth, width * depth


class Unresolved(nn.Linear):
    def __init__(self, config: Sizes, other: Missing = None):
        super().__init__(config.width, config.depth)


class Untyped(nn.Linear):
    def __init__(self, config):
        super().__init__(config.width, config.depth)


class Plain(nn.Linear):
    def __init__(self, config: Own):
        assert config.area == config.width * config.depth
        super().__init__(config.width, config.depth)


class Mapped(nn.Linear):
    def __init__(self, config: dict):
        super().__init__(config["width"], config["depth"])


class Named(nn.Linear):
    def __init__(self, width: int = 4, depth: int = 2, text: str = "a"):
        super().__init__(width, depth)


there = nn.Linear(4, 2)
largest = max
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(FILE, encoding="utf-8")
    return tmp_path / "model.py"


@pytest.mark.parametrize("name", ["Unresolved", "Untyped", "Plain", "Mapped"])
def test_a_config_is_made_of_a_dict_and_of_other_numbers(name: str, file: Path) -> None:
    """Whatever its parameter is annotated with."""
    subject = found(f"{file}:{name}", {"config": {"width": 6, "depth": 3}})
    assert subject.numbers == {"width": 6, "depth": 3}
    assert subject.made().weight.shape == (3, 6)
    assert subject.made({"depth": 5}).weight.shape == (5, 6)


def test_what_a_file_holds(file: Path) -> None:
    """A class with numbers of its own, a module that is there, and what Python cannot tell the parameters of."""
    assert found(f"{file}:Named", {}).made({"width": 8}).weight.shape == (2, 8)
    assert found(f"{file}:there", {}).made().weight.shape == (2, 4)
    with pytest.raises(ArchError, match=r"E0544.*`max` cannot be built: TypeError"):
        found(f"{file}:largest", {}).made()


@dataclasses.dataclass
class Config:
    width: int = 4
    depth: int = 2
    biased: bool = True


class Configured(nn.Linear):
    def __init__(self, config: Config) -> None:
        super().__init__(config.width, config.depth, config.biased)
        self.config = config


class Two(Configured):
    """A class that takes more than its config."""

    def __init__(self, config: Config, other: int) -> None:
        super().__init__(config)


def test_a_module_that_is_there_is_built_again_from_its_config() -> None:
    module = Configured(Config(width=6))
    subject = of_module(module)
    assert subject.made() is module
    assert subject.numbers == {"width": 6, "depth": 2}
    assert subject.made({"width": 8}).weight.shape == (2, 8)
    with pytest.raises(ArchError, match="`Configured` cannot be built with width=-1"):
        subject.made({"width": -1})
    assert of_module(Two(Config(), 3)).numbers == {}


class Kept(nn.Module):
    """A module whose buffer is made of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("twice", self.weight.detach() * 2)


def test_a_buffer_that_is_made_of_parameters_needs_their_numbers() -> None:
    assert hollow(Kept) is None
    assert of_callable(Kept, {}).made().twice.tolist() == [2, 2, 2]


TINY: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}
LLAMA = TINY | {"num_key_value_heads": 2}


def test_a_class_of_transformers_is_built_with_other_numbers() -> None:
    """What follows from a number follows again, and a list with an item for each layer is one for other layers."""
    subject = found("transformers:LlamaForCausalLM", {"hidden_size": 32}, LLAMA)
    assert subject.numbers["hidden_size"] == 32
    assert "head_dim" not in subject.numbers
    assert subject.config.use_cache is True
    module = subject.made({"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": 50})
    assert module.config.use_cache is False
    assert len(module.model.layers) == 3
    assert module.model.layers[2].self_attn.q_proj.weight.shape == (48, 48)
    assert module.config._attn_implementation == "sdpa"
    with pytest.raises(ArchError, match="`LlamaForCausalLM` cannot be built with hidden_size=-1: "):
        subject.made({"hidden_size": -1})
    again = of_module(module, "again")
    assert again.made() is module
    assert again.made({"hidden_size": 32}).lm_head.weight.shape == (50, 32)

    capped = found("transformers:Gemma2ForCausalLM", {}, LLAMA | {"head_dim": 8})
    assert capped.made().config._attn_implementation == "eager"
    more = capped.made({"num_hidden_layers": 5}).config
    assert more.layer_types == ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]


def test_transformers_is_needed_for_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ArchError, match=r"E0502.*`transformers:` needs the package transformers"):
        found("transformers:LlamaForCausalLM", {})


# --- other configurations ---------------------------------------------------------------------------------------------


def test_other_numbers_are_tried_in_turn() -> None:
    """Those of known roles together; one by one where they do not fit; then each other number in a few values."""
    assert [*chosen({"n_layer": 2, "n_experts": 4, "rank": 3, "hidden": 64, "one": 1, "eps": 0.5}, 0, False)] == [
        {"n_layer": 3, "n_experts": 5},
        {"rank": 4},
        {"rank": 6},
        {"hidden": 160},
        {"hidden": 65},
        {"hidden": 128},
    ]
    assert next(chosen({"n_experts": 16}, 1, False)) == {"n_experts": 9}
    numbers = {"n_layer": 2, "width": 32, "rank": 3, "rest": 5}

    def works(changes: Mapping[str, Number]) -> bool:
        return changes.get("width", 32) == 32 and changes.get("rank", 3) % 3 == 0

    subject = Subject("M", lambda _: nn.Linear(1, 1), numbers)
    assert taken(subject, works) == [
        {"n_layer": 3, "rank": 6, "rest": 6},
        {"n_layer": 5, "rank": 9, "rest": 7},
    ]
    tried: list[Mapping[str, Number]] = []
    taken(Subject("M", subject.build, {f"a{i}": 2 for i in range(200)}), lambda c: bool(tried.append(c)))
    assert len(tried) == 2 * modules.MOST_TRIED


def test_a_module_that_is_too_large_for_memory_needs_smaller_numbers(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (modules, lifting):
        monkeypatch.setattr(place, "MOST_NUMBERS", 5)
    with pytest.raises(ArchError) as problem:
        archdsl.lift(f"{file}:Named", inputs=["input=float[batch,4]"])
    (found_,) = problem.value.diagnostics
    assert found_.message == "`Named` has more than 5 parameters, and no smaller configuration was found"


def test_a_module_that_is_too_large_for_memory_is_compared_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded without numbers, in both types."""
    for place in (modules, lifting):
        monkeypatch.setattr(place, "MOST_NUMBERS", 100)
    made = {"args": {"in_features": 3, "out_features": 50}, "inputs": ["input=float[batch,time,3]"]}
    report = archdsl.lift(nn.Linear, vary={"out_features": [5]}, **made)
    assert report.verified, report.checks
    assert [check.configuration for check in report.checks if check.what == "outputs"] == [{"out_features": 5}]
    assert report.parameters == 200


def test_numbers_within_numbers_and_lists_of_layers() -> None:
    """Of more layers, lists with an item for each are repeated."""
    whole = {"num_hidden_layers": 3, "text": {"width": 4, "kinds": [1, 2, 3]}, "kinds": ["a", "b", "b"], "other": [1]}
    paths = modules._number_paths(whole)
    new = modules._changed(whole, {"num_hidden_layers": 5, "width": 8}, paths)
    assert new == {
        "num_hidden_layers": 5,
        "text": {"width": 8, "kinds": [1, 2, 3]},
        "kinds": ["a", "b", "b", "a", "b"],
        "other": [1],
    }
    assert whole["text"] == {"width": 4, "kinds": [1, 2, 3]}


def test_no_memory_is_no_fault_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise MemoryError

    torch.save({}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(MemoryError):
        stored(tmp_path / "a.pt")


# --- what is said of a spec -------------------------------------------------------------------------------------------


def test_layers_that_repeat_in_a_pattern_are_lifted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def lifted(*_: Any, repeating: bool, **__: Any) -> Any:
        asked.append(repeating)
        return SimpleNamespace(apart=not repeating)

    monkeypatch.setattr(lifting, "_lifted", lifted)
    for numbers, vary in (({"n_layer": 2}, None), ({"width": 2}, None), ({"n_layer": 2}, {"n_layer": [3]})):
        lifting.lift(Subject("M", lambda _: nn.Linear(3, 3), numbers), vary=vary)
    assert asked == [False, True, False, False]


@pytest.mark.parametrize("first", ["E0302", "E0406"])
def test_a_spec_that_is_wrong_is_said_to_be_the_lifts(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter((first, "E0302"))

    def loaded(*_: Any) -> Any:
        raise error(next(codes), "a size")

    monkeypatch.setattr(lifting, "_loaded", loaded)
    with pytest.raises(ArchError) as problem:
        archdsl.lift(nn.Linear(3, 3), FLOATS, axes={"input": ("batch", "time", None)})
    assert [d.code for d in problem.value.diagnostics] == ["E0547", "E0302"]
    assert problem.value.diagnostics[0].message == "the spec that was made of `Linear` is wrong: a size"


def test_a_spec_of_no_other_configuration_and_what_was_not_compared_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = lifting._loaded

    def loaded(text: str, output: Path, changes: Any = None) -> Any:
        if changes:
            raise error("E0302", "a size")
        return own(text, output)

    monkeypatch.setattr(lifting, "_loaded", loaded)
    given = {"args": {"in_features": 3, "out_features": 4}, "inputs": ["input=float[batch,3]"]}
    report = archdsl.lift(nn.Linear, vary={"out_features": [5]}, **given)
    assert report.text.startswith("# unverified: there is no such model at out_features=5: a size\n")
    monkeypatch.setattr(compare, "runs", lambda _: False)
    report = archdsl.lift(nn.Linear(3, 4), FLOATS)
    assert report.text.startswith("# unverified: no outputs were compared\n")


# --- inputs -----------------------------------------------------------------------------------------------------------


class Forward(nn.Module):
    forward = staticmethod(torch.relu)


FLOATS = torch.zeros(2, 5, 3)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an input twice": (lambda: parsed(["x=int[batch]", "x=int[batch]"]), "the input `x` is given twice"),
    "axes of no input of an example": (lambda: of_example({"x": FLOATS}, {"y": ("batch",)}), "there is no input `y`"),
    "other axes of an example": (lambda: of_example({"x": FLOATS}, {"x": ("batch", "time")}), "`x` has 3 axes"),
    "one axis twice": (lambda: opened([Input("x", "float", ("batch", 3))], {"x": ("time", "time")}), "twice"),
    "a function without a signature": (
        lambda: of_signature(of_module(Forward()), Forward()),
        "`forward` of `Forward` takes 0 inputs, and nothing says what they are",
    ),
    "an input of such a function": (
        lambda: demand_known([Input("x", "float", ("batch", 3))], Forward(), "Forward"),
        "`forward` of `Forward` has no input `x`",
    ),
    "a config of no class of transformers": (
        lambda: archdsl.lift(nn.Linear(3, 3), FLOATS, config="config.json"),
        "`config` goes with the name of a class of transformers",
    ),
    "arguments of a module": (
        lambda: archdsl.lift(nn.Linear(3, 3), FLOATS, args={"a": 1}),
        "a module is there already",
    ),
    "no module": (lambda: archdsl.lift(3, FLOATS), "of class `int`, and no module of torch"),  # type: ignore[arg-type]
    "an example and inputs": (
        lambda: archdsl.lift(nn.Linear(3, 3), FLOATS, inputs=["input=float[batch,3]"]),
        "`example` and `inputs` say the same",
    ),
    "an example of nothing": (lambda: archdsl.lift(nn.Linear(3, 3), []), "`example` is a tensor, or several"),
    "several examples": (
        lambda: archdsl.lift(nn.Linear(3, 3), [FLOATS, FLOATS]),
        "`forward` of `Linear` takes fewer inputs than the 2 given",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_said_wrongly_of_inputs_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text("{}", encoding="utf-8")
    call, said = WRONG[name]
    with pytest.raises(ArchError, match=re.escape(said)) as problem:
        call()
    assert [d.code for d in problem.value.diagnostics] in (["E0543"], ["E0545"])


def test_inputs_have_the_sizes_and_kinds_that_are_said() -> None:
    (x, y, z) = parsed(["x=float[batch,width,7]", "y=bool[time]", "z=token[batch,time]"], {"width": 5})
    generator = torch.Generator().manual_seed(0)
    one = x.made(2, 3, {"width": 5}, generator)
    assert (one.shape, one.dtype) == ((2, 5, 7), torch.float32)
    two = y.made(2, 300, {}, generator)
    assert (two.shape, two.dtype, len({*two.tolist()})) == ((300,), torch.bool, 2)
    assert z.made(2, 3, {}, generator).dtype == torch.int64
    assert [i.axes for i in of_example({"x": FLOATS}, {"x": ("batch", "time", "_")})] == [("batch", "time", 3)]
    assert [i.axes for i in opened([x], {"x": ("_", "time", None)})] == [(7, "time", 7)]


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("LlamaModel", LLAMA, Input("input_ids", "token", ("batch", "time"))),
        ("ViTModel", TINY | {"image_size": 32, "patch_size": 16}, ("pixel_values", "image_size", "image_size")),
        ("ViTModel", TINY | {"image_size": [32, 48], "patch_size": 16}, ("pixel_values", 32, 48)),
        ("WhisperModel", {"max_source_positions": 20}, Input("input_features", "float", ("batch", "num_mel_bins", 40))),
        ("Wav2Vec2Model", {}, None),
    ],
)
def test_a_class_of_transformers_says_what_its_input_is(
    name: str, fields: Mapping[str, Any], expected: Input | Sequence[Any] | None
) -> None:
    cls: Any = getattr(transformers, name)
    with torch.device("meta"):
        module = cls(cls.config_class(**fields))
    subject = dataclasses.replace(of_module(nn.Linear(1, 1), name), config=module.config)
    if expected is None:
        assert [i.name for i in of_signature(subject, module)] == ["input_values"]
    elif isinstance(expected, Input):
        assert of_signature(subject, module) == [expected]
    else:
        assert of_signature(subject, module) == [Input(expected[0], "float", ("batch", "num_channels", *expected[1:]))]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Net", "net"),
        ("GPT2Model", "gpt2_model"),
        ("Block", "model_block"),
        ("Linear", "model_linear"),
        ("3 d", "model_3_d"),
        ("...", "lifted"),
    ],
)
def test_a_model_has_a_name_of_the_language(name: str, said: str) -> None:
    assert _model_name(name) == said


def test_a_file_of_no_state_dict_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    state: dict[str, Tensor] = {"a": torch.ones(2)}
    for held in (state, {"state_dict": state}, {"model": {f"module.{n}": t for n, t in state.items()}}):
        torch.save(held, path)
        assert {n: t.tolist() for n, t in stored(path).items()} == {"a": [1, 1]}
    for held in ({}, {"model": {}}, [torch.ones(2)], {"a": 3}):
        torch.save(held, path)
        with pytest.raises(ArchError, match=r"E0503.*m\.pt` holds no state dict"):
            stored(path)
    with pytest.raises(ArchError, match=r"E0503.*none\.pt` holds no state dict that can be read without running code"):
        stored(tmp_path / "none.pt")
    kinds = lifting.States({"a": torch.ones(2, dtype=torch.complex64)})
    with pytest.raises(ArchError, match=r"E0532.*`a` holds numbers of type complex64"):
        kinds.type_of("a")
