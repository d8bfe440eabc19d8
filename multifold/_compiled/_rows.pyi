# The compiled functions have the types of their references.
from multifold._compiled.reference.rows import GATHERED as GATHERED
from multifold._compiled.reference.rows import SLICE as SLICE
from multifold._compiled.reference.rows import WHOLE as WHOLE
from multifold._compiled.reference.rows import group as group
from multifold._compiled.reference.rows import order as order
from multifold._compiled.reference.rows import plan_reads as plan_reads
