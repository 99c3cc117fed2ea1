"""The configuration class of a folder: the spec's own numbers, and what the library calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from archdsl.backends.huggingface.classes import LibraryClasses
from archdsl.backends.huggingface.lists import ZERO, added, kinds_tree, size
from archdsl.backends.huggingface.lowering import LAYER_TYPES
from archdsl.backends.torch.features.parallel import Parallel
from archdsl.backends.torch.module import CONFIG, SELF, _as_written, choice_fields
from archdsl.backends.torch.numbers import Numbers
from archdsl.backends.torch.python import field_name, lines_laid_out
from archdsl.backends.torch.tree import PyNode, py, substituted, unparse, words
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Expr, Lit, Num, Var, free_names, substitute
from archdsl.ir.graph import LoopNode, OpNode, Value
from archdsl.ir.op import Tree
from archdsl.ir.weights import weights
from archdsl.passes.outline import BASE, HEAD, OWN_TYPE

STYLES = {"ColwiseParallel()": "colwise", "RowwiseParallel()": "rowwise"}
"""What the library calls styles of tensor parallelism."""
LIMITS = {"window": "sliding_window", "chunked": "attention_chunk_size"}
"""What it calls the number of that rule."""


class LibraryConfig:
    """Writes the configuration class of one model."""

    def __init__(self, classes: LibraryClasses, stem: str) -> None:
        """`stem` is what the name of its file ends in."""
        self.classes, self.decoder, self.stem = classes, classes.decoder, stem
        self.names: set[str] = set()
        """Global names that it reads."""
        self.fields = self.classes.config
        self.numbers = Numbers(self.classes.model.block, [self.classes.known(self.classes.model.block)])

    @property
    def kind(self) -> str:
        """The `model_type`."""
        return f"{OWN_TYPE}{self.stem}"

    # --- what the library asks for ---

    @cached_property
    def asked(self) -> dict[str, Num]:
        """The numbers that the library asks a configuration for, by its names."""
        outlined, model = self.decoder.outlined, self.decoder.original
        node, names = self.decoder.attention[0]
        q, k = (v for v in node.inputs[:2] if isinstance(v, Value))
        found = {
            "hidden_size": outlined.hidden.shape[-1],
            "vocab_size": outlined.head.outputs[0].shape[-1],
            "num_attention_heads": q.shape[1].outward(names),
            "num_key_value_heads": k.shape[1].outward(names),
            "head_dim": q.shape[3].outward(names),
        }
        if model.context is not None:
            found["max_position_embeddings"] = model.context
        for rule, number in self.decoder.limits:
            if number is not None:
                found[LIMITS[rule]] = number
        if node.options.get("softcap") is not None:
            found["attn_logit_softcapping"] = node.options["softcap"].outward(names)
        return found

    @cached_property
    def layers(self) -> Expr:
        """How many layers the cache has."""
        found: Expr = ZERO
        for node in self.decoder.outlined.base.graph.nodes:
            taken = self.decoder.layers_of(node)
            if taken and isinstance(node, LoopNode) and node.pattern is not None:
                each = [sum(map(self.decoder.layers_of, body.nodes)) for body in node.bodies]
                found = added(found, size(node.pattern, each))
            elif taken:
                found = added(found, Lit(str(taken)))
        return found

    @cached_property
    def kinds(self) -> Tree | None:
        """The kinds of all layers, where they differ."""
        if len({rule for rule, _ in self.decoder.limits}) < 2:
            return None
        found: Tree | None = None
        for node in self.decoder.outlined.base.graph.nodes:
            if not self.decoder.layers_of(node):
                continue
            bodies = [body.nodes for body in node.bodies] if isinstance(node, LoopNode) else [[node]]
            each = [self._kinds_of(nodes) for nodes in bodies]
            if any(len(kinds) != 1 for kinds in each):
                raise self.decoder.refuse("its layers attend in several ways each")
            layers = [sum(map(self.decoder.layers_of, nodes)) for nodes in bodies]
            kinds = [n * kinds for n, kinds in zip(layers, each, strict=True)]
            if isinstance(node, LoopNode):
                tree = kinds_tree(node.pattern, node.iterations, kinds, self.tree)
            else:
                tree = kinds_tree(None, [0], kinds, self.tree)
            found = tree if found is None else py("{a} + {b}", a=found, b=tree)
        return found

    def _kinds_of(self, nodes: Sequence[Any]) -> list[str]:
        """The kinds of attention of a body of a loop."""
        read = {v for n in nodes for v in (*getattr(n, "inputs", ()), *getattr(n, "contexts", ()))}
        made = zip(self.decoder.masks, self.decoder.limits, strict=True)
        return [LAYER_TYPES[rule] for n, (rule, _) in made if n.outputs[0] in read]

    def in_fields(self, expr: Expr) -> Expr:
        """An expression without names that the model computes from its fields."""
        own = {name: e for name, e in self.classes.model.block.local.items() if name not in self.fields}
        while not own.keys().isdisjoint(free_names(expr)):
            expr = substitute(expr, own)
        return expr

    def tree(self, expr: Expr) -> Tree:
        """An expression of numbers of the Config as a method of it reads them."""
        expr = self.in_fields(expr)

        def name(name: str) -> Any:
            return PyNode("Attribute", (SELF, field_name(name)))

        found: Tree = self.numbers.spelled_by(expr, "whole", name)
        return found

    @cached_property
    def embedding(self) -> str:
        """The module that looks up tokens."""
        nodes = (n for n in self.decoder.outlined.base.graph.nodes if isinstance(n, OpNode))
        node = next(n for n in nodes if self.decoder.tokens in n.inputs)
        return node.instance.path if node.instance is not None else node.name

    # --- parallel plans ---

    @cached_property
    def styles(self) -> dict[str, str]:
        """The styles of tensor parallelism, by path with `*` for layers; none where the library has not all of them."""
        if self.decoder.encoder is not None:
            return {}  # of several stacks it shares none
        try:
            plan, of_classes = Parallel(self.classes, None)._plan()
        except ArchError:
            return {}
        attending = {p: STYLES[s] for p, s in plan.items() if s in STYLES and not p.startswith(HEAD)}
        others = {s for s in plan.values() if s not in STYLES and "Rowwise" not in s and "Colwise" not in s}
        return {} if of_classes or others - {"entry"} else attending

    def plans_of_head(self) -> list[str]:
        """The class attributes that say how the head is shared."""
        found = []
        if self.styles and not self.decoder.outlined.tie:
            found.append(f'_tp_plan = {{"{HEAD}": "colwise_gather_output"}}')
        if self.stages:
            found.append(f'_pp_plan = {{"{HEAD}": (["hidden_states"], ["logits"])}}')
        return found

    @cached_property
    def stages(self) -> dict[str, tuple[list[str], list[str]]]:
        """How a pipeline hands on tensors: where the model is an embedding, one list of layers and a norm."""
        steps = list(
            dict.fromkeys(w.path.split(".")[1] for w in weights(self.classes.model) if w.path.startswith(BASE))
        )
        lists = [n for n in self.decoder.outlined.base.graph.nodes if isinstance(n, LoopNode)]
        if len(steps) > 3 or len(lists) != 1 or steps[0] != self.embedding or self.decoder.encoder is not None:
            return {}
        states = ["hidden_states"]
        given = [(["input_ids"], ["inputs_embeds"]), ([*states, "attention_mask"], states), (states, states)]
        return dict(zip(steps, given, strict=False))

    # --- text ---

    def text(self, demands: Sequence[str]) -> str:
        """The source of the class."""
        found = [
            f"class {self.classes.config_class}(PreTrainedConfig):",
            f'    """The numbers of {self.decoder.original.name}, and what transformers calls them."""',
            "",
            f'    model_type = "{self.kind}"',
        ]
        renamed: dict[str, Expr] = {}
        computed: dict[str, Expr] = {}
        for name, n in self.asked.items():
            (renamed if self._field(n.expr) else computed)[name] = n.expr
        (renamed if self._field(self.layers) else computed)["num_hidden_layers"] = self.layers
        mapping = {name: self._field(expr) for name, expr in renamed.items()}
        mapping = {name: own for name, own in mapping.items() if own != name}
        found += _dict("attribute_map", mapping)
        found += _dict("base_model_tp_plan", {p.removeprefix(f"{BASE}."): s for p, s in self.styles.items()})
        found += _dict("base_model_pp_plan", self.stages)
        found.append("")
        for name, value in self.fields.items():
            kind = "int" if isinstance(value.value, int) else "float"
            found.append(f"    {field_name(name)}: {kind} = {_as_written(value)}")
        found += choice_fields(self.classes.choices)
        for name, own in self.classes.library_fields.items():
            found.append(f"    {name}: {'int | None' if own is None else 'bool'} = {own}")
        if demands:
            found += ["", "    def __post_init__(self, **kwargs: Any) -> None:"]
            found += ["        super().__post_init__(**kwargs)", *demands[2:]]
            self.names.add("Any")
        for name, expr in computed.items():
            worth = self.asked.get(name)
            kind = "int" if worth is None or isinstance(worth.value, int) else "float"
            found += self._property(name, kind, self.tree(expr))
        if self.kinds is not None:
            found += self._property("layer_types", "list[str]", self.kinds)
        return lines_laid_out("\n".join(found))

    def _field(self, expr: Expr) -> str:
        """The field of the Config that an expression is, '' for none."""
        for name, value in self.fields.items():
            if expr in (Var(name), value.expr) and (isinstance(expr, Var) or name == "context"):
                return field_name(name)
        return ""

    def _property(self, name: str, kind: str, tree: Tree) -> Iterator[str]:
        self.names |= {*words(tree)} - {"self"}
        text = unparse(substituted(tree, {CONFIG: SELF}), str)
        return iter(["", "    @property", f"    def {name}(self) -> {kind}:", f"        return {text}"])


def _dict(name: str, entries: Mapping[str, Any]) -> list[str]:
    """The lines of a class attribute that is a mapping."""
    if not entries:
        return []
    shown = {k: f'"{v}"' if isinstance(v, str) else str(v).replace("'", '"') for k, v in entries.items()}
    return [f"    {name} = {{", *(f'        "{k}": {v},' for k, v in shown.items()), "    }"]
