"""The workloads' models in DyNet, written as its users write them, and the process that runs them.

`step` is the process, started by the Python that has DyNet; `net` holds the weights. `trees`,
`lattices` and `taggers` have a function for each family of models, ``family(net, example) -> logits``: an
expression of DyNet for each row, in the order of the recording program. They import nothing of multifold,
which that Python need not have.
"""
