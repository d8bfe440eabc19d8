"""Code as it stands in NumPy: pending arrays, calls of functions on rows, rules.

- `pending`: an array whose values are not computed yet, and what is asked of it;
- `calls`: a function of one example, run on the rows of all;
- `rules`: how functions of NumPy run on rows;
- `recorder`: what records, and keeps what it has learnt.
"""
