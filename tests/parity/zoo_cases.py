"""Models of the zoo, scaled down (zoo/tiny.py), whose architecture `transformers` has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.cases import (
    BERT,
    BERT_EMBEDDINGS,
    BERT_LAYERS,
    DEEPSEEK,
    DEEPSEEK_TABLE,
    GPT_LAYERS,
    LLAMA,
    LLAMA_ENDS,
    LLAMA_EXPERTS,
    LLAMA_FFN,
    LLAMA_NORMS,
    LLAMA_TABLE,
    MAMBA,
    MLA,
    MLM,
    MOE_TABLE,
    PARALLEL_TABLE,
    SEQ2SEQ,
    T5,
    Case,
    bert_table,
    ids,
    ids_segments_padding,
    pixels,
    rope,
    seq2seq_layers,
    t5_table,
    two_sequences_padded,
    under,
    vit_layers,
)
from parity.mapping import by_head, table
from parity.reference import BATCH, TIME, VOCAB, tokens

# --- decoders ---------------------------------------------------------------------------------------------------------

SMALL_GPT = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
SMALL_LLAMA = dict(
    LLAMA, hidden_size=32, intermediate_size=48, num_hidden_layers=2, rms_norm_eps=1e-5, rope_parameters=rope()
)
YARN = {
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}
SMALL_DEEPSEEK = dict(
    DEEPSEEK,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    moe_intermediate_size=16,
    q_lora_rank=20,
    kv_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    n_group=4,
    topk_group=2,
)
SMALL_V2 = dict(
    SMALL_DEEPSEEK,
    n_shared_experts=2,
    topk_method="group_limited_greedy",
    norm_topk_prob=False,
    routed_scaling_factor=16.0,
    rope_parameters=rope(10_000.0, "yarn", mscale=0.707, mscale_all_dim=0.707, **YARN),
)
SMALL_V3 = dict(
    SMALL_DEEPSEEK,
    n_shared_experts=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    num_mtp_layers=0,
    rope_parameters=rope(10_000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
)
KIMI_TABLE = table(
    LLAMA_ENDS
    + LLAMA_NORMS
    + MLA
    + LLAMA_FFN
    + LLAMA_EXPERTS
    + """
    model.layers.#.self_attn.k_proj.weight              blocks.#.attention.k.weight
    model.layers.#.self_attn.v_proj.weight              blocks.#.attention.v.weight
    model.layers.#.self_attn.conv1d.weight              blocks.#.attention.{q,k,v}_conv.conv1d.weight   conv_thirds
    model.layers.#.self_attn.forget_gate.f_a_proj.weight    blocks.#.attention.step_down.weight
    model.layers.#.self_attn.forget_gate.f_b_proj.weight    blocks.#.attention.step_up.weight
    model.layers.#.self_attn.forget_gate.dt_bias        blocks.#.attention.step_bias    by_head
    model.layers.#.self_attn.forget_gate.A_log          blocks.#.attention.log_rate     by_head
    model.layers.#.self_attn.g_a_proj.weight            blocks.#.attention.gate_down.weight
    model.layers.#.self_attn.g_b_proj.weight            blocks.#.attention.gate_up.weight
    model.layers.#.self_attn.b_proj.weight              blocks.#.attention.strength.weight
    model.layers.#.self_attn.o_norm.weight              blocks.#.attention.norm.weight
    """,
    conv_thirds=lambda t: t.chunk(3),
    by_head=lambda t: t.reshape(2, -1),
)
GPT2_TABLE = table(
    """
    transformer.wte.weight      token_embedding.weight
    transformer.wpe.weight      position.weight
    transformer.ln_f.*          norm.*
    """
    + GPT_LAYERS
)


def gpt2(name: str) -> Case:
    return Case(name, "GPT2LMHeadModel", "GPT2Config", SMALL_GPT, GPT2_TABLE, ids)


def llama(name: str, **settings: Any) -> Case:
    return Case(name, "LlamaForCausalLM", "LlamaConfig", SMALL_LLAMA | settings, LLAMA_TABLE, ids)


DECODERS = (
    Case(
        "gpt1:gpt1",
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTConfig",
        SMALL_GPT,
        table(
            """
            transformer.tokens_embed.weight     token_embedding.weight
            transformer.positions_embed.weight  position.weight
            """
            + GPT_LAYERS
        ),
        ids,
    ),
    gpt2("gpt2:gpt2"),
    gpt2("megatron:megatron_8_3b"),
    gpt2("turing_nlg:turing_nlg_17b"),
    Case(
        "gptj:gptj_6b",
        "GPTJForCausalLM",
        "GPTJConfig",
        dict(SMALL_GPT, rotary_dim=4),
        table(
            """
            transformer.wte.weight              token_embedding.weight
            transformer.h.#.ln_1.*              blocks.#.ln.*
            transformer.h.#.attn.q_proj.weight  blocks.#.attention.q.weight
            transformer.h.#.attn.k_proj.weight  blocks.#.attention.k.weight
            transformer.h.#.attn.v_proj.weight  blocks.#.attention.v.weight
            transformer.h.#.attn.out_proj.weight    blocks.#.attention.out.weight
            transformer.h.#.mlp.fc_in.*         blocks.#.ffn.up.*
            transformer.h.#.mlp.fc_out.*        blocks.#.ffn.down.*
            transformer.ln_f.*                  norm.*
            lm_head.*                           head.*
            """
        ),
        ids,
    ),
    llama("llama:llama_7b", num_key_value_heads=4, rms_norm_eps=1e-6),
    llama("llama2:llama2_7b"),
    llama(
        "llama3:llama3",
        rope_parameters=rope(
            500_000.0,
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        ),
    ),
    llama("deepseek_llm:deepseek_llm_67b", rms_norm_eps=1e-6),
    Case(
        "mistral:mistral_7b",
        "MistralForCausalLM",
        "MistralConfig",
        dict(SMALL_LLAMA, sliding_window=6),
        LLAMA_TABLE,
        ids,
    ),
    Case(
        "mixtral:mixtral_8x7b",
        "MixtralForCausalLM",
        "MixtralConfig",
        dict(
            SMALL_LLAMA,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters=rope(1e6),
        ),
        MOE_TABLE,
        ids,
    ),
    Case("deepseek_v2:deepseek_v2", "DeepseekV2ForCausalLM", "DeepseekV2Config", SMALL_V2, DEEPSEEK_TABLE, ids),
    Case(
        "deepseek_v2:deepseek_v2_lite",
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        dict(SMALL_V2, q_lora_rank=None, topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0),
        DEEPSEEK_TABLE,
        ids,
    ),
    Case("deepseek_v3:deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", SMALL_V3, DEEPSEEK_TABLE, ids),
    Case(
        "kimi_linear:kimi_linear_48b",
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 5,
            "layer_types": 3 * ["linear_attention"] + 2 * ["full_attention"],
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "linear_num_heads": 2,
            "linear_head_dim": 8,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        KIMI_TABLE,
        ids,
    ),
    Case(
        "palm:palm_540b",
        "CohereForCausalLM",
        "CohereConfig",
        dict(
            SMALL_LLAMA,
            num_key_value_heads=1,
            head_dim=12,
            intermediate_size=128,
            logit_scale=32**-0.5,
            layer_norm_eps=1e-6,
        ),
        PARALLEL_TABLE,
        ids,
    ),
    Case(
        "bloom:bloom_176b",
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        table(
            """
            transformer.word_embeddings.weight                  token_embedding.weight
            transformer.word_embeddings_layernorm.*             embedding_norm.*
            transformer.h.#.input_layernorm.*                   blocks.#.attention_norm.*
            transformer.h.#.post_attention_layernorm.*          blocks.#.ffn_norm.*
            transformer.h.#.self_attention.query_key_value.*    blocks.#.attention.{q,k,v}.*    heads
            transformer.h.#.self_attention.dense.*              blocks.#.attention.out.*
            transformer.h.#.mlp.dense_h_to_4h.*                 blocks.#.ffn.up.*
            transformer.h.#.mlp.dense_4h_to_h.*                 blocks.#.ffn.down.*
            transformer.ln_f.*                                  norm.*
            """,
            heads=by_head(4),
        ),
        ids,
    ),
    Case(
        "mamba:mamba_130m",
        "MambaForCausalLM",
        "MambaConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "expand": 2,
            "conv_kernel": 4,
            "time_step_rank": 2,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        table(
            MAMBA.replace("dt_proj.*", "dt_proj.weight").replace("step.*", "step.weight")
            + "    backbone.layers.#.mixer.dt_proj.bias    blocks.#.attention.step_bias"
        ),
        ids,
    ),
)

# --- encoders, encoder-decoders, images -------------------------------------------------------------------------------

SMALL = dict(BERT, hidden_size=32, intermediate_size=128, num_hidden_layers=2, max_position_embeddings=32)
SMALL_T5 = dict(
    T5, d_model=32, d_kv=12, d_ff=48, relative_attention_num_buckets=32, relative_attention_max_distance=128
)
BERT_HEADS = {
    "bert_sequence_classifier": ("BertForSequenceClassification", 2, "classifier.*  head.classifier.*"),
    "bert_token_classifier": ("BertForTokenClassification", 9, "classifier.*  head.classifier.*"),
    "bert_span_classifier": ("BertForQuestionAnswering", 2, "qa_outputs.*  head.classifier.*"),
}
ALBERT_LAYER = """
    attention.query.*           blocks.attention.q.*
    attention.key.*             blocks.attention.k.*
    attention.value.*           blocks.attention.v.*
    attention.dense.*           blocks.attention.out.*
    attention.LayerNorm.*       blocks.attention_norm.*
    ffn.*                       blocks.ffn.up.*
    ffn_output.*                blocks.ffn.down.*
    full_layer_layer_norm.*     blocks.ffn_norm.*
"""
XLNET_TABLE = """
    transformer.word_embedding.weight           words.weight
    transformer.mask_emb                        mask                                    flat
    transformer.layer.#.rel_attn.q              blocks.#.attention.query.weight         heads
    transformer.layer.#.rel_attn.k              blocks.#.attention.k.weight             heads
    transformer.layer.#.rel_attn.v              blocks.#.attention.v.weight             heads
    transformer.layer.#.rel_attn.r              blocks.#.attention.position.weight      heads
    transformer.layer.#.rel_attn.r_w_bias       blocks.#.attention.position.u
    transformer.layer.#.rel_attn.r_r_bias       blocks.#.attention.position.v
    transformer.layer.#.rel_attn.r_s_bias       blocks.#.attention.segment.bias
    transformer.layer.#.rel_attn.seg_embed      blocks.#.attention.segment.kind
    transformer.layer.#.rel_attn.o              blocks.#.attention.out.weight           joined
    transformer.layer.#.rel_attn.layer_norm.*   blocks.#.rest.attention_norm.*
    transformer.layer.#.ff.layer_norm.*         blocks.#.rest.ffn_norm.*
    transformer.layer.#.ff.layer_1.*            blocks.#.rest.ffn.up.*
    transformer.layer.#.ff.layer_2.*            blocks.#.rest.ffn.down.*
    lm_loss.bias                                head.bias
"""
XLNET = {
    "vocab_size": 97,
    "d_model": 32,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 128,
    "mem_len": None,
    "pad_token_id": 0,
}
XLNET_TRANSFORMS: dict[str, Any] = {"heads": lambda t: t.flatten(1).t(), "joined": lambda t: t.flatten(1)}

REFORMER = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "attention_head_size": 8,
    "feed_forward_size": 48,
    "attn_layers": ["local", "local", "lsh", "local"],
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 8,
    "num_buckets": 4,
    "num_hashes": 2,
    "hash_seed": 0,
    "axial_pos_shape": [8, 4],
    "axial_pos_embds_dim": [12, 20],
    "max_position_embeddings": 32,
    "is_decoder": True,
}
REFORMER_TABLE = table(
    """
    reformer.embeddings.word_embeddings.weight                      token_embedding.weight
    reformer.embeddings.position_embeddings.weights.0               position.row.weight         rows
    reformer.embeddings.position_embeddings.weights.1               position.column.weight      columns
    reformer.encoder.layers.#.attention.layer_norm.*                blocks.#.attention_norm.*
    reformer.encoder.layers.#.attention.self_attention.query.weight     blocks.#.attention.q.weight
    reformer.encoder.layers.#.attention.self_attention.key.weight       blocks.#.attention.k.weight
    reformer.encoder.layers.#.attention.self_attention.query_key.weight blocks.#.attention.qk.weight
    reformer.encoder.layers.#.attention.self_attention.value.weight     blocks.#.attention.v.weight
    reformer.encoder.layers.#.attention.output.dense.weight         blocks.#.attention.out.weight
    reformer.encoder.layers.#.feed_forward.layer_norm.*             blocks.#.ffn_norm.*
    reformer.encoder.layers.#.feed_forward.dense.dense.*            blocks.#.ffn.up.*
    reformer.encoder.layers.#.feed_forward.output.dense.*           blocks.#.ffn.down.*
    reformer.encoder.layer_norm.*                                   layernorm.*
    lm_head.decoder.weight                                          head.weight
    lm_head.bias                                                    head.bias                   zero
    """,
    rows=lambda t: t.squeeze(1),
    columns=lambda t: t.squeeze(0),
    zero=torch.zeros_like,  # the class has this bias and does not add it
)


def one_segment(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    called, (x, segments, real) = ids_segments_padding(generator)
    return called | {"token_type_ids": torch.zeros_like(segments)}, (x, torch.zeros_like(segments), real)


def permuted(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """Two segments; five places are predicted in a random order, after all the others, which see each other."""
    x = tokens(generator)
    segments = (torch.arange(TIME) > torch.tensor([[9], [15]])).long()
    predicted = torch.stack([torch.randperm(TIME, generator=generator)[:5] for _ in range(BATCH)])
    order = torch.full((BATCH, TIME), -1).scatter(1, predicted, torch.arange(5).expand(BATCH, -1))
    later = order[:, None, :] >= order[:, :, None]
    given = (order[:, None, :] < 0) & (order[:, :, None] < 0)
    targets = F.one_hot(predicted, TIME).float()
    called = {"input_ids": x, "token_type_ids": segments, "target_mapping": targets}
    return called | {"perm_mask": (later & ~given).float()}, (x, segments, order, targets)


def reformer_ids(generator: torch.Generator) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """As many places as the grid has, so that both kinds of chunks divide them."""
    x = tokens(generator, 32)
    return {"input_ids": x}, (x,)


OTHERS = (
    Case(
        "transformer:transformer_base",
        "MarianMTModel",
        "MarianConfig",
        dict(
            SEQ2SEQ,
            d_model=32,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            decoder_vocab_size=97,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=32,
            forced_eos_token_id=2,
        ),
        table(
            "model.shared.weight  token_embedding.weight\n"
            + seq2seq_layers("model.encoder.layers.#", "encoder.#")
            + seq2seq_layers("model.decoder.layers.#", "decoder.#")
        ),
        two_sequences_padded,
        inert=("embed_positions", "final_logits_bias"),
        keep=("embed_positions", "final_logits_bias"),
    ),
    Case(
        "bert:bert_base",
        "BertForPreTraining",
        "BertConfig",
        SMALL,
        bert_table(
            "bert",
            MLM.format(head="mlm")
            + """
            bert.pooler.dense.*             next_sentence.pooler.*
            cls.seq_relationship.*          next_sentence.classifier.*
            """,
        ),
        ids_segments_padding,
        outputs=lambda out: (out.prediction_logits, out.seq_relationship_logits),
    ),
    *(
        Case(
            f"bert:{name}",
            cls,
            "BertConfig",
            dict(SMALL, num_labels=classes),
            bert_table("bert", f"bert.pooler.dense.*  head.pooler.*\n{head}"),
            ids_segments_padding,
            outputs=lambda out: (out.start_logits, out.end_logits) if "start_logits" in out else (out.logits,),
        )
        for name, (cls, classes, head) in BERT_HEADS.items()
    ),
    Case(
        "roberta:roberta_base",
        "RobertaForMaskedLM",
        "RobertaConfig",
        dict(SMALL, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5, max_position_embeddings=34),
        bert_table(
            "roberta",
            """
            lm_head.bias            head.bias
            lm_head.dense.*         head.dense.*
            lm_head.layer_norm.*    head.norm.*
            """,
        ),
        one_segment,
    ),
    Case(
        "albert:albert_base",
        "AlbertForMaskedLM",
        "AlbertConfig",
        dict(SMALL, embedding_size=16),
        table(
            under("albert.embeddings.", BERT_EMBEDDINGS)
            + under("albert.encoder.albert_layer_groups.0.albert_layers.0.", ALBERT_LAYER)
            + """
            albert.encoder.embedding_hidden_mapping_in.*    embedding_projection.*
            predictions.bias                                head.bias
            predictions.dense.*                             head.dense.*
            predictions.LayerNorm.*                         head.norm.*
            """
        ),
        ids_segments_padding,
    ),
    Case(
        "bigbird:bigbird_base",
        "BigBirdForMaskedLM",
        "BigBirdConfig",
        dict(SMALL, attention_type="original_full"),
        table(
            under("bert.embeddings.", BERT_EMBEDDINGS) + under("bert.encoder.", BERT_LAYERS) + MLM.format(head="head")
        ),
        ids_segments_padding,
        inert=("pooler",),
        more={"window": TIME},  # over the whole sequence, as the reference's plain attention
    ),
    Case(
        "xlnet:xlnet_large_encoder",
        "XLNetLMHeadModel",
        "XLNetConfig",
        XLNET,
        table(XLNET_TABLE.replace("    transformer.mask_emb", "#   "), **XLNET_TRANSFORMS),
        ids_segments_padding,
        inert=("mask_emb",),
    ),
    Case(
        "xlnet:xlnet_large",
        "XLNetLMHeadModel",
        "XLNetConfig",
        XLNET,
        table(XLNET_TABLE, **XLNET_TRANSFORMS),
        permuted,
        free=1,
    ),
    Case(
        "t5:t5_base",
        "T5ForConditionalGeneration",
        "T5Config",
        SMALL_T5,
        t5_table("around.weight", "before.weight"),
        two_sequences_padded,
    ),
    Case(
        "t5:t5_v1_1_base",
        "T5ForConditionalGeneration",
        "T5Config",
        dict(SMALL_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        # This class ties the head to the embedding all the same: one tensor of theirs is two of ours.
        t5_table("around.weight", "before.weight", "shared.weight head.weight"),
        two_sequences_padded,
    ),
    Case(
        "switch:switch_base_8",
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        dict(
            SMALL_T5,
            num_heads=2,
            d_kv=64,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_experts=4,
            expert_capacity=64,
            router_jitter_noise=0.0,
        ),
        t5_table("around.weight", "before.weight"),
        two_sequences_padded,
    ),
    Case(
        "reformer:reformer_enwik8",
        "ReformerModelWithLMHead",
        "ReformerConfig",
        REFORMER,
        REFORMER_TABLE,
        reformer_ids,
        double=True,  # the reference loses digits in float32 beside scores of -1e5, those of a place to itself
    ),
    Case(
        "reformer:reformer_crime_and_punishment",
        "ReformerModelWithLMHead",
        "ReformerConfig",
        dict(REFORMER, attn_layers=["local", "lsh"], local_attn_chunk_length=8, num_buckets=[4, 6], num_hashes=1),
        REFORMER_TABLE,
        reformer_ids,
        double=True,  # the reference loses digits in float32 beside scores of -1e5, those of a place to itself
    ),
    Case(
        "vit:vit_b16",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 24,
            "patch_size": 8,
            "num_labels": 11,
        },
        table(
            """
            vit.embeddings.cls_token                        class_token
            vit.embeddings.position_embeddings              position.weight         first
            vit.embeddings.patch_embeddings.projection.*    patches.*
            vit.layers.#.layernorm_before.*                 blocks.#.attention_norm.*
            vit.layers.#.layernorm_after.*                  blocks.#.ffn_norm.*
            vit.layernorm.*                                 norm.*
            classifier.*                                    head.output.*
            """
            + vit_layers("vit.layers"),
            first=lambda t: t[0],
        ),
        pixels(24),
        free=1,
    ),
)

ZOO = {case.name: case for case in (*DECODERS, *OTHERS)}
