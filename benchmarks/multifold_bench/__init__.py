"""What things cost, and against whom; and training: ``multifold bench``, ``train`` and ``explain``.

`workloads` says what is computed and `contenders` (with `hand`, `floors` and `dynet_process`) in which
ways. `step`, `record`, `plan`, `profile` and `runner` measure these and return rows. `harness` lets
contenders take turns, and compares their results as ``multifold compare`` does. `datasets` reads files;
`train` trains on them with any framework.
"""
