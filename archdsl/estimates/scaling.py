"""Scaling laws: how many parameters and tokens a budget of training compute is best spent on, and which loss to expect.

N are parameters, D tokens, C = 6 N D FLOPs of training (a multiply and an add are two). A loss is in nats for each
token, of the corpus and the tokens that a law was fitted on: losses of different laws are not to be compared.

* **kaplan** (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361): N without embeddings. The best N for a budget is
  1.3e9 · C^0.73, C in PF-days, at batches well below the critical one (table 6), and D what is left of it, C / 6 N; the
  loss there is (3.1e8 / C)^0.050 (table 5). Of a run whose N and D are both given it is the loss at the end of a
  training to convergence, equation 1.5 with the constants of table 2: another law, and not to be compared with the
  first. * **chinchilla** (Hoffmann et al., 2022, https://arxiv.org/abs/2203.15556): the parametric fit, approach 3 of
  the paper, L = E + A / N^α + B / D^β; N with embeddings. The constants are those of the paper before they were rounded
  for print, as Besiroglu et al. (2024) have them from its source: with the printed ones the optimum for Gopher's
  compute would be 32e9 parameters, where the paper says 40e9. * **replication** (Besiroglu et al., 2024,
  https://arxiv.org/abs/2404.10102): the same form, fitted anew to the data of the paper's figures; it agrees with the
  paper's other two approaches, and with the 20 tokens a parameter of Chinchilla itself.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel

from archdsl.diagnostics import error
from archdsl.frontend.load import wrong_argument
from archdsl.frozen import Frozen
from archdsl.shown import Shown

LawName = Literal["kaplan", "chinchilla", "replication"]
LAWS: tuple[LawName, ...] = get_args(LawName)
PF_DAY = 1e15 * 24 * 3600
"""FLOPs of a PF-day."""


class TrainingRun(BaseModel):
    """A training run by one law."""

    law: LawName
    source: str
    flops: float
    """6 · parameters · tokens."""
    parameters: float
    """Without embeddings where the law is `kaplan`."""
    tokens: float
    tokens_per_parameter: float
    loss: float
    """Predicted, in nats for each token."""
    best_loss: float | None
    """Of the law's optimum at the same FLOPs; None for `kaplan`, unless the run is that optimum."""


class ScalingReport(BaseModel, Shown):
    """What `archdsl scaling` prints."""

    given: dict[str, float]
    """By `flops`, `params` and `tokens`, what was asked about."""
    optimal: bool
    """Whether the runs are the best of their compute; not where parameters and tokens are both fixed."""
    runs: list[TrainingRun]


class _Parametric(Frozen):
    """L = E + A / N^α + B / D^β."""

    source: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float

    @property
    def _share(self) -> tuple[float, float]:
        """The exponent of C / 6 in the best N, and the factor before it (Hoffmann et al., equation 4)."""
        total = self.alpha + self.beta
        return self.beta / total, (self.alpha * self.a / (self.beta * self.b)) ** (1 / total)

    def parameters(self, flops: float) -> float:
        exponent, factor = self._share
        return float(factor * (flops / 6) ** exponent)

    def flops_of_parameters(self, parameters: float) -> float:
        exponent, factor = self._share
        return float(6 * (parameters / factor) ** (1 / exponent))

    def flops_of_tokens(self, tokens: float) -> float:
        exponent, factor = self._share
        return float(6 * (tokens * factor) ** (1 / (1 - exponent)))

    def loss(self, parameters: float, tokens: float) -> float:
        return float(self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def optimal_loss(self, flops: float) -> float:
        best = self.parameters(flops)
        return self.loss(best, flops / (6 * best))


class _Kaplan(Frozen):
    """Best N = N_e · C^p and L = (C_c / C)^α_C, C in PF-days; L = ((N_c / N)^(α_N / α_D) + D_c / D)^α_D."""

    source: str = "Kaplan et al., 2020"
    n_e: float = 1.3e9
    p: float = 0.73
    n_c: float = 6.4e13
    d_c: float = 1.8e13
    alpha_n: float = 0.076
    alpha_d: float = 0.103
    c_c: float = 3.1e8
    alpha_c: float = 0.050

    def parameters(self, flops: float) -> float:
        return float(self.n_e * (flops / PF_DAY) ** self.p)

    def flops_of_parameters(self, parameters: float) -> float:
        return float(PF_DAY * (parameters / self.n_e) ** (1 / self.p))

    def flops_of_tokens(self, tokens: float) -> float:
        # C = 6 N D with N = n_e (C / PF_DAY)^p.
        return float(PF_DAY * (6 * self.n_e * tokens / PF_DAY) ** (1 / (1 - self.p)))

    def loss(self, parameters: float, tokens: float) -> float:
        return float(((self.n_c / parameters) ** (self.alpha_n / self.alpha_d) + self.d_c / tokens) ** self.alpha_d)

    def optimal_loss(self, flops: float) -> float:
        return float((self.c_c * PF_DAY / flops) ** self.alpha_c)


_LAWS: dict[LawName, _Parametric | _Kaplan] = {
    "kaplan": _Kaplan(),
    "chinchilla": _Parametric("Hoffmann et al., 2022, approach 3", 1.6934, 406.4, 410.7, 0.3392, 0.2849),
    "replication": _Parametric("Besiroglu et al., 2024", 1.8172, 482.01, 2085.43, 0.3478, 0.3658),
}


def scaling(*, flops: float | None = None, params: float | None = None, tokens: float | None = None) -> ScalingReport:
    """Return a training run by every law. Of one number given, the optimum that has it: the best spending of so many
    FLOPs, or the compute at which so many parameters, or tokens, are best. Of two, the run that has both.

    Raises ArchError E0509 for none or three numbers, and for one that is not positive."""
    asked = {"flops": flops, "params": params, "tokens": tokens}
    given = {name: n for name, n in asked.items() if n is not None}
    if not 1 <= len(given) <= 2:
        said = "one or two of `flops`, `params` and `tokens` are given"
        raise error("E0509", f"{said}, not {len(given)}", help="the third follows from C = 6 N D")
    for name, n in given.items():
        if isinstance(n, bool) or not isinstance(n, int | float):
            raise wrong_argument(name, n, "a positive number")
        if not 0 < n < float("inf"):
            raise error("E0509", f"`{name}` is a positive number, not {n:g}")
    runs = [run_of(law, flops=flops, params=params, tokens=tokens) for law in LAWS]
    return ScalingReport(given={k: float(n) for k, n in given.items()}, optimal=len(given) == 1, runs=runs)


def run_of(
    law: LawName, *, flops: float | None = None, params: float | None = None, tokens: float | None = None
) -> TrainingRun:
    """Return a training run by one law, of one or two positive numbers, as `scaling` does."""
    found = _LAWS[law]
    optimal = [flops, params, tokens].count(None) == 2
    if optimal:
        if params is not None:
            flops = found.flops_of_parameters(params)
        elif tokens is not None:
            flops = found.flops_of_tokens(tokens)
        assert flops is not None
        params = params if params is not None else found.parameters(flops)
        tokens = flops / (6 * params)
    elif flops is None:
        assert params is not None
        assert tokens is not None
        flops = 6 * params * tokens
    elif params is None:
        assert tokens is not None
        params = flops / (6 * tokens)
    else:
        tokens = flops / (6 * params)
    best = found.optimal_loss(flops)
    return TrainingRun(
        law=law,
        source=found.source,
        flops=flops,
        parameters=params,
        tokens=tokens,
        tokens_per_parameter=tokens / params,
        loss=best if optimal else found.loss(params, tokens),
        best_loss=best if optimal or isinstance(found, _Parametric) else None,
    )
