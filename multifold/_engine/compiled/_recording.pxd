from libc.stdint cimport int64_t


cdef class NodeBase:
    cdef readonly object _graph  # a GraphBase, or the columns of merged traces
    cdef readonly int64_t _ref
    cdef bint counted  # among the holders of its call


cdef class Once:
    cdef object request  # None once it was yielded
