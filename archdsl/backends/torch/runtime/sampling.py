"""How the next token is chosen."""

import torch
from torch import Tensor


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """Choose a token for each row of logits [batch, vocab]: the likeliest at temperature 0, else at random from the
    `top_k` likeliest and from those that make up a probability of `top_p` (Holtzman et al., 2019)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None:
        likely, order = logits.softmax(-1).sort(descending=True)
        beyond = likely.cumsum(-1) - likely >= top_p  # without these tokens the probability is reached
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
