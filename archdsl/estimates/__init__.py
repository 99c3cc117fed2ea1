"""What a model has and what it takes of a machine, from the graph alone: parameters, FLOPs, memory, devices, time."""
