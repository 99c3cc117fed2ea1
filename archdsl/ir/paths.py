"""Steps in the path of a weight: `blocks.3` within a loop. The rules are in `archdsl.ir.weights`."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

_TORCH = """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches
    eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict
    modules mtia named_buffers named_children named_modules named_parameters parameters register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_
    set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu zero_grad
"""
_TRANSFORMERS = """
    activation_checkpointing_disable activation_checkpointing_enable active_adapters add_adapter add_model_tags
    adjust_generation_fn barrier_after_gathered_checkpoint_save base_model base_model_prefix can_generate
    can_record_outputs compute_transition_scores config_class continuous_batching_context_manager delete_adapter
    dequantize destroy_cached_continuous_batching_manager device disable_adapters disable_input_require_grads dtype
    dummy_inputs enable_adapters enable_input_require_grads enable_peft_hotswap ep_plan from_pretrained fsdp_plan
    fsdp_size gather_sharded_state_dict_for_save generate_batch generation_config generation_config_class
    get_adapter_state_dict get_compiled_call get_correct_attn_implementation get_correct_experts_implementation
    get_decoder get_encoder get_expanded_tied_weights_keys get_experts_implementation get_init_context
    get_input_embeddings get_memory_footprint get_output_embeddings get_parameter_or_buffer get_position_embeddings
    gradient_checkpointing gradient_checkpointing_disable gradient_checkpointing_enable heal_tokens
    init_continuous_batching init_parallel_plans initialize_weights input_modalities is_activation_checkpointing
    is_backend_compatible is_custom_code is_distributed_loading_by_transformers is_gradient_checkpointing
    is_remote_code kernel_config load_adapter load_custom_generate loss_function loss_type main_input_name
    mark_tied_weights_as_initialized maybe_distribute_model model_tags name_or_path named_non_persistent_buffers
    num_parameters output_modalities post_init pp_plan prepare_distribute_model prepare_inputs_for_generation
    push_to_hub register_for_auto_class resize_position_embeddings resize_token_embeddings
    retrieve_modules_from_names save_distributed_checkpoint save_pretrained set_adapter set_attn_implementation
    set_decoder set_encoder set_experts_implementation set_input_embeddings set_output_embeddings set_use_kernels
    should_save_on_this_rank smart_apply supports_context_parallel supports_gradient_checkpointing supports_pp_plan
    supports_tp_plan tie_weights tp_plan tp_size use_kernels warn_if_padding_and_no_attention_mask
"""
_EMITTED = """
    config forward generate init_weights is_causal layer_idx num_key_value_groups reset_parameters scaling self stream
    super update_bias
"""
RESERVED = frozenset(f"{_TORCH} {_TRANSFORMERS} {_EMITTED}".split())
"""Attributes that a submodule or parameter of the same name would hide: of `nn.Module`, of the classes of transformers
that those of a folder inherit from, and those of emitted classes that others use by name. (Words, since the compiler
loads neither library; tests compare them with the classes. Methods that emitted classes call themselves, as `step`, get
another name where a submodule has it.)"""


def is_reserved(name: str) -> bool:
    """Return whether a submodule cannot have the name: a keyword, one of RESERVED, or one like `_apply`, since names
    with a leading underscore belong to the libraries."""
    return keyword.iskeyword(name) or name in RESERVED or (name.startswith("_") and not name.endswith("_"))


def safe_name(name: str) -> str:
    """Return the attribute that a step in the path of a weight is: `stream_` for a layer called `stream`."""
    name = name.replace(".", "_")
    return f"{name}_" if is_reserved(name) else name


def starred(path: str) -> str:
    """Return a path with `*` for the numbers of layers: `blocks.*.ffn.up`."""
    return ".".join("*" if step.isdecimal() else step for step in path.split("."))


def layer_of(path: str) -> tuple[str, int, str]:
    """Return the list that a module is in, the number of its layer, and the path within: `blocks`, 3, `ffn.up`; no
    list where the path has no number."""
    steps = path.split(".")
    at = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    return ("", 0, path) if at is None else (".".join(steps[:at]), int(steps[at]), ".".join(steps[at + 1 :]))


def layers_of(paths: Iterable[str]) -> list[int]:
    """Return the numbers of the layers that some paths lead into, each once."""
    return sorted({number for stack, number, _ in map(layer_of, paths) if stack})


def ranges(indices: Sequence[int], dash: str = "–") -> str:
    """Return rising indices in short: `0–2` for neighbours, and the stretches of several: `0–4,6–10`; of more than
    three that follow each other at one distance, the first two and the last: `0–4,6–10,…,24–25`, `3,7,…,47`."""
    stretches: list[tuple[int, int]] = []
    for index in indices:
        if stretches and index == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], index)
        else:
            stretches.append((index, index))
    said = [f"{first}{dash}{last}" if last > first else str(first) for first, last in stretches]
    starts = {b[0] - a[0] for a, b in pairwise(stretches)}
    lengths = [last - first for first, last in stretches]
    if len(said) > 3 and len(starts) == 1 and len({*lengths[:-1]}) == 1 and lengths[-1] <= lengths[0]:
        said[2:-1] = "…"
    return ",".join(said)


def layer_texts(rows: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """Return what to say of the layers of each row, given by their lists: `0–11`, or `encoder 0–5` where the rows are
    of several lists."""
    several = len({stack for row in rows for stack in row}) > 1
    return [", ".join(f"{stack} " * several + ranges(found) for stack, found in row.items()) for row in rows]


Step = Callable[[str], str]
"""From the name of an application to its steps in the path: `blocks` to `blocks.3` within a loop, `str` outside."""


def counter() -> Step:
    """Numbers the applications of each name within one outermost loop."""
    counts: dict[str, int] = {}

    def step(name: str) -> str:
        index = counts.get(name, 0)
        counts[name] = index + 1
        return f"{name}.{index}"

    return step
