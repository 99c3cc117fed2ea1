"""Steps in the path of a weight: `blocks.3` within a loop. The rules are in `archdsl.ir.weights`."""

from __future__ import annotations

import keyword
from collections.abc import Callable

# Attributes of torch's nn.Module: a submodule of such a name would hide them. (Kept here so that torch need not be
# imported.)
_ATTRIBUTES = """
    T_destination add_module apply bfloat16 buffers call_super_init children compile config cpu cuda double
    dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu
    load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty
    train training type xpu zero_grad self super init_weights generate stream
    reset_parameters update_bias
    _apply _backward_hooks _backward_pre_hooks _buffers _call_impl _compiled_call_impl _forward_hooks
    _forward_hooks_always_called _forward_hooks_with_kwargs _forward_pre_hooks _forward_pre_hooks_with_kwargs
    _get_backward_hooks _get_backward_pre_hooks _get_name _is_full_backward_hook _load_from_state_dict
    _load_state_dict_post_hooks _load_state_dict_pre_hooks _maybe_warn_non_full_backward_hook _modules _named_members
    _non_persistent_buffers_set _parameters _register_load_state_dict_pre_hook _register_state_dict_hook
    _replicate_for_data_parallel _save_to_state_dict _slow_forward _state_dict_hooks _state_dict_pre_hooks _version
    _wrapped_call_impl
"""
MODULE_ATTRIBUTES = frozenset(_ATTRIBUTES.split())


def safe_name(name: str) -> str:
    """A step in the path of names that is also a Python attribute."""
    name = name.replace(".", "_")
    return f"{name}_" if keyword.iskeyword(name) or name in MODULE_ATTRIBUTES else name


def starred(path: str) -> str:
    """Return a path with `*` for the numbers of layers: `blocks.*.ffn.up`."""
    return ".".join("*" if step.isdecimal() else step for step in path.split("."))


def layer_of(path: str) -> tuple[str, int, str]:
    """Return the list that a module is in, the number of its layer, and the path within: `blocks`, 3, `ffn.up`; no
    list where the path has no number."""
    steps = path.split(".")
    at = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    return ("", 0, path) if at is None else (".".join(steps[:at]), int(steps[at]), ".".join(steps[at + 1 :]))


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
