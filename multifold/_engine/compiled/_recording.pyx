# cython: language_level=3, boundscheck=True, wraparound=False
"""The hot path of recording: calls of known forms are put into the columns and become nodes.

A call that the quick path does not fully understand, or that is wrong, is undone and left to `Recorder._record`, so
no error message stands here. `multifold._engine.compiled.reference.recording` has the same classes in Python, and says
what they do. The GIL guards the columns: a Python without one turns it on when it imports this module.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from multifold._engine.compiled.columns cimport CALL_MASK, PART_BITS as BITS

import numpy as np

from multifold._engine.compiled.forms import ATOMS as _ATOMS
from multifold._engine.compiled.reference import recording as reference
from multifold.operands import Static as _Static

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    object PyFrame_GetCode "(PyObject *)PyFrame_GetCode" (PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    ctypedef PyObject* (*PyCFunction)(PyObject*, PyObject*)
    struct PyMethodDef:
        const char* ml_name
        PyCFunction ml_meth
        int ml_flags
        const char* ml_doc
    int METH_FASTCALL, METH_KEYWORDS
    object PyDescr_NewMethod(type, PyMethodDef*)
    object PyObject_GenericGetAttr(object, object)
    PyObject** PySequence_Fast_ITEMS(object)

cdef extern from *:
    """
    #define send_by(kind, send) ((kind)->tp_as_async->am_send = (sendfunc)(send))
    """
    void send_by(PyTypeObject*, void*)

PART_BITS = BITS
cdef type ndarray = np.ndarray
cdef type Static = _Static
cdef frozenset ATOMS = _ATOMS


cdef inline void set_entry(tuple made, Py_ssize_t i, x) noexcept:
    """Set entry `i` of a tuple that PyTuple_New made and that nothing else has seen."""
    # PyTuple_SET_ITEM takes a reference over, and does not count it.
    Py_INCREF(x)
    PyTuple_SET_ITEM(made, i, x)


cdef const char* INTEGERS = "q"
cdef const char* FLOATS = "d"

cdef union Item:
    int64_t integer
    double number


@cython.final
cdef class Column:
    """Numbers in one piece of memory: a list of int64 or double to append to, and a buffer for NumPy."""

    cdef Item* items
    cdef Py_ssize_t size, room, views  # the memory must stay where it is while there are open views
    cdef const char* format

    def __cinit__(self):
        self.format = INTEGERS

    def __dealloc__(self):
        PyMem_Free(self.items)

    cdef inline int put(self, Item item) except -1:
        """Append an item."""
        if self.size == self.room:
            self.grow()
        self.items[self.size] = item
        self.size += 1
        return 0

    cdef int grow(self) except -1:
        """Make room for half as many items again; raise BufferError while an array shares the memory."""
        # Half as much again: then n appends copy about 2 n items in all. The 16 are for the first ones.
        cdef Py_ssize_t room = self.room + (self.room >> 1) + 16
        if self.views:
            raise BufferError("a column can't grow while an array shares its memory")
        cdef Item* items = <Item*>PyMem_Realloc(self.items, room * sizeof(Item))
        if items == NULL:
            raise MemoryError
        self.items, self.room = items, room
        return 0

    cdef inline int put_integer(self, int64_t integer) except -1:
        """Append an integer."""
        cdef Item item
        item.integer = integer
        return self.put(item)

    cdef int put_number(self, x) except -1:
        """Append a number that is an object."""
        cdef Item item
        self.convert(x, &item)
        return self.put(item)

    cdef inline int convert(self, x, Item* item) except -1:
        """Make an item of a number; this may run Python code."""
        if self.format == FLOATS:
            item.number = x
        else:
            item.integer = PyLong_AsLongLong(x)  # of an int, or by __index__
        return 0

    cdef Py_ssize_t position(self, Py_ssize_t i) except -1:
        """Return the position, from 0, of item ``i``, which may count from the end; raise IndexError if it is none."""
        if not -self.size <= i < self.size:
            raise IndexError("column index out of range")
        return i if i >= 0 else i + self.size

    def append(self, x):
        """Append a number."""
        self.put_number(x)

    def extend(self, values):
        """Append the numbers of an iterable."""
        for x in values:
            self.put_number(x)

    def __len__(self):
        return self.size

    def __getitem__(self, key):
        cdef Py_ssize_t i
        cdef Column part
        if isinstance(key, slice):
            part = new_column(self.format)
            for i in range(*key.indices(self.size)):
                part.put(self.items[i])
            return part
        i = self.position(key)
        return self.items[i].number if self.format == FLOATS else self.items[i].integer

    def __setitem__(self, Py_ssize_t i, x):
        cdef Item item
        self.convert(x, &item)
        self.items[self.position(i)] = item

    def __getbuffer__(self, Py_buffer* view, int flags):
        view.obj, view.buf, view.len = self, self.items, self.size * sizeof(Item)
        if self.items == NULL:
            view.buf = &self.size  # NumPy wants an address for no items, too
        view.format = <char*>self.format if flags & PyBUF_FORMAT else NULL
        view.itemsize, view.ndim, view.readonly, view.suboffsets = sizeof(Item), 1, False, NULL
        # The shape of a view in one dimension is one number. It lies in `internal`, so that nothing has to
        # be freed.
        view.internal = <void*>self.size
        view.shape, view.strides = <Py_ssize_t*>&view.internal, &view.itemsize
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1


cdef Column new_column(const char* format):
    """Return an empty column of int64 (`INTEGERS`) or of double (`FLOATS`)."""
    cdef Column column = Column.__new__(Column)
    column.format = format
    return column


# The collector must not clear a graph or a node, which would put None where the methods here expect a column.
# It clears the lists and dictionaries instead, and breaks the cycles that they are part of.


@cython.no_gc_clear
cdef class GraphBase:
    """The columns of a graph, and the forms of calls that the quick path knows."""

    cdef readonly type node_type
    cdef readonly Column signature, refs, ints, floats, lengths, members, instructions, holders
    cdef readonly list arrays, loose, codes
    cdef public dict quick, splits  # a graph of traces hands them to the next one, which knows the same forms
    cdef readonly dict merged  # where equal calls are one, the first call of each key; else None
    cdef public object frame  # where calls are recorded just now, if not where `add` is called; else None
    cdef public dict seats  # the id of a module -> its population and its number there; None where there is none
    cdef readonly dict held  # the id of such a module -> itself, so that it lives until its calls run
    cdef int64_t split_part  # the part that was split last, and what was added to the reference
    cdef tuple split_offsets

    def __cinit__(self):
        self.node_type = NodeBase
        self.signature, self.refs, self.ints = new_column(INTEGERS), new_column(INTEGERS), new_column(INTEGERS)
        self.lengths, self.members, self.instructions = new_column(INTEGERS), new_column(INTEGERS), new_column(INTEGERS)
        self.floats, self.holders = new_column(FLOATS), new_column(INTEGERS)
        self.arrays, self.loose, self.codes, self.quick, self.splits, self.held = [], [], [], {}, {}, {}

    def __init__(self, type node_type not None, bint merges):
        if not issubclass(node_type, NodeBase):
            raise TypeError("Expected a subclass of NodeBase.")
        self.node_type = node_type
        self.merged = {} if merges else None

    def route(self, str letters not None):
        """Return what the quick path needs of a form: its letters, which `forms.py` lists, as bytes."""
        return letters.encode("ascii")

    cdef bint hold(self, int64_t call) except -1:
        """Count one more node of a call; return False for what is none."""
        cdef Column holders = self.holders
        if not 0 <= call < self.signature.size:
            return False
        while holders.size < call:
            holders.put_integer(0)
        if holders.size == call:  # the first node of a call, nearly always
            holders.put_integer(1)
        else:
            holders.items[call].integer += 1
        return True

    def put(self, number, operands, frame):
        """Append a call of signature `number`, recorded at `frame`; `operands` has its entries of each column."""
        cdef Py_ssize_t loose = len(self.loose)
        self.refs.extend(operands.refs)
        self.ints.extend(operands.ints)
        self.floats.extend(operands.floats)
        self.arrays.extend(operands.arrays)
        self.lengths.extend(operands.lengths)
        self.members.extend([ref if ref >= 0 else ref - loose for ref in operands.members])
        self.loose.extend(operands.loose)
        self.codes.append(frame.f_code)
        self.instructions.append(frame.f_lasti)
        self.signature.append(number)


@cython.no_gc_clear
cdef class NodeBase:
    """A reference and the graph that it belongs to; immutable and hashable."""

    def __init__(self, graph, int64_t ref):
        if self.counted:
            raise TypeError("a node is made once")
        self._graph, self._ref = graph, ref
        hold(self)

    def __dealloc__(self):
        if self.counted:  # the collector has cleared nothing: see above
            (<GraphBase>self._graph).holders.items[self._ref & CALL_MASK].integer -= 1

    def split(self, n):
        cdef Py_ssize_t i
        cdef tuple offsets = offsets_of(self, n)
        parts = PyTuple_New(len(offsets))
        for i in range(len(offsets)):
            set_entry(parts, i, new_node(type(self), self._graph, self._ref + <int64_t>offsets[i]))
        return parts

    # A `__getattr__` would be called through two more lookups, at each `split` too.
    def __getattribute__(self, name):
        """Return an attribute; where a node has none of that name, `_lacks` of its class raises the error."""
        try:
            return PyObject_GenericGetAttr(self, name)
        except AttributeError:
            pass
        return type(self)._lacks(self, name)

    def __eq__(self, other):
        if type(self) is not type(other):
            return False
        return self._graph is (<NodeBase>other)._graph and self._ref == (<NodeBase>other)._ref

    def __hash__(self):
        # The address of a graph is a multiple of 16, so its lowest four bits say nothing. The products
        # spread the rest over the upper half, and the last step brings that down to the bits by which
        # dictionaries choose.
        cdef size_t mixed = (<size_t><PyObject*>self._graph >> 4) * 1000003 ^ <size_t>self._ref * 0x9E3779B97F4A7C15U
        return <Py_hash_t>(mixed ^ mixed >> 32)

    def __reduce__(self):
        """Return what pickle and copy call to make a copy; a subclass may have slots of its own."""
        return type(self), (self._graph, self._ref), self.__getstate__()


cdef inline int hold(NodeBase node) except -1:
    """Count a node that was just made, if its graph is one that records."""
    if isinstance(node._graph, GraphBase):
        node.counted = (<GraphBase>node._graph).hold(node._ref & CALL_MASK)
    return 0


cdef tuple offsets_of(NodeBase node, n):
    """Return what is added to the reference for each of n parts: looked up, or what `Node._offsets` returns."""
    cdef int64_t part = node._ref >> BITS
    cdef GraphBase graph
    if type(n) is not int or not isinstance(node._graph, GraphBase):
        return node._offsets(n)
    graph = <GraphBase>node._graph
    # Nearly all splits are like the last one, which is found without a key for the dictionary.
    if graph.split_offsets is None or graph.split_part != part or len(graph.split_offsets) != <Py_ssize_t>n:
        graph.split_offsets = graph.splits.get((part, n)) or node._offsets(n)
        graph.split_part = part
    return graph.split_offsets


cdef tuple NO_ARGUMENTS = ()


cdef inline NodeBase new_node(type node_type, graph, int64_t ref):
    """Return a node without a call of its class, which takes longer than all else here."""
    cdef NodeBase node = <NodeBase>(<PyTypeObject*>NodeBase).tp_new(node_type, <PyObject*>NO_ARGUMENTS, NULL)
    node._graph, node._ref = graph, ref
    hold(node)
    return node


cdef tuple quick_key(PyObject** args, Py_ssize_t count, tuple names):
    """See `multifold._engine.compiled.forms.quick_key`; `args` are an op, its operands and the values of `names`."""
    cdef Py_ssize_t i, named = len(names)
    key = PyTuple_New(count + (1 + 2 * named if named else 0))
    set_entry(key, 0, <object>args[0])
    for i in range(1, count):
        set_entry(key, i, type(<object>args[i]))
    if named:
        set_entry(key, count, names)
        for i in range(count, count + named):
            set_entry(key, 1 + i, type(<object>args[i]))
            set_entry(key, 1 + i + named, <object>args[i])
    return key


cdef tuple values_of(recorder, bytes letters, PyObject** operands):
    """See `multifold._engine.compiled.forms.values_of`."""
    cdef Py_ssize_t i, count = 0
    cdef unsigned char letter
    for letter in letters:
        count += letter in b"slrav"
    values = PyTuple_New(count)
    count = 0
    for i in range(len(letters)):
        letter, x = letters[i], <object>operands[i]
        if letter == c"s":
            value = x
        elif letter == c"l":
            value = types_of(x)
        elif letter == c"r":
            value = x.missing
        elif letter == c"a" or letter == c"v":
            value = value_of(recorder, x)
        else:
            continue
        set_entry(values, count, value)
        count += 1
    return values


cdef object value_of(recorder, x):
    """Return `Recorder._value` of an operand; the two that are met most often are read here."""
    cdef tuple shape
    if type(x) is ndarray:
        shape = x.shape
        if len(shape) and shape[0] == 1:
            return "numpy", shape[1:], x.dtype  # an array of objects was never taken in, so it is not found
    elif type(x) is Static:
        value = x.value
        if type(value) in ATOMS:
            return type(value), value
    return recorder._value(x)


cdef tuple types_of(items):
    """Return a tuple with the type of each item of a list or tuple."""
    cdef Py_ssize_t i
    types = PyTuple_New(len(items))
    for i in range(len(items)):
        set_entry(types, i, type(items[i]))
    return types


cdef struct Marks:
    Py_ssize_t refs, ints, floats, lengths, members, arrays, loose


cdef inline void mark(GraphBase graph, Marks* marks) noexcept:
    """Write the present length of each column to `marks`, for `undo` and `merge_key`."""
    marks.refs, marks.ints, marks.floats = graph.refs.size, graph.ints.size, graph.floats.size
    marks.lengths, marks.members = graph.lengths.size, graph.members.size
    marks.arrays, marks.loose = PyList_GET_SIZE(graph.arrays), PyList_GET_SIZE(graph.loose)


cdef int undo(GraphBase graph, const Marks* marks) except -1:
    """Remove what was put into the columns since `mark`."""
    # A call counts once its signature is there, which is put last. So what was put before it is more than
    # `calls`.
    cdef Py_ssize_t calls = graph.signature.size
    graph.refs.size, graph.ints.size, graph.floats.size = marks.refs, marks.ints, marks.floats
    graph.lengths.size, graph.members.size, graph.instructions.size = marks.lengths, marks.members, calls
    if PyList_GET_SIZE(graph.arrays) > marks.arrays or PyList_GET_SIZE(graph.loose) > marks.loose:
        del graph.arrays[marks.arrays :], graph.loose[marks.loose :]
    if PyList_GET_SIZE(graph.codes) > calls:
        del graph.codes[calls:]
    return 0


cdef inline char* put_stretch(char* end, Column column, Py_ssize_t first) noexcept:
    """Copy the items of a column from item `first` on to `end`; return where they end."""
    cdef size_t size = (column.size - first) * sizeof(Item)
    if size:
        memcpy(end, column.items + first, size)
    return end + size


cdef object merge_key(recorder, GraphBase graph, int64_t number, const Marks* marks):
    """See `multifold._engine.compiled.forms.merge_key`; the entries of the call are those after the marks."""
    cdef Py_ssize_t i, members = graph.members.size - marks.members
    cdef Py_ssize_t entries = 1 + members + (graph.refs.size - marks.refs) + (graph.ints.size - marks.ints)
    entries += (graph.lengths.size - marks.lengths) + (graph.floats.size - marks.floats)
    key = PyBytes_FromStringAndSize(NULL, entries * sizeof(Item))
    cdef char* end = PyBytes_AS_STRING(key)
    cdef int64_t* member
    (<int64_t*>end)[0] = number
    end = put_stretch(end + sizeof(Item), graph.refs, marks.refs)
    end = put_stretch(end, graph.ints, marks.ints)
    end = put_stretch(end, graph.lengths, marks.lengths)
    member = <int64_t*>end
    end = put_stretch(end, graph.members, marks.members)
    put_stretch(end, graph.floats, marks.floats)
    if PyList_GET_SIZE(graph.arrays) == marks.arrays and PyList_GET_SIZE(graph.loose) == marks.loose:
        return key
    for i in range(members):
        # Loose values are numbered over the whole graph: counted from the first one of this call, equal
        # calls have equal numbers.
        if member[i] < 0:
            member[i] += marks.loose
    cdef Py_ssize_t arrays = PyList_GET_SIZE(graph.arrays) - marks.arrays
    cdef Py_ssize_t loose = PyList_GET_SIZE(graph.loose) - marks.loose
    values = PyTuple_New(arrays + loose)
    for i in range(arrays):
        set_entry(values, i, merges_by(recorder, graph.arrays[marks.arrays + i]))
    for i in range(loose):
        set_entry(values, arrays + i, merges_by(recorder, graph.loose[marks.loose + i]))
    return key, values


cdef object merges_by(recorder, x):
    """Return `Recorder._merges_by` of an array or a loose value."""
    if type(x) is not ndarray:
        return recorder._merges_by(x)
    # A bound method of an array is equal only to one of the same array, and keeps it alive.
    contents = x.tobytes
    return contents, contents()


cdef int own_arrays(list values, Py_ssize_t first) except -1:
    """Replace NumPy arrays in a list, from entry `first` on, by copies: the caller may change them before the run."""
    cdef Py_ssize_t i
    for i in range(first, PyList_GET_SIZE(values)):
        if isinstance(values[i], ndarray):
            values[i] = values[i].copy()
    return 0


cdef int64_t put_merged(recorder, GraphBase graph, number, const Marks* marks) except -1:
    """Put the call whose operands were put, or take it back if it is equal to one; return which call it is."""
    key = merge_key(recorder, graph, number, marks)
    first = graph.merged.get(key)
    if first is not None:
        undo(graph, marks)
        return first
    own_arrays(graph.arrays, marks.arrays)
    own_arrays(graph.loose, marks.loose)
    graph.signature.put_integer(number)
    graph.merged[key] = graph.signature.size - 1
    return graph.signature.size - 1


# Each of the next functions returns False for what it leaves to `_record`.


cdef bint put_operands(recorder, GraphBase graph, bytes letters, PyObject** operands) except -1:
    """Put the operands of a call into the columns; return False if one is not what its letter says."""
    cdef Py_ssize_t i
    cdef char letter
    cdef const char* known = PyBytes_AS_STRING(letters)
    cdef bint done = True
    for i in range(len(letters)):
        letter, x = known[i], <object>operands[i]
        if letter == c"n":
            done = put_node(graph, graph.refs, x)
        elif letter == c"i":
            graph.ints.put_number(x)
        elif letter == c"f":
            graph.floats.put_number(x)
        elif letter == c"l":
            done = put_leaves(graph, x)
        elif letter == c"r":
            done = put_rows(recorder, graph, x.items)
        elif letter == c"a":
            graph.arrays.append(x)
        if not done:
            return False
    return True


cdef inline bint put_node(GraphBase graph, Column column, x) except -1:
    """Put the reference of a node into a column; return False for anything but a node of this graph."""
    if not isinstance(x, NodeBase) or (<NodeBase>x)._graph is not graph:
        return False
    column.put_integer((<NodeBase>x)._ref)
    return True


cdef bint put_leaves(GraphBase graph, items) except -1:
    """Put the nodes, ints and floats of a list or tuple into the columns; return False at any other item."""
    for x in items:
        # A bool is an int: both go into one column, and the signature tells them apart.
        if isinstance(x, int):
            graph.ints.put_number(x)
        elif isinstance(x, float):
            graph.floats.put_number(x)
        elif not put_node(graph, graph.refs, x):
            return False
    return True


cdef bint put_rows(recorder, GraphBase graph, tuple items) except -1:
    """Put the rows of a ragged operand into the columns; return False unless each is a node, number or array."""
    for x in items:
        if type(x) is graph.node_type:
            if not put_node(graph, graph.members, x):
                return False
            continue
        if type(x) is int:
            PyLong_AsLongLong(x)  # raises OverflowError for one of more than 64 bits
        elif type(x) is not float and recorder._number(x) is None and recorder.array_class(x) is None:
            return False
        graph.loose.append(x)
        # Loose value i of the graph stands as the row -1 - i.
        graph.members.put_integer(-len(graph.loose))
    graph.lengths.put_integer(len(items))
    return True


class RecorderBase:
    """The quick path: calls of known forms go into the columns, all others to `Recorder._record`."""

    __slots__ = ()


cdef object add(recorder, PyObject** args, Py_ssize_t count, PyObject* names):
    """Record a call of an op with operands, which `args` are, and keywords, whose values follow in `args`."""
    cdef GraphBase graph = <GraphBase?>recorder._graph
    cdef PyFrameObject* frame = PyEval_GetFrame() if graph.frame is None else <PyFrameObject*>graph.frame
    cdef tuple keywords = () if names == NULL else <tuple>names
    cdef Py_ssize_t i
    cdef bytes letters
    cdef Marks marks
    cdef bint marked = False
    cdef tuple key, seat = None
    marks.loose = 0  # gcc does not see that `marked` guards it
    if count == 0:
        raise TypeError("add() missing 1 required positional argument: 'op'")
    if frame == NULL:
        raise RuntimeError("add() needs a Python frame that calls it")
    try:
        key = quick_key(args, count, keywords)
        form = None
        if graph.seats is not None:
            seat = graph.seats.get(<size_t>args[0])
            if seat is not None:
                form = graph.quick.get((seat[0], *key[1:]))
                if form is None:
                    seat = None  # its operands are such as only the module itself takes
        if form is None:
            form = graph.quick.get(key)
        if form is not None:
            letters, number, table = <tuple?>form
            if table is not None:
                number = (<dict?>table).get(values_of(recorder, letters, args + 1))
            if number is not None and len(letters) == count - 1:
                mark(graph, &marks)
                marked = True
                if put_operands(recorder, graph, letters, args + 1):
                    if seat is not None:
                        graph.ints.put_number(seat[1])
                        graph.held[<size_t>args[0]] = <object>args[0]
                    graph.codes.append(PyFrame_GetCode(frame))
                    graph.instructions.put_integer(PyFrame_GetLasti(frame))
                    # An equal call is only found by its entries in the columns, so they are put first and
                    # taken back if there is one.
                    if graph.merged is not None:
                        return new_node(graph.node_type, graph, put_merged(recorder, graph, number, &marks))
                    # Copied last, so that a call that is undone does not pay for it.
                    if PyList_GET_SIZE(graph.arrays) > marks.arrays:
                        own_arrays(graph.arrays, marks.arrays)
                    if PyList_GET_SIZE(graph.loose) > marks.loose:
                        own_arrays(graph.loose, marks.loose)
                    graph.signature.put_integer(number)
                    return new_node(graph.node_type, graph, graph.signature.size - 1)
    except Exception:  # what can't be hashed, or is refused: `_record` says why
        pass
    if marked:
        undo(graph, &marks)
    # The slow way takes Python's own tuple and dictionary, which the quick one has done without.
    operands = tuple([<object>args[i] for i in range(1, count)])
    static = {name: <object>args[count + i] for i, name in enumerate(keywords)}
    return recorder._record(<object>args[0], operands, static, <object><PyObject*>frame)


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Once:
    """An iterator that yields a request, and returns what is sent to it then; see `coroutines.once`.

    A generator that Cython makes would do the same, but takes twice as long.
    """

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        request = self.request
        if request is None:
            raise StopIteration(value)
        self.request = None
        return request


cdef int send_once(PyObject* once, PyObject* value, PyObject** found) noexcept:
    """Do what `Once.send` does, without an exception: return whether `found` was yielded."""
    cdef object sent = <object>value if (<Once>once).request is None else (<Once>once).request
    cdef int yields = (<Once>once).request is not None
    (<Once>once).request = None
    Py_INCREF(sent)
    found[0] = <PyObject*>sent
    return yields


send_by(<PyTypeObject*>Once, <void*>send_once)

cdef list documentation = []  # the methods that `recorded` makes point into it


def recorded(method):
    """Return `RecorderBase.add` with the documentation of a method; see the reference.

    A method that Cython makes would get a tuple of its operands and a dictionary of its keywords. To make these
    two takes a good part of a call's time, so `add` becomes a method by the C API. It lives as long as its class.
    """
    cdef bytes text = f"add($self, op, /, *operands, **static)\n--\n\n{method.__doc__}".encode()
    cdef PyMethodDef* definition = <PyMethodDef*>PyMem_Malloc(sizeof(PyMethodDef))
    if definition == NULL:
        raise MemoryError()
    documentation.append(text)
    definition[0] = PyMethodDef("add", <PyCFunction><void*>add, METH_FASTCALL | METH_KEYWORDS, text)
    return PyDescr_NewMethod(RecorderBase, definition)


RecorderBase.add = recorded(reference.RecorderBase.add)
NodeBase.split.__doc__ = reference.NodeBase.split.__doc__
