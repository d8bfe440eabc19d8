"""What things cost, and against whom; and training: ``multifold bench``, ``train`` and ``explain``.

`workloads` says what is computed and `contenders` (with `hand` and `dynet_process`) in which ways. `step`,
`record`, `plan`, `profile` and `runner` measure these and return rows. The harness that times them is that
of ``multifold compare``, in the core. `datasets` reads files; `train` trains on them with any framework.
"""
