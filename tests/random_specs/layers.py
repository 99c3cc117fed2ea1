"""Blocks of slots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from random_specs.choices import STATIC, Chooser, assertion, wording
from random_specs.equations import Body, Names, Template, equations, fraction
from random_specs.numbers import DEPTHS, rounded
from random_specs.slots import INITS, activation, mask, norm, position, rope


@dataclass
class Attention:
    """A block for the slot `attention`, and what else it may be given."""

    text: str
    head_dim: int = 0
    """0: it takes neither mask nor position."""
    positions: str = "any"


def attention(c: Chooser, width: int, names: Names) -> Attention:
    heads = c.one([h for h in (1, 2, 4) if width % h == 0])
    head_dim = width // heads
    kind = c.one(["mha", "mha", "gqa", "gqa", "mqa", "mla", "recurrent", "conv", "own", "own"])
    if kind == "mla":
        rope_dim, rank = c.one([2, 4]), c.one([2, 6])
        more = c.some(q_rank=[4, 6], bias=["true"], norm=["layernorm", "rmsnorm"], scale=["0.3"])
        dims = f"nope_dim: {c.one([3, 4])}, rope_dim: {rope_dim}, v_dim: {c.one([2, 5])}"
        return Attention(f"mla(heads: {heads}, kv_rank: {rank}, {dims}{more})", rope_dim, "rope")
    if kind == "recurrent":
        cell = c.one(["gru", "lstm", "rnn", "rnn_relu"])
        more = c.some(bias=["false"])
        if not c.causal and c.chance(30):
            return Attention(f"bidirectional({cell.split('_')[0]}({width // 2}))")
        act = ", act: relu" if cell == "rnn_relu" else ""
        more += ", reverse: true" if not c.causal and c.chance(30) else ""
        return Attention(f"{cell.split('_')[0]}(hidden: {width}{act}{more})")
    if kind == "conv":
        groups = c.one([1, 1, 2, width])
        padding = "causal" if c.causal else c.one(["same", "causal"])
        more = c.some(dilation=[2, 3], bias=["false"]) + (f", groups: {groups}" if groups > 1 else "")
        return Attention(f"conv1d({width}, kernel: {c.whole(1, 4)}, padding: {padding}{more})")
    if kind == "own":
        return Attention(names.block(c, equations(c, width, names)).name)
    if c.chance(20):
        head_dim = c.one([2, 3, 4, 6])
        more = f", head_dim: {head_dim}"
    else:
        more = ""
    more += c.some(
        bias=["true"], out_bias=["true", "false"], qk_norm=["rmsnorm", "layernorm", "l2_normalize"], scale=["0.5"]
    )
    if c.chance(15):
        more += f", softcap: {c.one(['5', '20.0'])}"
    if kind == "mha":
        fused = c.chance(20)
        more += ", fused: true" if fused else c.some(value_dim=[2, 5])
        return Attention(f"mha(heads: {heads}{more})", head_dim)
    if kind == "gqa":
        return Attention(
            f"gqa(heads: {heads}, kv_heads: {c.one([h for h in (1, 2, 4) if heads % h == 0])}{more})", head_dim
        )
    return Attention(f"mqa(heads: {heads}{more})", head_dim)


def router(c: Chooser, experts: int, top_k: int) -> str:
    """A router, or '' for the usual one."""
    kind = c.one(["", "softmax", "sigmoid"])
    if not kind:
        return ""
    groups = 2 if experts % 2 == 0 and experts >= 4 and c.chance(40) else 1
    args = [f"groups: 2, top_groups: {2 if top_k > experts // 2 else c.one([1, 2])}"] if groups == 2 else []
    if c.chance(40):
        args.append(f"normalize: {c.one(['true', 'false'])}")
    if c.chance(30):
        args.append(f"scale: {c.one(['2.5', '0.5'])}")
    if c.chance(40):
        args.append("bias: true")
    if kind == "softmax":
        if c.chance(40):
            args.append("balance: 0.01")
        if c.chance(40):
            args.append("z_loss: 0.001")
    return f", router: {kind}_router({', '.join(args)})" if args else f", router: {kind}_router"


def ffn(c: Chooser, width: int, names: Names, experts: bool = True) -> str:
    kind = c.one(["mlp", "mlp", "gated", "gated", "moe", "moe", "own"] if experts else ["mlp", "gated"])
    hidden = c.one(["16", "10", "width", "2 * width"] if experts else ["8", "12", "10"])
    if kind == "mlp":
        act = activation(c)
        return f"mlp(hidden: {hidden}, act: {act}{c.some(bias=['false'], dropout=['0.1'])})"
    if kind == "gated":
        name = c.one(["swiglu", "geglu", "reglu", "glu_mlp"])
        more = f", act: {activation(c)}" if name == "glu_mlp" and c.chance(50) else ""
        return f"{name}(hidden: {hidden}{more}{c.some(bias=['true'])})"
    if kind == "own":
        return names.block(c, equations(c, width, names, local=True)).name
    count = c.one([2, 3, 4, 6])
    top_k = c.whole(1, min(count, 3))
    if c.chance(15):
        expert = names.block(c, equations(c, width, names, local=True, expert=True), width).name
    else:
        expert = ffn(c, width, names, experts=False)
    shared = f", shared: {ffn(c, width, names, experts=False)}" if c.chance(40) else ""
    return f"moe(experts: {count}, top_k: {top_k}, expert: {expert}{shared}{router(c, count, top_k)})"


def residual(c: Chooser, names: Names) -> str:
    kind = c.one(["add", "scale", "deepnorm", "layerscale", "gated", "own", "none"])
    if kind == "own":
        x, branch, gate = names.fresh("x"), names.fresh("x"), names.fresh("t")
        return names.add(
            "highway",
            f"block NAME({x}: [..., width], {branch}: [..., width]) -> [..., width] {{\n"
            f"  {gate} = {x} -> linear(width) -> sigmoid\n"
            f"  return {x} + {gate} * ({branch} - {x})\n}}",
        )
    return {
        "scale": "scale(skip: 0.7, branch: 0.5)",
        "deepnorm": "deepnorm(layers: 3)",
        "layerscale": "layerscale(0.1)",
    }.get(kind, kind)


def layer(c: Chooser, width: int, names: Names, cross: bool = False) -> Template:
    """A block for the list of layers."""
    args = names.arguments(c)
    if not cross and c.chance(25):
        return names.block(c, Body(c, width, names, args=args))
    slots: list[tuple[str, str]] = []
    mixer: Attention | None = attention(c, width, names) if c.chance(90) else None
    if mixer is not None:
        slots.append(("attention", mixer.text))
        if mixer.head_dim:
            chosen = mask(c)
            if c.causal or c.chance(70):
                slots.append(("mask", chosen))
            where = position(c, mixer.head_dim) if mixer.positions == "any" else c.one(["", rope(c, mixer.head_dim)])
            if where:
                slots.append(("position", where))
    if cross:
        heads = c.one([h for h in (1, 2, 4) if width % h == 0])
        slots.insert(1, ("cross_attention", c.one([f"mha(heads: {heads})", f"gqa(heads: {heads}, kv_heads: 1)"])))
    with_ffn = mixer is None or c.chance(85)
    if with_ffn:
        slots.append(("ffn", ffn(c, width, names)))
    if c.chance(60):
        slots.append(("norm", norm(c)))
    parallel = mixer is not None and with_ffn and not cross and c.chance(20)
    placement = c.one(["pre", "pre", "post", "branch", "sandwich", "none"])
    norms = 1
    if parallel:
        norms = c.one([1, 2]) if placement in ("pre", "post", "none") else 1
        slots.append(("topology", f"parallel(norms: {norms})" if c.chance(50) or norms == 2 else "parallel"))
    if placement != "pre" or c.chance(20):
        slots.append(("placement", placement))
    if c.chance(35):
        slots.append(("residual", residual(c, names)))
    if c.chance(15):
        slots.append(("dropout", "0.1"))
    if c.chance(10):
        slots.append(("init", c.one(INITS)))
    if args:
        slots = by_layer(c, slots, args)
    lines = [f"{k}: {v}" for k, v in slots]
    if c.odd(20):
        lines.insert(0, assertion(c, STATIC))
    hypers = f"({', '.join(n for n, _ in args)})" if args else ""
    comment = f"# {wording(c)}\n" if c.odd(20) else ""
    return Template(names.add("layer", f"{comment}block NAME{hypers} {{\n  " + "\n  ".join(lines) + "\n}"), args)


def by_layer(c: Chooser, slots: list[tuple[str, str]], args: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """The slots of a layer, some of them by its hyper-parameters."""
    found, known = dict(slots), {what: name for name, what in args}
    depth = known["depth"]
    heads = re.search(r"^mha\(heads: (\d)", found.get("attention", ""))
    some = fraction(c, args)
    options = {
        "ffn": [
            f"mlp(hidden: {rounded(c.one, 'width', known.get('multiple', '4'))})",
            f"swiglu(hidden: 4 * ({depth} + 1))",
            f"mlp(hidden: if {depth} % 2 == 0 then 8 else 12, act: elu(alpha: 0.5 + abs({some})))",
            f"mlp(hidden: 8, dropout: 0.1 * {depth} / {DEPTHS})",
        ],
        "norm": [f"rmsnorm(eps: 1e-5 * ({depth} + 1))", f"layernorm(eps: 1e-5 / ({depth} + 1))"],
        "residual": [
            f"scale(skip: {some}, branch: 1 - {some})",
            f"layerscale(0.1 * ({depth} + 1))",
            f"scale(skip: 1, branch: 0.3 * {depth})",
        ],
        "dropout": [f"0.1 * {depth} / {DEPTHS}"],
        "init": [f"normal(0.02 / ({depth} + 1))", f"depth_scaled(std: 0.02, layers: {depth} + 1)"],
    }
    if heads is not None:
        options["attention"] = [
            f"mha(heads: {heads[1]}, scale: exp(-0.3 * {depth}))",
            f"mha(heads: {heads[1]}, softcap: 5 * ({depth} + 1))",
            f"mha(heads: {heads[1]}, head_dim: 2 * ({depth} + 1))" if "position" not in found else found["attention"],
        ]
    if "mask" in found and c.causal:
        options["mask"] = [f"causal & window({depth} + 1)", f"if {depth} % 2 == 0 then causal else causal & window(3)"]
    if found.get("position", "").startswith("rope"):
        options["position"] = [f"rope(theta: 100 * ({depth} + 1))", f"rope(theta: 100 ** ({depth} + 1))"]
    if "ffn" not in found:
        del options["ffn"]
    for _ in range(c.whole(1, 3)):
        slot = c.one(list(options))
        found[slot] = c.one(options[slot])
    if "layers" in known:
        found.setdefault("residual", f"scale(skip: 1, branch: 1.5 - {depth} / (2 * {known['layers']}))")
    return list(found.items())
