"""Code as it stands in JAX.

- `pending`: arrays whose values are not computed yet; `forms`: what is known of them, `nesting`: of what
  holds them;
- `functions`: functions of JAX, which are others while programs record; `updates`: ``x.at[i].set(y)``;
- `settings`: what a ``with`` statement sets in JAX;
- `recorder`: a function of one example, compiled to run for all, and what records such calls.
"""
