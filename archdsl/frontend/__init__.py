"""Syntax -> IR: evaluates what is static, applies blocks, and checks every shape on the way.

`Elaborator` (in `root`) makes the parts in here and gives each those before it in the list below. A block
is elaborated once for each distinct set of hyper-parameters and shapes; its sizes are re-rooted to its own names on
entry and rewritten into the caller's on return, so that each block reads as it was written.

    load           a spec by its path or its name in the zoo, and what comes of it
    modules        files, what they import and declare
    scopes         names of a body, and what they can stand for
    decisions      what a block was decided from
    block_builder  the block being elaborated: its graph, its weights, what it needs of the blocks around
    kinds          what a static value must be to stand for an option
    op_call        one application of a primitive

    base           what all parts share: the state, reports, and what parts ask of later ones
    hypers         hyper-parameters, given and by default
    signatures     tensors and sizes against signatures
    primitives     applications of primitives, and what depends only on sizes
    names          what a name means
    functions      `shared`, `offer` …, masks and schemes
    blocks         applications of declared blocks
    calls          arguments and pipelines
    expressions    operators, indices, lists, conditions
    loops          `for` and `scan`
    statements     one statement after the other
    bodies         what stands between the braces: slots, equations, another block
    root           the model: inputs, overrides, variants
"""
