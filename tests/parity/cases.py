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
from parity.mapping import Rule, by_head, rows, table
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
    spec: str = ""
    """The spec's file if it is not called like the case, and `:` the model in it."""
    free: int = 2
    """How many leading axes of the inputs an export may leave open: batch and time, or the batch alone (images have a
    fixed size, and the steps of a `scan` are written out)."""
    keep: tuple[str, ...] = ()
    """Their tensors that keep what the class made them."""
    gain: float = 0.9
    more: Mapping[str, int] = field(default_factory=dict)
    """Settings of a model of the zoo for the comparison alone."""
    double: bool = False
    """Whether only float64 is compared."""

    @property
    def path(self) -> Path:
        return SPECS / f"{(self.spec or self.name).partition(':')[0]}.arch"

    @property
    def model_name(self) -> str | None:
        return self.spec.partition(":")[2] or None

    def reference(self) -> nn.Module:
        return tiny(self.model, self.config, self.settings, gain=self.gain, keep=self.keep)

    def module(self) -> nn.Module:
        """Ours: of a spec beside this file, or for a name like `gpt2:gpt2` a tiny model of the zoo."""
        if self.name in zoo.tables():
            return zoo.module(self.name, **self.more).eval()
        return archdsl.to_torch(self.path, model=self.model_name).eval()

    def resized(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same arguments with other sizes of their free axes: one row, and a few places less."""
        return tuple(a[:1, : a.shape[1] - 4] if self.free > 1 else a[:1] for a in arguments)


# --- inputs ---------------------------------------------------------------------------------------------------------


def ids(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """One sequence of tokens."""
    x = tokens(generator)
    return {"input_ids": x}, (x,)


def ids_and_segments(kinds: int) -> Inputs:
    """Tokens, and which of several segments each belongs to."""

    def make(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        x = tokens(generator)
        segments = torch.randint(0, kinds, x.shape, generator=generator)
        return {"input_ids": x, "token_type_ids": segments}, (x, segments)

    return make


def ids_segments_padding(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The second row ends five tokens early."""
    x = tokens(generator)
    segments = torch.randint(0, 2, x.shape, generator=generator)
    real = torch.arange(TIME) < torch.tensor([[TIME], [TIME - 5]])
    return {"input_ids": x, "token_type_ids": segments, "attention_mask": real.long()}, (x, segments, real)


def ids_and_padding(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """The second row ends three tokens early: near enough that every place sees a token within its window."""
    x = tokens(generator)
    real = torch.arange(TIME) < torch.tensor([[TIME], [TIME - 3]])
    return {"input_ids": x, "attention_mask": real.long()}, (x, real)


def texts_and_images(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    x, images = tokens(generator), torch.randn(3, 3, 24, 24, generator=generator)
    return {"input_ids": x, "pixel_values": images}, (x, images)


def two_sequences(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    source, target = tokens(generator, SOURCE), tokens(generator)
    return {"input_ids": source, "decoder_input_ids": target}, (source, target)


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


def mel_and_tokens(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    mel, target = torch.randn(BATCH, 20, 48, generator=generator), tokens(generator)
    return {"input_features": mel, "decoder_input_ids": target}, (mel.transpose(1, 2).contiguous(), target)


# --- configurations shared by several -------------------------------------------------------------------------------

GPT = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}
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


def without(settings: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k not in keys}


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


# --- decoders -------------------------------------------------------------------------------------------------------

DECODERS = (
    Case(
        "llama3_rope",
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(
            LLAMA,
            max_position_embeddings=128,
            rms_norm_eps=1e-5,
            rope_parameters=rope(
                500.0,
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        ),
        LLAMA_TABLE,
        ids,
    ),
    Case(
        "llama_bias",
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(
            LLAMA,
            num_key_value_heads=4,
            attention_bias=True,
            mlp_bias=True,
            head_dim=24,
            tie_word_embeddings=True,
            rope_parameters=rope(),
        ),
        LLAMA_TABLE,
        ids,
    ),
    Case(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        dict(
            LLAMA,
            num_hidden_layers=4,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=8,
            attn_logit_softcapping=20.0,
            final_logit_softcapping=10.0,
        ),
        table(
            """
            model.embed_tokens.weight       token_embedding.weight
            model.norm.weight               norm.weight
            model.layers.#.input_layernorm.weight               blocks.#.attention_norm.weight
            model.layers.#.post_attention_layernorm.weight      blocks.#.attention_post_norm.weight
            model.layers.#.pre_feedforward_layernorm.weight     blocks.#.ffn_norm.weight
            model.layers.#.post_feedforward_layernorm.weight    blocks.#.ffn_post_norm.weight
            """
            + LLAMA_ATTENTION
            + LLAMA_FFN
        ),
        ids,
    ),
    Case(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        dict(without(LLAMA, "num_key_value_heads"), rope_parameters=rope(partial_rotary_factor=0.25)),
        table(
            """
            gpt_neox.embed_in.weight                                token_embedding.weight
            gpt_neox.layers.#.input_layernorm.*                     blocks.#.attention_norm.*
            gpt_neox.layers.#.post_attention_layernorm.*            blocks.#.ffn_norm.*
            gpt_neox.layers.#.attention.query_key_value.*           blocks.#.attention.{q,k,v}.*    heads
            gpt_neox.layers.#.attention.dense.*                     blocks.#.attention.out.*
            gpt_neox.layers.#.mlp.dense_h_to_4h.*                   blocks.#.ffn.up.*
            gpt_neox.layers.#.mlp.dense_4h_to_h.*                   blocks.#.ffn.down.*
            gpt_neox.final_layer_norm.*                             norm.*
            lm_head.weight                                          head.weight
            """,
            heads=by_head(4),
        ),
        ids,
    ),
    Case(
        "falcon",
        "FalconForCausalLM",
        "FalconConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "new_decoder_architecture": False,
        },
        table(
            """
            transformer.word_embeddings.weight                      token_embedding.weight
            transformer.h.#.input_layernorm.*                       blocks.#.norm.*
            transformer.h.#.self_attention.query_key_value.weight   blocks.#.attention.{q,k,v}.weight    qkv
            transformer.h.#.self_attention.dense.weight             blocks.#.attention.out.weight
            transformer.h.#.mlp.dense_h_to_4h.weight                blocks.#.ffn.up.weight
            transformer.h.#.mlp.dense_4h_to_h.weight                blocks.#.ffn.down.weight
            transformer.ln_f.*                                      norm.*
            """,
            qkv=rows(64, 16, 16),
        ),
        ids,
    ),
    Case("qwen2", "Qwen2ForCausalLM", "Qwen2Config", dict(LLAMA, rope_parameters=rope()), LLAMA_TABLE, ids),
    Case(
        "olmo2",
        "Olmo2ForCausalLM",
        "Olmo2Config",
        dict(LLAMA, rope_parameters=rope()),
        table(
            LLAMA_ENDS
            + LLAMA_ATTENTION
            + LLAMA_FFN
            + """
            model.layers.#.post_attention_layernorm.weight      blocks.#.attention_post_norm.weight
            model.layers.#.post_feedforward_layernorm.weight    blocks.#.ffn_post_norm.weight
            """
        ),
        ids,
    ),
    Case(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "ffn_dim": 112,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
        table(
            """
            model.decoder.embed_tokens.weight       token_embedding.weight
            model.decoder.embed_positions.weight    position.weight
            model.decoder.final_layer_norm.*        norm.*
            """
            + seq2seq_layers("model.decoder.layers.#", "blocks.#")
        ),
        ids,
    ),
    Case(
        "phi",
        "PhiForCausalLM",
        "PhiConfig",
        dict(LLAMA, num_key_value_heads=4, rope_parameters=rope(partial_rotary_factor=0.5)),
        table(
            """
            model.embed_tokens.weight               token_embedding.weight
            model.layers.#.input_layernorm.*        blocks.#.norm.*
            model.layers.#.self_attn.q_proj.*       blocks.#.attention.q.*
            model.layers.#.self_attn.k_proj.*       blocks.#.attention.k.*
            model.layers.#.self_attn.v_proj.*       blocks.#.attention.v.*
            model.layers.#.self_attn.dense.*        blocks.#.attention.out.*
            model.layers.#.mlp.fc1.*                blocks.#.ffn.up.*
            model.layers.#.mlp.fc2.*                blocks.#.ffn.down.*
            model.final_layernorm.*                 norm.*
            lm_head.*                               head.*
            """
        ),
        ids,
    ),
    Case(
        "stablelm",
        "StableLmForCausalLM",
        "StableLmConfig",
        dict(LLAMA, rope_parameters=rope(partial_rotary_factor=0.25)),
        LLAMA_TABLE,
        ids,
    ),
    Case(
        "granite",
        "GraniteForCausalLM",
        "GraniteConfig",
        dict(
            LLAMA,
            embedding_multiplier=6.0,
            attention_multiplier=0.2,
            residual_multiplier=0.4,
            logits_scaling=3.0,
            rope_parameters=rope(),
        ),
        LLAMA_TABLE,
        ids,
    ),
    Case(
        "mpt",
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCAB, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
        table(
            """
            transformer.wte.weight                      token_embedding.weight
            transformer.blocks.#.norm_1.weight          blocks.#.attention_norm.weight
            transformer.blocks.#.attn.Wqkv.weight       blocks.#.attention.{q,k,v}.weight   thirds
            transformer.blocks.#.attn.out_proj.weight   blocks.#.attention.out.weight
            transformer.blocks.#.norm_2.weight          blocks.#.ffn_norm.weight
            transformer.blocks.#.ffn.up_proj.weight     blocks.#.ffn.up.weight
            transformer.blocks.#.ffn.down_proj.weight   blocks.#.ffn.down.weight
            transformer.norm_f.weight                   norm.weight
            """
        ),
        ids,
    ),
    Case(
        "nemotron",
        "NemotronForCausalLM",
        "NemotronConfig",
        dict(LLAMA, rope_parameters=rope(partial_rotary_factor=0.5)),
        table(
            """
            model.embed_tokens.weight                       token_embedding.weight
            model.layers.#.input_layernorm.weight           blocks.#.attention_norm.weight  plus_one
            model.layers.#.input_layernorm.bias             blocks.#.attention_norm.bias
            model.layers.#.post_attention_layernorm.weight  blocks.#.ffn_norm.weight        plus_one
            model.layers.#.post_attention_layernorm.bias    blocks.#.ffn_norm.bias
            model.norm.weight                               norm.weight                     plus_one
            model.norm.bias                                 norm.bias
            lm_head.weight                                  head.weight
            """
            + LLAMA_ATTENTION
            + LLAMA_FFN
        ),
        ids,
    ),
)

# --- mixtures of experts --------------------------------------------------------------------------------------------

EXPERTS = (
    Case(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        dict(
            LLAMA,
            head_dim=24,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            decoder_sparse_step=1,
            norm_topk_prob=True,
            rope_parameters=rope(),
        ),
        MOE_TABLE,
        ids,
    ),
    Case(
        "deepseek_v3_yarn",
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        dict(
            DEEPSEEK,
            n_shared_experts=1,
            q_lora_rank=28,
            n_group=4,
            topk_group=2,
            num_mtp_layers=0,
            max_position_embeddings=128,
            rope_parameters=rope(
                500.0,
                "yarn",
                factor=8.0,
                original_max_position_embeddings=16,
                beta_fast=32,
                beta_slow=1,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        ),
        DEEPSEEK_TABLE,
        ids,
        spec="deepseek_v3:deepseek_v3_yarn",
    ),
    Case(
        "gpt_oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        dict(
            LLAMA,
            num_hidden_layers=4,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            intermediate_size=48,
            max_position_embeddings=128,
            rope_parameters=rope(
                500.0,
                "yarn",
                factor=8.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=16,
            ),
        ),
        table(
            LLAMA_ENDS
            + LLAMA_NORMS
            + LLAMA_ATTENTION
            + """
            model.layers.#.self_attn.sinks                  blocks.#.attention.sinks
            model.layers.#.mlp.router.*                     blocks.#.ffn.router.gate.*
            model.layers.#.mlp.experts.gate_up_proj         blocks.#.ffn.experts.{gate,up}.weight   woven
            model.layers.#.mlp.experts.gate_up_proj_bias    blocks.#.ffn.experts.{gate,up}.bias     woven_bias
            model.layers.#.mlp.experts.down_proj            blocks.#.ffn.experts.down.weight        mt
            model.layers.#.mlp.experts.down_proj_bias       blocks.#.ffn.experts.down.bias
            """,
            woven=lambda t: (t[..., ::2].mT, t[..., 1::2].mT),
            woven_bias=lambda t: (t[:, ::2], t[:, 1::2]),
            mt=lambda t: t.mT,
        ),
        ids,
    ),
    Case(
        "llama4",
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        dict(
            LLAMA,
            num_hidden_layers=4,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=1,
            attention_chunk_size=8,
            floor_scale=4,
            interleave_moe_layer_step=1,
            rope_parameters=rope(),
        ),
        table(
            LLAMA_ENDS
            + LLAMA_NORMS
            + LLAMA_ATTENTION
            + """
            model.layers.#.feed_forward.router.weight                   blocks.#.ffn.router.weight
            model.layers.#.feed_forward.experts.gate_up_proj            blocks.#.ffn.experts.{gate,up}.weight  gate_up_t
            model.layers.#.feed_forward.experts.down_proj               blocks.#.ffn.experts.down.weight        mt
            model.layers.#.feed_forward.shared_expert.gate_proj.weight  blocks.#.ffn.shared.gate.weight
            model.layers.#.feed_forward.shared_expert.up_proj.weight    blocks.#.ffn.shared.up.weight
            model.layers.#.feed_forward.shared_expert.down_proj.weight  blocks.#.ffn.shared.down.weight
            """,
            gate_up_t=lambda t: t.mT.chunk(2, dim=1),
            mt=lambda t: t.mT,
        ),
        ids,
    ),
    Case(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        dict(
            LLAMA,
            num_hidden_layers=2,
            head_dim=16,
            layer_types=["linear_attention", "full_attention"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            norm_topk_prob=True,
            rope_parameters=rope(partial_rotary_factor=0.25),
        ),
        table(
            LLAMA_ENDS
            + LLAMA_NORMS
            + LLAMA_ATTENTION
            + LLAMA_EXPERTS
            + """
            model.layers.#.linear_attn.A_log                blocks.#.attention.log_rate
            model.layers.#.linear_attn.dt_bias              blocks.#.attention.step_bias
            model.layers.#.linear_attn.conv1d.weight        blocks.#.attention.conv.weight
            model.layers.#.linear_attn.in_proj_qkvz.weight  blocks.#.attention.{q,k,v,z}.weight     qkvz
            model.layers.#.linear_attn.in_proj_ba.weight    blocks.#.attention.{b,a}.weight         ba
            model.layers.#.linear_attn.norm.weight          blocks.#.attention.norm.weight
            model.layers.#.linear_attn.out_proj.weight      blocks.#.attention.out.weight
            model.layers.#.mlp.shared_expert_gate.weight        blocks.#.ffn.shared.gate.weight
            model.layers.#.mlp.shared_expert.gate_proj.weight   blocks.#.ffn.shared.expert.gate.weight
            model.layers.#.mlp.shared_expert.up_proj.weight     blocks.#.ffn.shared.expert.up.weight
            model.layers.#.mlp.shared_expert.down_proj.weight   blocks.#.ffn.shared.expert.down.weight
            """,
            # Packed by key head: its query, its key, then the values and gates of its two value heads.
            qkvz=lambda t: [p.flatten(0, 1) for p in t.unflatten(0, (2, -1)).split((8, 8, 16, 16), dim=1)],
            ba=lambda t: [p.flatten(0, 1) for p in t.unflatten(0, (2, -1)).split((2, 2), dim=1)],
        ),
        ids,
        free=1,
    ),
)

# --- encoders -------------------------------------------------------------------------------------------------------

MLM = """
    cls.predictions.bias                    {head}.bias
    cls.predictions.transform.dense.*       {head}.dense.*
    cls.predictions.transform.LayerNorm.*   {head}.norm.*
"""

ENCODERS = (
    Case(
        "electra",
        "ElectraForMaskedLM",
        "ElectraConfig",
        dict(BERT, embedding_size=32),
        bert_table(
            "electra",
            """
            electra.embeddings_project.*            embedding_projection.*
            generator_predictions.dense.*           head.dense.*
            generator_predictions.LayerNorm.*       head.norm.*
            generator_lm_head.bias                  head.bias
            """,
        ),
        ids_and_segments(2),
    ),
    Case(
        "modernbert",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 112,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "global_attn_every_n_layers": 3,
            "local_attention": 8,
            "rope_parameters": {"full_attention": rope(1000.0), "sliding_attention": rope(100.0)},
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        table(
            """
            model.embeddings.tok_embeddings.weight      token_embedding.weight
            model.embeddings.norm.weight                embedding_norm.weight
            model.layers.#.attn_norm.weight             blocks.#.attention_norm.weight
            model.layers.#.attn.Wqkv.weight             blocks.#.attention.{q,k,v}.weight   thirds
            model.layers.#.attn.Wo.weight               blocks.#.attention.out.weight
            model.layers.#.mlp_norm.weight              blocks.#.ffn_norm.weight
            model.layers.#.mlp.Wi.weight                blocks.#.ffn.{gate,up}.weight       halves
            model.layers.#.mlp.Wo.weight                blocks.#.ffn.down.weight
            model.final_norm.weight                     norm.weight
            head.dense.weight                           head.dense.weight
            head.norm.weight                            head.norm.weight
            decoder.bias                                head.bias
            """,
            halves=lambda t: t.chunk(2),
        ),
        ids_and_padding,
    ),
    Case(
        "fnet",
        "FNetForMaskedLM",
        "FNetConfig",
        dict(without(BERT, "num_attention_heads"), num_hidden_layers=2, type_vocab_size=4),
        table(
            under("fnet.embeddings.", BERT_EMBEDDINGS)
            + """
            fnet.embeddings.projection.*                    embedding_projection.*
            fnet.encoder.layer.#.fourier.output.LayerNorm.* blocks.#.attention_norm.*
            fnet.encoder.layer.#.intermediate.dense.*       blocks.#.ffn.up.*
            fnet.encoder.layer.#.output.dense.*             blocks.#.ffn.down.*
            fnet.encoder.layer.#.output.LayerNorm.*         blocks.#.ffn_norm.*
            """
            + MLM.format(head="head")
        ),
        ids_and_segments(4),
        inert=(r"pooler",),
    ),
    Case(
        "deberta",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        dict(
            BERT,
            num_hidden_layers=2,
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["c2p", "p2c"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
            type_vocab_size=0,
        ),
        table(
            """
            deberta.embeddings.word_embeddings.weight   words.weight
            deberta.embeddings.LayerNorm.*              embedding_norm.*
            deberta.encoder.rel_embeddings.weight       distance
            deberta.encoder.LayerNorm.*                 distance_norm.*
            """
            + under(
                "deberta.encoder.layer.#.",
                """
                attention.self.query_proj.*         layer.#.attention.query.*
                attention.self.key_proj.*           layer.#.attention.key.*
                attention.self.value_proj.*         layer.#.attention.v.*
                attention.output.dense.*            layer.#.attention.out.*
                attention.output.LayerNorm.*        layer.#.attention_norm.*
                intermediate.dense.*                layer.#.ffn.up.*
                output.dense.*                      layer.#.ffn.down.*
                output.LayerNorm.*                  layer.#.ffn_norm.*
                """,
            )
            + MLM.format(head="head")
        ),
        ids,
    ),
)

# --- encoder-decoders -----------------------------------------------------------------------------------------------

ENCODER_DECODERS = (
    Case(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        dict(SEQ2SEQ, max_position_embeddings=64),
        table(
            """
            model.shared.weight                     token_embedding.weight
            model.encoder.embed_positions.weight    position.weight
            model.decoder.embed_positions.weight    position_2.weight
            model.encoder.layernorm_embedding.*     embedding_norm.*
            model.decoder.layernorm_embedding.*     embedding_norm_2.*
            final_logits_bias                       head.bias               flat
            """
            + seq2seq_layers("model.encoder.layers.#", "encoder.#")
            + seq2seq_layers("model.decoder.layers.#", "decoder.#")
        ),
        two_sequences,
    ),
    Case(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        dict(SEQ2SEQ, num_mel_bins=20, max_source_positions=24, max_target_positions=32),
        table(
            """
            model.encoder.conv1.*                   first.*
            model.encoder.conv2.*                   second.*
            model.encoder.embed_positions.weight    position.weight
            model.encoder.layer_norm.*              encoder_norm.*
            model.decoder.embed_tokens.weight       words.weight
            model.decoder.embed_positions.weight    position_2.weight
            model.decoder.layer_norm.*              norm.*
            """
            + seq2seq_layers("model.encoder.layers.#", "encoder.#")
            + seq2seq_layers("model.decoder.layers.#", "decoder.#")
        ),
        mel_and_tokens,
    ),
)

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


OTHERS = (
    Case(
        "dinov2",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "mlp_ratio": 2,
            "image_size": 24,
            "patch_size": 6,
            "num_labels": 11,
        },
        table(
            """
            dinov2.embeddings.cls_token                         class_token
            dinov2.embeddings.position_embeddings               position.weight         first
            dinov2.embeddings.patch_embeddings.projection.*     patches.*
            dinov2.encoder.layer.#.norm1.*                      blocks.#.attention_norm.*
            dinov2.encoder.layer.#.norm2.*                      blocks.#.ffn_norm.*
            dinov2.encoder.layer.#.layer_scale1.lambda1         blocks.#.attention_residual.weight
            dinov2.encoder.layer.#.layer_scale2.lambda1         blocks.#.ffn_residual.weight
            dinov2.layernorm.*                                  norm.*
            classifier.*                                        head.output.*
            """
            + vit_layers("dinov2.encoder.layer"),
            first=lambda t: t[0],
        ),
        pixels(24),
        free=1,
        inert=("mask_token",),
    ),
    Case(
        "convnext",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {
            "num_channels": 3,
            "patch_size": 4,
            "hidden_sizes": [16, 32],
            "depths": [2, 2],
            "num_stages": 2,
            "image_size": 32,
            "num_labels": 11,
        },
        table(
            """
            convnext.embeddings.patch_embeddings.*              stem.*
            convnext.embeddings.layernorm.*                     stem_norm.norm.*
            convnext.encoder.stages.1.downsampling_layer.0.*    reduce_norm.norm.*
            convnext.encoder.stages.1.downsampling_layer.1.*    reduce.*
            convnext.layernorm.*                                norm.*
            classifier.*                                        head.*
            """
            + "".join(
                f"""
                convnext.encoder.stages.{i}.layers.#.layer_scale_parameter    {ours}.#.scale.weight
                convnext.encoder.stages.{i}.layers.#.dwconv.*                 {ours}.#.depthwise.*
                convnext.encoder.stages.{i}.layers.#.layernorm.*              {ours}.#.norm.*
                convnext.encoder.stages.{i}.layers.#.pwconv1.*                {ours}.#.ffn.up.*
                convnext.encoder.stages.{i}.layers.#.pwconv2.*                {ours}.#.ffn.down.*
                """
                for i, ours in enumerate(("first", "second"))
            )
        ),
        pixels(32),
        free=1,
    ),
    Case(
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
    ),
    Case(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        {
            "projection_dim": 40,
            "text_config": {
                "vocab_size": VOCAB,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "max_position_embeddings": 32,
                "eos_token_id": 2,
                "projection_dim": 40,
            },
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 24,
                "patch_size": 6,
                "projection_dim": 40,
            },
        },
        table(
            """
            logit_scale                                             log_scale           one
            text_model.embeddings.token_embedding.weight            read.words.weight
            text_model.embeddings.position_embedding.weight         read.position.weight
            text_model.final_layer_norm.*                           read.norm.*
            text_projection.weight                                  read.project.weight
            vision_model.embeddings.class_embedding                 see.class_token     row
            vision_model.embeddings.patch_embedding.weight          see.patches.weight
            vision_model.embeddings.position_embedding.weight       see.position.weight
            vision_model.pre_layrnorm.*                             see.first_norm.*
            vision_model.post_layernorm.*                           see.norm.*
            visual_projection.weight                                see.project.weight
            """
            + "".join(
                under(
                    f"{theirs}.encoder.layers.#.",
                    f"""
                    self_attn.q_proj.*      {ours}.layer.#.attention.q.*
                    self_attn.k_proj.*      {ours}.layer.#.attention.k.*
                    self_attn.v_proj.*      {ours}.layer.#.attention.v.*
                    self_attn.out_proj.*    {ours}.layer.#.attention.out.*
                    layer_norm1.*           {ours}.layer.#.attention_norm.*
                    layer_norm2.*           {ours}.layer.#.ffn_norm.*
                    mlp.fc1.*               {ours}.layer.#.ffn.up.*
                    mlp.fc2.*               {ours}.layer.#.ffn.down.*
                    """,
                )
                for theirs, ours in (("text_model", "read"), ("vision_model", "see"))
            ),
            one=lambda t: t[None],
            row=lambda t: t[None, None],
        ),
        texts_and_images,
        outputs=lambda out: (out.logits_per_text, out.logits_per_image),
        free=1,
    ),
    Case(
        "swin",
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 11,
        },
        table(
            """
            swin.embeddings.patch_embeddings.projection.*   patches.*
            swin.embeddings.norm.*                          patch_norm.*
            swin.encoder.layers.0.downsample.norm.*         merge.norm.*
            swin.encoder.layers.0.downsample.reduction.*    merge.reduce.*
            swin.layernorm.*                                norm.*
            classifier.*                                    head.*
            """
            + "".join(
                under(
                    f"swin.encoder.layers.{i}.blocks.#.",
                    f"""
                    layernorm_before.*      {ours}.#.attention_norm.*
                    layernorm_after.*       {ours}.#.ffn_norm.*
                    attention.q_proj.*      {ours}.#.attention.q.*
                    attention.k_proj.*      {ours}.#.attention.k.*
                    attention.v_proj.*      {ours}.#.attention.v.*
                    attention.o_proj.*      {ours}.#.attention.out.*
                    mlp.fc1.*               {ours}.#.ffn.up.*
                    mlp.fc2.*               {ours}.#.ffn.down.*
                    attention.relative_position_bias.relative_position_bias_table   {ours}.#.attention.bias.table
                    """,
                )
                for i, ours in enumerate(("first", "second"))
            )
        ),
        pixels(32),
        free=1,
    ),
    Case(
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "expand": 2,
            "conv_kernel": 4,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
        },
        table(
            """
            backbone.embeddings.weight                  token_embedding.weight
            backbone.norm_f.weight                      norm.weight
            lm_head.weight                              head.weight
            backbone.layers.#.norm.weight               blocks.#.attention_norm.weight
            backbone.layers.#.mixer.A_log               blocks.#.attention.log_rate
            backbone.layers.#.mixer.D                   blocks.#.attention.skip
            backbone.layers.#.mixer.dt_bias             blocks.#.attention.step_bias
            backbone.layers.#.mixer.conv1d.*            blocks.#.attention.conv.*
            backbone.layers.#.mixer.in_proj.weight      blocks.#.attention.input.weight
            backbone.layers.#.mixer.norm.weight         blocks.#.attention.norm.weight
            backbone.layers.#.mixer.out_proj.weight     blocks.#.attention.output.weight
            """
        ),
        ids,
    ),
    Case(
        "lfm2",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        dict(
            LLAMA,
            num_hidden_layers=4,
            intermediate_size=96,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "conv", "full_attention", "conv"],
            rope_parameters=rope(1e6),
        ),
        table(
            """
            model.embed_tokens.weight               token_embedding.weight
            model.embedding_norm.weight             norm.weight
            model.layers.#.operator_norm.weight     blocks.#.attention_norm.weight
            model.layers.#.ffn_norm.weight          blocks.#.ffn_norm.weight
            model.layers.#.conv.conv.weight         blocks.#.attention.conv.weight
            model.layers.#.conv.in_proj.weight      blocks.#.attention.input.weight
            model.layers.#.conv.out_proj.weight     blocks.#.attention.out.weight
            model.layers.#.self_attn.q_proj.weight  blocks.#.attention.q.weight
            model.layers.#.self_attn.k_proj.weight  blocks.#.attention.k.weight
            model.layers.#.self_attn.v_proj.weight  blocks.#.attention.v.weight
            model.layers.#.self_attn.out_proj.weight    blocks.#.attention.out.weight
            model.layers.#.self_attn.q_layernorm.weight blocks.#.attention.q_norm.weight
            model.layers.#.self_attn.k_layernorm.weight blocks.#.attention.k_norm.weight
            model.layers.#.feed_forward.w1.weight   blocks.#.ffn.gate.weight
            model.layers.#.feed_forward.w3.weight   blocks.#.ffn.up.weight
            model.layers.#.feed_forward.w2.weight   blocks.#.ffn.down.weight
            """
        ),
        ids,
    ),
    Case(
        "jamba",
        "JambaForCausalLM",
        "JambaConfig",
        dict(
            LLAMA,
            num_hidden_layers=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            num_experts_per_tok=2,
            mamba_d_state=8,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
        table(
            """
            model.embed_tokens.weight                       token_embedding.weight
            model.final_layernorm.weight                    norm.weight
            lm_head.weight                                  head.weight
            model.layers.#.input_layernorm.weight           blocks.#.attention_norm.weight
            model.layers.#.pre_ff_layernorm.weight          blocks.#.ffn_norm.weight
            model.layers.#.mamba.A_log                      blocks.#.attention.log_rates
            model.layers.#.mamba.D                          blocks.#.attention.skip
            model.layers.#.mamba.conv1d.*                   blocks.#.attention.conv.*
            model.layers.#.mamba.in_proj.weight             blocks.#.attention.input.weight
            model.layers.#.mamba.x_proj.weight              blocks.#.attention.select.weight
            model.layers.#.mamba.dt_proj.*                  blocks.#.attention.step.*
            model.layers.#.mamba.out_proj.weight            blocks.#.attention.output.weight
            model.layers.#.mamba.dt_layernorm.weight        blocks.#.attention.step_norm.weight
            model.layers.#.mamba.b_layernorm.weight         blocks.#.attention.b_norm.weight
            model.layers.#.mamba.c_layernorm.weight         blocks.#.attention.c_norm.weight
            model.layers.#.feed_forward.gate_proj.weight    blocks.#.ffn.gate.weight
            model.layers.#.feed_forward.up_proj.weight      blocks.#.ffn.up.weight
            model.layers.#.feed_forward.down_proj.weight    blocks.#.ffn.down.weight
            model.layers.#.feed_forward.router.weight       blocks.#.ffn.router.gate.weight
            model.layers.#.feed_forward.experts.gate_up_proj    blocks.#.ffn.experts.{gate,up}.weight   gate_up
            model.layers.#.feed_forward.experts.down_proj       blocks.#.ffn.experts.down.weight
            """
            + LLAMA_ATTENTION
        ),
        ids,
    ),
    Case(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        dict(
            LLAMA,
            intermediate_size=192,
            num_key_value_heads=1,
            lru_width=64,
            attention_window_size=8,
        ),
        table(
            """
            model.embed_tokens.weight                               token_embedding.weight
            model.final_norm.weight                                 norm.weight
            model.layers.#.temporal_pre_norm.weight                 blocks.#.attention_norm.weight
            model.layers.#.channel_pre_norm.weight                  blocks.#.ffn_norm.weight
            model.layers.#.mlp_block.gate_proj.*                    blocks.#.ffn.gate.*
            model.layers.#.mlp_block.up_proj.*                      blocks.#.ffn.up.*
            model.layers.#.mlp_block.down_proj.*                    blocks.#.ffn.down.*
            model.layers.#.temporal_block.linear_y.*                blocks.#.attention.gate.*
            model.layers.#.temporal_block.linear_x.*                blocks.#.attention.input.*
            model.layers.#.temporal_block.linear_out.*              blocks.#.attention.out.*
            model.layers.#.temporal_block.conv_1d.*                 blocks.#.attention.conv.*
            model.layers.#.temporal_block.rg_lru.recurrent_param            blocks.#.attention.rg_lru.rate
            model.layers.#.temporal_block.rg_lru.input_gate_weight          blocks.#.attention.rg_lru.input_weight
            model.layers.#.temporal_block.rg_lru.input_gate_bias            blocks.#.attention.rg_lru.input_bias
            model.layers.#.temporal_block.rg_lru.recurrent_gate_weight      blocks.#.attention.rg_lru.decay_weight
            model.layers.#.temporal_block.rg_lru.recurrent_gate_bias        blocks.#.attention.rg_lru.decay_bias
            model.layers.#.temporal_block.q_proj.weight             blocks.#.attention.q.weight
            model.layers.#.temporal_block.k_proj.weight             blocks.#.attention.k.weight
            model.layers.#.temporal_block.v_proj.weight             blocks.#.attention.v.weight
            model.layers.#.temporal_block.o_proj.*                  blocks.#.attention.out.*
            """
        ),
        ids,
    ),
    Case(
        "rwkv",
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": VOCAB, "context_length": 64, "hidden_size": 64, "num_hidden_layers": 2},
        table(
            """
            rwkv.embeddings.weight                      token_embedding.weight
            rwkv.blocks.0.pre_ln.*                      embedding_norm.*
            rwkv.blocks.#.ln1.*                         blocks.#.attention_norm.*
            rwkv.blocks.#.ln2.*                         blocks.#.ffn_norm.*
            rwkv.blocks.#.attention.time_decay          blocks.#.attention.decay
            rwkv.blocks.#.attention.time_first          blocks.#.attention.first
            rwkv.blocks.#.attention.time_mix_key        blocks.#.attention.k_mix.mix    flat
            rwkv.blocks.#.attention.time_mix_value      blocks.#.attention.v_mix.mix    flat
            rwkv.blocks.#.attention.time_mix_receptance blocks.#.attention.r_mix.mix    flat
            rwkv.blocks.#.attention.key.weight          blocks.#.attention.k.weight
            rwkv.blocks.#.attention.value.weight        blocks.#.attention.v.weight
            rwkv.blocks.#.attention.receptance.weight   blocks.#.attention.r.weight
            rwkv.blocks.#.attention.output.weight       blocks.#.attention.out.weight
            rwkv.blocks.#.feed_forward.time_mix_key         blocks.#.ffn.k_mix.mix      flat
            rwkv.blocks.#.feed_forward.time_mix_receptance  blocks.#.ffn.r_mix.mix      flat
            rwkv.blocks.#.feed_forward.key.weight           blocks.#.ffn.k.weight
            rwkv.blocks.#.feed_forward.receptance.weight    blocks.#.ffn.r.weight
            rwkv.blocks.#.feed_forward.value.weight         blocks.#.ffn.v.weight
            rwkv.ln_out.*                               norm.*
            head.weight                                 head.weight
            """
        ),
        ids,
        free=1,
    ),
)

CASES = {case.name: case for case in (*DECODERS, *EXPERTS, *ENCODERS, *ENCODER_DECODERS, *OTHERS)}
