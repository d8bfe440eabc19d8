# The compiled functions have the types of their references.
from multifold._compiled.reference.bounds import fewest as fewest
