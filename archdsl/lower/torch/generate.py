"""The section `generate`: a step of decoding for every class that keeps something, and sampling on top of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from archdsl.analyses.decode import plan
from archdsl.ir.graph import Value
from archdsl.lower.python import local_name
from archdsl.lower.torch.extras import Section
from archdsl.lower.torch.few_rows import few_rows_sources
from archdsl.lower.torch.roles import Assigner, Roles
from archdsl.lower.torch.steps import StepWriter

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter
    from archdsl.lower.torch.file import FileWriter
    from archdsl.lower.torch.written import Group

STATE = '''
class State:
    """What a step of decoding needs of the places before it: keys and values, what recurrences hand on, and what is
    computed once. Every step comes to it in the same order."""

    def __init__(self, length: int, static: bool = False) -> None:
        self.length = length  # places that there is room for
        self.static = static  # whether tensors keep their sizes from step to step, as a compiled step wants it
        self.kept: list[tuple[Tensor, ...]] = []
        self.fresh = True
        self.lengths: Tensor | None = None  # of the rows in the first step, if they differ
        self.end = 0  # places so far
        self.start: Tensor | None = None  # the next place of each row, if they differ
        self.active: Tensor | None = None  # rows that go on; the others stay as they are

    def begin(self, x: Tensor) -> None:
        """A step for x [batch, new, …]."""
        self.first, self.fresh, self.cursor, self.batch = self.fresh, False, 0, x.size(0)
        new = x.size(1)
        place = torch.arange(new, device=x.device)
        if self.first or self.start is None:
            self.begun, self.end = self.end, self.end + new
            self.positions = self.begun + place[None]
            if self.static:
                self.start = torch.full((1,), new, device=x.device)
        else:
            self.end = self.length if self.static else self.end + new
            self.positions = self.start[:, None] + place
            self.start = self.start + (new if self.active is None else new * self.active)
        self.keys = torch.arange(self.end, device=x.device)
        # The mask of the keys up to each new place: none where all are seen, or where the kernel knows it.
        self.mask = None
        if not self.first and (self.start is not None or new > 1):
            self.mask = self.keys <= self.positions[:, None, :, None]

    @property
    def real(self) -> Tensor:
        """Which places are tokens [batch, all]: as far as any place looks, all of them."""
        return torch.ones(self.batch, self.end, dtype=torch.bool, device=self.keys.device)

    def newest(self, x: Tensor) -> Tensor:
        """Of x [batch, all] the new places."""
        return x.gather(1, self.positions.expand(x.size(0), -1))

    def hold(self, *tensors: Tensor) -> None:
        """Keep what the first step has computed."""
        self.kept.append(tensors)

    def held(self) -> Any:
        """What the first step has computed."""
        tensors = self.kept[self.cursor]
        self.cursor += 1
        return tensors if len(tensors) > 1 else tensors[0]

    def keep(self, *tensors: Tensor, axis: int = -2) -> Any:
        """Put the new places behind those before them; all of them so far."""
        if self.first:
            axes = [axis % t.dim() for t in tensors]
            shapes = [(*t.shape[:a], self.length, *t.shape[a + 1 :]) for t, a in zip(tensors, axes)]
            self.kept.append(tuple(t.new_zeros(shape) for t, shape in zip(tensors, shapes)))
        buffers = self.kept[self.cursor]
        self.cursor += 1
        for buffer, new in zip(buffers, tensors):
            if self.first or self.start is None:
                buffer.narrow(axis, self.begun, new.size(axis)).copy_(new)
            else:
                rows = torch.arange(new.size(0), device=new.device)[:, None]
                buffer.movedim(axis, 1)[rows, self.positions] = new.movedim(axis, 1)
        found = tuple(buffer.narrow(axis, 0, self.end) for buffer in buffers)
        return found if len(found) > 1 else found[0]

    def recall(self, *starts: Callable[[], Tensor]) -> Any:
        """What a recurrence handed on; before the first place, what it starts from."""
        if self.first:
            self.kept.append(tuple(make() for make in starts))
        found = self.kept[self.cursor]
        return found if len(found) > 1 else found[0]

    def hand_on(self, *tensors: Tensor) -> None:
        """What the recurrence is to find in the next step."""
        if self.active is not None:
            shapes = [(-1, *[1] * (t.dim() - 1)) for t in tensors]
            before = self.kept[self.cursor]
            tensors = tuple(torch.where(self.active.view(s), t, b) for s, t, b in zip(shapes, tensors, before))
        self.kept[self.cursor] = tensors
        self.cursor += 1
'''

WINDOWS = '''
    def last(self, window: int) -> Tensor:
        """The places of the keys that `keep_last` gives [1 or batch, keys]; of one that holds nothing yet, the end."""
        if self.first or self.length <= window:
            return self.keys[None]
        slots, new = torch.arange(window, device=self.keys.device), self.positions.size(1)
        latest = self.positions[:, :1] - int(new > 1)  # of the places that are in the buffer
        places = latest - (latest - slots) % window
        places = torch.where(places < 0, self.length, places)
        return places if new == 1 else torch.cat((places, self.positions), dim=1)

    def keep_last(self, *tensors: Tensor, window: int) -> Any:
        """Put the new places where those stand that no window shows any more; all that one of the new ones may see."""
        if self.length <= window:
            return self.keep(*tensors)
        if self.first:
            self.kept.append(tuple(t.new_zeros(*t.shape[:-2], window, t.size(-1)) for t in tensors))
        buffers = self.kept[self.cursor]
        self.cursor += 1
        new, rows = tensors[0].size(-2), torch.arange(self.batch, device=self.keys.device)[:, None]
        found = tensors if self.first else tuple(torch.cat(pair, dim=-2) for pair in zip(buffers, tensors) if new > 1)
        # The last new places of each row, as many as there is room for.
        lengths = self.lengths[:, None] if self.first and self.lengths is not None else new
        index = (lengths - min(new, window) + torch.arange(min(new, window), device=rows.device)[None]).clamp(min=0)
        slots = (self.positions[:, :1] + index) % window
        for buffer, tensor in zip(buffers, tensors):
            buffer.movedim(-2, 1)[rows, slots] = tensor.movedim(-2, 1)[rows, index]
        return found or buffers
'''

SAMPLE = '''
def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """A token for each row of logits [batch, vocab]: the likeliest at temperature 0, else drawn, from the `top_k`
    likeliest and from those that make up `top_p` of the probability (Holtzman et al., 2019)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None:
        likely, order = logits.softmax(-1).sort(descending=True)
        beyond = likely.cumsum(-1) - likely >= top_p  # without them there is enough
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
'''

STREAM = '''
@torch.no_grad()
def stream(
    self,
    {tokens}: Tensor,
    max_new_tokens: int,
    *,{inputs}
    real: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Iterable[int] = (),
    compiled: bool = False,
) -> Iterator[Tensor]:
    """Tokens [batch] that follow the prompts {tokens} [batch, time], one after another, until every row has come to one
    of `stop`, which it then repeats.

    `real` [batch, time] says which tokens of the prompts are no padding, whichever side that is on. At temperature 0
    the likeliest token is taken. `compiled` compiles the step, whose tensors then keep their sizes."""
    batch, time = {tokens}.shape
    generator = None if seed is None else torch.Generator({tokens}.device).manual_seed(seed)
    model = for_decoding(self) if {tokens}.is_cpu else self
    state, step = State(time + max_new_tokens, static=compiled), model.{step}
{prefill}
    stops = torch.tensor([*stop], dtype=torch.long, device={tokens}.device)
    ended = torch.zeros(batch, dtype=torch.bool, device={tokens}.device)
    token = {tokens}.new_zeros(batch)
    if compiled:
        step = torch.compile(step, fullgraph=True)
    for i in range(max_new_tokens):
        if i > 0:
            logits = step(token[:, None], state)[:, -1]
        token = torch.where(ended, token, sample(logits, temperature, top_k, top_p, generator))
        yield token
        ended |= torch.isin(token, stops)
        if len(stops) and bool(ended.all()):
            return


def generate(self, {tokens}: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
    """Tokens that follow the prompts [batch, time]: [batch, at most max_new_tokens]. Options are those of `stream`."""
    return torch.stack([*self.stream({tokens}, max_new_tokens, **options)], dim=1)
'''

TOGETHER = """whose tensors then keep their sizes.

    Devices that share a model take as many prompts and tokens, and those of `tp` the same ones with the same `seed`."""

SEEDED = """ = {tokens}.shape
    if dist.is_initialized() and temperature > 0 and seed is None:
        raise ValueError("devices that share a model draw the same tokens only with a `seed`")
"""

ALL_ENDED = '''
def all_ended(rows: Tensor) -> bool:
    """Whether all rows have come to their end, those of every other device, too: they go on or stop together."""
    ended = rows.all().int()
    if dist.is_initialized():
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    return bool(ended)
'''

PACKED = """
    lengths = torch.full((batch,), time, device={tokens}.device) if real is None else real.sum(1)
    if real is not None:  # padding goes behind
        {tokens} = {tokens}.gather(1, real.long().argsort(dim=1, descending=True, stable=True))
    last = int(lengths.max())
"""

AT_ONCE = (
    PACKED
    + """
    # What stands behind a row's end is never looked at, and overwritten.
    state.lengths = lengths
    logits = step({tokens}[:, :last], state{given}{at}){ends}
    if int(lengths.min()) < last:
        state.start = lengths
"""
)

ROW_BY_ROW = (
    PACKED
    + """
    shortest = int(lengths.min())
    logits = step({tokens}[:, :shortest], state{given})[:, -1]
    for i in range(shortest, last):  # a recurrence must not see what stands behind a row's end
        if i == shortest:
            state.start = lengths.new_full((batch,), shortest)
        state.active = i < lengths
        logits = torch.where(state.active[:, None], step({tokens}[:, i : i + 1], state)[:, -1], logits)
    state.active = None
"""
)


def state_class(used: set[str]) -> str:
    """The class, with those of its methods that are used."""
    wanted = used | {"__init__", "begin"}
    if "keep_last" in wanted:
        wanted.add("keep")
    head, *methods = re.split(r"\n(?=    @property\n|    def )", (STATE + WINDOWS).strip("\n"))
    joined: list[str] = []
    for text in methods:  # a decorator stands with what follows it
        if joined and joined[-1].strip() == "@property":
            joined[-1] += f"\n{text}"
        else:
            joined.append(text)
    names = {text: found[1] for text in joined if (found := re.search(r"def (\w+)", text))}
    return "\n".join([head, *(text.rstrip() + "\n" for text in joined if names[text] in wanted)]).rstrip()


class Generate(Section):
    """Steps for every class that keeps something, and the model's `generate`.

    Raises ArchError E0504 where the model cannot be taken step by step."""

    def __init__(self, file: FileWriter) -> None:
        self.file = file
        self.classes = file.classes
        self.plan = plan(file.model)
        self.written: dict[Group | None, dict[object, tuple[str, StepWriter]]] = {}

    def write(self) -> None:
        roles = Assigner(self.plan).root()
        self._write(None, roles)
        self.classes.taken |= self.helpers().keys()

    def _write(self, group: Group | None, roles: Roles) -> str:
        """Write the step of a class, once for every way in which it is taken; its name."""
        known = self.written.setdefault(group, {})
        signature = roles.signature()
        if signature not in known:
            forward = self.classes.writer(group)
            kinds = [] if group is None else [group.kind(i) for i in range(len(group.block.contexts))]
            writer = StepWriter(self, forward, kinds, roles)
            attributes = {*forward.modules.made, *forward.modules.stateless_made.values()}
            name = "step" if "step" not in attributes else "advance"
            known[signature] = f"{name}_{len(known) + 1}" if known else name, writer
            writer.write()
            if group is not None:
                self.classes.add_names(group, writer.written)
        return known[signature][0]

    def method(self, group: Group, roles: Roles) -> str:
        """The name of the step of a class that is called."""
        return self._write(group, roles)

    def further(self, group: Group | None) -> Iterable[tuple[str, BlockWriter]]:
        return self.written.get(group, {}).values()

    @property
    def names(self) -> tuple[str, ...]:
        """What the steps are called, the model's first."""
        return tuple(dict.fromkeys(name for known in self.written.values() for name, _ in known.values()))

    def helpers(self) -> Mapping[str, str]:
        writers = [w for known in self.written.values() for _, w in known.values()]
        text = "\n".join(line for w in writers for _, line in w.written.forward)
        found = {"State": state_class(set(re.findall(r"\bstate\.(\w+)", text)))}
        if self.tokens is not None:
            experts = any("GroupedLinear" in written.helpers for written in self.classes.written())
            found |= {"sample": SAMPLE.strip(), **few_rows_sources(experts)}
            if self.together:
                found["all_ended"] = ALL_ENDED.strip()
            self.classes.taken |= {"for_decoding", "plain", "few_rows", "few_rows_by_expert"}
        for writer in writers:
            found |= {name: source.strip() for name, source in writer.written.helpers.items()}
        return found

    @property
    def together(self) -> bool:
        """Whether several devices may go step by step together."""
        return "parallel" in self.file.extras.sections

    @property
    def tokens(self) -> Value | None:
        """The model's input of tokens, if it has one, gives logits for each of them, and takes nothing else step by
        step."""
        moving = [v for v in self.plan.step.inputs if v not in self.plan.before.outputs and v.dtype != "padding"]
        logits = self.plan.step.outputs[0]
        fits = len(moving) == 1 and moving[0].dtype == "token" and moving[0].rank == 2 and logits.rank == 3
        return moving[0] if fits else None

    def methods(self) -> Iterable[str]:
        tokens = self.tokens
        if tokens is None:
            return ()
        name = next(local_name(n) for n, v in self.plan.model.inputs if v is tokens)
        step, writer = next(iter(self.written[None].values()))
        others = [p.name for p in writer.written.parameters if p.default and p.name != "at"]
        inputs = "".join(f"\n    {n}: Tensor | None = None," for n in others)
        given = "".join(f", {n}={n}" for n in others)
        ends = "[torch.arange(batch, device={tokens}.device), lengths - 1]"
        if writer.narrows:
            given_ends, ends = ", at=lengths - 1", "[:, 0]"
        else:
            given_ends = ""
        prefill = (ROW_BY_ROW if self.plan.carries else AT_ONCE).replace("\n\n", "\n").strip("\n")
        text = STREAM.replace("{prefill}", prefill).replace("{inputs}", inputs).replace("{given}", given)
        text = text.replace("{at}", given_ends).replace("{ends}", ends)
        if self.together:
            text = text.replace("bool(ended.all())", "all_ended(ended)").replace(" = {tokens}.shape\n", SEEDED, 1)
            text = text.replace("whose tensors then keep their sizes.", TOGETHER)
        return [text.replace("{tokens}", name).replace("{step}", step)]
