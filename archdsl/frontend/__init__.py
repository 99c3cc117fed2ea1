"""Syntax -> IR: evaluates what is static, applies blocks, and checks every shape on the way.

`archdsl.frontend.lowering.Elaborator` is put together from the parts in here. A block is elaborated once for each
distinct set of hyper-parameters and shapes; its sizes are re-rooted to its own names on entry and rewritten into the
caller's on return, so that each block reads as it was written.

    load           a spec by its path or its name in the zoo, and what comes of it
    modules        files, what they import and declare
    scopes         names of a body, and what they can stand for
    block_builder  the block being elaborated: its graph, its weights, what it needs of the blocks around
    op_call        one application of a primitive
    lowering       the parts below, put together:

    base           what all parts share: the state, reports, conditions, and what the parts ask of each other
    names          what a name means
    expressions    operators, indices, lists, conditions
    functions      `shared`, `offer` …, masks and schemes
    calls          arguments, pipelines, hyper-parameters
    primitives     applications of primitives, and what depends only on sizes
    signatures     tensors and sizes of declared blocks against their signatures
    blocks         applications of declared blocks
    bodies         what stands between the braces: slots, equations, another block
    statements     one statement after the other
    loops          `for` and `scan`
    root           the model: inputs, overrides, variants
"""
