# The compiled functions have the types of their references.
from multifold._compiled.reference.rows import wire as wire
