"""What training or serving a model takes of a machine: activations, memory, devices, time.

These analyses stand above the lowering: what a step keeps is found by following the code that is emitted.
"""
