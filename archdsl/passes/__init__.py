"""From Model to Model, and what several back ends ask of one: hoisting, dead-code elimination, unrolling, decoding,
partition."""
