from multifold._engine.compiled cimport columns

cdef columns.Int AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED, ROWS
cdef columns.Int RESULT, ROW, NUMBER, STARTS, FACTS
cdef columns.Int RANK, FEWEST
