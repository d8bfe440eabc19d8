from multifold._engine.compiled cimport columns

cdef columns.Int SIGNATURE, REFS, INTS, LENGTHS, MEMBERS, FLOATS, ARRAYS, LOOSE, RESULTS
cdef columns.Int AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED, WIDTHS
cdef columns.Int MOST_ENTRIES
