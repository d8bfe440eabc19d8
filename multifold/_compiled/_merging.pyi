# The compiled functions have the types of their references.
from multifold._compiled.reference.merging import cut as cut
from multifold._compiled.reference.merging import merge as merge
from multifold._compiled.reference.merging import traces_of as traces_of
