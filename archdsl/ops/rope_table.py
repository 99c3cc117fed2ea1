"""`rope_table`: the angles of rope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ir.static import Scheme


def frequencies(theta: float, dims: int) -> list[float]:
    """Radians a position, for each pair of channels."""
    return [theta ** -(i / dims) for i in range(0, dims, 2)]


def yarn(waves: Sequence[float], theta: float, n: Mapping[str, float]) -> list[float]:
    """What YARN says, in numbers."""
    dims = 2 * len(waves)

    def pair(turns: float) -> float:
        return dims * math.log(n["original"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(n["beta_fast"]), pair(n["beta_slow"])
    if n["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramps = [min(max((i - low) / max(high - low, 1e-3), 0), 1) for i in range(dims // 2)]
    return [w * (1 - ramp + ramp / n["factor"]) for w, ramp in zip(waves, ramps, strict=True)]


def llama3(waves: Sequence[float], n: Mapping[str, float]) -> list[float]:
    """What `llama3` says, in numbers."""
    found = []
    for wave in waves:
        periods = n["original"] * wave / (2 * math.pi)
        keep = min(max((periods - n["low"]) / (n["high"] - n["low"]), 0), 1)
        found.append(wave * (keep + (1 - keep) / n["factor"]))
    return found


class RopeTable(Primitive):
    """Cosines and sines [2, time, dims / 2] of the angles that rope turns by; made once by the model."""

    placed = True
    signature = "rope_table(theta: positive, dims: size, scaling: scaling = none)(length: [])"

    def at_positions(self, node: OpNode) -> bool:
        scaling = node.options["scaling"]
        return scaling is None or scaling.name != "longrope"  # whose frequencies depend on the length

    def check(self, call: Application) -> None:
        scaling = call.options["scaling"]
        if isinstance(scaling, Scheme) and "truncate" in scaling.numbers:
            call.holds("!=", scaling.numbers["truncate"], 0)

    def shapes(self, call: Application) -> Sequence[Shape]:
        length = call.inputs[0]
        assert isinstance(length, Num)
        scaling = call.options["scaling"]
        if isinstance(scaling, Scheme) and scaling.name == "longrope":
            pairs = call.size("dims").value
            if call.size("dims").static:
                call.fixed(call.size("dims"))
            for field in ("short", "long"):
                count = sum(k.startswith(f"{field}.") for k in scaling.numbers)
                if isinstance(pairs, int) and count != pairs // 2:
                    raise call.error(
                        "E0301",
                        f"longrope needs a divisor for each of {pairs // 2} pairs of channels, "
                        f"and `{field}` has {count}",
                    )
        return ((num(2), length, binary("//", call.size("dims"), num(2))),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float32",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        length = node.inputs[0]
        assert isinstance(length, Num)
        place = g.cast(g.places(length), "float32")
        angles = g.Mul(g.Unsqueeze(place, [-1]), self.waves(node, g, length))
        return g.Concat(g.Unsqueeze(g.Cos(angles), [0]), g.Unsqueeze(g.Sin(angles), [0]), axis=0)

    def waves(self, node: OpNode, g: OnnxScope, length: Num) -> Any:
        """Radians a position for each pair of channels: numbers, unless they depend on the length."""
        theta, dims, scaling = float(node.options["theta"]), int(node.options["dims"]), node.options["scaling"]
        if scaling is None:
            return g.constant(frequencies(theta, dims), "float32")
        n = {k: float(v) for k, v in scaling.numbers.items()}
        if scaling.name == "ntk":
            return g.constant(frequencies(theta * n["factor"] ** (dims / (dims - 2)), dims), "float32")
        waves = frequencies(theta, dims)
        if scaling.name == "linear":
            return g.constant([w / n["factor"] for w in waves], "float32")
        if scaling.name == "yarn":
            return g.constant(yarn(waves, theta, n), "float32")
        if scaling.name == "llama3":
            return g.constant(llama3(waves, n), "float32")
        short, long = ([v for k, v in n.items() if k.startswith(f"{f}.")] for f in ("short", "long"))
        beyond = g.Greater(g.number(length), int(n["original"]))
        slow, fast = ([w / d for w, d in zip(waves, by, strict=True)] for by in (long, short))
        return g.Where(beyond, g.constant(slow, "float32"), g.constant(fast, "float32"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        theta, dims, scaling = node.options["theta"], node.options["dims"], node.options["scaling"]
        length = node.inputs[0]
        assert isinstance(length, Num)
        positions = e.positions(length)
        kind, n = ("", {}) if scaling is None else (scaling.name, scaling.numbers)
        if kind == "ntk":
            theta = e.py("{theta} * {factor} ** ({dims} / ({dims} - 2))", theta=theta, dims=dims, factor=n["factor"])
        if kind in ("", "ntk"):
            return e.py("rope_table({x}, {dims}, {theta})", x=positions, dims=dims, theta=theta)
        waves = e.py("rope_frequencies({dims}, {theta}, {device})", dims=dims, theta=theta, device=e.device())
        waves = e.let("frequencies", waves)
        if kind == "linear":
            waves = e.py("{waves} / {factor}", waves=waves, factor=n["factor"])
        elif kind == "yarn":
            more = {name: n[name] for name in ("factor", "original", "beta_fast", "beta_slow")}
            more |= {} if n["truncate"].value else {"truncate": False}
            waves = e.py("yarn_scaling({waves}, {theta}, {**more})", waves=waves, theta=theta, more=more)
        elif kind == "llama3":
            more = {name: n[name] for name in ("factor", "low", "high", "original")}
            waves = e.py("llama3_scaling({waves}, {**more})", waves=waves, more=more)
        elif kind == "longrope":
            short, long = ([v for k, v in n.items() if k.startswith(f"{f}.")] for f in ("short", "long"))
            more = {"original": n["original"]}
            call = "longrope_scaling({waves}, {0}, short=[{*short}], long=[{*long}], {**more})"
            waves = e.py(call, waves=waves, short=short, long=long, more=more)
        return e.py("scaled_rope_table({x}, {waves})", x=positions, waves=waves)
