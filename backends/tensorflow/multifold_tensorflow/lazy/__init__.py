"""Code as it stands in TensorFlow.

- `pending`: tensors whose values are not computed yet, and the functions of TensorFlow that meet them;
- `calls`: a function of one example, run for all as a graph;
- `graphs`: what is looked for in these graphs;
- `layers`: calls of Keras layers and changes of variables, seen while programs record;
- `recorder`: what records, and keeps what it has learnt.
"""
