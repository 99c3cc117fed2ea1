"""A decoder's classes as transformers wants them: their names, what they inherit and what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from archdsl.backends.huggingface.decoder import Decoder
from archdsl.backends.huggingface.lowering import LibraryLowering
from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.imports import IMPORTED
from archdsl.ir.graph import Block, Model
from archdsl.ir.op import Tree

TRANSFORMERS = {
    "transformers": ("GenerationMixin", "PreTrainedConfig", "PreTrainedModel"),
    "transformers.cache_utils": ("Cache", "DynamicCache"),
    "transformers.masking_utils": (
        "create_causal_mask",
        "create_chunked_causal_mask",
        "create_sliding_window_causal_mask",
    ),
    "transformers.modeling_layers": (
        "GenericForSequenceClassification",
        "GenericForTokenClassification",
        "GradientCheckpointingLayer",
    ),
    "transformers.modeling_outputs": ("BaseModelOutputWithPast", "CausalLMOutputWithPast"),
    "transformers.modeling_utils": ("ALL_ATTENTION_FUNCTIONS",),
    "transformers.utils": ("can_return_tuple",),
    "transformers.utils.generic": ("merge_with_config_defaults",),
    "transformers.utils.output_capturing": ("capture_outputs",),
}


CLASSIFIERS = {
    "ForSequenceClassification": "a classifier of the last token that is no padding",
    "ForTokenClassification": "a classifier of each token",
}
"""Heads of the library in place of the LM head, by what the names of their classes end in."""


class LibraryClasses(Classes):
    """The classes of one decoder for transformers. Errors as of `Decoder`."""

    given = ("layer_idx",)
    settings = ("_attn_implementation",)
    drawn_by = "reset_parameters"
    imported = frozenset({*IMPORTED, *(name for names in TRANSFORMERS.values() for name in names)})

    def __init__(self, model: Model) -> None:
        self.decoder = Decoder(model)
        super().__init__(self.decoder.outlined.model)
        self.lowering = partial(LibraryLowering, self.decoder)
        tied = bool(self.decoder.outlined.tie)
        self.library_fields = {"tie_word_embeddings": tied, "use_cache": True, "pad_token_id": None}
        self.choices = {name: v for name, v in self.choices.items() if name not in self.library_fields}

    def layers(self, block: Block) -> int:
        return self.decoder.layers(block)

    # --- names ---

    def known(self, block: Block) -> Any:
        return super().known(self.model.block if block is self.decoder.outlined.base else block)

    @property
    def base(self) -> ClassGroup:
        return self.by_block[self.decoder.outlined.base]

    def resolved(self, tree: Any, group: ClassGroup | None, local: Mapping[str, Tree] | None = None) -> Any:
        """The model without its head has the names of the whole."""
        base = self.by_block.get(self.decoder.outlined.base)
        return super().resolved(tree, None if group is base else group, local)

    def _resolve(self) -> None:
        super()._resolve()
        for group in self.groups:
            for name in {*self.given} & {*group.arguments, *group.block.local}:
                raise self.decoder.refuse(
                    f"`{name}` of `{group.block.name}` has the name of what the library gives each layer",
                    "give it another name",
                )
            group.needs_config = group.needs_config or bool(self.decoder.layers(group.block))

    def _name_classes(self) -> None:
        super()._name_classes()
        taken = {g.name for g in self.groups if g is not self.base}
        name = self.root_class
        endings = ("Config", "PreTrainedModel", "Model", "ForCausalLM", *CLASSIFIERS)
        while taken & {f"{name}{ending}" for ending in endings}:
            name += "_"
        self.config_class, self.pretrained_class = f"{name}Config", f"{name}PreTrainedModel"
        self.base.name, self.root_class = f"{name}Model", f"{name}ForCausalLM"
        self.classifiers = {ending: f"{name}{ending}" for ending in CLASSIFIERS}
