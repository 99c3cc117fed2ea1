"""From Model to Model, and what several back ends ask of one: hoisting, unrolling, decoding, partition."""
