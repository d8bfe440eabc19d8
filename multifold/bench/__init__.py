"""What things cost, and against whom: the measurements behind ``multifold compare`` and ``bench``.

`harness` times contenders and knows nothing of what they do; `workloads` says what is computed, and
`contenders` (with `hand` and `dynet_process`) in which ways. `step`, `compare`, `record` and `plan` put
these together into rows, `results` keeps rows as JSON lines, `machine` says what a row was measured on.
"""
