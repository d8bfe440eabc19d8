/* The hot path of recording in C: the classes of multifold/_compiled/reference/recording.py, the reference.
 *
 * Same names, same behaviour, same tests. A call of a known form is put into the columns and becomes a
 * node; everything else, and everything that is wrong, is undone and left to `Recorder._record` in Python,
 * so no error message stands here. Only the public C API of CPython 3.11 and later is used.
 *
 *   Column        a list of int64 or double in one piece of memory, with the buffer protocol
 *   NodeBase      the graph and the reference of a node
 *   GraphBase     the columns and the known forms
 *   RecorderBase  `add`
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "the columns are guarded by the GIL: plain Python records where there is none"
#endif

#define PART_BITS 40 /* a reference is part << PART_BITS | call */

static PyObject *str_graph, *str_record, *str_value, *str_items, *str_row_shape, *str_offsets, *str_copy;
static PyTypeObject *ndarray_type;

/* ---- Column --------------------------------------------------------------------------------------- */

typedef union {
    long long integer;
    double number;
} Item;

typedef struct {
    PyObject_HEAD
    Item *items;
    Py_ssize_t size;
    Py_ssize_t room;
    Py_ssize_t views; /* open buffers; the memory must stay where it is while there are any */
    char *format;     /* "q" or "d" */
} Column;

static PyTypeObject Column_type;

static Column *new_column(char *format)
{
    Column *self = PyObject_New(Column, &Column_type);
    if (self != NULL) {
        self->items = NULL;
        self->size = self->room = self->views = 0;
        self->format = format;
    }
    return self;
}

static int column_grow(Column *self)
{
    if (self->views) {
        PyErr_SetString(PyExc_BufferError, "a column can't grow while an array shares its memory");
        return -1;
    }
    Py_ssize_t room = self->room + (self->room >> 1) + 16;
    Item *items = PyMem_Realloc(self->items, room * sizeof(Item));
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->items = items;
    self->room = room;
    return 0;
}

static inline int put(Column *self, Item item)
{
    if (self->size == self->room && column_grow(self) < 0)
        return -1;
    self->items[self->size++] = item;
    return 0;
}

static inline int put_integer(Column *self, long long integer)
{
    return put(self, (Item){.integer = integer});
}

/* Convert an object for a column; -1 with an exception set if it does not fit. */
static int convert(Column *self, PyObject *x, Item *item)
{
    if (self->format[0] == 'd') {
        item->number = PyFloat_AsDouble(x);
        return item->number == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    item->integer = PyLong_AsLongLong(x); /* of an int, or by __index__ */
    return item->integer == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int put_object(Column *self, PyObject *x)
{
    Item item;
    return convert(self, x, &item) < 0 ? -1 : put(self, item);
}

static PyObject *item_object(Column *self, Py_ssize_t i)
{
    return self->format[0] == 'd' ? PyFloat_FromDouble(self->items[i].number)
                                  : PyLong_FromLongLong(self->items[i].integer);
}

static PyObject *column_append(Column *self, PyObject *x)
{
    if (put_object(self, x) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *column_extend(Column *self, PyObject *values)
{
    PyObject *items = PySequence_Fast(values, "a column is extended by an iterable");
    if (items == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
        if (put_object(self, PySequence_Fast_GET_ITEM(items, i)) < 0) {
            Py_DECREF(items);
            return NULL;
        }
    }
    Py_DECREF(items);
    Py_RETURN_NONE;
}

static Py_ssize_t column_length(Column *self)
{
    return self->size;
}

static PyObject *column_item(Column *self, Py_ssize_t i)
{
    if (i < 0 || i >= self->size) {
        PyErr_SetString(PyExc_IndexError, "column index out of range");
        return NULL;
    }
    return item_object(self, i);
}

static int column_set_item(Column *self, Py_ssize_t i, PyObject *x)
{
    if (i >= 0 && i < self->size && x != NULL)
        return convert(self, x, &self->items[i]);
    PyErr_SetString(PyExc_IndexError, "column index out of range");
    return -1;
}

static PyObject *column_subscript(Column *self, PyObject *key)
{
    if (!PySlice_Check(key)) {
        Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (i == -1 && PyErr_Occurred())
            return NULL;
        return column_item(self, i < 0 ? i + self->size : i);
    }
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(self->size, &start, &stop, step);
    Column *part = new_column(self->format);
    for (Py_ssize_t i = 0; part != NULL && i < count; i++) {
        if (put(part, self->items[start + i * step]) < 0)
            Py_CLEAR(part);
    }
    return (PyObject *)part;
}

static int column_get_buffer(Column *self, Py_buffer *view, int flags)
{
    static Item none;
    void *memory = self->items == NULL ? &none : self->items;
    if (PyBuffer_FillInfo(view, (PyObject *)self, memory, self->size * sizeof(Item), 0, flags) < 0)
        return -1;
    view->itemsize = sizeof(Item);
    view->format = flags & PyBUF_FORMAT ? self->format : NULL;
    view->internal = (void *)self->size;
    if (view->shape != NULL)
        view->shape = (Py_ssize_t *)&view->internal;
    self->views++;
    return 0;
}

static void column_release_buffer(Column *self, Py_buffer *view)
{
    self->views--;
}

static void column_dealloc(Column *self)
{
    PyMem_Free(self->items);
    PyObject_Free(self);
}

static PyMethodDef column_methods[] = {
    {"append", (PyCFunction)column_append, METH_O, "Append a number."},
    {"extend", (PyCFunction)column_extend, METH_O, "Append the numbers of an iterable."},
    {NULL},
};

static PySequenceMethods column_as_sequence = {
    .sq_length = (lenfunc)column_length,
    .sq_item = (ssizeargfunc)column_item,
    .sq_ass_item = (ssizeobjargproc)column_set_item,
};

static PyMappingMethods column_as_mapping = {
    .mp_length = (lenfunc)column_length,
    .mp_subscript = (binaryfunc)column_subscript,
};

static PyBufferProcs column_as_buffer = {
    .bf_getbuffer = (getbufferproc)column_get_buffer,
    .bf_releasebuffer = (releasebufferproc)column_release_buffer,
};

static PyTypeObject Column_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "multifold._compiled._recording.Column",
    .tp_doc = "Numbers in one piece of memory: a list to append to, and a buffer for NumPy.",
    .tp_basicsize = sizeof(Column),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_SEQUENCE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)column_dealloc,
    .tp_as_sequence = &column_as_sequence,
    .tp_as_mapping = &column_as_mapping,
    .tp_as_buffer = &column_as_buffer,
    .tp_methods = column_methods,
};

/* ---- GraphBase ------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyTypeObject *node_type;
    Column *signature, *refs, *ints, *floats, *lengths, *members, *instructions;
    PyObject *arrays, *loose, *codes; /* lists */
    PyObject *quick, *splits;         /* dictionaries */
} Graph;

static PyTypeObject Graph_type;
static PyTypeObject Node_type;

static PyObject *graph_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Graph *self = (Graph *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Column **integers[] = {&self->signature, &self->refs,    &self->ints,
                           &self->lengths,   &self->members, &self->instructions};
    PyObject **lists[] = {&self->arrays, &self->loose, &self->codes};
    PyObject **tables[] = {&self->quick, &self->splits};
    int complete = (self->floats = new_column("d")) != NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(integers); i++)
        complete &= (*integers[i] = new_column("q")) != NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(lists); i++)
        complete &= (*lists[i] = PyList_New(0)) != NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(tables); i++)
        complete &= (*tables[i] = PyDict_New()) != NULL;
    self->node_type = (PyTypeObject *)Py_NewRef(&Node_type);
    if (!complete) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int graph_init(Graph *self, PyObject *args, PyObject *keywords)
{
    PyTypeObject *node_type;
    if (!PyArg_ParseTuple(args, "O!", &PyType_Type, &node_type))
        return -1;
    if (!PyType_IsSubtype(node_type, &Node_type)) {
        PyErr_SetString(PyExc_TypeError, "Expected a subclass of NodeBase.");
        return -1;
    }
    Py_INCREF(node_type);
    Py_SETREF(self->node_type, node_type);
    return 0;
}

/* What `add` has to know of a form: its letters, as bytes. */
static PyObject *graph_route(PyObject *self, PyObject *letters)
{
    return PyUnicode_AsASCIIString(letters);
}

#define MEMBER(name) {#name, T_OBJECT_EX, offsetof(Graph, name), READONLY, NULL}

static PyMemberDef graph_members[] = { /* all fields */
    MEMBER(node_type), MEMBER(signature), MEMBER(refs), MEMBER(ints), MEMBER(floats),
    MEMBER(lengths), MEMBER(members), MEMBER(instructions), MEMBER(arrays), MEMBER(loose),
    MEMBER(codes), MEMBER(quick), MEMBER(splits), {NULL},
};

static PyObject *field_of(Graph *self, const PyMemberDef *member)
{
    PyObject *field;
    memcpy(&field, (char *)self + member->offset, sizeof(field));
    return field;
}

/* Lists and dictionaries break the cycles that they are part of, so nothing is cleared here. */
static int graph_traverse(Graph *self, visitproc visit, void *arg)
{
    for (const PyMemberDef *member = graph_members; member->name != NULL; member++)
        Py_VISIT(field_of(self, member));
    return 0;
}

static void graph_dealloc(Graph *self)
{
    PyObject_GC_UnTrack(self);
    for (const PyMemberDef *member = graph_members; member->name != NULL; member++)
        Py_XDECREF(field_of(self, member));
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef graph_methods[] = {
    {"route", (PyCFunction)graph_route, METH_O, "Return what the quick path has to know of a form."},
    {NULL},
};

static PyTypeObject Graph_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "multifold._compiled._recording.GraphBase",
    .tp_doc = "The columns of a graph, and the forms of calls that the quick path knows.",
    .tp_basicsize = sizeof(Graph),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = graph_new,
    .tp_init = (initproc)graph_init,
    .tp_dealloc = (destructor)graph_dealloc,
    .tp_traverse = (traverseproc)graph_traverse,
    .tp_methods = graph_methods,
    .tp_members = graph_members,
};

/* ---- NodeBase ------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *graph; /* a GraphBase, or the columns of merged traces */
    long long ref;
} Node;

static PyObject *new_node(PyTypeObject *type, PyObject *graph, long long ref)
{
    Node *self = (Node *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->graph = Py_NewRef(graph);
        self->ref = ref;
    }
    return (PyObject *)self;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"graph", "ref", NULL};
    PyObject *graph;
    long long ref;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OL", names, &graph, &ref))
        return NULL;
    return new_node(type, graph, ref);
}

/* What is added to the reference for each of n parts: known, or asked of `Node._offsets`. */
static PyObject *offsets_of(Node *self, PyObject *n)
{
    if (PyLong_CheckExact(n) && PyObject_TypeCheck(self->graph, &Graph_type)) {
        PyObject *part = PyLong_FromLongLong(self->ref >> PART_BITS);
        PyObject *key = part == NULL ? NULL : PyTuple_Pack(2, part, n);
        Py_XDECREF(part);
        if (key == NULL)
            return NULL;
        PyObject *known = PyDict_GetItemWithError(((Graph *)self->graph)->splits, key);
        Py_DECREF(key);
        if (known != NULL || PyErr_Occurred())
            return Py_XNewRef(known);
    }
    PyObject *found = PyObject_CallMethodOneArg((PyObject *)self, str_offsets, n);
    if (found != NULL && !PyTuple_Check(found)) {
        PyErr_SetString(PyExc_TypeError, "Expected a tuple of offsets.");
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *node_split(Node *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t all = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    if (all != 1 || (count == 0 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "n"))) {
        PyErr_SetString(PyExc_TypeError, "split() takes exactly one argument, n");
        return NULL;
    }
    PyObject *offsets = offsets_of(self, args[0]);
    if (offsets == NULL)
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(offsets);
    PyObject *parts = PyTuple_New(n);
    for (Py_ssize_t i = 0; parts != NULL && i < n; i++) {
        long long offset = PyLong_AsLongLong(PyTuple_GET_ITEM(offsets, i));
        PyObject *part = NULL;
        if (offset != -1 || !PyErr_Occurred())
            part = new_node(Py_TYPE(self), self->graph, self->ref + offset);
        if (part == NULL)
            Py_CLEAR(parts);
        else
            PyTuple_SET_ITEM(parts, i, part);
    }
    Py_DECREF(offsets);
    return parts;
}

static PyObject *node_compare(PyObject *a, PyObject *b, int operation)
{
    if (operation != Py_EQ && operation != Py_NE)
        Py_RETURN_NOTIMPLEMENTED;
    int equal = Py_TYPE(a) == Py_TYPE(b) && ((Node *)a)->graph == ((Node *)b)->graph
                && ((Node *)a)->ref == ((Node *)b)->ref;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t node_hash(Node *self)
{
    size_t mixed = ((size_t)self->graph >> 4) * 1000003u ^ (size_t)self->ref * 0x9E3779B97F4A7C15u;
    Py_hash_t hash = (Py_hash_t)(mixed ^ mixed >> 32);
    return hash == -1 ? -2 : hash;
}

/* For copies and pickles; a subclass adds its own slots by itself. */
static PyObject *node_getnewargs(Node *self, PyObject *none)
{
    return Py_BuildValue("(OL)", self->graph, self->ref);
}

static int node_traverse(Node *self, visitproc visit, void *arg)
{
    Py_VISIT(self->graph);
    return 0;
}

static void node_dealloc(Node *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->graph);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef node_members[] = {
    {"_graph", T_OBJECT_EX, offsetof(Node, graph), READONLY, NULL},
    {"_ref", T_LONGLONG, offsetof(Node, ref), READONLY, NULL},
    {NULL},
};

static PyMethodDef node_methods[] = {
    {"split", (PyCFunction)(void (*)(void))node_split, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__getnewargs__", (PyCFunction)node_getnewargs, METH_NOARGS, "Return the graph and the reference."},
    {NULL},
};

static PyTypeObject Node_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "multifold._compiled._recording.NodeBase",
    .tp_doc = "A reference and the graph that it belongs to; immutable and hashable.",
    .tp_basicsize = sizeof(Node),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = node_new,
    .tp_dealloc = (destructor)node_dealloc,
    .tp_traverse = (traverseproc)node_traverse,
    .tp_richcompare = node_compare,
    .tp_hash = (hashfunc)node_hash,
    .tp_methods = node_methods,
    .tp_members = node_members,
};

/* ---- RecorderBase: the quick path ----------------------------------------------------------------- */

/* Lengths of the columns before a call, to undo what it put into them. */
typedef struct {
    Py_ssize_t refs, ints, floats, lengths, members, arrays, loose;
} Marks;

static inline Marks mark(Graph *graph)
{
    return (Marks){
        .refs = graph->refs->size,       .ints = graph->ints->size,
        .floats = graph->floats->size,   .lengths = graph->lengths->size,
        .members = graph->members->size, .arrays = PyList_GET_SIZE(graph->arrays),
        .loose = PyList_GET_SIZE(graph->loose),
    };
}

static int undo(Graph *graph, const Marks *marks)
{
    graph->refs->size = marks->refs;
    graph->ints->size = marks->ints;
    graph->floats->size = marks->floats;
    graph->lengths->size = marks->lengths;
    graph->members->size = marks->members;
    if (PyList_SetSlice(graph->arrays, marks->arrays, PY_SSIZE_T_MAX, NULL) < 0)
        return -1;
    return PyList_SetSlice(graph->loose, marks->loose, PY_SSIZE_T_MAX, NULL);
}

/* The key of a form: the op, the types of the operands, the names, types and values of keywords. */
static PyObject *quick_key(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *key = PyTuple_New(count + (named ? 1 + 2 * named : 0));
    if (key == NULL)
        return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(args[0]));
    for (Py_ssize_t i = 1; i < count; i++)
        PyTuple_SET_ITEM(key, i, Py_NewRef(Py_TYPE(args[i])));
    if (named) {
        PyTuple_SET_ITEM(key, count, Py_NewRef(names));
        for (Py_ssize_t i = 0; i < named; i++) {
            PyTuple_SET_ITEM(key, count + 1 + i, Py_NewRef(Py_TYPE(args[count + i])));
            PyTuple_SET_ITEM(key, count + 1 + named + i, Py_NewRef(args[count + i]));
        }
    }
    return key;
}

static PyObject *types_of(PyObject *items)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    PyObject *types = PyTuple_New(count);
    for (Py_ssize_t i = 0; types != NULL && i < count; i++)
        PyTuple_SET_ITEM(types, i, Py_NewRef(Py_TYPE(PySequence_Fast_GET_ITEM(items, i))));
    return types;
}

/* The values of the operands that belong to the signature. */
static PyObject *values_of(PyObject *self, const char *letters, PyObject *const *operands)
{
    Py_ssize_t count = 0, at = 0;
    for (const char *letter = letters; *letter; letter++)
        count += strchr("slrav", *letter) != NULL;
    PyObject *values = PyTuple_New(count);
    for (Py_ssize_t i = 0; values != NULL && letters[i]; i++) {
        PyObject *value;
        switch (letters[i]) {
        case 's': value = Py_NewRef(operands[i]); break;
        case 'l': value = types_of(operands[i]); break;
        case 'r': value = PyObject_GetAttr(operands[i], str_row_shape); break;
        case 'a':
        case 'v': value = PyObject_CallMethodOneArg(self, str_value, operands[i]); break;
        default: continue;
        }
        if (value == NULL)
            Py_CLEAR(values);
        else
            PyTuple_SET_ITEM(values, at++, value);
    }
    return values;
}

/* Put the reference of a node of this graph into a column. Like all that follows: 1 if it was done, 0
 * if it is left to `_record`, -1 with an exception set. */
static inline int put_node(Graph *graph, Column *column, PyObject *x)
{
    if (!PyObject_TypeCheck(x, &Node_type) || ((Node *)x)->graph != (PyObject *)graph)
        return 0;
    return put_integer(column, ((Node *)x)->ref) < 0 ? -1 : 1;
}

static int put_number(Column *column, PyObject *x)
{
    if (put_object(column, x) == 0)
        return 1;
    if (PyErr_ExceptionMatches(PyExc_OverflowError) || PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return 0;
    }
    return -1;
}

/* The items of a list or tuple: nodes, ints and floats. */
static int put_leaves(Graph *graph, PyObject *items)
{
    int done = 1;
    for (Py_ssize_t i = 0; done == 1 && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *x = PySequence_Fast_GET_ITEM(items, i);
        if (PyLong_Check(x) || PyFloat_Check(x))
            done = put_number(PyLong_Check(x) ? graph->ints : graph->floats, x);
        else
            done = put_node(graph, graph->refs, x);
    }
    return done;
}

/* The rows of a ragged operand: nodes, ints and floats. */
static int put_rows(Graph *graph, PyObject *operand)
{
    PyObject *items = PyObject_GetAttr(operand, str_items);
    if (items == NULL)
        return -1;
    int done = PyTuple_Check(items);
    for (Py_ssize_t i = 0; done == 1 && i < PyTuple_GET_SIZE(items); i++) {
        PyObject *x = PyTuple_GET_ITEM(items, i);
        int overflow = 0;
        if (Py_IS_TYPE(x, graph->node_type)) {
            done = put_node(graph, graph->members, x);
            continue;
        }
        if (PyLong_CheckExact(x))
            PyLong_AsLongLongAndOverflow(x, &overflow);
        if (overflow || !(PyLong_CheckExact(x) || PyFloat_CheckExact(x))) {
            done = 0;
        }
        else if (PyList_Append(graph->loose, x) < 0
                 || put_integer(graph->members, -PyList_GET_SIZE(graph->loose)) < 0) {
            done = -1;
        }
    }
    if (done == 1 && put_integer(graph->lengths, PyTuple_GET_SIZE(items)) < 0)
        done = -1;
    Py_DECREF(items);
    return done;
}

/* A NumPy array is copied, as it may be changed before the run. */
static int put_array(PyObject *arrays, PyObject *x)
{
    PyObject *kept = PyObject_TypeCheck(x, ndarray_type) ? PyObject_CallMethodNoArgs(x, str_copy) : Py_NewRef(x);
    int done = kept == NULL || PyList_Append(arrays, kept) < 0 ? -1 : 1;
    Py_XDECREF(kept);
    return done;
}

static int put_operands(Graph *graph, const char *letters, PyObject *const *operands)
{
    int done = 1;
    for (Py_ssize_t i = 0; done == 1 && letters[i]; i++) {
        switch (letters[i]) {
        case 'n': done = put_node(graph, graph->refs, operands[i]); break;
        case 'i': done = put_number(graph->ints, operands[i]); break;
        case 'f': done = put_number(graph->floats, operands[i]); break;
        case 'l': done = put_leaves(graph, operands[i]); break;
        case 'r': done = put_rows(graph, operands[i]); break;
        case 'a': done = put_array(graph->arrays, operands[i]); break;
        }
    }
    return done;
}

/* Find the form of a call and put the operands into the columns; `number` is its signature's. */
static int take(PyObject *self, Graph *graph, PyObject *const *args, Py_ssize_t count, PyObject *names,
     long long *number)
{
    PyObject *key = quick_key(args, count, names);
    if (key == NULL)
        return -1;
    PyObject *form = PyDict_GetItemWithError(graph->quick, key);
    Py_DECREF(key);
    if (form == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(form); /* Python code may run from here on */
    const char *letters = PyBytes_AS_STRING(PyTuple_GET_ITEM(form, 0));
    PyObject *found = PyTuple_GET_ITEM(form, 1), *table = PyTuple_GET_ITEM(form, 2), *values = NULL;
    int done = -1;
    if (table != Py_None) {
        values = values_of(self, letters, args + 1);
        found = values == NULL ? NULL : PyDict_GetItemWithError(table, values);
    }
    if (found != NULL) {
        *number = PyLong_AsLongLong(found);
        Marks marks = mark(graph);
        done = put_operands(graph, letters, args + 1);
        if (done != 1 && undo(graph, &marks) < 0)
            done = -1;
    }
    else if (!PyErr_Occurred()) {
        done = 0;
    }
    Py_XDECREF(values);
    Py_DECREF(form);
    return done;
}

/* Append a call whose operands are in the columns, and return its node. */
static PyObject *commit(Graph *graph, long long number, PyFrameObject *frame)
{
    Py_ssize_t call = graph->signature->size;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    int failed = PyList_Append(graph->codes, code) < 0
                 || put_integer(graph->instructions, PyFrame_GetLasti(frame)) < 0
                 || put_integer(graph->signature, number) < 0;
    Py_DECREF(code);
    return failed ? NULL : new_node(graph->node_type, (PyObject *)graph, call);
}

/* Leave a call to `Recorder._record`. */
static PyObject *record(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                        PyFrameObject *frame)
{
    PyObject *operands = PyTuple_New(count - 1), *keywords = PyDict_New(), *node = NULL;
    if (operands == NULL || keywords == NULL)
        goto end;
    for (Py_ssize_t i = 1; i < count; i++)
        PyTuple_SET_ITEM(operands, i - 1, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), args[count + i]) < 0)
            goto end;
    }
    node = PyObject_CallMethodObjArgs(self, str_record, args[0], operands, keywords, frame, NULL);
end:
    Py_XDECREF(operands);
    Py_XDECREF(keywords);
    return node;
}

static PyObject *recorder_add(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count == 0) {
        PyErr_SetString(PyExc_TypeError, "add() missing 1 required positional argument: 'op'");
        return NULL;
    }
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "add() needs a Python frame that calls it");
        return NULL;
    }
    PyObject *graph = PyObject_GetAttr(self, str_graph);
    if (graph == NULL)
        return NULL;
    if (!PyObject_TypeCheck(graph, &Graph_type)) {
        PyErr_SetString(PyExc_TypeError, "Expected the _graph of a recorder to be a GraphBase.");
        Py_DECREF(graph);
        return NULL;
    }
    long long number = 0;
    PyObject *node = NULL;
    int done = take(self, (Graph *)graph, args, count, names, &number);
    if (done == 1)
        node = commit((Graph *)graph, number, frame);
    Py_DECREF(graph);
    if (done == -1 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* what can't be hashed, or is refused: `_record` says why */
        done = 0;
    }
    return done == 0 ? record(self, args, count, names, frame) : node;
}

static PyMethodDef recorder_methods[] = {
    {"add", (PyCFunction)(void (*)(void))recorder_add, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL},
};

static PyTypeObject Recorder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "multifold._compiled._recording.RecorderBase",
    .tp_doc = "The quick path: calls of known forms go into the columns, all others to `Recorder._record`.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_methods = recorder_methods,
};

/* ---- the module ----------------------------------------------------------------------------------- */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "multifold._compiled._recording",
    .m_doc = "The hot path of recording in C; `multifold._compiled.reference.recording` says what it does.",
    .m_size = -1,
};

/* Take the documentation of a method from the reference, so that it stands once. */
static int document(PyMethodDef *method, const char *class, const char *signature)
{
    PyObject *module = PyImport_ImportModule("multifold._compiled.reference.recording");
    PyObject *type = module ? PyObject_GetAttrString(module, class) : NULL;
    PyObject *function = type ? PyObject_GetAttrString(type, method->ml_name) : NULL;
    PyObject *text = function ? PyObject_GetAttrString(function, "__doc__") : NULL;
    PyObject *kept = text ? PyUnicode_FromFormat("%s%s\n--\n\n%S", method->ml_name, signature, text) : NULL;
    method->ml_doc = kept ? PyUnicode_AsUTF8(kept) : NULL; /* `kept` is never given back */
    Py_XDECREF(module);
    Py_XDECREF(type);
    Py_XDECREF(function);
    Py_XDECREF(text);
    return method->ml_doc ? 0 : -1;
}

PyMODINIT_FUNC PyInit__recording(void)
{
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&str_graph, "_graph"}, {&str_record, "_record"},       {&str_value, "_value"},
        {&str_items, "items"},  {&str_row_shape, "row_shape"},  {&str_offsets, "_offsets"},
        {&str_copy, "copy"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        if (*names[i].name == NULL && (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL)
            return NULL;
    }
    PyObject *numpy = ndarray_type == NULL ? PyImport_ImportModule("numpy") : NULL;
    if (numpy != NULL) {
        ndarray_type = (PyTypeObject *)PyObject_GetAttrString(numpy, "ndarray");
        Py_DECREF(numpy);
    }
    if (ndarray_type == NULL)
        return NULL;
    if (document(node_methods, "NodeBase", "($self, n)") < 0
        || document(recorder_methods, "RecorderBase", "($self, op, /, *operands, **static)") < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyType_Ready(&Column_type) < 0 || PyModule_AddType(module, &Graph_type) < 0
        || PyModule_AddType(module, &Node_type) < 0 || PyModule_AddType(module, &Recorder_type) < 0
        || PyModule_AddIntMacro(module, PART_BITS) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
