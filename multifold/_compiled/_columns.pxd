# What the kernels share: arrays, how a reference is packed into 64 bits, and what is said of a damaged column.
from libc.stdint cimport int64_t

ctypedef const int64_t[::1] Integers  # a column that is only read
ctypedef int64_t[::1] Writable
ctypedef int64_t[:, ::1] Table

cdef enum:  # the columns of multifold._record.kinds.COLUMNS
    AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED

cdef extern from *:
    """
    #define MULTIFOLD_PART_BITS 40
    #define MULTIFOLD_CALL_MASK (((int64_t)1 << MULTIFOLD_PART_BITS) - 1)
    """
    const int64_t PART_BITS "MULTIFOLD_PART_BITS"
    const int64_t CALL_MASK "MULTIFOLD_CALL_MASK"


cdef inline int missing() except -1:
    raise IndexError("A column of calls refers to what is not there.")
