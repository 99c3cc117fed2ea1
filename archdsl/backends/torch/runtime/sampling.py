"""How the next token is chosen."""

from typing import Any

from torch import Tensor


def sample(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Any) -> Tensor:
    """Draw a token for each row of logits [batch, vocab]; at temperature 0, the likeliest."""
    if temperature < 1e-6:  # logits divided by less may overflow
        return logits.argmax(-1)
    likely = (logits.float() / temperature).softmax(-1)
    if top_k is None and top_p is None:
        return likely.multinomial(1, generator=generator).squeeze(1)
    likely, order = likely.topk(min(top_k or likely.size(-1), likely.size(-1)))
    if top_p is not None:  # nucleus sampling (Holtzman et al., 2019): what lies beyond is 0
        likely[likely.cumsum(-1) - likely > top_p * likely.sum(-1, keepdim=True)] = 0
    return order.gather(-1, likely.multinomial(1, generator=generator)).squeeze(1)
