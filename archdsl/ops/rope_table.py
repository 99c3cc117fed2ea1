"""`rope_table`: the angles of rope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Primitive, TorchScope
from archdsl.ir.static import Scheme

FREQUENCIES = '''
def frequencies(dims: int, theta: float, device: torch.device) -> Tensor:
    """Radians a place, for each pair of channels."""
    return theta ** -(torch.arange(0, dims, 2, device=device).float() / dims)
'''

TABLE = '''
def rope_table(length: int, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every place and pair of channels."""
    angles = torch.outer(torch.arange(length, device=frequencies.device).float(), frequencies)  # [time, dims / 2]
    return torch.stack((angles.cos(), angles.sin()))
'''

YARN = '''
def yarn_scaling(
    frequencies: Tensor, theta: float, factor: float, original: int, beta_fast: float, beta_slow: float, truncate:
    bool = True
) -> Tensor:
    """YaRN: interpolate the slow waves, keep the fast ones, ramp between them (Peng et al., 2023, section 3.2)."""
    dims = 2 * frequencies.numel()

    def pair(turns: float) -> float:
        """The pair of channels that turns so often within the original context."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2, device=frequencies.device) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequencies * (1 - ramp + ramp / factor)
'''

LLAMA3 = '''
def llama3_scaling(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Slow the waves that are longer than the original context; leave the short ones; blend between (Llama 3.1)."""
    waves = original * frequencies / (2 * math.pi)  # periods within the original context
    keep = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / factor)
'''

LONGROPE = '''
def longrope_scaling(frequencies: Tensor, length: int, short: list[float], long: list[float], original: int) -> Tensor:
    """LongRoPE: each wave slowed by a divisor of its own, another one beyond the original context (Ding et al.,
    2024)."""
    divisors = torch.tensor((short, long), device=frequencies.device)
    beyond = torch.as_tensor(length > original, device=frequencies.device)
    return frequencies / torch.where(beyond, divisors[1], divisors[0])
'''


def frequencies(theta: float, dims: int) -> list[float]:
    """Radians a place, for each pair of channels."""
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
    """What LLAMA3 says, in numbers."""
    found = []
    for wave in waves:
        periods = n["original"] * wave / (2 * math.pi)
        keep = min(max((periods - n["low"]) / (n["high"] - n["low"]), 0), 1)
        found.append(wave * (keep + (1 - keep) / n["factor"]))
    return found


class RopeTable(Primitive):
    """Cosines and sines [2, time, dims / 2] of the angles that rope turns by; made once by the model."""

    placed = True
    signature = "rope_table(theta: number, dims: size, scaling: scaling = none)(length: [])"

    def shapes(self, call: Application) -> Sequence[Shape]:
        length = call.inputs[0]
        assert isinstance(length, Num)
        scaling = call.options["scaling"]
        if isinstance(scaling, Scheme) and scaling.name == "longrope":
            pairs = call.size("dims").value
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
        """Radians a place for each pair of channels: numbers, unless they depend on the length."""
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

    def torch(self, node: OpNode, e: TorchScope) -> str:
        length = node.inputs[0]
        assert isinstance(length, Num)
        theta, scaling = e.number(node.options["theta"]), node.options["scaling"]
        places = e.number(length)
        waves = f"{e.helper(FREQUENCIES)}({e.number(node.options['dims'])}, {theta}, {e.device()})"
        if scaling is None:
            return f"{e.helper(TABLE)}({places}, {waves})"
        n = {k: e.number(v) for k, v in scaling.numbers.items()}
        if scaling.name == "linear":
            waves = f"{waves} / {e.number(scaling.numbers['factor'], 71)}"
        elif scaling.name == "ntk":
            dims = e.number(node.options["dims"], 70)
            factor = e.number(scaling.numbers["factor"], 91)
            stretched = f"{e.number(node.options['theta'], 70)} * {factor} ** ({dims} / ({dims} - 2))"
            waves = f"{e.helper(FREQUENCIES)}({e.number(node.options['dims'])}, {stretched}, {e.device()})"
        elif scaling.name == "yarn":
            truncate = "" if scaling.numbers["truncate"].value else ", truncate=False"
            args = f"{theta}, factor={n['factor']}, original={n['original']}, "
            args += f"beta_fast={n['beta_fast']}, beta_slow={n['beta_slow']}{truncate}"
            waves = f"{e.helper(YARN)}({waves}, {args})"
        elif scaling.name == "llama3":
            args = f"factor={n['factor']}, low={n['low']}, high={n['high']}, original={n['original']}"
            waves = f"{e.helper(LLAMA3)}({waves}, {args})"
        else:
            short, long = (", ".join(v for k, v in n.items() if k.startswith(f"{f}.")) for f in ("short", "long"))
            args = f"{places}, short=[{short}], long=[{long}], original={n['original']}"
            waves = f"{e.helper(LONGROPE)}({waves}, {args})"
        return f"{e.helper(TABLE)}({places}, {waves})"
