"""Eager PyTorch without numbers: an emitted file run over shapes, types, strides and storages.

What a step of training keeps in memory is decided by what the emitted code does, line by line: which of its results are
views, which tensors autograd saves for the backward pass, when Python lets go of a local name. So the file itself is
run, by Python, over tensors that hold no numbers. No torch is needed. Of a stack of equal layers some are run, which
tell of the rest: 400 billion weights take a tenth of a second.

`tensors` has tensors, storages and the session that counts them; `functions` what each function of torch allocates,
saves and gives back in the backward pass; `modules` the modules; `recurrent` recurrent layers; `engine` runs the
backward pass in autograd's order; `world` puts these in the place of torch and runs a file; `stacks` finds layers that
repeat.
"""
