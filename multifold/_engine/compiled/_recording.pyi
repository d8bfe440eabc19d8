# The compiled classes have the types of their references.
from multifold._engine.compiled.arrays import PART_BITS as PART_BITS
from multifold._engine.compiled.reference.recording import GraphBase as GraphBase
from multifold._engine.compiled.reference.recording import NodeBase as NodeBase
from multifold._engine.compiled.reference.recording import RecorderBase as RecorderBase
from multifold._engine.compiled.reference.recording import recorded as recorded
