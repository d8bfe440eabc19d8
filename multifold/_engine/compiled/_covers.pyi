# The compiled functions have the types of their references.
from multifold._engine.compiled.reference.covers import beam as beam
from multifold._engine.compiled.reference.covers import cover as cover
