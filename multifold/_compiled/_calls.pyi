# The compiled functions have the types of their references.
from multifold._compiled.reference.calls import COUNTERS as COUNTERS
from multifold._compiled.reference.calls import ancestors as ancestors
from multifold._compiled.reference.calls import bucket as bucket
from multifold._compiled.reference.calls import edges as edges
from multifold._compiled.reference.calls import schedule as schedule
from multifold._compiled.reference.calls import typed_levels as typed_levels
