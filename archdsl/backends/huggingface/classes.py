"""A decoder's classes as transformers wants them: their names, what they inherit and what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.backends.huggingface.decoder import Decoder
from archdsl.backends.huggingface.lowering import EncoderLowering, LibraryLowering
from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.imports import IMPORTED
from archdsl.backends.torch.lower import Kind, Lowering
from archdsl.ir.graph import Block, Model
from archdsl.ir.op import Tree

TRANSFORMERS = {
    "transformers": ("GenerationMixin", "PreTrainedConfig", "PreTrainedModel"),
    "transformers.cache_utils": ("Cache", "DynamicCache", "EncoderDecoderCache"),
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
    "transformers.modeling_outputs": (
        "BaseModelOutput",
        "BaseModelOutputWithPast",
        "CausalLMOutputWithPast",
        "Seq2SeqLMOutput",
        "Seq2SeqModelOutput",
    ),
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
        self.lowering = self._lowering
        tied = bool(self.decoder.outlined.tie)
        self.library_fields = {"tie_word_embeddings": tied, "use_cache": True, "pad_token_id": None}
        if self.decoder.encoder is not None:
            self.library_fields |= {"is_encoder_decoder": True, "decoder_start_token_id": None}
        self.choices = {name: v for name, v in self.choices.items() if name not in self.library_fields}

    def _lowering(self, _: Classes, block: Block, kinds: Sequence[Kind] | None) -> Lowering:
        """Return what lowers a block; blocks of an encoder are lowered as in a plain file."""
        if block in self.decoder.encoding:
            return EncoderLowering(self.decoder, self, block)
        return LibraryLowering(self.decoder, self, block, kinds)

    def layers(self, block: Block, source: bool = False) -> int:
        return self.decoder.layers(block, source)

    # --- names ---

    def known(self, block: Block) -> Any:
        outlined = self.decoder.outlined
        return super().known(self.model.block if block in (outlined.base, outlined.base.before) else block)

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
            group.needs_config = group.needs_config or self.decoder.is_numbered(group.block)

    def _name_classes(self) -> None:
        super()._name_classes()
        taken = {g.name for g in self.groups if g is not self.base}
        name = self.root_class
        encodes = self.decoder.encoder is not None
        head = "ForConditionalGeneration" if encodes else "ForCausalLM"
        classifiers = () if encodes else CLASSIFIERS
        endings = ("Config", "PreTrainedModel", "Model", head, *["Encoder"] * encodes, *classifiers)
        while taken & {f"{name}{ending}" for ending in endings}:
            name += "_"
        self.config_class, self.pretrained_class = f"{name}Config", f"{name}PreTrainedModel"
        self.base.name, self.root_class = f"{name}Model", f"{name}{head}"
        self.encoder_class = f"{name}Encoder" if encodes else ""
        self.classifiers = {ending: f"{name}{ending}" for ending in classifiers}
