"""What `make test` runs of tests that repeat one check over many things, or take long: `pytest --every` runs the rest.

Chosen are those that have what no other has, and of equals the quick ones. Of models of the zoo, see `zoo/sizes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT: Mapping[str, tuple[str, ...]] = {
    "docs/test_pages.py::test_page": (*("README.md", "alternatives.md", "faq.md", "tour.md", "tutorial.md"),),
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
    "torch_emit/test_float8.py::test_it_compiles_without_a_break": (),
    "torch_emit/test_huggingface.py::test_flex_attention_computes_the_same": (),
    "torch_emit/test_moe.py::test_dropping_and_counting_compile_as_one_graph": (),
    "torch_emit/test_sdpa_kernels.py::test_masks_are_of_the_type_of_queries": (
        *("deepseek_v3:deepseek_v3", "t5:t5_base", "mixtral:mixtral_8x7b", "alibi:alibi_1_3b", "gpt2:gpt2"),
        "xlnet:xlnet_base",
    ),
    "interop/test_lift_positions.py::test_a_formula_says_what_is_computed": (
        *("cut and merged", "joined", "buckets", "column and row", "turned around", "logarithms", "largest"),
    ),
    "interop/test_lift_positions.py::test_a_mask_is_read_from_its_comparisons": (
        *("causal", "the other way round", "strictly before", "window, as transformers", "both ways", "chunks"),
        *("chunks that see back", "prefix by an arithmetic mean", "not global", "strided", "complement", "additive"),
        *("sum", "everything of nothing", "one key off", "bias", "counted from the end"),
    ),
    "parity/test_unusual.py::test_runs_trains_and_compiles": (
        *("axial", "dit", "highway_lstm", "perceiver", "product_keys", "two_ahead", "universal", "vae"),
    ),
    "test_fit.py::test_the_budget_is_used": ("vary1-2600000000-dp=1", "vary3-400000000000-dp=1"),
    "test_flops.py::test_full_widths": (
        *("gpt2-layers0", "llama3_8b-layers1", "mixtral_8x7b-layers2", "bert_base-layers5"),
    ),
    "test_flops.py::test_parity_specs": (
        *("bart", "clip", "convnext", "deberta", "fnet", "gemma2", "gpt_oss", "lfm2", "mamba2", "mpt", "qwen3_next"),
        *("recurrent_gemma", "rwkv", "swin"),
    ),
    "test_needs.py::test_advised_options_bring_the_figure": (
        *("gpt2---accelerator t4 --batch 64 --checkpoint full --checkpoint-every 4",),
        *("llama3_8b---accelerator h100_sxm --batch 8 --seq 8192", "mamba_130m---accelerator l4 --batch 64"),
    ),
    "test_onnx_files.py::test_older_opsets_compute_the_same": (
        *("gpt2:gpt2-21", "llama3:llama3_8b-22", "llama3:llama3_8b-23", "mixtral:mixtral_8x7b-21", "t5:t5_base-22"),
    ),
    "test_roofline.py::test_published_full_servers_are_slower_than_the_bound": (
        *("llama3_8b-1-128-128-28312", "llama3_8b-1-2048-2048-9305", "llama3_70b-2-128-128-6651"),
    ),
    "test_roofline.py::test_published_hours_are_more_than_the_bound": ("llama3_8b", "llama_7b", "bloom_176b"),
    "test_side_by_side.py::test_the_table_has_the_figures_of_estimates": ("0", "32", "56"),
    "torch_emit/test_attention_blocks.py::test_blocks_equal_the_mask": (
        *("window(4)", "causal | prefix(3)", "dilated(3, 2)", "causal | keys(early)", "queries(early)", "same(group)"),
        *("documents", "causal & (chunked(16) | keys(early))", "causal & window(8) & padding", "~causal"),
        "(causal & window(3)) | (strided(4) & window(20))",
    ),
    "torch_emit/test_checkpoint.py::test_a_step_of_training_is_the_same": (
        *("gpt2:gpt2", "mixtral:mixtral_8x7b", "deepseek_v3:deepseek_v3_mtp", "mamba:mamba_130m", "xlnet:xlnet_base"),
        *("transformer:transformer_base", "albert:albert_base", "wavenet:wavenet", "norms:post_powernorm"),
    ),
    "torch_emit/test_cuda_graphs.py::test_steps_write_where_they_wrote_before": (
        *("llama3:llama3_8b-of two lengths", "mistral:mistral_7b-of one length", "mamba:mamba_130m-of two lengths"),
        *("deepseek_v3:deepseek_v3-of one length", "transformer:transformer_base-of two lengths"),
        *("bloom:bloom_176b-of one length", "rnn_lm:lstm_lm_small-of one length"),
    ),
    "torch_emit/test_generate.py::test_pairs_of_positions_that_a_spec_computes": (
        *("mask", "kerple", "bias and alibi", "cope", "stick-breaking", "hyena", "rows and columns", "one axis"),
        *("the other way round", "sums over queries", "groups of heads", "handed on", "training", "biases of keys"),
    ),
    "torch_emit/test_generate.py::test_steps_of_the_tiny_twins": (
        *("bart", "deepseek_v3_yarn", "gemma2", "gpt_oss", "jamba", "lfm2", "llama4", "mamba2", "mpt", "qwen3_next"),
        *("recurrent_gemma", "rwkv", "highway_lstm", "docs", "universal"),
    ),
    "torch_emit/test_huggingface.py::test_a_decoder_is_itself_in_transformers": (
        *("gpt2.arch:gpt2", "mistral.arch:mistral_7b", "bloom.arch:bloom_560m", "mixtral.arch:mixtral_8x7b"),
        *("deepseek_v3.arch:deepseek_v3", "hf/phi.arch:phi", "hf/gemma2.arch:gemma2", "hf/gpt_oss.arch:gpt_oss"),
    ),
    "zoo/test_current.py::test_a_size_is_the_network_of_its_checkpoint": (
        *("gemma2_2b", "gemma3_1b", "granite3_2b", "llama3_2_1b", "olmo2_1b", "phi3_mini", "qwen3_0_6b"),
        *("gpt_oss_20b", "smollm2_135m"),
    ),
}
"""Of a test, the cases that `make test` runs."""
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "docs/test_reference.py::test_the_kernels_of_a_gpu_are_current": ("",),
    "fuzz/test_broken.py::test_texts_that_were_built_to_cost_much": ("16", "26", "35", "38", "39", "40", "57"),
    "interop/test_native.py::test_a_folder_is_a_type_where_there_is_one_and_remote_code_where_not": ("",),
    "interop/test_real.py::test_minilm_embeds": ("",),
    "interop/test_strangers.py::test_names_of_a_checkpoint_stay_texts": ("text5",),
    "syntax/test_format.py::test_trees_without_a_source_are_printed": ("tests-5",),
    "test_api.py::test_a_pickled_module_computes_the_same_in_another_process": ("",),
    "test_cli.py::test_pages_that_show_commands": ("E0502-page2", "E0534-page19"),
    "test_examples.py::test_the_plain_loop": ("",),
    "test_fit.py::test_absurd_budgets_end_soon": ("question2-layers = 4,347, width = 556,544",),
    "test_fit.py::test_questions_without_an_answer": ("question13-does not grow with `heads`",),
    "test_gpu_benchmark.py::test_a_second_call_goes_on_and_time_runs_out": ("",),
    "test_onnx_runtimes.py::test_runtimes_say_what_pytorch_says": ("optimum",),
    "test_plots.py::test_of_many_blocks_the_largest": ("",),
    "torch_emit/test_fake_cuda.py::test_what_is_planted_is_named": ("",),
    "torch_emit/test_masks.py::test_compiled_by_length": ("",),
    "torch_emit/test_moe.py::test_devices_drop_what_one_does": ("",),
    "torch_emit/test_parallel.py::test_curves_are_those_of_one_process": ("",),
    "torch_emit/test_parallel.py::test_generated_is_what_one_process_generates": ("",),
    "torch_emit/test_parallel.py::test_killed_and_resumed": ("",),
    "zoo/test_list.py::test_families_of_checkpoints_are_found_by_a_word": ("",),
}
"""Of a test, the cases that take longest."""
