"""ONNX graphs beside what `torch.onnx.export` makes of the same modules, and beside PyTorch itself: a GPT-2, a Llama
and a Mixtral of 124 million parameters each, in float32.

For each: seconds to a file that onnxruntime loads, from the spec (ours) and from the module that is there (exported);
the sizes of graph and weights; seconds to load; milliseconds for 512 tokens at once and for one token more behind 512.
Then 4096 tokens at once for the targets `portable` and `ort-cpu`, of this with weights of few bits, too. Sessions have
the options that users get. With `last`, the prompt goes through the graph of a step that gives the logits of the last
token alone. What is compared runs in turns, so that a busy machine slows all alike; numbers are medians.
Every output is compared with PyTorch's first, but for those of few bits, whose weights are others.

A module as emitted has no caches: for the step that is exported, run eagerly and compiled, one is written here by
hand, with the inputs that ours has. Nor does `torch.onnx.export` take its experts, which sort the tokens: those that
are exported get every token, as experts do that are written for it.

Goals: a graph 20 times sooner than exported; never slower than exported by more than 3 %; `ort-cpu` twice as fast as
`portable` at 4096 tokens.
"""

# ruff: noqa: E402

import sys
from pathlib import Path

# Else `import onnx` would find this file.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import argparse
import contextlib
import gc
import importlib.util
import json
import logging
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

missing = [n for n in ("torch", "onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(n) is None]
if missing:
    sys.exit(f"benchmarks/onnx.py needs {' and '.join(missing)}: pip install '.[bench]' in a checkout")

import onnxruntime
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor, nn

import archdsl
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.store import Storage, save
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.run.binding import BoundSession
from archdsl.run.difference import difference

THREADS = 2
OPSET = 24  # exported in the same version, which is faster than the default of `torch.onnx.export`
TOLERANCE = 1e-3
GOALS = {"graph": 20.0, "slower": 1.03, "long": 2.0}
OURS = {  # way: target, quantize
    "ours": ("portable", None),
    "ours, ort-cpu": ("ort-cpu", None),
    "ours, int8": ("ort-cpu", "int8"),
    "ours, int4": ("ort-cpu", "int4"),
}
LAST = "ours, ort-cpu, last"

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A model of the zoo at a size of our own. `theta` is that of its rotary positions."""

    spec: str
    sizes: Mapping[str, int]
    theta: float | None = None
    context: int = 4096


CASES = {
    "gpt2": Case("gpt2", {"layers": 12}, context=1024),
    "llama": Case("llama2_7b", {"layers": 12, "width": 768, "heads": 12, "kv_heads": 4, "hidden": 2048}, 1e4),
    "mixtral": Case("mixtral_8x7b", {"layers": 8, "width": 512, "heads": 8, "kv_heads": 4, "hidden": 864}, 1e6),
}


@dataclass
class Found:
    """What was measured of one way: seconds, but for bytes and for milliseconds of `prefill`, `decode` and `long`."""

    times: dict[str, float] = field(default_factory=dict)
    error: str = ""


class Cached(nn.Module):
    """An emitted module with caches of keys and values, as one writes it by hand to export it: rows may be padded."""

    def __init__(self, model: nn.Module, theta: float | None) -> None:
        super().__init__()
        self.model: Any = model
        self.theta = theta

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        model, present = self.model, []
        x = model.token_embedding(input_ids)
        if self.theta is None:
            x = x + model.position(position_ids)
        cos, sin = self.table(position_ids)
        place = attention_mask.cumsum(1) - 1
        seen = (place[:, None, :] <= position_ids[:, :, None]) & attention_mask[:, None, :].bool()
        for i, block in enumerate(model.blocks):
            h, attention = block.attention_norm(x), block.attention
            q, k, v = (m(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for m in self.maps(attention))
            if self.theta is not None:
                q, k = (rotated(t, cos, sin) for t in (q, k))
            k, v = torch.cat((past[2 * i], k), 2), torch.cat((past[2 * i + 1], v), 2)
            present += [k, v]
            y = F.scaled_dot_product_attention(q, k, v, seen[:, None], enable_gqa=k.size(1) != q.size(1))
            x = x + attention.out(y.transpose(1, 2).flatten(2))
            x = x + block.ffn(block.ffn_norm(x))
        head = model.token_embedding if self.theta is None else model.head
        return F.linear(model.norm(x), head.weight), present

    @property
    def head_dim(self) -> int:
        return int(self.model.config.width // self.model.config.heads)

    @staticmethod
    def maps(attention: Any) -> tuple[nn.Module, ...]:
        return attention.q, attention.k, attention.v

    def table(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [batch, 1, time, head_dim / 2]."""
        waves = (self.theta or 1.0) ** -(torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = (places[:, :, None].float() * waves)[:, None]
        return angles.cos(), angles.sin()


class Dense(nn.Module):
    """The experts of an emitted module in a form that `torch.onnx.export` takes: each is given every token."""

    def __init__(self, sparse: Any) -> None:
        super().__init__()
        self.sparse: Any = sparse

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.sparse.router(x)
        experts, y = self.sparse.experts, torch.zeros_like(x)
        shares = x.new_zeros(*x.shape[:-1], self.sparse.num_experts).scatter(-1, chosen, weights)
        for i in range(self.sparse.num_experts):
            hidden = F.silu(F.linear(x, experts.gate.weight[i])) * F.linear(x, experts.up.weight[i])
            y = y + shares[..., i : i + 1] * F.linear(hidden, experts.down.weight[i])
        return y


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Bench:
    """One model, in all ways, in a directory of its own."""

    def __init__(self, name: str, case: Case, folder: Path, options: argparse.Namespace) -> None:
        self.case, self.folder, self.options = case, folder, options
        self.sizes = {**case.sizes, **({"layers": 2} if options.quick else {})}
        self.name = name
        self.model = archdsl.load(case.spec, set=self.sizes)
        self.weights = folder / "model.safetensors"
        archdsl.init_weights(self.model, self.weights, seed=0, dtype="float32")
        self.module = archdsl.to_torch(self.model).eval()
        self.module.load_state_dict(load_file(self.weights))
        self.cached = Cached(self.module, case.theta).eval()
        self.found: dict[str, Found] = {}
        generator = torch.Generator().manual_seed(0)
        length = min(options.long, case.context) if options.long else options.prompt + 1
        self.tokens = torch.randint(int(self.module.config.vocab), (1, length + 1), generator=generator)

    def of(self, way: str) -> dict[str, float]:
        return self.found.setdefault(way, Found()).times

    # --- files ---

    def write(self) -> None:
        """Every graph, in files; ours more than once, and the first time left out."""
        for way, (target, quantize) in OURS.items():
            path = self.folder / f"{way}.onnx"
            asked: dict[str, Any] = {"target": target, "quantize": quantize}
            seconds = []
            for _ in range(6 if quantize is None else 2):
                start = time.perf_counter()
                files = archdsl.to_onnx(self.case.spec, path, set=self.sizes, weights=self.weights, **asked)
                seconds.append(time.perf_counter() - start)
            times = self.of(way)
            times["file"] = statistics.median(seconds[1:])
            times["graph_bytes"] = path.stat().st_size
            times["weight_bytes"] = (files.weights or self.weights).stat().st_size
            steps = write_steps(self.model, GraphOptions(**asked))
            save({self.folder / f"{way}-step.onnx": steps["model"]}, self.model, Storage(self.weights))
        steps = write_steps(self.model, GraphOptions(target="ort-cpu", last=True))
        save({self.folder / f"{LAST}-step.onnx": steps["model"]}, self.model, Storage(self.weights))
        sparse = {block: block.ffn for block in self.module.blocks if hasattr(block.ffn, "router")}
        for block, ffn in sparse.items():
            block.ffn = Dense(ffn)
        self.export_all()
        for block, ffn in sparse.items():
            block.ffn = ffn
        gc.collect()

    def export_all(self) -> None:
        dynamic = torch.export.Dim.DYNAMIC
        tokens = self.tokens[:, :16].expand(2, -1).contiguous()
        start = time.perf_counter()
        exported = self.export(self.module, (tokens,), ({0: dynamic, 1: dynamic},))
        times = self.of("exported")
        if exported is not None:
            times["graph"] = time.perf_counter() - start
            path = self.folder / "exported.onnx"
            exported.save(path, external_data=True)
            times["file"] = time.perf_counter() - start
            data = path.with_name(f"{path.name}.data")
            times["graph_bytes"], times["weight_bytes"] = path.stat().st_size, data.stat().st_size
        shapes = ({0: dynamic, 1: dynamic}, {0: dynamic, 1: dynamic}, {0: dynamic, 1: dynamic})
        past = self.past(2, 7)
        given = (tokens, torch.ones(2, 23, dtype=torch.int64), torch.arange(7, 23).expand(2, -1).contiguous(), past)
        step = self.export(self.cached, given, (*shapes, [{0: dynamic, 2: dynamic} for _ in past]))
        if step is not None:
            step.save(self.folder / "exported-step.onnx", external_data=True)

    def export(self, module: nn.Module, given: tuple[Any, ...], shapes: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # it tells of its progress, and ours may be JSON
                return torch.onnx.export(
                    module, given, dynamo=True, dynamic_shapes=shapes, opset_version=OPSET, verbose=False
                )
        except Exception as problem:  # whatever the exporter raises: the others are measured all the same
            self.fail("exported", problem)
            return None

    def fail(self, way: str, problem: Exception) -> None:
        self.found.setdefault(way, Found()).error = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]

    def past(self, batch: int, length: int) -> list[Tensor]:
        config = self.module.config
        heads = getattr(config, "kv_heads", config.heads)
        shape = (batch, int(heads), length, self.cached.head_dim)
        return [torch.zeros(shape) for _ in range(2 * int(config.layers))]

    def session(self, way: str, file: str) -> onnxruntime.InferenceSession | None:
        path = self.folder / file
        if not path.exists():
            return None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.log_severity_level = 3
        start = time.perf_counter()
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        if not file.endswith("-step.onnx"):
            self.of(way).setdefault("load", time.perf_counter() - start)
        return session

    # --- running ---

    def prefill(self, length: int, key: str, runs: int, compiled: bool = True) -> None:
        """The whole sequence at once."""
        tokens = self.tokens[:, :length]
        ways: dict[str, Run] = {}
        for way in (*OURS, "exported"):
            session = self.session(way, f"{way}.onnx")
            if session is not None:
                ways[way] = bound(session, {session.get_inputs()[0].name: tokens.numpy()})
        session = self.session(LAST, f"{LAST}-step.onnx")
        if session is not None:
            given = (tokens, torch.ones_like(tokens), torch.arange(length)[None])
            ways[LAST] = bound(session, self.fed([i.name for i in session.get_inputs()], given, self.past(1, 0)))
        ways["torch eager"] = lambda: self.module(tokens).numpy()
        if compiled:
            fast = torch.compile(self.module)
            ways["torch.compile"] = lambda: fast(tokens).numpy()
        self.measure(ways, key, runs, 1)

    def decode(self, length: int, key: str, runs: int) -> None:
        """One token behind `length` others, whose keys and values are there."""
        before, token = self.tokens[:, :length], self.tokens[:, length : length + 1]
        ones = torch.ones(1, length + 1, dtype=torch.int64)
        _, past = self.cached(before, ones[:, :length], torch.arange(length)[None], self.past(1, 0))
        past = [x.contiguous() for x in past]
        given = (token, ones, torch.tensor([[length]]))
        ways: dict[str, Run] = {}
        for way in (*OURS, "exported"):
            session = self.session(way, f"{way}-step.onnx")
            if session is not None:
                ways[way] = bound(session, self.fed([i.name for i in session.get_inputs()], given, past))
        ways["torch eager"] = lambda: self.cached(*given, past)[0].numpy()
        fast = torch.compile(self.cached)
        ways["torch.compile"] = lambda: fast(*given, past)[0].numpy()
        self.measure(ways, key, runs, 4)

    @staticmethod
    def fed(inputs: Sequence[str], given: Sequence[Tensor], past: Sequence[Tensor]) -> dict[str, Any]:
        """What a step is given, by the names of its inputs: ours are `past_key_values.{layer}.key` and `.value`, those
        that are exported have the order of `past`."""
        names = ("input_ids", "attention_mask", "position_ids")
        caches = [n for n in inputs if n not in names]
        if all(n.startswith("past_key_values.") for n in caches):
            caches.sort(key=lambda n: (int(n.split(".")[1]), n.split(".")[2]))
        found = dict(zip((*names, *caches), (x.numpy() for x in (*given, *past)), strict=True))
        return {n: found[n] for n in inputs}

    def measure(self, ways: Mapping[str, Run], key: str, runs: int, each: int) -> None:
        """Median milliseconds of all, in turns of `each` calls."""
        expected = ways["torch eager"]()
        usable = dict(ways)
        for way, run in ways.items():
            try:
                made = run()
                apart = difference(made, expected[:, -made.shape[1] :])
            except Exception as problem:
                self.fail(way, problem)
                del usable[way]
                continue
            if not apart.within(TOLERANCE) and OURS.get(way, ("", None))[1] is None:
                raise SystemExit(
                    f"{self.name}, {key}: {way} differs from PyTorch by {apart.relative:.1e} of the largest number"
                )
        spent: dict[str, list[float]] = {way: [] for way in usable}
        for turn in range(runs):
            order = list(usable.items())
            for way, run in order[turn % len(order) :] + order[: turn % len(order)]:
                time.sleep(0.01)  # the threads of the one before stop spinning
                run()
                for _ in range(each):
                    start = time.perf_counter()
                    run()
                    spent[way].append(1e3 * (time.perf_counter() - start))
        for way, times in spent.items():
            self.of(way)[key] = statistics.median(times)


def bound(session: onnxruntime.InferenceSession, feed: Mapping[str, Any]) -> Run:
    """A run whose inputs are onnxruntime's, as its outputs are; the first of them becomes an array."""
    made = BoundSession(session)
    given = {name: made.tensor(name, x) for name, x in feed.items()}
    return lambda: made.run(given)[made.outputs[0]].numpy()


def verdicts(results: Mapping[str, Mapping[str, Found]]) -> list[tuple[str, float, float, bool]]:
    """Each goal: what it is about, the ratio found, the ratio wanted, whether it is met."""
    found = []
    for name, ways in results.items():
        ours, exported = ways["ours"].times, ways.get("exported", Found()).times
        if "graph" in exported:
            ratio = exported["graph"] / ours["file"]
            found.append((f"{name}: sooner than exported", ratio, GOALS["graph"], ratio >= GOALS["graph"]))
        for key in ("prefill", "decode"):
            if key in exported and key in ours:
                ratio = ours[key] / exported[key]
                found.append((f"{name}: {key}, of exported", ratio, GOALS["slower"], ratio <= GOALS["slower"]))
        if "long" in ours:
            ratio = ours["long"] / ways["ours, ort-cpu"].times["long"]
            found.append((f"{name}: long prompt, ort-cpu", ratio, GOALS["long"], ratio >= GOALS["long"]))
    return found


def table(name: str, ways: Mapping[str, Found], options: argparse.Namespace) -> Table:
    made = Table(title=name, title_justify="left")
    columns: dict[str, tuple[str, str, float]] = {
        "graph": ("graph s", "{:,.3f}", 1),
        "file": ("file s", "{:,.3f}", 1),
        "graph_bytes": ("graph KB", "{:,.0f}", 1e-3),
        "weight_bytes": ("weights MB", "{:,.0f}", 1e-6),
        "load": ("load s", "{:,.2f}", 1),
        "prefill": (f"{options.prompt} ms", "{:,.0f}", 1),
        "decode": (f"step at {options.prompt} ms", "{:,.1f}", 1),
        "long": (f"{options.long} ms", "{:,.0f}", 1),
    }
    made.add_column("")
    used = [key for key in columns if any(key in f.times for f in ways.values())]
    for key in used:
        made.add_column(columns[key][0], justify="right")
    for way, found in ways.items():
        cells = [columns[k][1].format(found.times[k] * columns[k][2]) if k in found.times else "–" for k in used]
        made.add_row(way, *cells)
    return made


def facts() -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "threads": str(THREADS),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="two layers, short prompts, few runs: to see that it works"
    )
    parser.add_argument("--runs", type=int, help="how often each is run")
    options = parser.parse_args()
    unknown = [m for m in options.models if m not in CASES]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(CASES)}")
    options.prompt, options.long = (64, 256) if options.quick else (512, 4096)
    options.runs = options.runs or (2 if options.quick else 11)
    return options


def main() -> None:
    options = parsed()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(THREADS)
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    console.print("  ".join(f"{k} {v}" for k, v in facts().items()), highlight=False)
    results: dict[str, dict[str, Found]] = {}
    for name in options.models or CASES:
        with tempfile.TemporaryDirectory(prefix="archdsl-") as folder, torch.no_grad():
            bench = Bench(name, CASES[name], Path(folder), options)
            bench.write()
            bench.prefill(options.prompt, "prefill", options.runs)
            gc.collect()
            bench.decode(options.prompt, "decode", options.runs)
            gc.collect()
            if CASES[name].context >= options.long:
                bench.prefill(options.long, "long", max(options.runs // 4, 1), compiled=False)
            results[name] = bench.found
        torch.compiler.reset()
        gc.collect()
        console.print(table(name, results[name], options))
        for way, found in results[name].items():
            if found.error:
                console.print(f"{way}: {found.error}", markup=False, highlight=False)
    goals = verdicts(results)
    for about, ratio, wanted, met in goals:
        console.print(f"{'✓' if met else '✗'} {about}: {ratio:.2f}, goal {wanted:g}", highlight=False)
    if options.json:
        models = {
            name: {way: {**f.times, **({"error": f.error} if f.error else {})} for way, f in ways.items()}
            for name, ways in results.items()
        }
        shown = [{"about": a, "ratio": r, "goal": w, "met": m} for a, r, w, m in goals]
        print(json.dumps({"facts": facts(), "models": models, "goals": shown}, indent=2))


if __name__ == "__main__":
    main()
