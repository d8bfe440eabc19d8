# The compiled function has the types of its reference.
from multifold._compiled.reference.covers import beam as beam
