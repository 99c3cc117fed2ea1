"""Every model of the zoo: what the compiler says of it, and a training step of its tiny copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import archdsl
from archdsl.dependence.rows import mixing
from archdsl.ir.graph import Model
from archdsl.ir.walk import ops_below
from zoo import test_current, test_decoders, test_encoders, test_linear, test_others, test_taggers, tiny
from zoo.sizes import SAMPLE, distinct, sample

pytestmark = pytest.mark.slow

PUBLISHED: dict[str, int] = (
    test_current.PUBLISHED
    | test_decoders.PUBLISHED
    | test_encoders.PUBLISHED
    | test_linear.PUBLISHED
    | test_others.PUBLISHED
    | test_taggers.PUBLISHED
)
ACTIVE = test_current.ACTIVE | test_decoders.ACTIVE | test_encoders.ACTIVE | test_linear.ACTIVE
# A softmax is blind to biases of keys and of its last map, a norm over the batch to those before it; where there is one
# colour, a pixel sees nothing of its own.
SILENT = {
    "norms:post_batchnorm": (".k.bias", ".v.bias", ".out.bias", ".down.bias"),
    "show_attend_tell": ("soft_attention.score.bias",),
    "conformer": (".k.bias", ".depthwise.bias"),
    "pixel_rnn:pixel_rnn_mnist": ("first_layer.own.weight",),
}
LAYERS = {
    "bytenet:bytenet": 2 * 6 * 5,  # sets of five in the encoder, and in the decoder
    "bytenet:bytenet_lm": 6 * 5,
    "wavenet:wavenet": 3 * 10,
    "reformer:reformer_enwik8": 12,
    "reformer:reformer_crime_and_punishment": 6,
    "sparse_transformer:sparse_transformer_cifar10": 128,
    "sparse_transformer:sparse_transformer_imagenet64": 48,
    "deepnet:deepnet_decoder": 1000,
    "deepnet:deepnet_decoder_100": 100,
    "switch:switch_base_8": 24,
    "switch:switch_base_128": 24,
    "switch:switch_large_128": 48,
    "switch:switch_xxl": 48,
    "switch:switch_c": 30,
    "glm4_5:glm4_5": 92,  # `dense_layers` are the first of `layers`
    "glm4_5:glm4_5_air": 46,
    "show_attend_tell:show_attend_tell": 16,  # convolutions of VGG-19
}
"""Layers of models whose `layers`, `dense_layers` and `sparse_layers` are not all of them."""
BOTH = ("t5", "t5_v1_1", "transformer", "deepnet")
"""Families with as many layers in the encoder as in the decoder."""
FAMILIES: dict[str, list[str]] = {}
for name in tiny.tables():
    FAMILIES.setdefault(name.partition(":")[0], []).append(name)


def test_every_model_has_a_count_and_tiny_settings() -> None:
    zoo = {f"{e.file.removesuffix('.arch')}:{e.name}" for e in archdsl.list_zoo()}
    assert set(tiny.tables()) == set(PUBLISHED) == zoo


LINTS = {"W0401", "W0402", "W0403", "W0406"}
"""Of published sizes: vocabularies, widths, heads, recurrent layers of before there were matrix units."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_what_was_published(family: str) -> None:
    """Causal where it says so, which loading proves; rows of a batch are computed apart; every count."""
    path, _ = tiny.place(family)
    said = [d.code for d in archdsl.check(path)]
    # Reformer's paper is not causal, and taken for it; the code of self-attention in NumPy masks by a finite number.
    assumed = {"reformer": {"W0407"}, "self_attention": {"W0411"}}.get(family, set())
    assert {*said} <= LINTS | assumed
    assert said.count("W0406") <= 4
    for name in FAMILIES[family]:
        model = archdsl.load(path, model=tiny.place(name)[1])
        report = archdsl.estimate(model)
        params = report.params
        assert (params.total, params.active) == (PUBLISHED[name], ACTIVE.get(name, PUBLISHED[name])), name
        assert mixing(model) is None, name
        named = sum(n for field, n in report.config.items() if field.endswith("layers"))
        assert params.layers == LAYERS.get(name, named * (1 + (family in BOTH))), name


@pytest.mark.parametrize("name", sample())
def test_tiny_copies_run_and_train(name: str) -> None:
    silent = SILENT.get(name) or SILENT.get(name.partition(":")[0]) or (".k.bias",)
    assert [n for n, size in tiny.step(name).items() if size == 0 and not n.endswith(silent)] == []


def test_the_sample_has_all() -> None:
    """Every primitive, with every set of its options that some model of the zoo gives it."""
    used = {name: set(uses(tiny.graph(name))) for name in distinct()}
    assert set().union(*used.values()) == set().union(*(used.get(n) or uses(tiny.graph(n)) for n in SAMPLE))


def uses(model: Model) -> Iterator[tuple[str, ...]]:
    for op in ops_below(model.block.graph):
        yield op.op.name, *sorted(name for name, value in op.options.items() if value not in (None, False, ()))
