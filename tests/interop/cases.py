"""Tiny models of `transformers` for the types that can be imported: their settings, and what they are called with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from parity.reference import randomise

ENDS = {"bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    **ENDS,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT = {
    "vocab_size": 96,
    "n_positions": 64,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

T5 = {"vocab_size": 96, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 2, "num_heads": 4}


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k not in names}


OF_HEADS = without(LLAMA, "num_key_value_heads")
GEMMA = {**LLAMA, "pad_token_id": 0, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
EXPERTS = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
DEEPSEEK = {
    **LLAMA,
    **EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
ERNIE = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24}

DISTILBERT = {
    "vocab_size": 96,
    "dim": 48,
    "hidden_dim": 80,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
}
MODERNBERT = {"vocab_size": 50_304, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
OF_IMAGES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "image_size": 24,
    "patch_size": 8,
}

SEQ2SEQ = {
    "vocab_size": 96,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    **ENDS,
}
MAMBA2 = {
    "vocab_size": 96,
    "hidden_size": 32,
    "state_size": 8,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 16,
    "n_groups": 2,
}

DELTA = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
QWEN3_NEXT = {
    **DELTA,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "shared_intermediate_size": 40,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 3.0,
}
LLAMA4 = {
    "head_dim": 12,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8,
    "floor_scale": 4,
}


@dataclass(frozen=True)
class Tiny:
    """A model's class and configuration."""

    model: str
    settings: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5
    """Of results, relative to their largest. A few references lose more digits in float32."""

    @property
    def config(self) -> dict[str, Any]:
        return {**self.settings, **self.more}

    @property
    def kind(self) -> str:
        """Its `model_type`."""
        return str(getattr(transformers, self.model).config_class.model_type)

    def made(self) -> Any:
        """The model in evaluation mode, its weights drawn so that every one of them matters; tables of the
        implementation, which nothing learns, are left as they are."""
        cls = getattr(transformers, self.model)
        torch.manual_seed(0)
        model = cls(cls.config_class(**self.config)).eval()
        tables = [f"^{re.escape(name)}$" for name, p in model.named_parameters() if not p.requires_grad]
        randomise(model, 0, 0.9, [*tables, "inv_freq"])
        return model


CASES = {
    "gpt2": Tiny("GPT2LMHeadModel", GPT),
    "gpt_bigcode": Tiny("GPTBigCodeForCausalLM", GPT),
    "gpt_bigcode-heads": Tiny(
        "GPTBigCodeForCausalLM", GPT, {"multi_query": False, "n_inner": 80, "tie_word_embeddings": False}
    ),
    "gpt_neo": Tiny(
        "GPTNeoForCausalLM",
        OF_HEADS,
        {"num_hidden_layers": 4, "window_size": 8, "attention_types": [[["global", "local"], 2]]},
    ),
    "gpt_neo-order": Tiny(
        "GPTNeoForCausalLM",
        OF_HEADS,
        {"num_hidden_layers": 3, "window_size": 8, "attention_types": [[["local"], 1], [["global"], 2]]},
    ),
    "mpt": Tiny("MptForCausalLM", {"vocab_size": 96, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 64}),
    "llama": Tiny("LlamaForCausalLM", LLAMA),
    "llama-tied-scaled": Tiny(
        "LlamaForCausalLM", LLAMA, {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 16}
    ),
    "llama-linear": Tiny(
        "LlamaForCausalLM",
        LLAMA,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0}},
    ),
    "llama-biases": Tiny("LlamaForCausalLM", LLAMA, {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "seed_oss": Tiny("SeedOssForCausalLM", LLAMA, {"head_dim": 16}),
    "seed_oss-biases": Tiny(
        "SeedOssForCausalLM", LLAMA, {"attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "llama-wide": Tiny("LlamaForCausalLM", LLAMA, {"hidden_size": 64, "intermediate_size": 96}),
    "mistral": Tiny("MistralForCausalLM", LLAMA, {"sliding_window": None}),
    "mistral-window": Tiny("MistralForCausalLM", LLAMA, {"sliding_window": 8}),
    "qwen2": Tiny("Qwen2ForCausalLM", LLAMA),
    "qwen3": Tiny("Qwen3ForCausalLM", LLAMA, {"head_dim": 16}),
    "mixtral": Tiny("MixtralForCausalLM", LLAMA, {"num_local_experts": 4, "sliding_window": None}),
    "qwen3_moe": Tiny(
        "Qwen3MoeForCausalLM",
        LLAMA,
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "olmoe": Tiny("OlmoeForCausalLM", LLAMA, {"num_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": Tiny(
        "Qwen2MoeForCausalLM",
        LLAMA,
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
    "cohere": Tiny("CohereForCausalLM", LLAMA, {"use_qk_norm": True, "logit_scale": 0.3, "pad_token_id": 0}),
    "cohere-biases": Tiny(
        "CohereForCausalLM", LLAMA, {"attention_bias": True, "tie_word_embeddings": False, "pad_token_id": 0}
    ),
    "cohere2": Tiny(
        "Cohere2ForCausalLM",
        LLAMA,
        {"num_hidden_layers": 5, "sliding_window": 8, "logit_scale": 0.3, "pad_token_id": 0},
    ),
    "starcoder2": Tiny("Starcoder2ForCausalLM", LLAMA),
    "starcoder2-window": Tiny(
        "Starcoder2ForCausalLM", LLAMA, {"sliding_window": 8, "use_bias": False, "tie_word_embeddings": False}
    ),
    "gpt_neox": Tiny("GPTNeoXForCausalLM", OF_HEADS, {"hidden_size": 64}),
    "gpt_neox-serial": Tiny("GPTNeoXForCausalLM", OF_HEADS, {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "gpt_neox-fast": Tiny("GPTNeoXForCausalLM", OF_HEADS, {"hidden_size": 64, "hidden_act": "gelu_fast"}),
    "gptj": Tiny("GPTJForCausalLM", GPT, {"rotary_dim": 8}),
    "codegen": Tiny("CodeGenForCausalLM", GPT, {"rotary_dim": 8, "n_embd": 64}),
    "gpt1": Tiny("OpenAIGPTLMHeadModel", GPT),
    "ctrl": Tiny("CTRLLMHeadModel", GPT, {"dff": 80}),
    "biogpt": Tiny("BioGptForCausalLM", OF_HEADS),
    "xglm": Tiny(
        "XGLMForCausalLM",
        {"vocab_size": 96, "d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 80, "layerdrop": 0.0},
    ),
    "xglm-unscaled": Tiny(
        "XGLMForCausalLM",
        {
            "vocab_size": 96,
            "d_model": 48,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 80,
            "scale_embedding": False,
            "tie_word_embeddings": False,
        },
    ),
    "persimmon": Tiny("PersimmonForCausalLM", OF_HEADS, {"hidden_size": 64}),
    "persimmon-plain": Tiny("PersimmonForCausalLM", OF_HEADS, {"hidden_size": 64, "qk_layernorm": False}),
    "opt": Tiny("OPTForCausalLM", without(OF_HEADS, "intermediate_size"), {"ffn_dim": 80, "word_embed_proj_dim": 48}),
    "phi": Tiny("PhiForCausalLM", LLAMA),
    "stablelm": Tiny("StableLmForCausalLM", LLAMA, {"use_qkv_bias": True, "hidden_size": 64}),
    "ernie4_5": Tiny("Ernie4_5ForCausalLM", LLAMA, {"head_dim": 16, "use_bias": True}),
    "helium": Tiny("HeliumForCausalLM", LLAMA, {"head_dim": 12, "pad_token_id": 0}),
    "arcee": Tiny("ArceeForCausalLM", LLAMA, {"rope_parameters": YARN, "mlp_bias": True}),
    "hunyuan_v1_dense": Tiny("HunYuanDenseV1ForCausalLM", LLAMA, {"head_dim": 16}),
    "hunyuan_v1_dense-scaled": Tiny(
        "HunYuanDenseV1ForCausalLM",
        LLAMA,
        {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 1.0, "alpha": 50.0},
        },
    ),
    "exaone4": Tiny("Exaone4ForCausalLM", LLAMA, {"num_hidden_layers": 5, "sliding_window": 8}),
    "exaone4-full": Tiny("Exaone4ForCausalLM", LLAMA, {"sliding_window": None, "layer_types": 2 * ["full_attention"]}),
    "glm": Tiny("GlmForCausalLM", LLAMA, {"head_dim": 16}),
    "glm4": Tiny("Glm4ForCausalLM", LLAMA, {"head_dim": 16, "attention_bias": False}),
    "nemotron": Tiny("NemotronForCausalLM", LLAMA, {"head_dim": 16}),
    "nemotron-biases": Tiny("NemotronForCausalLM", LLAMA, {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "granite": Tiny(
        "GraniteForCausalLM",
        LLAMA,
        {"embedding_multiplier": 6.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 3.0},
    ),
    "granitemoe": Tiny(
        "GraniteMoeForCausalLM",
        LLAMA,
        {
            "num_local_experts": 4,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
        },
    ),
    "gemma2": Tiny("Gemma2ForCausalLM", LLAMA, {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "olmo2": Tiny("Olmo2ForCausalLM", LLAMA),
    "deepseek_v3": Tiny("DeepseekV3ForCausalLM", DEEPSEEK, {"num_nextn_predict_layers": 0}),
    "deepseek_v3-scaled": Tiny(
        "DeepseekV3ForCausalLM",
        DEEPSEEK,
        {
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe": Tiny(
        "Glm4MoeForCausalLM", LLAMA, {**EXPERTS, "head_dim": 16, "use_qk_norm": True, "attention_bias": True}
    ),
    "ernie4_5_moe": Tiny("Ernie4_5_MoeForCausalLM", LLAMA, ERNIE | {"num_hidden_layers": 3}),
    "ernie4_5_moe-biases": Tiny(
        "Ernie4_5_MoeForCausalLM", LLAMA, ERNIE | {"use_bias": True, "tie_word_embeddings": False}
    ),
    "dots1": Tiny("Dots1ForCausalLM", LLAMA, EXPERTS | {"max_window_layers": 2, "norm_topk_prob": True}),
    "deepseek_v2": Tiny("DeepseekV2ForCausalLM", DEEPSEEK, {"n_group": 1, "topk_group": 1, "q_lora_rank": None}),
    "deepseek_v2-groups": Tiny(
        "DeepseekV2ForCausalLM",
        DEEPSEEK,
        {
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 16.0,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "bert": Tiny("BertForMaskedLM", OF_HEADS),
    "bert-both": Tiny("BertForPreTraining", OF_HEADS, {"layer_norm_eps": 1e-6}),
    "bert-states": Tiny("BertModel", OF_HEADS),
    "bert-classes": Tiny("BertForSequenceClassification", OF_HEADS, {"num_labels": 5, "type_vocab_size": 3}),
    "bert-tokens": Tiny("BertForTokenClassification", OF_HEADS, {"num_labels": 9}),
    "bert-answer": Tiny("BertForQuestionAnswering", OF_HEADS),
    "gpt_oss": Tiny(
        "GptOssForCausalLM",
        LLAMA,
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "gpt_oss-order": Tiny(
        "GptOssForCausalLM",
        LLAMA,
        {
            "num_hidden_layers": 5,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", *2 * ["full_attention"]],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "gemma": Tiny("GemmaForCausalLM", LLAMA, {"head_dim": 16}),
    "phi3": Tiny("Phi3ForCausalLM", LLAMA),
    "phi3-part": Tiny(
        "Phi3ForCausalLM",
        LLAMA,
        {
            "hidden_size": 64,
            "sliding_window": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "qwen2-scaled": Tiny("Qwen2ForCausalLM", LLAMA, {"rope_parameters": YARN}),
    "qwen3-scaled": Tiny("Qwen3ForCausalLM", LLAMA, {"rope_parameters": YARN}),
    "phi3-long": Tiny(
        "Phi3ForCausalLM",
        LLAMA,
        {
            "hidden_size": 64,
            "original_max_position_embeddings": 8,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.25, 1.5, 2.0],
                "long_factor": [1.0, 2.5, 5.0, 9.0],
            },
        },
    ),
    "bloom": Tiny("BloomForCausalLM", {"vocab_size": 96, "hidden_size": 48, "n_layer": 2, "n_head": 4}),
    "falcon": Tiny("FalconForCausalLM", without(OF_HEADS, "intermediate_size")),
    "falcon-groups": Tiny(
        "FalconForCausalLM",
        without(OF_HEADS, "intermediate_size"),
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "tie_word_embeddings": False},
    ),
    "falcon-heads": Tiny("FalconForCausalLM", without(OF_HEADS, "intermediate_size"), {"multi_query": False}),
    "roberta": Tiny("RobertaForMaskedLM", OF_HEADS, {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0}),
    "roberta-classes": Tiny("RobertaForSequenceClassification", OF_HEADS, {"num_labels": 3, "pad_token_id": 1}),
    "roberta-tokens": Tiny("RobertaForTokenClassification", OF_HEADS, {"num_labels": 3, "pad_token_id": 1}),
    "roberta-model": Tiny("RobertaModel", OF_HEADS, {"type_vocab_size": 1, "pad_token_id": 1}),
    "data2vec_text": Tiny("Data2VecTextForMaskedLM", OF_HEADS, {"pad_token_id": 1, "bos_token_id": 0}),
    "data2vec_text-classes": Tiny("Data2VecTextForSequenceClassification", OF_HEADS, {"pad_token_id": 1}),
    "roberta_prelayernorm": Tiny("RobertaPreLayerNormForMaskedLM", OF_HEADS, {"pad_token_id": 1, "bos_token_id": 0}),
    "roberta_prelayernorm-model": Tiny("RobertaPreLayerNormModel", OF_HEADS, {"pad_token_id": 1, "bos_token_id": 0}),
    "xlm_roberta_xl": Tiny("XLMRobertaXLForMaskedLM", OF_HEADS, {"pad_token_id": 1, "bos_token_id": 0}),
    "mpnet": Tiny("MPNetForMaskedLM", OF_HEADS, {"pad_token_id": 1, "bos_token_id": 0}),
    "mpnet-model": Tiny("MPNetModel", OF_HEADS, {"pad_token_id": 1}),
    "megatron_bert": Tiny("MegatronBertForMaskedLM", OF_HEADS),
    "megatron_bert-both": Tiny("MegatronBertForPreTraining", OF_HEADS),
    "rembert": Tiny("RemBertForMaskedLM", OF_HEADS, {"input_embedding_size": 32, "output_embedding_size": 40}),
    "roformer": Tiny("RoFormerForMaskedLM", OF_HEADS),
    "roformer-narrow": Tiny("RoFormerForMaskedLM", OF_HEADS, {"embedding_size": 32}),
    "ernie": Tiny("ErnieForMaskedLM", OF_HEADS),
    "ernie-task": Tiny("ErnieModel", OF_HEADS, {"use_task_id": True, "task_type_vocab_size": 4}),
    "bert_generation": Tiny("BertGenerationEncoder", OF_HEADS),
    "bert_generation-decoder": Tiny("BertGenerationDecoder", OF_HEADS, {"is_decoder": True}),
    "mamba": Tiny("MambaForCausalLM", {"vocab_size": 96, "hidden_size": 48, "state_size": 8, "num_hidden_layers": 2}),
    "falcon_mamba": Tiny(
        "FalconMambaForCausalLM", {"vocab_size": 96, "hidden_size": 48, "state_size": 8, "num_hidden_layers": 2}
    ),
    "t5": Tiny("T5ForConditionalGeneration", T5, {"num_decoder_layers": 3}),
    "t5-gated": Tiny(
        "T5ForConditionalGeneration",
        T5,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "relative_attention_num_buckets": 8},
    ),
    "mt5": Tiny("MT5ForConditionalGeneration", T5, {"relative_attention_num_buckets": 8}),
    "umt5": Tiny("UMT5ForConditionalGeneration", T5, {"relative_attention_max_distance": 20}),
    "longt5": Tiny("LongT5ForConditionalGeneration", T5, {"local_radius": 7}),
    "switch_transformers": Tiny(
        "SwitchTransformersForConditionalGeneration",
        T5,
        {
            "num_layers": 4,
            "num_decoder_layers": 2,
            "num_sparse_encoder_layers": 2,
            "num_sparse_decoder_layers": 2,
            "num_experts": 4,
            "expert_capacity": 6,
        },
    ),
    "t5gemma": Tiny("T5GemmaForConditionalGeneration", {"vocab_size": 96, "encoder": GEMMA, "decoder": GEMMA}),
    "t5gemma-order": Tiny(
        "T5GemmaForConditionalGeneration",
        {
            "vocab_size": 96,
            "tie_word_embeddings": False,
            "encoder": {**GEMMA, "layer_types": ["full_attention", "sliding_attention"]},
            "decoder": {**GEMMA, "num_hidden_layers": 3, "layer_types": 3 * ["sliding_attention"]},
        },
    ),
    "smollm3": Tiny("SmolLM3ForCausalLM", LLAMA, {"num_hidden_layers": 4}),
    "smollm3-order": Tiny("SmolLM3ForCausalLM", LLAMA, {"no_rope_layers": [0, 1]}),
    "olmo": Tiny("OlmoForCausalLM", LLAMA),
    "gemma3_text": Tiny(
        "Gemma3ForCausalLM",
        LLAMA,
        {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24},
    ),
    "gemma3_text-scaled": Tiny(
        "Gemma3ForCausalLM",
        LLAMA,
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "head_dim": 16,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
    "olmo3": Tiny("Olmo3ForCausalLM", LLAMA, {"num_hidden_layers": 4, "sliding_window": 8}),
    "olmo3-scaled": Tiny(
        "Olmo3ForCausalLM",
        LLAMA,
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "electra": Tiny("ElectraForPreTraining", OF_HEADS, {"embedding_size": 32}),
    "electra-masked": Tiny("ElectraForMaskedLM", OF_HEADS, {"embedding_size": 32}),
    "electra-classes": Tiny("ElectraForSequenceClassification", OF_HEADS, {"embedding_size": 48, "num_labels": 3}),
    "albert": Tiny("AlbertForMaskedLM", OF_HEADS, {"embedding_size": 32}),
    "albert-classes": Tiny("AlbertForSequenceClassification", OF_HEADS, {"embedding_size": 32}),
    "distilbert": Tiny("DistilBertForMaskedLM", DISTILBERT),
    "distilbert-classes": Tiny("DistilBertForSequenceClassification", DISTILBERT),
    "distilbert-answers": Tiny("DistilBertForQuestionAnswering", DISTILBERT),
    "modernbert": Tiny("ModernBertForMaskedLM", OF_HEADS, MODERNBERT | {"num_hidden_layers": 4}),
    "modernbert-more": Tiny("ModernBertForMaskedLM", OF_HEADS, MODERNBERT | {"num_hidden_layers": 6}),
    "modernbert_decoder": Tiny("ModernBertDecoderForCausalLM", OF_HEADS, MODERNBERT | {"num_hidden_layers": 5}),
    "nomic_bert": Tiny("NomicBertForMaskedLM", OF_HEADS, {"pad_token_id": 0}),
    "nomic_bert-model": Tiny("NomicBertModel", OF_HEADS, {"pad_token_id": 0}),
    "eurobert": Tiny("EuroBertForMaskedLM", LLAMA, {"vocab_size": 128_064}),
    "eurobert-tied": Tiny("EuroBertForMaskedLM", LLAMA, {"vocab_size": 128_064, "tie_word_embeddings": True}),
    "esm": Tiny(
        "EsmForMaskedLM",
        OF_HEADS,
        {"pad_token_id": 1, "position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 5},
    ),
    "esm-plain": Tiny(
        "EsmForTokenClassification",
        OF_HEADS,
        {"pad_token_id": 1, "position_embedding_type": "rotary", "mask_token_id": 5, "num_labels": 3},
    ),
    "layoutlm": Tiny("LayoutLMForMaskedLM", OF_HEADS, {"max_2d_position_embeddings": 40}),
    "layoutlm-model": Tiny("LayoutLMModel", OF_HEADS, {"type_vocab_size": 3}),
    "xlnet": Tiny(
        "XLNetLMHeadModel", {"vocab_size": 96, "d_model": 48, "n_layer": 2, "n_head": 4, "d_inner": 80, **ENDS}
    ),
    "fnet": Tiny("FNetForMaskedLM", without(OF_HEADS, "num_attention_heads"), {"pad_token_id": 3}),
    "fnet-classes": Tiny(
        "FNetForSequenceClassification", without(OF_HEADS, "num_attention_heads"), {"pad_token_id": 3}
    ),
    "vit-model": Tiny("ViTModel", OF_IMAGES),
    "vit": Tiny("ViTForImageClassification", OF_IMAGES, {"num_labels": 11}),
    "dinov2": Tiny("Dinov2ForImageClassification", without(OF_IMAGES, "intermediate_size"), {"use_mask_token": False}),
    "dinov2-model": Tiny("Dinov2Model", without(OF_IMAGES, "intermediate_size"), {"use_mask_token": False}),
    "dinov2-gated": Tiny(
        "Dinov2ForImageClassification", without(OF_IMAGES, "intermediate_size"), {"use_swiglu_ffn": True}
    ),
    "dinov2_with_registers": Tiny(
        "Dinov2WithRegistersForImageClassification", without(OF_IMAGES, "intermediate_size"), {"num_register_tokens": 3}
    ),
    "dinov2_with_registers-model": Tiny("Dinov2WithRegistersModel", without(OF_IMAGES, "intermediate_size")),
    "deit": Tiny("DeiTForImageClassification", OF_IMAGES),
    "deit-taught": Tiny("DeiTForImageClassificationWithTeacher", OF_IMAGES, {"num_labels": 7}),
    "ijepa": Tiny("IJepaForImageClassification", OF_IMAGES),
    "vit_msn": Tiny("ViTMSNModel", OF_IMAGES),
    "dinov3_vit": Tiny("DINOv3ViTModel", OF_IMAGES, {"num_register_tokens": 3}),
    "dinov3_vit-gated": Tiny(
        "DINOv3ViTModel",
        OF_IMAGES,
        {
            "num_register_tokens": 2,
            "use_gated_mlp": True,
            "hidden_act": "silu",
            "query_bias": False,
            "value_bias": False,
            "rope_theta": 50.0,
        },
    ),
    "imagegpt": Tiny("ImageGPTForCausalImageModeling", GPT, {"n_inner": 80}),
    "audio_spectrogram_transformer": Tiny(
        "ASTForAudioClassification",
        without(OF_IMAGES, "image_size"),
        {"max_length": 36, "num_mel_bins": 24, "time_stride": 6, "frequency_stride": 5, "num_labels": 9},
    ),
    "beit": Tiny("BeitForImageClassification", OF_IMAGES),
    "beit-biased": Tiny("BeitForImageClassification", OF_IMAGES, {"use_relative_position_bias": True}),
    "convnext": Tiny(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 64, "num_labels": 5},
    ),
    "bart": Tiny("BartForConditionalGeneration", SEQ2SEQ, {"decoder_attention_heads": 2, "decoder_layers": 1}),
    "mbart": Tiny("MBartForConditionalGeneration", SEQ2SEQ, {"activation_function": "relu", "scale_embedding": True}),
    "plbart": Tiny("PLBartForConditionalGeneration", SEQ2SEQ),
    "marian": Tiny(
        "MarianMTModel",
        SEQ2SEQ,
        {"vocab_size": 58_112, "activation_function": "swish", "scale_embedding": True},  # its padding is token 58,100
        tolerance=2e-5,
    ),
    "pegasus": Tiny("PegasusForConditionalGeneration", SEQ2SEQ, {"activation_function": "relu"}),
    "blenderbot": Tiny("BlenderbotForConditionalGeneration", SEQ2SEQ, {"decoder_layers": 3}),
    "blenderbot_small": Tiny("BlenderbotSmallForConditionalGeneration", SEQ2SEQ),
    "m2m_100": Tiny("M2M100ForConditionalGeneration", SEQ2SEQ, {"pad_token_id": 1}),
    "whisper": Tiny(
        "WhisperForConditionalGeneration",
        without(SEQ2SEQ, "max_position_embeddings"),
        {"vocab_size": 51_904, "num_mel_bins": 20, "max_source_positions": 24, "max_target_positions": 32},
    ),
    "moonshine": Tiny(
        "MoonshineForConditionalGeneration",
        {
            "vocab_size": 96,
            "hidden_size": 48,
            "intermediate_size": 80,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
        },
    ),
    "speech_to_text": Tiny(
        "Speech2TextForConditionalGeneration",
        without(SEQ2SEQ, "max_position_embeddings"),
        {"pad_token_id": 1, "max_target_positions": 64, "conv_channels": 32, "input_feat_per_channel": 20},
    ),
    "clip": Tiny(
        "CLIPModel",
        {
            "projection_dim": 40,
            "text_config": OF_HEADS,
            "vision_config": {**OF_IMAGES, "num_attention_heads": 2, "hidden_size": 32},
        },
    ),
    "clip_text_model": Tiny("CLIPTextModel", OF_HEADS),
    "clip_text_model-joint": Tiny("CLIPTextModelWithProjection", OF_HEADS, {"projection_dim": 40, "eos_token_id": 95}),
    "clip_vision_model": Tiny("CLIPVisionModel", OF_IMAGES),
    "clip_vision_model-joint": Tiny("CLIPVisionModelWithProjection", OF_IMAGES, {"projection_dim": 40}),
    "siglip": Tiny(
        "SiglipModel",
        {"text_config": without(OF_HEADS, "pad_token_id"), "vision_config": {**OF_IMAGES, "num_attention_heads": 2}},
    ),
    "siglip_text_model": Tiny("SiglipTextModel", without(OF_HEADS, "pad_token_id"), {"projection_size": 40}),
    "siglip_vision_model": Tiny("SiglipVisionModel", OF_IMAGES),
    "mamba2": Tiny("Mamba2ForCausalLM", MAMBA2),
    "recurrent_gemma": Tiny(
        "RecurrentGemmaForCausalLM",
        LLAMA,
        {
            "hidden_size": 64,
            "num_key_value_heads": 1,
            "num_hidden_layers": 5,
            "attention_window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    "jamba": Tiny(
        "JambaForCausalLM",
        LLAMA,
        {"num_hidden_layers": 8, "num_experts": 4, "mamba_dt_rank": 3, "use_mamba_kernels": False, "pad_token_id": 0},
    ),
    "rwkv": Tiny(
        "RwkvForCausalLM", {"vocab_size": 96, "context_length": 64, "hidden_size": 48, "num_hidden_layers": 2}
    ),
    "qwen3_next": Tiny("Qwen3NextForCausalLM", LLAMA, QWEN3_NEXT | {"num_hidden_layers": 4}, tolerance=1e-4),
    "qwen3_next-order": Tiny(
        "Qwen3NextForCausalLM",
        LLAMA,
        QWEN3_NEXT | {"layer_types": ["full_attention", "linear_attention"], "norm_topk_prob": False},
    ),
    "qwen3_5_text": Tiny(
        "Qwen3_5ForCausalLM",
        LLAMA,
        DELTA | {"num_hidden_layers": 4},
    ),
    "lfm2": Tiny(
        "Lfm2ForCausalLM",
        LLAMA,
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.3,
            "conv_bias": True,
        },
    ),
    "lfm2-plain": Tiny(
        "Lfm2ForCausalLM", LLAMA, {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    ),
    "granitemoehybrid": Tiny("GraniteMoeHybridForCausalLM", LLAMA, HYBRID | {"num_local_experts": 4}),
    "granitemoehybrid-dense": Tiny(
        "GraniteMoeHybridForCausalLM",
        LLAMA,
        HYBRID | {"num_local_experts": 0, "position_embedding_type": "rope", "layer_types": 2 * ["full_attention"]},
    ),
    "nemotron_h": Tiny(
        "NemotronHForCausalLM",
        without(LLAMA, "num_hidden_layers"),
        {
            "layer_types": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention", "mlp"],
            "head_dim": 16,
            "ssm_state_size": 8,
            "mamba_num_heads": 6,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 32,
            "n_routed_experts": 4,
            "pad_token_id": 0,
        },
    ),
    "llama4_text": Tiny("Llama4ForCausalLM", LLAMA, LLAMA4 | {"num_hidden_layers": 4}),
    "llama4_text-scaled": Tiny(
        "Llama4ForCausalLM",
        LLAMA,
        LLAMA4 | {"no_rope_layers": [1, 0], "rope_parameters": LLAMA3, "pad_token_id": 0},
    ),
    "llama4_text-dense": Tiny(  # as Maverick has it
        "Llama4ForCausalLM",
        LLAMA,
        LLAMA4
        | {
            "num_hidden_layers": 6,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 72,
            "use_qk_norm": False,
            "no_rope_layers": [1, 1, 0, 1, 1, 0],
        },
    ),
    "deberta_v2": Tiny(
        "DebertaV2ForMaskedLM",
        OF_HEADS,
        {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": "p2c|c2p",
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "deberta_v2-classes": Tiny(
        "DebertaV2ForSequenceClassification",
        OF_HEADS,
        {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": "p2c|c2p",
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "swin": Tiny(
        "SwinForImageClassification",
        {
            "image_size": 64,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2, 1, 1],
            "num_heads": [2, 2, 4, 4],
            "window_size": 4,
            "mlp_ratio": 2.0,
            "num_labels": 5,
        },
    ),
}
