"""What `make test` runs of tests that repeat one check over many things, or take long: `pytest --every` runs the rest.

Chosen are those that have what no other has, and of equals the quick ones. Of models of the zoo, see `zoo/sizes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

DECODERS = ("gpt2:gpt2", "mistral:mistral_7b", "mixtral:mixtral_8x7b", "deepseek_v3:deepseek_v3", "mamba:mamba_130m")
KEPT: Mapping[str, tuple[str, ...]] = {
    "docs/test_pages.py::test_page": (
        *("README.md", "alternatives.md", "checkpoints.md", "diff.md", "estimates.md", "faq.md", "tour.md"),
        "tutorial.md",
    ),
    "docs/test_reference.py::test_the_zoo_is_current": (),
    "fuzz/test_broken.py::test_what_was_found_before": (
        *("a_condition_below", "a_long_line", "lists_in_lists", "many_axes", "many_declarations"),
        *("many_errors", "many_names", "many_parts", "masks_that_double", "numbers_that_double", "no_mask"),
        *("loops_that_change_nothing", "powers_of_powers", "powers_of_sums", "turns_that_only_count"),
    ),
    "interop/test_import.py::test_there_and_back": (
        *("albert-classes", "arcee", "beit-biased", "clip", "convnext", "deberta_v2-classes", "deepseek_v3"),
        *("deepseek_v3-scaled", "dinov3_vit", "gemma2", "gpt1", "gpt2", "gpt_oss-order", "llama", "mamba", "mixtral"),
        *("moonshine", "mpt", "nemotron-biases", "nemotron_h", "phi3-long", "qwen3_next-order", "recurrent_gemma"),
        *("rwkv", "speech_to_text", "switch_transformers", "swin", "xglm", "xlnet"),
    ),
    "interop/test_import_lift.py::test_a_type_without_a_mapping_is_lifted": (),
    "interop/test_lift_fold.py::test_what_differs_in_one_thing_is_not_folded_into_what_it_is_not": (
        *("eps of one norm", "queries not rotated", "heads within channels", "another rotation", "a bias of one"),
        *("drawn otherwise", "two activations", "one branch scaled", "dropout of one branch", "queries scaled"),
        *("keys first", "other positions", "the first layers", "another type"),
    ),
    "interop/test_lift_oracle.py::test_a_lifted_class_is_the_spec_of_its_type": ("llama", "bloom", "mamba"),
    "interop/test_native.py::test_a_family_is_found_among_those_with_its_names": ("mixtral", "granite", "starcoder2"),
    "interop/test_native.py::test_transformers_own_class_computes_the_same": (
        *("gpt2:gpt2", "llama3:llama3_8b", "mixtral:mixtral_8x7b", "bloom:bloom_560m"),
    ),
    "interop/test_native.py::test_what_was_imported_is_the_type_that_it_was": ("bert",),
    "interop/test_real.py::test_smollm2_answers": (),
    "ops/test_recurrences.py::test_what_is_parallel_compiles_whole_and_exports_with_any_time": ("causal_attention",),
    "parity/test_imported.py::test_compiles_as_one_graph": ("rwkv",),
    "parity/test_imported.py::test_exports_with_free_axes": ("clip", "deberta_v2"),
    "parity/test_imported.py::test_results_and_gradients_are_those_of_the_reference": (
        *("gemma2", "gpt_oss", "qwen3_next", "mpt", "modernbert", "deberta_v2", "convnext", "clip", "mamba2", "lfm2"),
        *("rwkv", "deepseek_v3", "electra", "xlnet", "beit", "longt5"),
    ),
    "parity/test_onnx.py::test_onnxruntime_gives_what_pytorch_gives": (
        *("gpt_oss-gpt_oss", "qwen3_next-qwen3_next", "recurrent_gemma-recurrent_gemma", "whisper-whisper"),
        *("gemma2-gemma2", "packed_documents-docs", "mamba2-mamba2", "rwkv-rwkv", "mpt-mpt", "swin-swin"),
        *("unet-unet", "perceiver-perceiver"),
    ),
    "parity/test_parity.py::test_compiles_as_one_graph": ("t5:t5_base",),
    "parity/test_parity.py::test_exports_with_free_batch_and_time": ("gpt2:gpt2", "bert:bert_base"),
    "test_activations.py::test_less_is_saved_where_more_is_computed_again": ("llama3:llama3_8b-bfloat16",),
    "test_activations.py::test_what_is_measured_is_what_autograd_saves": (
        *("gpt2:gpt2-bfloat16", "gpt2:gpt2-float32", "mixtral:mixtral_8x7b-float32", "t5:t5_small-bfloat16"),
        "mamba:mamba_130m-bfloat16",
    ),
    "test_api.py::test_a_text_a_path_and_a_loaded_model_are_the_same": (
        *("check", "draw", "estimate", "expand", "export_checkpoint", "fit", "flops", "generate", "import_weights"),
        *("init_weights", "memory", "show", "sweep", "to_onnx", "to_torch", "torch_source", "verify"),
    ),
    "test_busy.py::test_commands_show_that_they_work": ("check", "compile", "explain", "lift", "run", "sweep"),
    "test_config.py::test_a_number_that_is_whole_by_chance": (
        *("a list of first values", "a name that is rounded", "the size of a block", "iterations", "an eps", "a name"),
        *("in a list", "sizes by a name"),
    ),
    "test_config.py::test_other_numbers_for_the_zoo": ("gpt2:gpt2", "tagger:bilstm_tagger"),
    "test_determinism.py::test_the_zoo_is_the_same_in_every_process": (),
    "test_examples.py::test_sharded_training_resumes_and_equals_that_of_one_process": (),
    "test_examples.py::test_the_trainer_of_transformers": (),
    "test_fit.py::test_options_without_effect_are_refused_before_the_search": (),
    "test_nothing_lost.py::test_stopped_at_each_moment": ("fmt", "init", "torch"),
    "test_nothing_lost.py::test_stopped_while_it_writes": ("init-15-143",),
    "test_onnx_names.py::test_optimum_runs_encoders": (),
    "test_onnx_seq2seq.py::test_optimum_says_what_pytorch_says": (),
    "test_package.py::test_the_wheel_works_in_an_empty_environment": (),
    "test_roofline.py::test_megatron_is_slower_and_no_other_than_bound": ("22B", "175B"),
    "test_safety.py::test_a_name_of_pythons_stays_a_name": ("block",),
    "torch_emit/test_attention_blocks.py::test_compiled_as_a_whole": ("causal & documents",),
    "torch_emit/test_compile.py::test_a_training_step_is_one_graph": ("mistral:mistral_7b", "vit:vit_b16"),
    "torch_emit/test_compile.py::test_inductor": (),
    "torch_emit/test_compile.py::test_the_loss_is_one_graph": ("llama3:llama3-none", "llama3:llama3-full"),
    "torch_emit/test_fake_cuda.py::test_nothing_waits_for_the_device": ("0",),
    "torch_emit/test_float8.py::test_it_compiles_without_a_break": (),
    "torch_emit/test_huggingface.py::test_flex_attention_computes_the_same": (),
    "torch_emit/test_moe.py::test_dropping_and_counting_compile_as_one_graph": (),
    "torch_emit/test_sdpa_kernels.py::test_masks_are_of_the_type_of_queries": (
        *("deepseek_v3:deepseek_v3", "t5:t5_base", "mixtral:mixtral_8x7b", "alibi:alibi_1_3b", "gpt2:gpt2"),
        "xlnet:xlnet_base",
    ),
}
"""Of a test, the cases that `make test` runs."""
