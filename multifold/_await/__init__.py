"""Control flow that depends on computed values: examples run until they wait, then what they wait for.

One idea a module: `tasks` drives the coroutines and knows nothing of graphs; `history` keeps what
earlier rounds computed and cuts out the calls of the next; `rounds` alternates between the two;
`results` puts together what the examples returned.
"""
