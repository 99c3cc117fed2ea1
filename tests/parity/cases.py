"""The cases: for each a spec, the reference it must equal, its inputs, and the table of names between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from zoo import tiny as zoo

import archdsl
from parity.mapping import Rule, table
from parity.reference import BATCH, SOURCE, TIME, VOCAB, tiny, tokens

SPECS = Path(__file__).parent / "specs"

Inputs = Callable[[torch.Generator], tuple[dict[str, Any], tuple[Tensor, ...]]]
"""What the reference is called with, and what ours is."""


@dataclass(frozen=True)
class Case:
    """One architecture. `model` is the reference's class, or a function that imports it."""

    name: str
    model: str | Callable[[], type]
    config: str
    settings: Mapping[str, Any]
    rules: tuple[Rule, ...]
    inputs: Inputs
    inert: tuple[str, ...] = ()
    """Their tensors, by regular expression, that cannot move the result."""
    outputs: Callable[[Any], tuple[Tensor, ...]] = lambda out: (out.logits,)
    free: int = 2
    """How many leading axes of the inputs an export may leave open: batch and time, or the batch alone (images have a
    fixed size, and the steps of a `scan` are written out)."""
    keep: tuple[str, ...] = ()
    """Their tensors that keep what the class made them."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Settings of a model of the zoo for the comparison alone."""
    double: bool = False
    """Whether only float64 is compared."""

    def reference(self) -> nn.Module:
        return tiny(self.model, self.config, self.settings, keep=self.keep)

    def module(self) -> nn.Module:
        """Ours: of a spec beside this file, or for a name like `gpt2:gpt2` a tiny model of the zoo."""
        if self.name in zoo.tables():
            return zoo.module(self.name, **self.more).eval()
        return archdsl.to_torch(SPECS / f"{self.name}.arch").eval()


# --- inputs ---------------------------------------------------------------------------------------------------------


def ids(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """One sequence of tokens."""
    x = tokens(generator)
    return {"input_ids": x}, (x,)


def ids_segments_padding(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The second row ends five tokens early."""
    x = tokens(generator)
    segments = torch.randint(0, 2, x.shape, generator=generator)
    real = torch.arange(TIME) < torch.tensor([[TIME], [TIME - 5]])
    return {"input_ids": x, "token_type_ids": segments, "attention_mask": real.long()}, (x, segments, real)


def two_sequences_padded(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    source, target = tokens(generator, SOURCE), tokens(generator)
    real = torch.arange(SOURCE) < torch.tensor([[SOURCE - 4], [SOURCE]])
    return {"input_ids": source, "decoder_input_ids": target, "attention_mask": real.long()}, (source, target, real)


def pixels(size: int) -> Inputs:
    def make(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        x = torch.randn(BATCH, 3, size, size, generator=generator)
        return {"pixel_values": x}, (x,)

    return make


def vectors(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    x = torch.randn(BATCH, TIME, 64, generator=generator)
    return {"hidden_states": x}, (x,)


# --- configurations shared by several -------------------------------------------------------------------------------

LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = dict(
    LLAMA,
    intermediate_size=96,
    num_key_value_heads=4,
    moe_intermediate_size=24,
    n_routed_experts=8,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    kv_lora_rank=20,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=16,
)
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 112,
    "decoder_ffn_dim": 112,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def rope(theta: float = 10_000.0, kind: str = "default", **more: Any) -> dict[str, Any]:
    return dict(rope_type=kind, rope_theta=theta, **more)


# --- tables shared by several ---------------------------------------------------------------------------------------

LLAMA_ENDS = """
    model.embed_tokens.weight       token_embedding.weight
    model.norm.*                    norm.*
    lm_head.*                       head.*
"""
LLAMA_NORMS = """
    model.layers.#.input_layernorm.*            blocks.#.attention_norm.*
    model.layers.#.post_attention_layernorm.*   blocks.#.ffn_norm.*
"""
LLAMA_ATTENTION = """
    model.layers.#.self_attn.q_proj.*       blocks.#.attention.q.*
    model.layers.#.self_attn.k_proj.*       blocks.#.attention.k.*
    model.layers.#.self_attn.v_proj.*       blocks.#.attention.v.*
    model.layers.#.self_attn.o_proj.*       blocks.#.attention.out.*
    model.layers.#.self_attn.q_norm.*       blocks.#.attention.q_norm.*
    model.layers.#.self_attn.k_norm.*       blocks.#.attention.k_norm.*
"""
LLAMA_FFN = """
    model.layers.#.mlp.gate_proj.*          blocks.#.ffn.gate.*
    model.layers.#.mlp.up_proj.*            blocks.#.ffn.up.*
    model.layers.#.mlp.down_proj.*          blocks.#.ffn.down.*
"""
LLAMA_EXPERTS = """
    model.layers.#.mlp.gate.weight                      blocks.#.ffn.router.gate.weight
    model.layers.#.mlp.gate.e_score_correction_bias     blocks.#.ffn.router.balance.bias
    model.layers.#.mlp.experts.gate_up_proj             blocks.#.ffn.experts.{gate,up}.weight   gate_up
    model.layers.#.mlp.experts.down_proj                blocks.#.ffn.experts.down.weight
    model.layers.#.mlp.shared_experts.gate_proj.weight  blocks.#.ffn.shared.gate.weight
    model.layers.#.mlp.shared_experts.up_proj.weight    blocks.#.ffn.shared.up.weight
    model.layers.#.mlp.shared_experts.down_proj.weight  blocks.#.ffn.shared.down.weight
"""
MLA = """
    model.layers.#.self_attn.q_proj.weight              blocks.#.attention.q.weight
    model.layers.#.self_attn.q_a_proj.weight            blocks.#.attention.q_down.weight
    model.layers.#.self_attn.q_a_layernorm.weight       blocks.#.attention.q_norm.weight
    model.layers.#.self_attn.q_b_proj.weight            blocks.#.attention.q_up.weight
    model.layers.#.self_attn.kv_a_proj_with_mqa.weight  blocks.#.attention.kv_down.weight
    model.layers.#.self_attn.kv_a_layernorm.weight      blocks.#.attention.kv_norm.weight
    model.layers.#.self_attn.kv_b_proj.weight           blocks.#.attention.kv_up.weight
    model.layers.#.self_attn.o_proj.weight              blocks.#.attention.out.weight
"""
LLAMA_TABLE = table(LLAMA_ENDS + LLAMA_NORMS + LLAMA_ATTENTION + LLAMA_FFN)
MOE_TABLE = table(LLAMA_ENDS + LLAMA_NORMS + LLAMA_ATTENTION + LLAMA_EXPERTS)
DEEPSEEK_TABLE = table(LLAMA_ENDS + LLAMA_NORMS + MLA + LLAMA_FFN + LLAMA_EXPERTS)
PARALLEL_TABLE = table(
    LLAMA_ENDS + LLAMA_ATTENTION + LLAMA_FFN + "    model.layers.#.input_layernorm.*  blocks.#.norm.*"
)

GPT_LAYERS = """
    transformer.h.#.ln_1.*          blocks.#.attention_norm.*
    transformer.h.#.attn.c_attn.*   blocks.#.attention.{q,k,v}.*    t_thirds
    transformer.h.#.attn.c_proj.*   blocks.#.attention.out.*        conv
    transformer.h.#.ln_2.*          blocks.#.ffn_norm.*
    transformer.h.#.mlp.c_fc.*      blocks.#.ffn.up.*               conv
    transformer.h.#.mlp.c_proj.*    blocks.#.ffn.down.*             conv
"""
BERT_LAYERS = """
    layer.#.attention.self.query.*          blocks.#.attention.q.*
    layer.#.attention.self.key.*            blocks.#.attention.k.*
    layer.#.attention.self.value.*          blocks.#.attention.v.*
    layer.#.attention.output.dense.*        blocks.#.attention.out.*
    layer.#.attention.output.LayerNorm.*    blocks.#.attention_norm.*
    layer.#.intermediate.dense.*            blocks.#.ffn.up.*
    layer.#.output.dense.*                  blocks.#.ffn.down.*
    layer.#.output.LayerNorm.*              blocks.#.ffn_norm.*
"""
BERT_EMBEDDINGS = """
    word_embeddings.weight          token_embedding.weight
    position_embeddings.weight      position.weight
    token_type_embeddings.weight    segment_embedding.weight
    LayerNorm.*                     embedding_norm.*
"""


def under(prefix: str, text: str) -> str:
    """The rows of a table with a prefix before each of their names."""
    return "\n".join(prefix + line.strip() for line in text.splitlines() if line.strip()) + "\n"


def bert_table(root: str, head: str) -> tuple[Rule, ...]:
    return table(under(f"{root}.embeddings.", BERT_EMBEDDINGS) + under(f"{root}.encoder.", BERT_LAYERS) + head)


def seq2seq_layers(theirs: str, ours: str) -> str:
    """BART's names of one stack."""
    rows = "".join(
        f"""
        {theirs}.{attn}.q_proj.*       {ours}.{name}.q.*
        {theirs}.{attn}.k_proj.*       {ours}.{name}.k.*
        {theirs}.{attn}.v_proj.*       {ours}.{name}.v.*
        {theirs}.{attn}.out_proj.*     {ours}.{name}.out.*
        {theirs}.{attn}_layer_norm.*   {ours}.{name}_norm.*
        """
        for attn, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
    )
    return (
        rows
        + f"""
        {theirs}.fc1.*                 {ours}.ffn.up.*
        {theirs}.fc2.*                 {ours}.ffn.down.*
        {theirs}.final_layer_norm.*    {ours}.ffn_norm.*
    """
    )


def t5_stack(name: str) -> str:
    rows = ""
    for i, (attn, ours) in enumerate((("SelfAttention", "attention"), ("EncDecAttention", "cross_attention"))):
        rows += "".join(
            f"{name}.block.#.layer.{i}.{attn}.{a}.weight   {name}.#.{ours}.{b}.weight\n"
            for a, b in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))
        )
        ours = ours if i == 0 or name == "decoder" else "ffn"
        rows += f"{name}.block.#.layer.{i}.layer_norm.weight   {name}.#.{ours}_norm.weight\n"
    ffn = "1" if name == "encoder" else "2"
    if name == "decoder":
        rows += f"{name}.block.#.layer.2.layer_norm.weight   {name}.#.ffn_norm.weight\n"
    return (
        rows
        + f"""
        {name}.block.#.layer.{ffn}.DenseReluDense.wi.weight     {name}.#.ffn.up.weight
        {name}.block.#.layer.{ffn}.DenseReluDense.wi_0.weight   {name}.#.ffn.gate.weight
        {name}.block.#.layer.{ffn}.DenseReluDense.wi_1.weight   {name}.#.ffn.up.weight
        {name}.block.#.layer.{ffn}.DenseReluDense.wo.weight     {name}.#.ffn.down.weight
        {name}.block.#.layer.{ffn}.mlp.wi.weight                {name}.#.ffn.up.weight
        {name}.block.#.layer.{ffn}.mlp.wo.weight                {name}.#.ffn.down.weight
        {name}.block.#.layer.{ffn}.mlp.router.classifier.weight {name}.#.ffn.router.gate.weight
        {name}.block.#.layer.{ffn}.mlp.experts.expert_#.wi.weight   {name}.#.ffn.experts.up.weight[#]
        {name}.block.#.layer.{ffn}.mlp.experts.expert_#.wo.weight   {name}.#.ffn.experts.down.weight[#]
    """
    )


def t5_table(encoder_bias: str, decoder_bias: str, head: str = "") -> tuple[Rule, ...]:
    return table(
        f"""
        shared.weight                       token_embedding.weight
        encoder.final_layer_norm.weight     encoder_norm.weight
        decoder.final_layer_norm.weight     norm.weight
        encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight   {encoder_bias}
        decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight   {decoder_bias}
        {head}
        """
        + t5_stack("encoder")
        + t5_stack("decoder")
    )


# --- encoders -------------------------------------------------------------------------------------------------------

MLM = """
    cls.predictions.bias                    {head}.bias
    cls.predictions.transform.dense.*       {head}.dense.*
    cls.predictions.transform.LayerNorm.*   {head}.norm.*
"""

# --- images, sound, recurrences -------------------------------------------------------------------------------------


def _conformer_encoder() -> type:
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer

    return modeling_wav2vec2_conformer.Wav2Vec2ConformerEncoder


MAMBA = """
    backbone.embeddings.weight                  token_embedding.weight
    backbone.norm_f.weight                      norm.weight
    backbone.layers.#.norm.weight               blocks.#.attention_norm.weight
    backbone.layers.#.mixer.A_log               blocks.#.attention.log_rates
    backbone.layers.#.mixer.D                   blocks.#.attention.skip
    backbone.layers.#.mixer.conv1d.*            blocks.#.attention.conv.*
    backbone.layers.#.mixer.in_proj.weight      blocks.#.attention.input.weight
    backbone.layers.#.mixer.x_proj.weight       blocks.#.attention.select.weight
    backbone.layers.#.mixer.dt_proj.*           blocks.#.attention.step.*
    backbone.layers.#.mixer.out_proj.weight     blocks.#.attention.output.weight
"""
CONFORMER = """
    layer_norm.*                                norm.*
    layers.#.ffn1_layer_norm.*                  layer.#.ffn_1_norm.*
    layers.#.ffn1.intermediate_dense.*          layer.#.ffn_1.up.*
    layers.#.ffn1.output_dense.*                layer.#.ffn_1.down.*
    layers.#.self_attn_layer_norm.*             layer.#.attention_norm.*
    layers.#.self_attn.linear_q.*               layer.#.attention.q.*
    layers.#.self_attn.linear_k.*               layer.#.attention.k.*
    layers.#.self_attn.linear_v.*               layer.#.attention.v.*
    layers.#.self_attn.linear_out.*             layer.#.attention.out.*
    layers.#.self_attn.linear_pos.weight        layer.#.attention.position.weight   unwoven
    layers.#.self_attn.pos_bias_u               layer.#.attention.position.u
    layers.#.self_attn.pos_bias_v               layer.#.attention.position.v
    layers.#.conv_module.layer_norm.*           layer.#.convolution.layernorm.*
    layers.#.conv_module.pointwise_conv1.weight layer.#.convolution.widen.weight    squeeze
    layers.#.conv_module.depthwise_conv.weight  layer.#.convolution.depthwise.weight
    layers.#.conv_module.batch_norm.*           layer.#.convolution.batchnorm.*
    layers.#.conv_module.batch_norm.running_mean    layer.#.convolution.batchnorm.running_mean
    layers.#.conv_module.batch_norm.running_var     layer.#.convolution.batchnorm.running_var
    layers.#.conv_module.pointwise_conv2.weight layer.#.convolution.narrow.weight   squeeze
    layers.#.ffn2_layer_norm.*                  layer.#.ffn_2_norm.*
    layers.#.ffn2.intermediate_dense.*          layer.#.ffn_2.up.*
    layers.#.ffn2.output_dense.*                layer.#.ffn_2.down.*
    layers.#.final_layer_norm.*                 layer.#.norm.*
"""
VIT_LAYERS = """
    attention.q_proj.*      attention.q.*
    attention.k_proj.*      attention.k.*
    attention.v_proj.*      attention.v.*
    attention.o_proj.*      attention.out.*
    mlp.fc1.*               ffn.up.*
    mlp.fc2.*               ffn.down.*
"""


def vit_layers(prefix: str) -> str:
    rows = (line.split() for line in VIT_LAYERS.splitlines() if line.strip())
    return "".join(f"{prefix}.#.{a}  blocks.#.{b}\n" for a, b in rows)


CASES = {
    "conformer": Case(
        "conformer",
        _conformer_encoder,
        "Wav2Vec2ConformerConfig",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 112,
            "conv_depthwise_kernel_size": 7,
            "hidden_act": "swish",
            "position_embeddings_type": "relative",
            "max_source_positions": 64,
            "vocab_size": VOCAB,
        },
        # Their table of distances weaves sines and cosines, ours has the sines first.
        table(CONFORMER, unwoven=lambda t: torch.cat((t[:, ::2], t[:, 1::2]), dim=1)),
        vectors,
        inert=("pos_conv_embed",),
        outputs=lambda out: (out.last_hidden_state,),
    )
}
"""Of specs beside this file, whose architecture is neither in the zoo nor imported."""
