# The compiled function has the type of its reference.
from multifold._engine.compiled.reference.foot import at_foot as at_foot
