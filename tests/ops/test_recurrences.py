"""Recurrences against torch's modules and plain loops; they compile whole and, where parallel, export with any time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archdsl
from archdsl.diagnostics import ArchError


def compiled(text: str) -> nn.Module:
    torch.manual_seed(0)
    return archdsl.to_torch(text=f"model m{text}").eval()


# --- gru, lstm, rnn --------------------------------------------------------------------------------------------------

LAYERS = [
    ("gru", "", nn.GRU, {}),
    ("lstm", "", nn.LSTM, {}),
    ("rnn", "", nn.RNN, {}),
    ("rnn", ", act: relu", nn.RNN, {"nonlinearity": "relu"}),
    ("gru", ", bias: false", nn.GRU, {"bias": False}),
]


@pytest.mark.parametrize(("name", "options", "cls", "settings"), LAYERS)
def test_a_layer_is_torchs_with_the_same_weights(
    name: str, options: str, cls: type[nn.RNNBase], settings: dict[str, object]
) -> None:
    x = torch.randn(2, 7, 8)
    module = compiled(f"(x: [batch, time, 8]) {{ return x -> {name}(6{options}) }}")
    torchs = cls(8, 6, batch_first=True, **settings)  # type: ignore[arg-type]
    assert list(module.state_dict()) == [f"{name}.{key}" for key in torchs.state_dict()]
    torchs.load_state_dict({k.removeprefix(f"{name}."): v for k, v in module.state_dict().items()})
    torch.testing.assert_close(module(x), torchs(x)[0])

    backwards = compiled(f"(x: [batch, time, 8]) {{ return x -> {name}(6, reverse: true{options}) }}")
    backwards.load_state_dict(module.state_dict())
    torch.testing.assert_close(backwards(x), torchs(x.flip(1))[0].flip(1))


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_a_layer_starts_from_its_states(name: str) -> None:
    states = ["h", "c"] if name == "lstm" else ["h"]
    tensors = "".join(f", {s}: [batch, 6]" for s in states)
    module = compiled(f"(x: [batch, time, 8]{tensors}) {{ return {name}(6)(x, {', '.join(states)}) }}")
    torchs = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[name](8, 6, batch_first=True)
    torchs.load_state_dict({k.removeprefix(f"{name}."): v for k, v in module.state_dict().items()})
    x, start = torch.randn(2, 7, 8), [torch.randn(2, 6) for _ in states]
    first = [s[None] for s in start]
    torch.testing.assert_close(module(x, *start), torchs(x, tuple(first) if name == "lstm" else first[0])[0])


def test_lstm_takes_both_states_or_none() -> None:
    with pytest.raises(ArchError, match="both `h` and `c`"):
        archdsl.load(text="model m(x: [b, t, 8], h: [b, 6]) { return lstm(6)(x, h) }")


CELLS = [("gru_cell", nn.GRUCell), ("rnn_cell", nn.RNNCell), ("lstm_cell", nn.LSTMCell)]


@pytest.mark.parametrize(("name", "cls"), CELLS)
@pytest.mark.parametrize("leading", [(2,), (2, 3)])
def test_a_cell_is_torchs(name: str, cls: type[nn.RNNCellBase], leading: tuple[int, ...]) -> None:
    states = ["h", "c"] if name == "lstm_cell" else ["h"]
    axes = ", ".join("ab"[: len(leading)])
    tensors = "".join(f", {s}: [{axes}, 6]" for s in states)
    names = ", ".join(states)
    module = compiled(f"(x: [{axes}, 8]{tensors}) {{ {names} = {name}(6)(x, {names}) return {names} }}")
    torchs = cls(8, 6)  # type: ignore[call-arg]
    assert list(module.state_dict()) == [f"{name}.{key}" for key in torchs.state_dict()]
    torchs.load_state_dict({k.removeprefix(f"{name}."): v for k, v in module.state_dict().items()})
    x, start = torch.randn(*leading, 8), [torch.randn(*leading, 6) for _ in states]
    rows = [s.flatten(0, -2) for s in start]
    expected = torchs(x.flatten(0, -2), tuple(rows) if len(rows) == 2 else rows[0])
    for mine, theirs in zip(
        [module(x, *start)] if len(states) == 1 else module(x, *start),
        [expected] if len(states) == 1 else expected,
        strict=True,
    ):
        torch.testing.assert_close(mine.flatten(0, -2), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_a_layer_compiles_whole(name: str) -> None:
    module = compiled(f"(x: [batch, time, 8]) {{ return x -> {name}(6) }}")
    x = torch.randn(
        2, 5, 8, requires_grad=True
    )  # torch 2.13 fails for an LSTM of a tensor without gradient, on the CPU
    fast = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(x), module(x))
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.testing.assert_close(exported.module()(torch.ones(4, 5, 8)), module(torch.ones(4, 5, 8)))


# --- parallel over time -----------------------------------------------------------------------------------------------


def recurrence_by_steps(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    h = torch.zeros_like(b[:, 0]) if start is None else start
    states = []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, dim=1)


def gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = function(*leaves)
    return torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum(), leaves)


def assert_agree(function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(function(*inputs), reference(*inputs), rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients(function, inputs), gradients(reference, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", [1, 5, 31, 32, 33, 64, 200, 1100])
def test_linear_recurrence_is_the_loop(time: int) -> None:
    module = compiled("(a: [batch, time, 3], b: [batch, time, 3]) { return linear_recurrence(a, b) }")
    a, b = torch.rand(2, time, 3), torch.randn(2, time, 3)
    assert_agree(module, recurrence_by_steps, (a, b))
    assert_agree(module, recurrence_by_steps, (a - 0.5, b))  # factors of either sign
    assert_agree(module, recurrence_by_steps, (a.round(), b))  # and zeros


def test_linear_recurrence_of_one_factor_for_many_terms_and_with_a_start() -> None:
    text = "(a: [batch, time, 1, 1], b: [batch, time, 3, 4], h: [batch, 3, 4]) { return linear_recurrence(a, b, h) }"
    assert_agree(
        compiled(text), recurrence_by_steps, (torch.rand(2, 70, 1, 1), torch.randn(2, 70, 3, 4), torch.randn(2, 3, 4))
    )
    plain = compiled("(a: [batch, time], b: [batch, time]) { return linear_recurrence(a, b) }")
    assert_agree(plain, recurrence_by_steps, (torch.rand(2, 70), torch.randn(2, 70)))


@pytest.mark.slow
def test_linear_recurrence_over_a_long_time() -> None:
    module = compiled("(a: [batch, time, 1], b: [batch, time, 1]) { return linear_recurrence(a, b) }")
    a, b = 1 - 1e-3 * torch.rand(1, 40_000, 1), torch.randn(1, 40_000, 1)
    expected = recurrence_by_steps(a.double(), b.double()).float()
    torch.testing.assert_close(module(a, b), expected, rtol=1e-4, atol=1e-3)


SCAN = "(x: [batch, time, 4], d: [batch, time, 4], a: [4, 3], b: [batch, time, 3], c: [batch, time, 3], s: [4])"


def scan_by_steps(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor) -> Tensor:
    h = x.new_zeros(x.size(0), *a.shape)
    ys = []
    for t in range(x.size(1)):
        h = (delta[:, t, :, None] * a).exp() * h + delta[:, t, :, None] * b[:, t, None] * x[:, t, :, None]
        ys.append((h * c[:, t, None]).sum(-1))
    return torch.stack(ys, dim=1) + skip * x


def scan_inputs(time: int) -> tuple[Tensor, ...]:
    return (
        torch.randn(2, time, 4), torch.rand(2, time, 4), -3 * torch.rand(4, 3),
        torch.randn(2, time, 3), torch.randn(2, time, 3), torch.randn(4),
    )  # fmt: skip


@pytest.mark.parametrize("time", [1, 6, 33, 100])
def test_selective_scan_is_the_loop(time: int) -> None:
    module = compiled(f"{SCAN} {{ return selective_scan(x, d, a, b, c, s) }}")
    assert_agree(module, scan_by_steps, scan_inputs(time))


def test_selective_scan_answers_in_the_type_of_its_input() -> None:
    module = compiled(f"{SCAN} {{ return selective_scan(x, d, a, b, c, s) }}")
    inputs = scan_inputs(70)
    exact = module(*inputs)
    rough = module(*(t.bfloat16() for t in inputs))
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0.1, atol=0.3)


# --- linear attention ------------------------------------------------------------------------------------------------

QKV = "q: [batch, heads, time, 4], k: [batch, heads, time, 4], v: [batch, heads, time, 5]"


def attention_by_scores(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, eps: float | None = None
) -> Tensor:
    scores = q @ k.mT
    if log_decay is not None:
        passed = log_decay.expand(q.shape[:3]).cumsum(-1)
        scores = scores * (passed[..., :, None] - passed[..., None, :]).tril().exp()
    scores = scores.tril()
    y = scores @ v
    return y if eps is None else y / (scores.sum(-1, keepdim=True) + eps)


def attention_inputs(time: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand(2, 3, time, 4), torch.rand(2, 3, time, 4), torch.randn(2, 3, time, 5)


@pytest.mark.parametrize("time", [1, 7, 64, 130])
def test_linear_attention_is_the_sum_over_scores(time: int) -> None:
    q, k, v = (t / 2 for t in attention_inputs(time))
    assert_agree(compiled(f"({QKV}) {{ return linear_attention(q, k, v) }}"), attention_by_scores, (q, k, v))
    assert_agree(
        compiled(f"({QKV}) {{ return linear_attention(q, k, v, normalize: true, eps: 0.1) }}"),
        lambda *t: attention_by_scores(*t, eps=0.1),
        (q, k, v),
    )
    decayed = compiled(f"({QKV}, g: [batch, heads, time]) {{ return linear_attention(q, k, v, log_decay: g) }}")
    assert_agree(decayed, attention_by_scores, (q, k, v, -3 * torch.rand(2, 3, time)))
    by_head = compiled(
        f"({QKV}, g: [heads, 1]) {{ return linear_attention(q, k, v, log_decay: g, normalize: true, eps: 0.1) }}"
    )
    assert_agree(by_head, lambda *t: attention_by_scores(*t, eps=0.1), (q, k, v, -torch.rand(3, 1)))


@pytest.mark.parametrize("options", ["", ", normalize: true, eps: 0.1", ", log_decay: g"])
def test_heads_of_queries_and_keys_serve_groups_of_heads(options: str) -> None:
    tensors = QKV.replace("heads, time, 4", "groups, time, 4") + ", g: [batch, heads, time]"
    module = compiled(f"({tensors}) {{ return linear_attention(q, k, v{options}) + unsqueeze(0 * g, -1) }}")
    q, k = torch.rand(2, 2, 2, 70, 4) / 2
    v, g = torch.randn(2, 6, 70, 5), -torch.rand(2, 6, 70)

    def by_scores(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        q, k = (t.repeat_interleave(3, dim=1) for t in (q, k))
        decay, eps = g if "decay" in options else 0 * g, 0.1 if "eps" in options else None
        return attention_by_scores(q, k, v, decay, eps)

    assert_agree(module, by_scores, (q, k, v, g))


def test_linear_attention_in_both_directions_reads_other_lengths() -> None:
    tensors = "q: [batch, heads, time, 4], k: [batch, heads, source, 4], v: [batch, heads, source, 5]"
    q, k, v = torch.rand(2, 3, 6, 4), torch.rand(2, 3, 9, 4), torch.randn(2, 3, 9, 5)
    module = compiled(f"({tensors}) {{ return linear_attention(q, k, v, causal: false) }}")
    torch.testing.assert_close(module(q, k, v), q @ k.mT @ v)
    module = compiled(f"({tensors}) {{ return linear_attention(q, k, v, causal: false, normalize: true, eps: 1e-9) }}")
    torch.testing.assert_close(module(q, k, v), q @ k.mT @ v / (q @ k.mT).sum(-1, keepdim=True))


# --- the delta rule --------------------------------------------------------------------------------------------------


def assert_near(function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    """Results and gradients differ by no more than some roundings of their largest number."""
    found = [function(*inputs), *gradients(function, inputs)]
    for mine, theirs in zip(found, [reference(*inputs), *gradients(reference, inputs)], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5 * max(theirs.abs().max().item(), 1.0))


DELTA = (
    "(q: [batch, heads, time, 8], k: [batch, heads, time, 8], v: [batch, heads, time, 6], b: [batch, heads, time]"
    ", r: [batch, heads, time, 8], s: [batch, heads, 8, 6]"
)
DECAYS: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "none": lambda shape: torch.zeros(shape),
    "slow": lambda shape: -1e-3 * torch.rand(shape),
    "fast": lambda shape: -20 * torch.rand(shape),
    "of every size": lambda shape: -(10 ** (7 * torch.rand(shape) - 4)),
    "a reset": lambda shape: torch.where(torch.rand(shape) < 0.05, -torch.inf, -0.01 * torch.rand(shape)),
}


def token_by_token(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, decay: Tensor, read: Tensor, state: Tensor
) -> Tensor:
    """The definition: what is read of the decayed state is replaced by the value; without beta the value is added."""
    decay = decay if decay.ndim == 4 else decay[..., None]
    found = []
    for t in range(v.size(2)):
        state = decay[:, :, t, :, None].exp() * state
        u = v[:, :, t]
        if beta is not None:
            u = beta[:, :, t, None] * (u - torch.einsum("bhkv,bhk->bhv", state, read[:, :, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], u)
        found.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(found, 2)


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("axes", ["time", "time, 8"])
@pytest.mark.parametrize("time", [1, 63, 65, 130])
def test_the_delta_rule_in_chunks_is_the_loop_over_tokens(time: int, axes: str, decays: str) -> None:
    """Keys that resemble each other, and decays of any size: numbers and gradients."""
    module = compiled(f"{DELTA}, g: [batch, heads, {axes}]) {{ return delta_rule(q, k, v, b, g, read: r, state: s) }}")
    keys = (torch.randn(2, 3, n, 8) for n in (time, 1, time))
    q, k = torch.randn(2, 3, time, 8), nn.functional.normalize(sum(keys), dim=-1)
    v, beta, state = torch.randn(2, 3, time, 6), torch.rand(2, 3, time), torch.randn(2, 3, 8, 6)
    decay = DECAYS[decays]((2, 3, time, 8) if "8" in axes else (2, 3, time))

    def loop(q: Tensor, k: Tensor, v: Tensor, b: Tensor, r: Tensor, s: Tensor, g: Tensor) -> Tensor:
        return token_by_token(q, k, v, b, g, r, s)

    inputs = (q, k, v, beta, k * torch.rand(2, 3, time, 1), state, decay)
    assert_near(module, loop, inputs)


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("axes", ["time", "time, 4"])
@pytest.mark.parametrize("time", [1, 63, 65, 130])
def test_linear_attention_is_the_loop_over_tokens(time: int, axes: str, decays: str) -> None:
    tensors = f"({QKV}, g: [batch, heads, {axes}])"
    module = compiled(f"{tensors} {{ return linear_attention(q, k, v, log_decay: g) }}")

    def loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        return token_by_token(q, k, v, None, g, k, torch.zeros(2, 3, 4, 5))

    decay = DECAYS[decays]((2, 3, time, 4) if "4" in axes else (2, 3, time))
    assert_near(module, loop, (*attention_inputs(time), decay))


def test_the_delta_rule_needs_neither_decays_nor_as_many_heads() -> None:
    tensors = "q: [batch, 2, time, 8], k: [batch, 2, time, 8], v: [batch, 4, time, 6], b: [batch, 4, time]"
    module = compiled(f"({tensors}) {{ return delta_rule(q, k, v, b) }}")

    def loop(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        q, k = (t.repeat_interleave(2, dim=1) for t in (q, k))
        return token_by_token(q, k, v, b, 0 * b, k, torch.zeros(2, 4, 8, 6))

    k = nn.functional.normalize(torch.randn(2, 2, 70, 8), dim=-1)
    assert_agree(module, loop, (torch.randn(2, 2, 70, 8), k, torch.randn(2, 4, 70, 6), torch.rand(2, 4, 70)))


@pytest.mark.parametrize("axes", ["time", "time, 8"])
def test_several_steps_for_each_position(axes: str) -> None:
    """The state decays before the first and is read after the last."""
    tensors = "q: [batch, 2, time, 8], k: [batch, 2, time, 3, 8], v: [batch, 2, time, 3, 6], b: [batch, 2, time, 3]"
    module = compiled(f"({tensors}, g: [batch, 2, {axes}]) {{ return delta_rule(q, k, v, b, g) }}")

    def loop(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor) -> Tensor:
        state, found = torch.zeros(2, 2, 8, 6), []
        for t in range(q.size(2)):
            state = (g if g.ndim == 4 else g[..., None])[:, :, t, :, None].exp() * state
            for i in range(3):
                key = k[:, :, t, i]
                known = torch.einsum("bhkv,bhk->bhv", state, key)
                state = state + torch.einsum("bhk,bhv->bhkv", key, b[:, :, t, i, None] * (v[:, :, t, i] - known))
            found.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
        return torch.stack(found, 2)

    decay = -torch.rand(2, 2, 50, 8) if "8" in axes else -torch.rand(2, 2, 50)
    k = nn.functional.normalize(torch.randn(2, 2, 50, 3, 8), dim=-1)
    assert_near(
        module, loop, (torch.randn(2, 2, 50, 8), k, torch.randn(2, 2, 50, 3, 6), torch.rand(2, 2, 50, 3), decay)
    )


# --- compiling and exporting -----------------------------------------------------------------------------------------

PARALLEL = {
    "linear_recurrence": (
        "(a: [batch, time, 3], b: [batch, time, 3], h: [batch, 3]) { return linear_recurrence(a, b, h) }",
        lambda time: (torch.rand(2, time, 3), torch.randn(2, time, 3), torch.randn(2, 3)),
        ({1}, {1}, set()),
    ),
    "selective_scan": (
        f"{SCAN} {{ return selective_scan(x, d, a, b, c, s) }}",
        scan_inputs,
        ({1}, {1}, set(), {1}, {1}, set()),
    ),
    "linear_attention": (
        f"({QKV}, g: [batch, heads, time]) {{ return linear_attention(q, k, v, log_decay: g, normalize: true) }}",
        lambda time: (*attention_inputs(time), -torch.rand(2, 3, time)),
        ({2}, {2}, {2}, {2}),
    ),
    "channels": (
        f"({QKV}, g: [batch, heads, time, 4]) {{ return linear_attention(q, k, v, log_decay: g, normalize: true) }}",
        lambda time: (*attention_inputs(time), -torch.rand(2, 3, time, 4)),
        ({2}, {2}, {2}, {2}),
    ),
    "causal_attention": (f"({QKV}) {{ return linear_attention(q, k, v) }}", attention_inputs, ({2}, {2}, {2})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_what_is_parallel_compiles_whole_and_exports_with_any_time(name: str) -> None:
    text, inputs_of, axes = PARALLEL[name]
    module = compiled(text)
    inputs = inputs_of(50)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(*inputs), module(*inputs))
    time = torch.export.Dim("time")
    shapes = tuple(dict.fromkeys(found, time) for found in axes)
    exported = torch.export.export(module, inputs, dynamic_shapes=shapes).module()
    for length in (2, 33, 64, 300):
        inputs = inputs_of(length)
        torch.testing.assert_close(exported(*inputs), module(*inputs))
