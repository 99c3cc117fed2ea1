"""Syntax -> IR: evaluates what is static, applies blocks, and checks every shape on the way.

`Elaborator` (in `root`) makes the parts, from `signatures` on, and hands to each those listed before it that it uses.
All of them share one `Elaboration`, by which a part asks one that is listed after it: an expression in a body holds
calls, whose blocks have bodies of their own. A block is elaborated once for each distinct set of hyper-parameters and
shapes; its sizes are re-rooted to its own names on entry and rewritten into the caller's on return, so that each block
reads as it was written.

    load           a spec by its path or its name in the zoo, and what comes of it
    modules        files, what they import and declare
    headers        what the head of a block says
    schemes        first values and scalings of rotary embeddings, with their numbers
    first_values   which weights the slot `init` of a body reaches
    scopes         names of a body, and what they can stand for
    block_builder  the block being elaborated: its graph, its weights, what it needs of the blocks around
    kinds          what a static value must be to stand for an option
    lists          lists, and the pattern in which a spec wrote them

    base           what all parts share: the state, reports, and what parts ask of later ones
    op_call        one application of a primitive
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
