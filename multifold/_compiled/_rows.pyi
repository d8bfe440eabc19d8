# The compiled functions have the types of their references.
from multifold._compiled.reference.plans import plan as plan
from multifold._compiled.reference.plans import wire as wire
