# The compiled classes have the types of their references.
from multifold._compiled.arrays import PART_BITS as PART_BITS
from multifold._compiled.reference.recording import DoorBase as DoorBase
from multifold._compiled.reference.recording import GraphBase as GraphBase
from multifold._compiled.reference.recording import NodeBase as NodeBase
from multifold._compiled.reference.recording import RecorderBase as RecorderBase
