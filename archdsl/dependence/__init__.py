"""What a position of a tensor depends on: proofs that no later token is read.

`domain` says what is known of one tensor, `solve` finds it for every tensor of a model, `explain` shows the way back
from a claim that does not hold, and `causality` judges the claims that a model makes.
"""
