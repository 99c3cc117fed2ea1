"""The two Python files of a folder: the configuration, and the model's classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from archdsl.backends.huggingface.classes import CLASSIFIERS, TRANSFORMERS, LibraryClasses
from archdsl.backends.huggingface.config import LibraryConfig
from archdsl.backends.huggingface.lists import INDEXED
from archdsl.backends.torch.classes import ClassGroup
from archdsl.backends.torch.imports import imports
from archdsl.backends.torch.module import ClassWriter, FileWriter
from archdsl.backends.torch.python import lines_laid_out
from archdsl.backends.torch.text import first_sentence, quoted
from archdsl.backends.torch.tree import Part, PyNode, leaves, py
from archdsl.backends.torch.validate import validate
from archdsl.ir.graph import Block, CallNode, LoopNode, Model
from archdsl.ir.op import Tree
from archdsl.ir.walk import every_node
from archdsl.passes.kinds import inference_nodes

PRETRAINED = "What transformers asks of every class of the model."


class LibraryWriter(FileWriter):
    """Writes one model's files for transformers. Raises ArchError E0534 where it cannot hold the model."""

    classes: LibraryClasses

    def __init__(self, model: Model, stem: str, options: Sequence[str] = ()) -> None:
        """Prepare the two files of a folder, `…_{stem}.py`; `options` stand in the command that their headers give."""
        classes = LibraryClasses(model)
        super().__init__(classes.model, classes=classes)
        self.original, self.stem, self.options = model, stem, options

    @cached_property
    def config(self) -> LibraryConfig:
        return LibraryConfig(self.classes, self.stem)

    def written(self) -> tuple[str, str]:
        """The sources of the configuration and of the model, which were validated together."""
        self.names = set()
        modeling = self.write()
        configuration = self.configuration()
        validate(f"{configuration}\n\n{modeling}", self.classes)
        return configuration, modeling

    def write(self) -> str:
        self.classes.settle([])
        texts = [LibraryClassWriter(self, g).text() for g in self.classes.groups if g is not self.classes.base]
        below = [LibraryClassWriter(self, self.classes.base).text(), LibraryClassWriter(self, None).text()]
        texts += [self.pretrained(), *self.encoders(), *below, *self.classifiers()]
        above = list(self._above([], {}, texts))
        body = "\n\n\n".join([*above, *texts]) + "\n"
        self.names -= {"dataclass"}
        own = f"from .configuration_{self.stem} import {self.classes.config_class}"
        lines = [line for line in imports(self.names, TRANSFORMERS) if line]
        head = [self.header(["hf", *self.options]), "", *_grouped(lines), "", own]
        return lines_laid_out("\n".join(head)) + "\n\n\n" + body

    def configuration(self) -> str:
        """The source of the configuration."""
        self.names = {"PreTrainedConfig"}
        body = self.config.text(self._demands())
        self.names |= self.config.names
        lines = [line for line in imports(self.names, TRANSFORMERS) if line]
        head = "\n".join([self.header(["hf", *self.options]), "", *_grouped(lines)])
        return "\n\n\n".join([lines_laid_out(head), body]) + "\n"

    def message(self, text: str) -> str:
        return f'"{quoted(text)}"'

    all_are_fields = False

    # --- classes ---

    @cached_property
    def stacked(self) -> list[ClassGroup]:
        """The classes of layers: what a loop of the model calls and the cache has a place for."""
        decoder = self.classes.decoder
        return self._stacked(decoder.outlined.base, lambda block: bool(decoder.layers(block)))

    @cached_property
    def encoding(self) -> list[ClassGroup]:
        """The classes of layers of an encoder."""
        encoder = self.classes.decoder.encoder
        return self._stacked(encoder, lambda block: True) if encoder is not None else []

    def _stacked(self, block: Block, takes: Callable[[Block], bool]) -> list[ClassGroup]:
        """The classes of what the loops of a block call."""
        loops = (n for n in block.graph.nodes if isinstance(n, LoopNode))
        nodes = (n for loop in loops for body in loop.bodies for n in every_node(body))
        calls = (n for n in nodes if isinstance(n, CallNode) and takes(n.block))
        return list(dict.fromkeys(self.classes.group(n.block) for n in calls))

    def pretrained(self) -> str:
        """The class that all of the model's own inherit from."""
        classes = self.classes
        kernels = frozenset.intersection(*(n.op.kernels(n) for n, _ in classes.decoder.attention))
        layers = ", ".join(f'"{g.name}"' for g in (*self.encoding, *self.stacked))
        recorded = ", ".join(g.name for g in self.stacked)
        lines = [
            f"config_class = {classes.config_class}",
            'base_model_prefix = "model"',
            "supports_gradient_checkpointing = True",
            f"_no_split_modules = [{layers}]",
            '_skip_keys_device_placement = ["past_key_values"]',
            *(
                f"_supports_{name} = True"
                for name in ("sdpa", "flex_attn", "flash_attn")
                if name.partition("_")[0] in kernels
            ),
            *["_supports_attention_backend = True"] * ("flex" in kernels),
            "_can_compile_fullgraph = True",
            f'_can_record_outputs = {{"hidden_states": {recorded if len(self.stacked) == 1 else f"[{recorded}]"}}}',
        ]
        body = "\n".join(f"    {line}" for line in lines)
        return self.known(
            f'class {classes.pretrained_class}(PreTrainedModel):\n    """{PRETRAINED}"""\n\n{body}\n\n'
            "    def _init_weights(self, module: nn.Module) -> None:\n"
            '        """Draw the weights of one module; those that were loaded are kept."""\n'
            '        if reset := getattr(module, "reset_parameters", None):\n'
            "            reset()\n\n"
            "    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:\n"
            '        """Draw also what a module without weights of its own draws of those below."""\n'
            "        own = any(True for _ in module.parameters(recurse=False))\n"
            '        known = all(getattr(p, "_is_hf_initialized", False) for p in module.parameters())\n'
            "        super()._initialize_weights(module, is_custom_code and (own or known))"
        )

    def encoders(self) -> Iterator[str]:
        """The class that `generate` takes for the encoder."""
        classes = self.classes
        if classes.decoder.encoder is None:
            return
        before = classes.by_block[classes.decoder.outlined.base].latest.before
        assert before is not None
        method = before.method
        read = dict.fromkeys(x.name for x in leaves((method.steps, method.results)) if isinstance(x, Part))
        parts = ", ".join(f'"{name}"' for name in read) + "," * (len(read) == 1)
        yield self.known(
            f"class {classes.encoder_class}(nn.Module):\n"
            f'    """The encoder of {self.original.name}: its parts are those of the model."""\n\n'
            f"    def __init__(self, model: Any) -> None:\n"
            f"        super().__init__()\n"
            f"        self.{method.name} = model.{method.name}\n"
            f"        for name in ({parts}):\n"
            f"            setattr(self, name, getattr(model, name))\n\n"
            f"    def forward(\n"
            f"        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any\n"
            f"    ) -> Any:\n"
            f'        """Compute hidden states [batch, source, width] for input_ids [batch, source]."""\n'
            f"        return BaseModelOutput(last_hidden_state=self.{method.name}(input_ids, attention_mask))"
        )

    def of_targets(self) -> str:
        """What the class with the LM head makes of labels."""
        return (
            "    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:\n"
            '        """Put what a target begins with before labels [batch, time], and take their last away."""\n'
            "        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id\n"
            "        if start is None:\n"
            '            raise ValueError("labels need `config.decoder_start_token_id`: what a target begins with")\n'
            "        before = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), dim=1)\n"
            "        return before.masked_fill(before == -100, start if padding is None else padding)"
        )

    def classifiers(self) -> Iterator[str]:
        """The classes with another head of the library's. Its own `__init__` looks the model up by its config, which it
        does not do of remote code."""
        classes = self.classes
        for ending, name in classes.classifiers.items():
            each = ending == "ForTokenClassification"
            body = [
                f"{classes.pretrained_class}.__init__(self, config)",
                "self.num_labels = config.num_labels",
                f"self.model = {classes.base.name}(config)",
                *["self.dropout = nn.Dropout(0.1)"] * each,
                f"self.score = nn.Linear(config.hidden_size, config.num_labels, bias={each})",
                "self.post_init()",
            ]
            lines = "".join(f"        {line}\n" for line in body)
            yield self.known(
                f"class {name}(Generic{ending}, {classes.pretrained_class}):\n"
                f'    """{self.original.name} with {CLASSIFIERS[ending]}."""\n\n'
                f"    def __init__(self, config: {classes.config_class}) -> None:\n{lines}"
            )


def _grouped(lines: Sequence[str]) -> list[str]:
    """Imports with an empty line behind those of the standard library."""
    standard = [line for line in lines if line.split()[1].partition(".")[0] not in ("torch", "transformers")]
    others = [line for line in lines if line not in standard]
    return [*standard, *[""] * bool(standard), *others]


class LibraryClassWriter(ClassWriter):
    """Writes one class for transformers."""

    file: LibraryWriter
    classes: LibraryClasses

    @property
    def is_base(self) -> bool:
        return self.group is self.classes.base

    def text(self) -> str:
        own = super().text()
        if self.classes.decoder.encoder is None or not self.holds_config():
            return own
        more = self.file.of_targets()
        if self.is_base:
            more = (
                "    def get_encoder(self, modality: str | None = None) -> nn.Module:\n"
                '        """Return what computes `encoder_outputs`."""\n'
                f"        return {self.classes.encoder_class}(self)"
            )
        written = self.file.known(f"class {self.classes.root_class}:\n{more}")
        return "\n\n".join([own, written.partition("\n")[2]])

    def _local(self) -> dict[str, Tree]:
        return {} if self.is_base else super()._local()

    def holds_config(self) -> bool:
        return self.group is None or self.is_base

    def draws_model(self) -> bool:
        return False

    def parent(self) -> str:
        layers = (*self.file.encoding, *self.file.stacked)
        own = "GradientCheckpointingLayer" if self.group in layers else "nn.Module"
        if self.holds_config():
            own = self.classes.pretrained_class
        found = [own, "GenerationMixin"] if self.group is None else [own]
        self.file.names |= {"GradientCheckpointingLayer", "PreTrainedModel"} & {own} | {*found[1:]}
        return ", ".join(found)

    def docstring(self) -> str:
        if not self.holds_config():
            return super().docstring()
        title = (first_sentence(self.file.original.doc) or f"{self.file.original.name}.").rstrip(".")
        part = "with its LM head" if self.group is None else "without its LM head"
        return f'    """{self.file.original.name} {part}."""' if not title else f'    """{self._named()} {part}."""'

    def _named(self) -> str:
        """What the model is called: its class."""
        return self.classes.root_class.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")

    def of_class(self) -> list[str]:
        lines = []
        if self.is_base:
            lines = [f'_input_embed_layer = "{self.file.config.embedding}"']
        elif self.group is None:
            tie = self.classes.decoder.outlined.tie
            lines += [f'_tied_weights_keys = {{"lm_head.weight": "{tie}"}}'] * bool(tie)
            lines += self.file.config.plans_of_head()
        return [*(f"    {line}" for line in lines), ""] if lines else []

    def resolved(self, tree: Any) -> Any:
        return _called(super().resolved(tree))

    def constructor(self, body: Sequence[str], draws: bool) -> list[str]:
        classes, group = self.classes, self.group
        if self.holds_config():
            name = classes.root_class if group is None else group.name
            classes.closing[name, "__init__"] = ["self.post_init()"]
            head = f"    def __init__(self, config: {classes.config_class}) -> None:"
            switch = ["self.gradient_checkpointing = False"] if self.is_base else []
            lines = ["super().__init__(config)", *body, *switch, "self.post_init()"]
            return [head, *(f"        {text}" for text in lines), ""]
        assert group is not None
        if not classes.decoder.is_numbered(group.block):
            return super().constructor(body, draws)
        config, *others = self._parameters(group)
        nodes = {*inference_nodes(group.block.graph)}
        hosts, reads = (not nodes.isdisjoint(which) for which in (classes.decoder.kept, classes.decoder.crossing))
        own = ["self.config = config"] * hosts + ["self.layer_idx = layer_idx"] * (hosts or reads)
        head = f"    def __init__({', '.join(['self', config, 'layer_idx: int', *others])}) -> None:"
        return [head, "        super().__init__()", *(f"        {text}" for text in [*own, *body]), ""]


def _called(tree: Any) -> Any:
    """The tree with each layer being given its index."""
    if isinstance(tree, tuple):
        return tuple(map(_called, tree))
    if not isinstance(tree, PyNode):
        return tree
    fields = tuple(map(_called, tree.fields))
    if tree.kind == INDEXED:
        made, index = fields
        function, arguments, keywords = made.fields
        return PyNode("Call", (function, (*arguments, index), keywords))
    return PyNode(tree.kind, fields)


__all__ = ["LibraryWriter", "py"]
