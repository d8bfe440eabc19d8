# The compiled functions and the class have the types of their references.
from multifold._compiled.reference.rounds import TableBase as TableBase
from multifold._compiled.reference.rounds import distinct as distinct
from multifold._compiled.reference.tasks import Owners as Owners
from multifold._compiled.reference.tasks import awaited as awaited
from multifold._compiled.reference.tasks import located as located
from multifold._compiled.reference.tasks import run_ready as run_ready
