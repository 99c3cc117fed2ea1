"""The section `parallel`: what several processes compute together is what one computes."""

import inspect
import json
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from activation_tools import tensors_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.sizes import sample

import archdsl
from archdsl.backends.torch.features import Name
from archdsl.diagnostics import ArchError
from archdsl.estimates.mesh import Mesh, parse_mesh
from archdsl.estimates.sharding import Step, StepPlan, shard
from torch_emit import parallel_tools as tools
from torch_emit.emitted import source

EXAMPLES = tools.EXAMPLES
SMALL = {"layers": 2, "width": 32, "heads": 4}
LLAMA: dict[str, Any] = {**SMALL, "kv_heads": 2, "hidden": 48, "context": 16}
PLAN = {"steps": 5, "batch": 8, "seq": 16, "warmup": 2, "rate": 1e-2, "clip": 0.5, "save_every": 3}

# Norms within heads are whole on each rank and work on other heads; the 65 words are no multiple of the ranks.
NORMED = """
block layer(heads) {
  attention: mha(heads: heads, qk_norm: rmsnorm, mask: causal)
  ffn:       swiglu(hidden: 48)
}

model normed(layers = 2, heads = 4) {
  vocab:   65
  context: 16
  width:   32
  blocks:  layers * layer(heads: heads)
  head:    lm
}
"""
MIXTURE = """
block layer(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       moe(experts: 4, top_k: 2, expert: swiglu(hidden: 24), shared: swiglu(hidden: 16))
}

model mixture(layers = 2, heads = 4) {
  vocab:   256
  context: 16
  width:   32
  blocks:  layers * layer(heads: heads)
  norm:    rmsnorm
  head:    lm
}
"""
# Experts have biases, of which the last is added once; a capacity; and a loss keeps them equally busy.
AFFINE = """
block layer(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       moe(experts: 4, top_k: 2, expert: mlp(hidden: 24), capacity: 1.25, router: softmax_router(balance: 0.1))
}

model affine(layers = 2, heads = 4) {
  vocab:   256
  context: 16
  width:   32
  blocks:  layers * layer(heads: heads)
  norm:    rmsnorm
  head:    lm
}
"""
# All layers read the keys that stand before them.
SHARED_KEYS = """
block layer(heads)(x: [batch, time, width], k: [batch, time, width]) -> [batch, time, width] {
  q = x -> linear(width) as query -> split_heads(heads)
  y = sdpa(q, k -> split_heads(heads), k -> split_heads(heads), mask: causal) -> merge_heads -> linear(width) as out
  return x + y
}

model keys(layers = 2, heads = 4, width = 32, vocab = 64)(tokens: token[batch, time]) -> [batch, time, vocab] {
  x = tokens -> embedding(vocab, width)
  k = x -> linear(width) as keys
  for f in layers * layer(heads: heads) { x = f(x, k) }
  return x -> rmsnorm -> linear(vocab, bias: false) as head
}
"""
# Attention that is written out: of its scores each device has those of its heads.
HOOKED = """
block cap(s: [batch, heads, time, source]) { return 3 * tanh(s / 3) }

block layer(heads) {
  attention: gqa(heads: heads, kv_heads: heads / 2, scores: cap, normalize: sigmoid)
  mask:      causal & window(5)
  position:  rope
  ffn:       mlp(hidden: 48)
}

model hooked(layers = 2, heads = 8) {
  vocab:   64
  context: 16
  width:   32
  blocks:  layers * layer(heads: heads)
  head:    lm
}
"""
# Layers that are primitives themselves: a step reads the weights of those in `recurrent`, all that those in `exact` do.
BARE = """
model bare(layers = 2, vocab = 64, width = 32)(tokens: token[batch, time]) -> [batch, time, vocab] {
  x = tokens -> embedding(vocab, width)
  for i in layers { x = x + (x -> linear(width) as called -> tanh) }
  for i in layers { x = x -> lstm(width) as recurrent }
  for i in layers { x = x -> cast(float32) -> linear(width) as exact -> cast(float) }
  return x -> linear(vocab) as head
}
"""
LATENT = {
    "dense_layers": 1,
    "sparse_layers": 1,
    "width": 32,
    "heads": 4,
    "q_rank": 12,
    "kv_rank": 8,
    "nope_dim": 6,
    "rope_dim": 4,
    "v_dim": 8,
    "hidden": 48,
    "experts": 8,
    "top_k": 2,
    "expert_hidden": 16,
    "groups": 2,
    "top_groups": 1,
    "vocab": 64,
    "context": 16,
}
WORDS = {"vocab": 64, "context": 16}
# Each with what is special about it: its sizes, and the mesh.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "biases, a tied head": ("gpt2", {**SMALL, **WORDS}, {"tp": 2}),
    "one head of keys": ("palm_8b", {**SMALL, **WORDS, "head_dim": 8}, {"tp": 2}),
    "dense layers, then experts": ("deepseek_v3", LATENT, {"tp": 2}),
    "experts": ("deepseek_v3", LATENT, {"ep": 2}),
    "experts with biases and a capacity": (AFFINE, {}, {"tp": 2}),
    "two stacks, and a bias for each head": ("t5_small", {**SMALL, **WORDS, "head_dim": 8, "hidden": 48}, {"tp": 2}),
    "norms within heads": (NORMED, {}, {"tp": 2}),
    "keys of all layers": (SHARED_KEYS, {}, {"tp": 2}),
    "attention written out": (HOOKED, {}, {"tp": 2}),
}


def emitted(folder: Path, name: str, spec: str, sizes: dict[str, Any], *more: Name) -> Path:
    """A file with the section; the name of a spec, or its text."""
    given = {"text": spec} if "\n" in spec else {"spec": spec}
    path = folder / f"{name}.py"
    text = source(archdsl.load(**given, set=sizes), frozenset({"parallel", *more}), "none")
    path.write_text(text, encoding="utf-8")
    return path


def alone(path: Path, given: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """The gradients of one process, without anything parallel."""
    torch.manual_seed(0)
    model = tools.trainer().model_class(tools.load(path))().eval()
    tools.loss_of(tools.call(model, given)).backward()
    return tools.told({name: weight.grad for name, weight in model.named_parameters()})


def inputs(path: Path) -> dict[str, torch.Tensor]:
    """Something for each input: words, which segment, which are real."""
    model = tools.trainer().model_class(tools.load(path))
    torch.manual_seed(1)
    found = {}
    for name in inspect.signature(model.forward).parameters:
        if name == "padding":
            found[name] = torch.arange(8)[None] < torch.tensor([8, 5, 8, 6])[:, None]
        elif name not in ("self", "losses"):
            found[name] = torch.randint(2 if name == "segments" else 60, (4, 8))
    return found


@pytest.mark.slow
def test_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    """Built plainly, and on the meta device."""
    jobs: list[dict[str, Any]] = []
    expected: list[dict[str, list[float]]] = []
    of_losses = [MODELS[name] for name in ("biases, a tied head", "experts", "experts with biases and a capacity")]
    for i, (spec, sizes, layout) in enumerate((*MODELS.values(), *of_losses)):
        path = emitted(tmp_path, f"model_{i}", spec, sizes, *(["loss"] if i >= len(MODELS) else []))
        given = inputs(path)
        torch.save(given, tmp_path / f"inputs_{i}.pt")
        job = {"model": str(path), "layout": layout, "inputs": str(tmp_path / f"inputs_{i}.pt")}
        jobs += [job, {**job, "meta": True}]
        expected += [alone(path, given)] * 2
    for job, found, wanted in zip(jobs, tools.results(2, tmp_path, jobs), expected, strict=True):
        assert found.keys() == wanted.keys(), (job, found)
        for weight, numbers in wanted.items():
            assert found[weight] == pytest.approx(numbers, rel=1e-3, abs=1e-4), (job, weight)


def trained(path: Path, plan: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The curve of one process, without anything parallel, and its weights then."""
    train = tools.trainer()
    torch.manual_seed(0)
    model = train.model_class(tools.load(path))()
    return [loss for _, loss in train.train(model, train.synthetic(4096), train.Plan(**plan))], model.state_dict()


@pytest.mark.slow
def test_curves_are_those_of_one_process(tmp_path: Path) -> None:
    llama = emitted(tmp_path, "llama", str(EXAMPLES / "tiny_llama.arch"), LLAMA)
    mixture = emitted(tmp_path, "mixture", MIXTURE, {})
    recomputed = tmp_path / "recomputed.py"
    recomputed.write_text(archdsl.torch_source(text=MIXTURE, features=["parallel"], checkpoint="full"))
    run = str(tmp_path / "run")

    def job(path: Path, **layout: int) -> dict[str, Any]:
        return {"model": str(path), "plan": PLAN, "layout": layout}

    (of_llama, weights), (of_mixture, _) = (trained(path, PLAN) for path in (llama, mixture))
    two = [job(llama), job(mixture, ep=2), job(recomputed, ep=2), {**job(llama, tp=2), "checkpoint": run, "stop": 4}]
    expected = [of_llama, of_mixture, of_mixture, of_llama[:4]]
    for curve, wanted in zip(tools.results(2, tmp_path, two), expected, strict=True):
        assert list(curve.values()) == pytest.approx(wanted, abs=1e-4)
    # Stopped at step 4, two processes left the checkpoint of step 3: four of another mesh go on from it.
    four = [{**job(llama, tp=2), "checkpoint": run}, job(mixture, ep=2, tp=2), job(llama, tp=4)]
    resumed, together, refused = tools.results(4, tmp_path, four)
    assert list(resumed) == ["3", "4"]
    assert list(resumed.values()) == pytest.approx(of_llama[3:], abs=1e-4)
    assert list(together.values()) == pytest.approx(of_mixture, abs=1e-4)
    assert refused == "kv_heads must be a multiple of the axis tp"
    # What four processes wrote of weights cut along two axes is what one has.
    kept = {name: torch.empty_like(weight) for name, weight in weights.items()}
    dcp.load(kept, checkpoint_id=tmp_path / "run" / "step-00000005", no_dist=True)
    for name, weight in weights.items():
        torch.testing.assert_close(kept[name], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    spec = tmp_path / "small.arch"
    text = (EXAMPLES / "tiny_llama.arch").read_text(encoding="utf-8")
    small = "layers = 2, width = 32, heads = 4, kv_heads = 2, hidden = 48"
    spec.write_text(text.replace("layers = 4, width = 128, heads = 4, kv_heads = 2, hidden = 384", small))
    run = tmp_path / "run"
    sized = ["--steps", "400", "--batch", "4", "--seq", "16", "--save-every", "2", "--device", "cpu"]
    training = tools.script_of("train.py", str(spec), *sized, "--checkpoint", str(run))
    processes = tools.together(2, tmp_path, *training, join=False).processes
    try:
        end = time.monotonic() + 60
        while not sorted(run.glob("step-*")) and time.monotonic() < end:
            assert all(p.is_alive() for p in processes), (tmp_path / "said_0.txt").read_text()
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
            process.join()
    # Whatever it was doing when it was killed: one process finds a whole checkpoint, and goes on from it.
    step = int(sorted(run.glob("step-*"))[-1].name.removeprefix("step-"))
    assert 0 < step < 396
    weights = tmp_path / "weights.safetensors"
    sized[1] = str(step + 3)
    tools.script("train.py", str(spec), *sized, "--checkpoint", str(run), "-o", str(weights), folder=tmp_path)
    assert [p.name for p in run.iterdir()] == [f"step-{step + 3:08}"]
    assert weights.exists()

    train = tools.trainer()
    plan = train.Plan(steps=step + 3, batch=4, seq=16, save_every=2)
    torch.manual_seed(plan.seed)
    model = train.model_class(train.load_module(spec))()
    list(train.train(model, train.synthetic(1 << 16, plan.seed), plan))
    from safetensors.torch import load_file

    kept = load_file(weights)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(kept[name], tensor, rtol=1e-3, atol=1e-4)


# --- what the estimate says -------------------------------------------------------------------------------------------


@contextmanager
def ranks(world: int, rank: int = 0) -> Iterator[None]:
    """One rank of a process group whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def held(path: Path, mesh: Mesh, rank: int = 0) -> int:
    """How many numbers of trained weights one rank has after `parallelize`."""
    sizes = {"dp": mesh.dp // mesh.ep, "ep": mesh.ep, "tp": mesh.tp}
    axes = {axis: n for axis, n in sizes.items() if n > 1 or axis == "dp"}
    module = tools.load(path)
    with ranks(mesh.devices, rank), torch.device("meta"):
        layout = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        model = module.parallelize(tools.trainer().model_class(module)(), layout)
        weights = (p for p in model.parameters() if p.requires_grad)
        return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in weights)


def samples() -> list[str]:
    """Models of the zoo, but for those of one layer."""
    return [name.partition(":")[2] for name in sample() if not name.endswith("self_attention")]


MESHES = ("dp=2,tp=2", "tp=4", "dp=4", "dp=2,ep=2", "dp=4,tp=2,ep=2")
FEWER = {"layers": 2, "dense_layers": 1, "sparse_layers": 1, "encoder_layers": 1, "decoder_layers": 1}
OF_FOUR = ("llama4_scout", "olmo3_7b")
"""Models whose layers differ in groups of four."""
COMMON = ("llama3", "mixtral_8x7b", "deepseek_v3", "gpt2")
UNSHARED = ("convmixer_", "ctc_", "mamba_", "ntm_", "pixel_rnn_")
"""What names of models begin with of which tensor parallelism shards nothing."""


@pytest.mark.parametrize(
    "name", [*COMMON, *(pytest.param(n, marks=pytest.mark.slow) for n in samples() if n not in COMMON)]
)
def test_ranks_hold_what_the_estimate_says(name: str, tmp_path: Path) -> None:
    """Of every weight the shard of the first rank, at the sizes of the zoo, with fewer layers; both refuse a mesh, or
    neither."""
    fields = {f.name for f in archdsl.load(name).config}
    fewer = FEWER | ({"layers": 4} if name in OF_FOUR else {})
    model = archdsl.load(name, set={k: n for k, n in fewer.items() if k in fields})
    path = tmp_path / "model.py"
    path.write_text(source(model, frozenset({"parallel"}), "none"), encoding="utf-8")
    taken = 0
    for mesh in map(parse_mesh, MESHES if name in COMMON else MESHES[::4]):
        try:
            found = shard(model, StepPlan(mesh, zero=3 if mesh.replicas > 1 else 0))
        except ArchError:
            with pytest.raises(AssertionError, match=r"multiple of the axis|must be among"):
                held(path, mesh)
            continue
        taken += 1
        if any("biases of heads" in note for note in found.notes):  # the estimate shards them, and a plan cannot
            assert found.memory.gradients < 4 * held(path, mesh), mesh
            continue
        assert found.memory.gradients == 4 * held(path, mesh), mesh
        assert 4 * held(path, mesh, mesh.devices - 1) <= found.memory.gradients
        if mesh.dp == mesh.ep:
            assert (found.memory.parameters < archdsl.estimate(model).params.total) == (mesh.devices > 1)
    assert (taken == 0) == name.startswith(UNSHARED)


class Sized(TorchDispatchMode):
    """The most bytes in storages at a time, without those given. FSDP empties the ones that it gathers into."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.known: dict[int, Any] = {}
        self.given, self.most = [t.untyped_storage() for t in given], 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for t in tensors_of((results, args)):
            storage = t.untyped_storage()
            if not any(storage._cdata == s._cdata for s in self.given):
                self.known[storage._cdata] = weakref.ref(storage)
        alive = [s for s in (ref() for ref in self.known.values()) if s is not None]
        self.most = max(self.most, sum(s.nbytes() for s in alive))
        return results


def test_fully_sharded_weights_are_gathered_as_the_estimate_says(tmp_path: Path) -> None:
    """A step of so few tokens that weights and gradients are what is alive: those outside of layers are there
    throughout, those of layers one by one."""
    sizes = {"layers": 4, "width": 128, "heads": 4, "kv_heads": 4, "hidden": 512, "vocab": 2000}
    model = archdsl.load("llama3_8b", set=sizes)
    path = tmp_path / "model.py"
    path.write_text(source(model, frozenset({"parallel"}), "none"), encoding="utf-8")
    ids = torch.zeros(1, 16, dtype=torch.long)
    module = tools.load(path)
    with ranks(4):
        layout = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        sharded = module.parallelize(tools.trainer().model_class(module)(), layout)
        shards = [p.to_local() for p in sharded.parameters()]
        for _ in range(2):  # the first step makes what the others have
            sharded.zero_grad()
            with Sized([*shards, *sharded.buffers(), ids]) as alive:
                logits = sharded(ids)
                alive.most = 0
                loss = torch.nn.functional.cross_entropy(logits[0], ids[0])
                at_loss = alive.most
                loss.backward()
    step = Step(model, StepPlan(Mesh(dp=4), zero=3, loss="eager"), None, 16)
    memory, rest = step.sharding.memory, 4 * step.gathered(0).rest
    assert at_loss == pytest.approx(rest + memory.activations + memory.objective, rel=0.02)
    assert alive.most == pytest.approx(memory.total - memory.weights - memory.optimizer - memory.inputs, rel=0.05)


class Collectives(TorchDispatchMode):
    """Counts collectives and the bytes of the whole tensors that they exchange, by name: those of DTensors, and those
    of FSDP."""

    NAMES: ClassVar = {
        "all_reduce": "all-reduce",
        "all_gather_into_tensor": "all-gather",
        "reduce_scatter_tensor": "reduce-scatter",
        "all_to_all_single": "all-to-all",
        "_allgather_base_": "all-gather of shards",
        "_reduce_scatter_base_": "reduce-scatter of shards",
    }
    SILENT = "wait_tensor", "_wrap_tensor_autograd"
    """Names of ops that exchange nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        results = func(*args, **(kwargs or {}))
        if func.namespace in ("_c10d_functional", "c10d") and func._opname not in self.SILENT:
            name = self.NAMES[func._opname]
            self.calls[name] += 1
            self.bytes[name] += max(t.numel() * t.element_size() for t in tensors_of((args, results)))
        return results


def exchanged(path: Path, world: int, layout: dict[str, int], steps: int = 1) -> tuple[Collectives, Collectives]:
    """What a rank exchanges in the forward and the backward of the last of so many steps."""
    given = inputs(path)
    with ranks(world):
        job = {"model": str(path), "layout": layout, "meta": True, "drawn": True}
        model, _ = tools.parallelized(job)
        for _ in range(steps):
            with Collectives() as forward:
                outputs = tools.call(model, given)
            with Collectives() as backward:
                tools.loss_of(outputs).backward()
    return forward, backward


SHARED_TP = [name for name, (_, _, layout) in MODELS.items() if "tp" in layout]


@pytest.mark.parametrize("name", SHARED_TP)
def test_collectives_are_those_of_the_estimate(name: str, tmp_path: Path) -> None:
    """All-reduces and all-gathers over `tp`, forwards and backwards: how many, and their bytes. The 65 words of one
    are no multiple of the ranks."""
    spec, sizes, _ = MODELS[name]
    given = {"text": spec} if "\n" in spec else {"spec": spec}
    model = archdsl.load(**given, set=sizes)
    path = emitted(tmp_path, "model", spec, sizes)
    for tp in (2, 4):
        found = shard(model, StepPlan(Mesh(tp=tp)), batch=4, seq=8)
        for phase, issued in zip(("forward", "backward"), exchanged(path, tp, {"tp": tp}), strict=True):
            said = [c for c in found.communication if c.phase == phase]
            calls, size = Counter[str](), Counter[str]()
            for c in said:
                calls[c.collective] += c.calls
                size[c.collective] += c.payload
            assert issued.calls == calls, (tp, phase)
            assert issued.bytes == size, (tp, phase)


FULLY_SHARDED: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "even": ("llama3_8b", {**LLAMA, "vocab": 64}, 2, 1),
    "odd sizes, four ranks": ("llama3_8b", {**LLAMA, "vocab": 63, "hidden": 45}, 4, 1),
    "within tp": ("llama3_8b", {**LLAMA, "vocab": 64}, 4, 2),
    "experts": (MIXTURE, {}, 2, 1),
    "keys of other layers": (SHARED_KEYS, {}, 2, 1),
}
"""Each a spec, its sizes, how many ranks there are, and how many of them share a layer."""


@pytest.mark.parametrize("name", FULLY_SHARDED)
def test_shards_are_exchanged_as_the_estimate_says(name: str, tmp_path: Path) -> None:
    """Weights that are gathered, and gradients that are scattered, with all padding."""
    spec, sizes, world, tp = FULLY_SHARDED[name]
    given = {"text": spec} if "\n" in spec else {"spec": spec}
    mesh = Mesh(dp=world // tp, tp=tp)
    found = shard(archdsl.load(**given, set=sizes), StepPlan(mesh, zero=3), batch=4 * mesh.dp, seq=8)
    path = emitted(tmp_path, "model", spec, sizes)
    forward, backward = exchanged(path, world, {"tp": tp}, steps=2)  # the first step makes what the others have

    def said(kind: str, *phases: str) -> int:
        along = [c for c in found.communication if c.axis in ("dp", "edp") and c.phase in phases]
        return sum(c.payload for c in along if c.collective == kind)

    assert forward.bytes["all-gather of shards"] == said("all-gather", "forward")
    assert backward.bytes["all-gather of shards"] == said("all-gather", "backward")
    assert backward.bytes["reduce-scatter of shards"] == said("reduce-scatter", "backward", "step")
    assert 0 < said("all-gather", "backward") < said("all-gather", "forward")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ArchError, match="has neither a list of layers") as caught:
        archdsl.torch_source("self_attention", features=["parallel"])
    assert caught.value.diagnostics[0].code == "E0530"


GENERATING: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    **{name: MODELS[name] for name in ("biases, a tied head", "one head of keys", "dense layers, then experts")},
    "batches alone": ("gpt2", {**SMALL, **WORDS}, {}),
    "experts": (MIXTURE, {}, {"ep": 2}),
    "layers that are primitives": (BARE, {}, {}),
}


def test_weights_are_drawn_where_they_lie(tmp_path: Path) -> None:
    """On the meta device, spread, and then initialized: by the spec's law, other numbers in each part."""
    jobs, expected = [], []
    for i, name in enumerate(("biases, a tied head", "experts", "norms within heads")):
        spec, sizes, layout = MODELS[name]
        path = emitted(tmp_path, f"model_{i}", spec, sizes)
        jobs.append({"model": str(path), "layout": layout, "meta": True, "drawn": True})
        torch.manual_seed(0)
        expected.append(tools.spreads(tools.trainer().model_class(tools.load(path))()))
    for found, wanted in zip(tools.results(2, tmp_path, jobs), expected, strict=True):
        assert found.keys() == wanted.keys()
        assert all(found[n] == pytest.approx(w, rel=0.35, abs=1e-6) for n, w in wanted.items()), (found, wanted)


def alone_generated(path: Path, **options: Any) -> list[list[int]]:
    torch.manual_seed(0)
    model = tools.trainer().model_class(tools.load(path))().eval()
    return model.generate(tools.prompts(), **options).tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_generated_is_what_one_process_generates(tmp_path: Path) -> None:
    """Also where the rows of one device come to their end before those of the other."""
    jobs, expected = [], []
    for i, (spec, sizes, layout) in enumerate(GENERATING.values()):
        path = emitted(tmp_path, f"model_{i}", spec, sizes, "generate")
        plain = alone_generated(path, max_new_tokens=8)
        for more in ({}, {"stop": [plain[0][0], plain[1][0]]}, {"temperature": 1.0, "seed": 3}):
            if "temperature" in more and "tp" not in layout:
                continue  # devices with other prompts draw other tokens
            options = {"max_new_tokens": 8, **more}
            jobs.append({"model": str(path), "layout": layout, "generated": options})
            expected.append(alone_generated(path, **options))
    for job, found, wanted in zip(jobs, tools.results(2, tmp_path, jobs), expected, strict=True):
        assert found == wanted, job


# --- what is written --------------------------------------------------------------------------------------------------


def test_plain_use_of_the_file(tmp_path: Path) -> None:
    """One process that never calls `parallelize` has the plain model."""
    path = emitted(tmp_path, "llama", str(EXAMPLES / "tiny_llama.arch"), LLAMA)
    torch.manual_seed(0)
    here = tools.trainer().model_class(tools.load(path))()
    torch.manual_seed(0)
    plain = archdsl.to_torch(EXAMPLES / "tiny_llama.arch", set=LLAMA)
    tokens = torch.randint(256, (2, 16))
    assert torch.equal(here(tokens), plain(tokens))
    assert json.dumps(sorted(here.state_dict())) == json.dumps(sorted(plain.state_dict()))


def test_the_plan() -> None:
    """Paths of layers with `*`; where some layers have a module, those of their class."""
    text = archdsl.torch_source("llama3_8b", features=["parallel"])
    assert '"blocks.*.attention.out": RowwiseParallel()' in text
    assert '% tp.size() == 0, "kv_heads must be a multiple of the axis tp"' in text
    text = archdsl.torch_source("deepseek_v3", features=["parallel"])
    assert "if isinstance(module, DenseLayer):" in text
    assert "elif isinstance(module, SwiGLU):" in text
    assert "if isinstance(module, ExpertSwiGLU):" in text
    assert '"gate.weight": 1, "up.weight": 1, "down.weight": 2}' in text
    assert '% tp.size() == 0, "expert_hidden must be a multiple of the axis tp"' in text
    text = archdsl.torch_source(text=AFFINE, features=["parallel"])
    assert '{"up.weight": 1, "up.bias": 1, "down.weight": 2}' in text
    text = archdsl.torch_source(text=NORMED, features=["parallel"])
    assert '"blocks.*.attention.q_norm": SequenceParallel(sequence_dim=1, use_local_output=True)' in text
    assert '"blocks.*.ffn: 48 must be a multiple of the axis tp"' in text


@pytest.mark.parametrize(
    ("spec", "whole"), [("bloom_560m", "attention"), ("palm_8b", "attention"), ("gpt2", "embedding")]
)
def test_what_would_need_more_than_a_plan_is_whole(spec: str, whole: str) -> None:
    text = archdsl.torch_source(spec, features=["parallel"])
    plan = text.partition("plan = {")[2].partition("}")[0]
    assert "ffn" in plan
    assert whole not in plan


def test_all_layers_of_several_stacks_are_sharded() -> None:
    text = archdsl.torch_source("t5_small", features=["parallel"])
    assert "for block in (*model.encoder, *model.decoder):" in text


LISTS = {
    "linear(width) as bs": True,
    "rmsnorm as bs": True,
    "gru(width) as bs": True,
    "lstm(width) as bs": False,
    "cast(float32) -> linear(width) as bs -> cast(float)": False,
    "cast(float32) -> layernorm as bs -> cast(float)": False,
}
"""What a layer of a list is, and whether it is gathered when it is called: not where a step reads its weights."""


@pytest.mark.parametrize("layer", LISTS)
@pytest.mark.parametrize("sections", [(), ("generate",)], ids=["whole", "steps"])
def test_weights_that_are_read_without_a_call_are_gathered(
    layer: str, sections: tuple[Name, ...], tmp_path: Path
) -> None:
    text = f"""model m(layers = 2, vocab = 40, width = 16)(tokens: token[batch, time]) {{
      x = tokens -> embedding(vocab, width)
      for i in layers {{ x = x -> {layer} }}
      return x -> linear(vocab) as head
    }}"""
    path = emitted(tmp_path, "m", text, {}, *sections)
    alone = LISTS[layer] or (layer.startswith("lstm") and not sections)
    assert ("for block in model.bs:" in path.read_text()) == alone
    with ranks(2), torch.no_grad():
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        model = tools.load(path).parallelize(tools.trainer().model_class(tools.load(path))().eval(), mesh)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        if sections:
            assert model.generate(torch.zeros(2, 3, dtype=torch.long), 3).shape == (2, 3)
        else:
            assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 40)


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm", "layernorm(weight: false, bias: false)"])
@pytest.mark.parametrize("kind", ["float", "float32"])
def test_norms_within_heads_may_have_another_type(norm: str, kind: str, tmp_path: Path) -> None:
    """One that reads its weights without a call keeps heads whole: those of a rank would meet weights of all."""
    text = f"""
    block layer(x: [batch, time, width]) -> [batch, time, width] {{
      q = x -> linear(width) as q -> split_heads(4) -> cast({kind}) -> {norm} as normed -> cast(float)
      k = x -> linear(width) as k -> split_heads(4)
      v = x -> linear(width) as v -> split_heads(4)
      return x + (sdpa(q, k, v, mask: causal) -> merge_heads -> linear(width) as out)
    }}
    model m(layers = 2, vocab = 40, width = 16)(tokens: token[batch, time]) {{
      x = tokens -> embedding(vocab, width)
      for b in layers * layer {{ x = x -> b as bs }}
      return x -> linear(vocab) as head
    }}"""
    path = emitted(tmp_path, "m", text, {})
    assert ('"bs.*.q": ColwiseParallel()' in path.read_text()) == ((norm, kind) != ("layernorm", "float32"))
    with ranks(2), torch.no_grad():
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        model = tools.load(path).parallelize(tools.trainer().model_class(tools.load(path))().eval(), mesh)
        assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 40)


@pytest.mark.parametrize("spec", [MIXTURE, AFFINE], ids=["gated", "biases and a capacity"])
@pytest.mark.parametrize(("world", "layout"), [(2, {"ep": 2}), (4, {"ep": 4}), (4, {"ep": 2, "tp": 2})])
def test_what_experts_need_is_exchanged_as_the_estimate_says(
    spec: str, world: int, layout: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go to the ranks that have their experts and back, as many as come; what else is exchanged is as without."""
    monkeypatch.setattr(dist, "all_to_all_single", lambda arrived, counts, group: arrived.copy_(counts))
    mesh = Mesh(dp=layout["ep"], **layout)
    found = shard(archdsl.load(text=spec), StepPlan(mesh, zero=3), batch=4 * mesh.dp, seq=8)
    path = emitted(tmp_path, "model", spec, {})
    issued = exchanged(path, world, layout, steps=2)  # the first step makes what the others have
    for phases, one in zip((("forward",), ("backward", "step")), issued, strict=True):
        said = Counter[str]()
        for c in found.communication:
            if c.phase in phases:
                said[c.collective + (" of shards" if c.axis == "dp" else "")] += c.payload
        assert one.bytes == said
        assert said["all-to-all"] > 0
