# What `columns.py` has, for compiled code: integers are those of C, and columns are views of arrays.
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

ctypedef int64_t Int
ctypedef bint Bool
ctypedef const int64_t[::1] Read
ctypedef int64_t[::1] Write
ctypedef const int64_t* RawRead  # a view that is a local variable of a function is counted, a pointer is not
ctypedef int64_t* Raw
ctypedef int[::1] Small  # integers of 32 bits, of which caches and vectors hold twice as many
ctypedef unsigned char[::1] Flags

ctypedef fused Column:
    Write
    Small

cdef enum:
    MOST_TYPES = 1024
    MOST_PAIRS = 1 << 16
    FEW = 24  # pairs that are sorted by insertion: below it a radix sort takes longer

cdef extern from *:
    """
    #define MULTIFOLD_PART_BITS 40
    #define MULTIFOLD_CALL_MASK (((int64_t)1 << MULTIFOLD_PART_BITS) - 1)
    #define MULTIFOLD_MOST_SMALL ((int64_t)1 << 31)
    #define MULTIFOLD_MOST_CODES ((int64_t)1 << 62)
    static PyObject *multifold_empty = NULL;
    static PyObject *multifold_zeros = NULL;
    static PyObject *multifold_int64 = NULL;
    static PyObject *multifold_uint8 = NULL;
    static PyObject *multifold_int32 = NULL;
    """
    const int64_t PART_BITS "MULTIFOLD_PART_BITS"
    const int64_t CALL_MASK "MULTIFOLD_CALL_MASK"
    const int64_t MOST_SMALL "MULTIFOLD_MOST_SMALL"
    const int64_t MOST_CODES "MULTIFOLD_MOST_CODES"
    PyObject *multifold_empty
    PyObject *multifold_zeros
    PyObject *multifold_int64
    PyObject *multifold_uint8
    PyObject *multifold_int32


cdef inline int take_numpy() except -1:
    """Keep the functions of NumPy that make arrays: to import them takes as long as to make one."""
    global multifold_empty, multifold_zeros, multifold_int64, multifold_uint8, multifold_int32
    import numpy

    for kept in (numpy.empty, numpy.zeros, numpy.int64, numpy.int32, numpy.uint8):
        Py_INCREF(kept)
    multifold_empty, multifold_zeros = <PyObject *>numpy.empty, <PyObject *>numpy.zeros
    multifold_uint8, multifold_int64 = <PyObject *>numpy.uint8, <PyObject *>numpy.int64
    multifold_int32 = <PyObject *>numpy.int32
    return 0


cdef inline int missing() except -1:
    raise IndexError("A column of calls refers to what is not there.")


cdef inline Read opened(Read column) noexcept:
    return column


cdef inline Write writable(Write column) noexcept:
    return column


cdef inline Write fresh(Write made) noexcept:
    return made


cdef inline int closed(made, Write column) except -1:
    return 0


cdef inline Write zeros(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_zeros)(size, <object>multifold_int64)


cdef inline Write room(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_empty)(size, <object>multifold_int64)


cdef inline Write filled(int64_t size, int64_t value):
    cdef Write made = room(size)
    made[:] = value
    return made


cdef inline Flags flags(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_zeros)(size, <object>multifold_uint8)


cdef inline Flags marks(Flags made) noexcept:
    return made


cdef inline Write part(Write column, int64_t low, int64_t high):
    return column[low:high]


cdef inline Small small(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_empty)(size, <object>multifold_int32)


cdef inline Small small_part(Small column, int64_t low, int64_t high):
    return column[low:high]


cdef inline Write copied(Write made, Read column):
    made[:] = column
    return made


cdef inline int fill(Column column, int64_t low, int64_t high, int64_t value) except -1:
    cdef int64_t i
    for i in range(low, high):
        column[i] = value
    return 0


cdef inline bint has(Write column, int64_t low, int64_t high, int64_t value) except -1:
    cdef int64_t i
    for i in range(low, high):
        if column[i] == value:
            return True
    return False


cdef inline int sort(Write own_keys, Write own_values, Write scratch, int64_t count) except -1:
    """Sort by insertion or by digits."""
    if count < 0 or count > own_keys.shape[0] or count > own_values.shape[0] or 2 * count > scratch.shape[0]:
        missing()
    if count < 2:
        return 0
    cdef int64_t* keys = &own_keys[0]
    cdef int64_t* values = &own_values[0]
    cdef int64_t* other_keys = &scratch[0]
    cdef int64_t* other_values = other_keys + count
    cdef int64_t i, j, key, value, at, shift = 0
    cdef uint64_t differing = 0, digit
    cdef int64_t[257] begin
    if count <= FEW:
        for i in range(1, count):
            key, value, j = keys[i], values[i], i
            while j > 0 and keys[j - 1] > key:
                keys[j], values[j] = keys[j - 1], values[j - 1]
                j -= 1
            keys[j], values[j] = key, value
        return 0
    for i in range(1, count):
        differing |= <uint64_t>(keys[i] ^ keys[0])
    while shift < 64 and differing >> shift:  # by digits of 8 bits, of those that differ (keys are not negative)
        if differing >> shift & 255:
            for i in range(257):
                begin[i] = 0
            for i in range(count):
                begin[(<uint64_t>keys[i] >> shift & 255) + 1] += 1
            for i in range(256):
                begin[i + 1] += begin[i]
            for i in range(count):
                digit = <uint64_t>keys[i] >> shift & 255
                at = begin[digit]
                begin[digit] += 1
                other_keys[at], other_values[at] = keys[i], values[i]
            keys, other_keys = other_keys, keys
            values, other_values = other_values, values
        shift += 8
    if keys != &own_keys[0]:
        for i in range(count):
            other_keys[i], other_values[i] = keys[i], values[i]
    return 0


cdef inline int sort_by(
    Write column, int64_t low, int64_t count, Read key, Write keys, Write values, Write scratch
) except -1:
    cdef int64_t i
    if low < 0 or count < 0 or low + count > column.shape[0] or count > keys.shape[0] or count > values.shape[0]:
        missing()
    for i in range(count):
        if not 0 <= column[low + i] < key.shape[0]:
            missing()
        values[i] = column[low + i]
        keys[i] = key[values[i]]
    sort(keys, values, scratch, count)
    for i in range(count):
        column[low + i] = values[i]
    return 0


cdef inline int marked(made, Flags column) except -1:
    return 0


cdef inline object kept(column):
    return column


cdef inline int64_t width(Read column, int64_t most) except -1:
    cdef int64_t i, largest = -1
    for i in range(column.shape[0]):
        if not 0 <= column[i] < most:
            missing()
        largest = max(largest, column[i])
    return largest + 1


cdef inline bint all_marked(Flags column) noexcept:
    cdef int64_t i
    for i in range(column.shape[0]):
        if not column[i]:
            return False
    return True


cdef inline int order_by(Small keys, Small order, int64_t limit) except -1:
    cdef int64_t i, own, count = keys.shape[0]
    cdef Write begins = zeros(limit + 1)
    for i in range(count):
        begins[keys[i] + 1] += 1
    for i in range(limit):
        begins[i + 1] += begins[i]
    for i in range(count):
        own = keys[i]
        order[begins[own]] = <int>i
        begins[own] += 1
    return 0


cdef inline int copy(Write column, int64_t at, Read other, int64_t begin, int64_t count) except -1:
    if begin < 0 or count < 0 or begin > other.shape[0] - count or at < 0 or at > column.shape[0] - count:
        missing()
    if count:
        memcpy(&column[at], &other[begin], count * sizeof(int64_t))
    return 0


cdef inline RawRead raw_read(Read column) noexcept:
    return &column[0] if column.shape[0] else NULL


cdef inline Raw raw(Write column) noexcept:
    return &column[0] if column.shape[0] else NULL


cdef inline Raw lines_of(int64_t[:, ::1] made) except? NULL:
    return &made[0, 0]


cdef inline int64_t bit(int64_t number) noexcept:
    return <int64_t>1 << number


cdef inline int64_t highest_bit(int64_t word) noexcept:
    cdef uint64_t left = <uint64_t>word
    cdef int64_t number = 0, step = 32
    while step:
        if left >> step:
            left >>= step
            number += step
        step >>= 1
    return number


cdef inline object array(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_empty)(size, <object>multifold_int64)


cdef inline object array_of_zeros(int64_t size):
    if multifold_int64 == NULL:
        take_numpy()
    return (<object>multifold_zeros)(size, <object>multifold_int64)


cdef inline bint varies(Write column, int64_t low, int64_t count) except -1:
    cdef int64_t i
    for i in range(low + 1, low + count):
        if column[i] != column[low]:
            return True
    return False


cdef inline bint differs(Write column, int64_t low, int64_t other, int64_t count) except -1:
    cdef int64_t i
    for i in range(count):
        if column[low + i] != column[other + i]:
            return True
    return False


cdef inline int64_t lowest(Write column, int64_t count) except? -1:
    cdef int64_t i, found = column[0]
    for i in range(count):
        found = min(found, column[i])
    return found


cdef inline int64_t highest(Write column, int64_t count) except? -1:
    cdef int64_t i, found = column[0]
    for i in range(count):
        found = max(found, column[i])
    return found


cdef inline int64_t count_distinct(Write column, int64_t count, Write stamp, int64_t mark) except -1:
    cdef int64_t i, found = 0
    for i in range(count):
        found += stamp[column[i]] != mark
        stamp[column[i]] = mark
    return found
