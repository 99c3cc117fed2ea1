"""`--with loss`: equal to cross-entropy of whole logits, in value and gradients, for every model that gives logits; and
the logits are never there as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from zoo import tiny as zoo
from zoo.sizes import distinct

import archdsl
from archdsl import ArchError
from archdsl.estimates.flops import estimate
from archdsl.estimates.head import head_of
from torch_emit.emitted import close, gradients, module, names_of, same_gradients, spec

ROWS = 7
"""Places at a time, so that a tiny model has several chunks, the last one short."""

# One model of each family that gives logits for each place.
MODELS = [
    "gpt1:gpt1",
    "gpt2:gpt2",
    "gpt3:gpt3_small",
    "gptj:gptj_6b",
    "llama3:llama3",
    "deepseek_v2:deepseek_v2",
    "deepseek_v3:deepseek_v3",
    "mistral:mistral_7b",
    "mixtral:mixtral_8x7b",
    "palm:palm_8b",
    "gopher:gopher_44m",
    "glm_130b:glm_130b_prefix",
    "deepnet:deepnet_1000",
    "bloom:bloom_560m",
    "sparsely_gated_moe:moe_32",
    "mamba:mamba_130m",
    "transformer:transformer_base",
    "bert:bert_token_classifier",
    "roberta:roberta_base",
    "albert:albert_base",
    "xlnet:xlnet_base",
    "t5:t5_small",
    "switch:switch_base_8",
    "linformer:linformer",
    "reformer:reformer_enwik8",
    "performer:performer",
    "bigbird:bigbird_base",
    "sparse_transformer:sparse_transformer_cifar10",
    "norms:post_layernorm",
    "rnn_lm:lstm_lm_small",
    "rnn_encoder_decoder:cho_2014",
    "seq2seq_attention:seq2seq",
    "show_attend_tell:show_attend_tell",
    "wavenet:wavenet",
    "bytenet:bytenet",
    "tagger:bilstm_tagger",
]


def targets_for(logits: Tensor) -> Tensor:
    targets = torch.randint(logits.shape[-1], logits.shape[:2], generator=torch.Generator().manual_seed(4))
    targets[0, :3] = -100
    return targets


def in_chunks(made: nn.Module) -> nn.Module:
    names_of(made)["chunked_cross_entropy"].__defaults__ = (ROWS,)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_equals_cross_entropy_of_whole_logits(name: str) -> None:
    """Value and every gradient; the weights are drawn as without the section."""
    graph = zoo.graph(name)
    plain, made = module(name).eval(), in_chunks(module(name, "loss")).eval()
    for (n, tensor), (other, kept) in zip(plain.state_dict().items(), made.state_dict().items(), strict=True):
        assert n == other
        assert torch.equal(tensor, kept)
    inputs = zoo.inputs(graph)
    logits = plain(**inputs)
    targets = targets_for(logits)
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    wanted.backward()
    close(made(**inputs), logits)
    found = made(*inputs.values(), targets)
    found.backward()
    close(found, wanted)
    same_gradients(gradients(made), gradients(plain))
    with torch.no_grad():
        close(made(*inputs.values(), targets), wanted)


def test_every_model_of_the_zoo_has_a_loss_or_a_reason() -> None:
    families = {name.partition(":")[0] for name in MODELS}
    for name in distinct():
        model = zoo.graph(name)
        results = [v for _, v in model.outputs]
        whole = len(results) == 1 and results[0].rank == 3 and any(v.dtype == "token" for _, v in model.inputs)
        codes = []
        try:
            head_of(model)
        except ArchError as problem:
            codes = [d.code for d in problem.diagnostics]
        if name.partition(":")[0] in families and whole:
            assert codes == [], name
        assert codes == [] if whole else codes == ["E0526"], name


CAPPED = """
block layer(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mlp(hidden: 2 * width)
}

model capped(width = 16) {
  vocab:   40
  context: 32
  width:   width
  blocks:  2 * layer
  norm:    layernorm
  head:    lm(tied: TIED, bias: true, scale: 0.5, softcap: 3)
}
"""


@pytest.mark.parametrize("name", ["gpt2:gpt2", "llama3:llama3"])
def test_the_head_is_computed_again_as_the_estimate_says(name: str) -> None:
    """By torch's own count, which takes each pair, of a head that is tied and of one that is not: a step with the loss
    in chunks, beside one whose logits are there as a whole."""
    tokens = zoo.inputs(zoo.graph(name))["tokens"]

    def counted(made: nn.Module, *targets: Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            made(tokens, *targets).sum().backward()
        return counter.get_total_flops()

    rows, time = tokens.shape
    said = estimate(zoo.graph(name), batch=rows, seq=time, convention="dense").flops.recomputation
    again = counted(in_chunks(module(name, "loss")), tokens) - counted(module(name))
    assert again == said.head > 0


@pytest.mark.parametrize("tied", ["true", "false"])
def test_bias_scale_and_softcap(tied: str) -> None:
    """What follows the map belongs to the head."""
    model = spec(CAPPED.replace("TIED", tied))
    made, plain = in_chunks(module(model, "loss")), module(model)
    tokens = torch.randint(40, (3, 9), generator=torch.Generator().manual_seed(1))
    targets = targets_for(torch.empty(3, 9, 40))
    with torch.no_grad():
        for parameter, other in zip(made.parameters(), plain.parameters(), strict=True):
            other.copy_(parameter.normal_())
    wanted = F.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten())
    wanted.backward()
    (2 * made(tokens, targets)).backward()
    close(made(tokens, targets), wanted)
    same_gradients(gradients(made), {n: 2 * g for n, g in gradients(plain).items()})


def test_width_of_the_vocabulary() -> None:
    """The map is found where it is not to be told by its sizes."""
    model = spec(CAPPED.replace("TIED", "false").replace("vocab:   40", "vocab:   width"))
    made = module(model, "loss")
    tokens = torch.randint(16, (2, 5), generator=torch.Generator().manual_seed(1))
    close(made(tokens, tokens), F.cross_entropy(made(tokens).flatten(0, 1), tokens.flatten()))


def test_frozen_weights() -> None:
    """Nothing is asked of a head that is not trained, and its input still gets its gradient."""
    made, plain = in_chunks(module("llama3:llama3", "loss")), module("llama3:llama3")
    tokens = zoo.inputs(zoo.graph("llama3:llama3"))["tokens"]
    for each in (made, plain):
        each.head.weight.requires_grad_(False)
    F.cross_entropy(plain(tokens).flatten(0, 1), tokens.flatten()).backward()
    made(tokens, tokens).backward()
    assert made.head.weight.grad is None
    same_gradients(gradients(made), gradients(plain))


@pytest.mark.parametrize("training", [True, False])
def test_losses_of_the_blocks_are_added_in_training(training: bool) -> None:
    name = "switch:switch_base_8"
    made = module(name, "loss").train(training)
    inputs = zoo.inputs(zoo.graph(name))
    losses: dict[str, Tensor] = {}
    torch.manual_seed(3)  # of dropout
    logits = made(**inputs, losses=losses)
    targets = targets_for(logits)
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert float(sum(losses.values())) > 1e-3
    torch.manual_seed(3)
    close(made(*inputs.values(), targets), wanted + sum(losses.values()) if training else wanted)


def test_only_chunks_of_logits_exist() -> None:
    """No tensor of the whole vocabulary has more rows than a chunk, forwards and backwards."""

    class Largest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, tuple | list) else (found,):
                if isinstance(tensor, Tensor) and tensor.shape[-1:] == (4001,) and tensor.is_contiguous():
                    self.rows = max(self.rows, tensor.numel() // 4001)
            return found

    made = in_chunks(module("llama3:llama3", "loss", vocab=4001))
    tokens = torch.randint(4001, (4, 32), generator=torch.Generator().manual_seed(1))
    with Largest() as seen:
        made(tokens, tokens).backward()
    assert seen.rows == ROWS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bert:bert_base", "2 results"),
        ("deepseek_v3:deepseek_v3_mtp", "2 results"),
        ("vit:vit_b16", "reads no tokens"),
        ("conformer:conformer_transducer_l", "no logits"),
    ],
)
def test_refused(name: str, reason: str) -> None:
    path, model = zoo.place(name)
    refused(reason, spec=path, model=model)


HEAD = "block h(x: [batch, time, width]) -> [batch, time, 9] {{ {} }}\n"


@pytest.mark.parametrize(
    ("block", "result", "reason"),
    [
        ("for i in 2 { x = x + 1 } return x -> linear(9)", "return x -> h", "position by position"),
        ("return x -> shift(1) -> linear(9)", "return x -> h", "position by position"),
        ("return x -> linear(9)", "y = x -> h  z = y -> linear(4)  return y * 2", "is read elsewhere, too"),
    ],
)
def test_heads_that_chunks_do_not_take(block: str, result: str, reason: str) -> None:
    body = f"x = tokens -> embedding(9, 8)  {result}"
    text = f"{HEAD.format(block)}model m(tokens: token[batch, time]) -> [batch, time, 9] {{ {body} }}"
    refused(reason, text=text)
    fine = text.replace(block, "return x -> gelu -> linear(9)").replace(result, "return x -> h")
    archdsl.torch_source(text=fine, features=["loss"])


def refused(reason: str, **spec: Any) -> None:
    with pytest.raises(ArchError) as raised:
        archdsl.torch_source(**spec, features=["loss"])
    (found,) = raised.value.diagnostics
    assert found.code == "E0526"
    assert reason in found.message


def test_no_head_is_refused() -> None:
    headless = CAPPED.replace("  head:    lm(tied: TIED, bias: true, scale: 0.5, softcap: 3)\n", "")
    with pytest.raises(ArchError) as raised:
        archdsl.torch_source(text=headless, features=["loss"])
    assert "position by position" in raised.value.diagnostics[0].message


def test_names_that_are_taken() -> None:
    """Inputs and modules of the spec's may be called as the section calls its own."""
    model = spec(
        """
model named(width = 8)(targets: token[batch, time]) {
  return targets -> embedding(30, width) as hidden -> linear(30, bias: false) as logits -> tanh
}
"""
    )
    made = module(model, "loss")
    tokens = torch.randint(30, (2, 5), generator=torch.Generator().manual_seed(1))
    close(made(targets=tokens, labels=tokens), F.cross_entropy(made(tokens).flatten(0, 1), tokens.flatten()))


@pytest.mark.parametrize(
    "head",
    [
        "(x -> unembed(table -> l2_normalize)) * scale * sqrt(width)",
        "(x -> unembed(t)) * scale",
        "x -> unit(97) as head",
        "((x -> linear(97)) + gain) * gain",
    ],
)
def test_weights_of_a_head_may_be_computed(head: str) -> None:
    """Normalized tables, those that embed the tokens too, and heads that are blocks."""
    text = f"""
    block unit(features: size)(x: [..., width]) -> [..., features] {{
      param weight: [features, width] = normal(1)
      return x -> unembed(weight -> l2_normalize)
    }}
    model m(width = 8)(tokens: token[batch, time]) -> [batch, time, 97] {{
      param table: [97, width] = normal(1)
      param scale: [97] = uniform(1)
      t = table -> l2_normalize
      gain = tanh(scale)
      x = t[tokens] + (tokens -> embedding(97, width))
      return {head}
    }}
    """
    model = spec(text)
    plain, made = module(model), module(model, "loss")
    tokens, targets = (torch.randint(97, (2, 13)) for _ in range(2))
    wanted = F.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten())
    wanted.backward()
    found = made(tokens, targets)
    found.backward()
    close(found, wanted)
    close(made(tokens), plain(tokens))
    same_gradients(gradients(made), gradients(plain))


def test_logits_of_two_tensors_are_refused() -> None:
    text = """
    model m(tokens: token[batch, time]) -> [batch, time, 97] {
      x = tokens -> embedding(97, 8)
      return (x -> linear(97)) + (x -> sigmoid -> linear(97))
    }
    """
    with pytest.raises(ArchError, match="not made position by position from one tensor"):
        module(spec(text), "loss")
