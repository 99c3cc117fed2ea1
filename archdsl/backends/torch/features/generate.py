"""The section `generate`: a step of decoding for every class that keeps something, and sampling on top of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.features import Extras, Section
from archdsl.backends.torch.features.decoding import Decoding
from archdsl.backends.torch.features.steps import StepLowering
from archdsl.backends.torch.features.taking import Taking, windows
from archdsl.backends.torch.helpers import members
from archdsl.backends.torch.lower import Merged, cache_name, method_name, name_of
from archdsl.backends.torch.python import local_name
from archdsl.backends.torch.tree import nodes, trees
from archdsl.ir.dims import Num, free_names
from archdsl.ir.graph import Block, OpNode, Value
from archdsl.passes.forms import is_time

Given = Callable[[str], str]
"""What a step is called with, given the new tokens."""


def stream(
    inputs: str, step: str, cache: str, prefill: str, later: Given, first: str, together: bool, on_cpu: bool
) -> str:
    """The methods `stream` and `generate` of the model. `first` picks the logits of what a step gives."""
    method = "" if step == "forward" else f".{step}"
    model = ("model" if on_cpu else "self") + method
    twin = "    model = for_decoding(self) if tokens.is_cpu else self\n" * on_cpu
    shared, seeded, all_ended = "", "", "bool(ended.all())"
    mode = ', mode="reduce-overhead"'
    static = """
    for tensor in [cache.start, *sum(cache.entries, [])] if compiled else []:
        torch._dynamo.mark_static_address(tensor, guard=False)  # a CUDA graph reads and writes it in place"""
    if together:
        mode = static = ""
        shared = """ Devices that
    share a model take as many prompts and tokens, and those of `tp` the same ones with the same `seed`."""
        seeded = """    if dist.is_initialized() and temperature > 0 and seed is None:
        raise ValueError("devices that share a model draw the same tokens only with a `seed`")
"""
        all_ended = "all_ended(ended)"
    return f'''
@torch.no_grad()
def stream(
    self,
    tokens: Tensor,
    max_new_tokens: int,
    *,{inputs}
    attention_mask: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Iterable[int] = (),
    compiled: bool = False,
) -> Iterator[Tensor]:
    """Yield the tokens [batch] that continue prompts [batch, time], until every row has ended with one of `stop`.
    `attention_mask` is False at padding, on either side. `compiled` compiles the step.{shared}"""
    allowed = max_new_tokens >= 0, temperature >= 0, top_k is None or top_k >= 1, top_p is None or 0 < top_p <= 1
    if not all(allowed):
        raise ValueError(f"{{max_new_tokens=}}, {{temperature=}} must be >= 0, {{top_k=}} >= 1, {{top_p=}} in (0, 1]")
{seeded}    generator = None if seed is None else torch.Generator(tokens.device).manual_seed(seed)
    real = torch.ones_like(tokens) if attention_mask is None else attention_mask.bool().long()
    lengths = real.sum(-1)
    if tokens.dim() != 2 or real.shape != tokens.shape or 0 in (len(tokens), *lengths.tolist()):
        raise ValueError(f"tokens {{[*tokens.shape]}}, mask {{[*real.shape]}}: both [batch, time], a token in each row")
    tokens = tokens.gather(1, real.argsort(dim=1, descending=True, stable=True))[:, : lengths.max()]  # padding last
{twin}{prefill.format(step=model, cache=cache, first=first)}
    step = torch.compile({model}{mode}) if compiled else {model}{static}
    stops = torch.tensor([*stop], dtype=torch.long, device=tokens.device)
    token, ended = torch.zeros_like(lengths), torch.zeros_like(lengths, dtype=torch.bool)
    for count in range(1, max_new_tokens + 1):
        token = torch.where(ended, token, sample(logits, temperature, top_k, top_p, generator))
        yield token
        ended = torch.isin(token, stops)
        if count == max_new_tokens or (len(stops) and {all_ended}):
            return
        logits = step({later("token[:, None]")}, {cache}=cache){first}[:, -1]


def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
    """Continue prompts [batch, time]: [batch, at most max_new_tokens]. Options are those of `stream`."""
    following = [*self.stream(tokens, max_new_tokens, **options)]
    return torch.stack(following, dim=1) if following else tokens[:, :0]
'''.strip()


def at_once(given: Given, at: str) -> str:
    """The prompts in one step: what lies behind a row's end is never attended to, and overwritten."""
    more = f", {at}=lengths - 1" if at else ""
    ends = "[:, 0]" if at else "[torch.arange(len(tokens), device=tokens.device), lengths - 1]"
    ragged = "lengths if lengths.min() < tokens.size(1) else None"
    return f"""    cache = Cache(tokens.size(1) + max_new_tokens, {ragged}, compiled)
    logits = {{step}}({given("tokens")}, {{cache}}=cache{more}){{first}}{ends}"""


def row_by_row(given: Given, later: Given, led: bool = False) -> str:
    """The prompts as far as all have tokens, then one position after the other. `led`: the cache counts places in front
    of the tokens."""
    front = " + cache.front" * led
    one = f"{{step}}({later('tokens[:, i : i + 1]')}, {{cache}}=cache){{first}}[:, -1]"
    return f"""    cache = Cache(tokens.size(1) + max_new_tokens, static=compiled)
    shortest, longest = int(lengths.min()), tokens.size(1)
    logits = {{step}}({given("tokens[:, :shortest]")}, {{cache}}=cache){{first}}[:, -1]
    for i in range(shortest, longest):  # a recurrence must not read what lies behind a row's end
        cache.start, cache.active = lengths[:, None].clamp(max=i){front}, i < lengths
        logits = torch.where(cache.active[:, None], {one}, logits)
    if shortest < longest:
        cache.start, cache.active = lengths[:, None]{front}, None"""


def of_one_length(given: Given) -> str:
    """The prompts in one step, where a state is not one of each row."""
    return f"""    if lengths.min() < tokens.size(1):
        raise ValueError("prompts have to be of one length: a state of this model has no axis of rows")
    cache = Cache(tokens.size(1) + max_new_tokens, static=compiled)
    logits = {{step}}({given("tokens")}, {{cache}}=cache){{first}}[:, -1]"""


class Generate(Section):
    """Steps for every class that keeps something, and the model's `generate`.

    Raises ArchError E0504 where the model cannot be taken step by step."""

    def __init__(self, classes: Classes, together: bool, on_cpu: bool) -> None:
        """`together`: several devices may go step by step together; `on_cpu`: the file has fast paths for a CPU."""
        super().__init__(classes)
        self.together, self.on_cpu = together, on_cpu
        self.decoding = Decoding(classes.model)
        self.taking = Taking(self.decoding, classes.model.block, self.decoding.flat.root)
        self.written: dict[ClassGroup | None, dict[object, tuple[str, StepLowering]]] = {}
        self.partly: set[OpNode] = set()
        """Attention that has a window in some blocks of its class, and in others sees all positions."""

    @classmethod
    def of(cls, classes: Classes, extras: Extras, before: Sequence[Section]) -> Generate:
        return cls(classes, "parallel" in extras.sections, "cpu" in extras.sections)

    def reads(self, block: Block) -> Iterable[str]:
        return [name for window in windows(block).values() if window is not None for name in free_names(window.expr)]

    def settle(self) -> None:
        groups = self.classes.groups
        seen = {g: [*zip(*(windows(b).values() for b in g.members), strict=True)] for g in groups}
        self._alike(self.taking, seen)

    def merge(self) -> None:
        self.method(None, self.taking)

    def _alike(self, taking: Taking, seen: Mapping[ClassGroup, Sequence[tuple[Num | None, ...]]]) -> None:
        """Give attention that sees all positions the window 0 where in other blocks of its class it has one. `seen` are
        the windows of every primitive of a class, in each of its blocks."""
        for callee in taking.callees.values():
            self._alike(callee, seen)
        group = self.classes.by_block.get(taking.block)
        if group is None:
            return
        appending = {taking.origin(n) for n in taking.kept}
        for (node, own), row in zip(windows(taking.block).items(), seen[group], strict=True):
            window = next((w for w in row if w is not None and free_names(w.expr)), None)
            if window is None or node not in appending:
                continue
            if own is None:
                taking.window[node] = Num(0, window.expr)
            if None in row:
                self.partly.add(node)

    def method(self, group: ClassGroup | None, taking: Taking) -> str:
        """Return what the step of a class is called, '' where that is `forward` without a cache; a step is lowered once
        for each way in which it is taken."""
        known = self.written.setdefault(group, {})
        signature = taking.signature()
        forward = self.classes.root if group is None else group.lowered[group.members.index(taking.block)]
        kinds = [] if group is None else [group.kind(i) for i in range(len(group.block.contexts))]
        if signature not in known:
            count = sum(bool(name) for name, _ in known.values())
            number = f"_{count + 1}" if count else ""
            name = method_name(forward.block, f"step{number}", f"advance{number}")
            apart = count > 0 or forward.before is not None or (group is None and self._is_apart())
            lowering = StepLowering(self, forward, kinds, taking, name, apart)
            known[signature] = name if apart else "forward", lowering
            method = lowering.run().method
            if group is not None and not lowering.differs:
                known[signature] = "", lowering
                return ""
            self.classes.further(group, method, lowering.lowered.helpers)
            if lowering.joined is not None:
                self.classes.merged[group] = Merged(lowering.joined, lowering.forward, method)
            return known[signature][0]
        name, lowering = known[signature]
        method, block = lowering.lowered.method, taking.block
        if name and group is not None and method.block is not block and (block, method) not in group.taken_over:
            group.taken_over[block, method] = None  # first: a class may be made within itself
            here = StepLowering(self, forward, kinds, taking, method.name, lowering.joined is None)
            group.taken_over[block, method] = here.run().method
        return name

    def _is_apart(self) -> bool:
        """Whether a step of the model gives less than `forward`."""
        return len(self.decoding.step.results) < sum(v is not None for v in self.decoding.model.block.graph.outputs)

    @property
    def names(self) -> tuple[str, ...]:
        """What the steps are called, the model's first."""
        found = dict.fromkeys(name for known in self.written.values() for name, _ in known.values())
        return tuple(name for name in found if name not in ("", "forward"))

    def helpers(self) -> Iterable[str]:
        if self.tokens is None:
            return ()
        return ("sample", *("all_ended",) * self.together)

    def sources(self) -> Mapping[str, str]:
        """The cache, with those of its methods that are used."""
        return {"Cache": members("Cache", self._used())}

    def _used(self) -> set[str]:
        """What is used of the cache."""
        used = {"__init__", "begin"}
        for known in self.written.values():
            for _, lowering in known.values():
                method, state = lowering.lowered.method, lowering.state
                for tree in trees((method.steps, method.results)):
                    read = (n for n in nodes(tree) if n.kind == "Attribute" and n.fields[0] == state)
                    used |= {n.fields[1] for n in read}
        if "set_state" in used:
            used.add("active")
            used |= {"front"} if self.decoding.front else set()
        return used

    @property
    def tokens(self) -> Value | None:
        """The model's input of tokens [batch, time]; None where its steps take anything else, or its first output is no
        logits [batch, time, vocab]."""
        moving, logits = self.decoding.taken, next(v for _, v in self.decoding.model.outputs)
        fits = len(moving) == 1 and moving[0].dtype == "token" and moving[0].rank == 2 and logits.rank == 3
        return moving[0] if fits and is_time(logits.shape[1], self.decoding.step.time) else None

    def methods(self) -> Iterable[str]:
        if self.tokens is None:
            return ()
        step, lowering = next(iter(self.written[None].values()))
        merged = self.classes.merged.get(None)
        method = lowering.lowered.method if merged is None else merged.method
        cache = cache_name(method)
        inputs = {v: n for n, v in self.decoding.model.inputs}
        text = stream("", "step", "cache", row_by_row(str, str), str, "", self.together, self.on_cpu)
        own = words_of(text)
        names = {v: local_name(inputs[v]) for v in lowering.late if v not in lowering.real}
        here = {v: f"{n}_" if n in own else n for v, n in names.items()}
        more = "".join(f"\n    {n}: Tensor," for n in here.values())
        first = "[0]" if len(self.decoding.step.results) > 1 else ""
        at = name_of(method, lowering.at) if lowering.at is not None else ""

        def handed(others: Mapping[Value, str], new: str) -> str:
            if merged is None:
                return ", ".join([new, *(f"{names[v]}={n}" for v, n in others.items())])
            return ", ".join(new if v is self.tokens else others.get(v, "None") for v in inputs)

        given, later = partial(handed, here), partial(handed, {})
        led = self.decoding.front > 0
        if self.decoding.flat.without_rows is not None:
            prefill = of_one_length(given)
        else:
            prefill = row_by_row(given, later, led) if self.decoding.carries else at_once(given, at)
        return [stream(more, step, cache, prefill, later, first, self.together, self.on_cpu)]


def words_of(source: str) -> set[str]:
    """Every name that a function reads, binds or takes."""
    found = ast.walk(ast.parse(source))
    return {n.id if isinstance(n, ast.Name) else n.arg for n in found if isinstance(n, ast.Name | ast.arg)}
