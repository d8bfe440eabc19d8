"""One pass over the device at hand, in minutes: whether it is busy, and what would be faster.

- `blocks`: what is measured, as a list of blocks with the seconds of each
- `running`: the pass over such a list; each row is kept as soon as it is measured
- `kernels`: what the framework's profiler saw of a step
- `page`: a page of documentation, two figures and four lines of the README, made of the rows

What matters most comes first, nothing takes more than its seconds, and a block that fails leaves a row that
says so. Without a GPU the pass runs on the CPU, as its test does; only of rows from a GPU a page is made.
"""
