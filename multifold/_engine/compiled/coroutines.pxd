# What `coroutines.py` has, for compiled code: coroutines go on without a call of a bound method.
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from multifold._engine.compiled._recording cimport NodeBase, Once

cdef extern from *:
    """
    static inline PyObject *multifold_sent(
        PyObject *context, PyObject *coroutine, PyObject *argument, PyObject *returned
    ) {
        PyObject *found = NULL, *value;
        PySendResult how;
        if (PyContext_Enter(context) < 0) return NULL;
        how = PyIter_Send(coroutine, argument, &found);
        if (PyContext_Exit(context) < 0) Py_CLEAR(found);
        if (how != PYGEN_RETURN || found == NULL) return found;
        value = found;
        found = PyObject_CallOneArg(returned, value);
        Py_DECREF(value);
        return found;
    }
    static inline void multifold_await_as(PyTypeObject *kind, PyTypeObject *base) {
        kind->tp_as_async->am_await = base->tp_as_async->am_await;
    }
    """
    object sent "multifold_sent"(object context, object coroutine, object argument, object returned)
    void multifold_await_as(PyTypeObject *kind, PyTypeObject *base)


cdef inline Once once(request):
    cdef Once made = Once.__new__(Once)
    made.request = request
    return made


cdef inline int await_as(type kind, type base) except -1:
    multifold_await_as(<PyTypeObject*>kind, <PyTypeObject*>base)
    return 0


cdef inline object new(type kind):
    return <object>(<PyTypeObject*>kind).tp_new(kind, <PyObject*>(), NULL)


cdef inline bint is_node(x, graph):
    return isinstance(x, NodeBase) and (<NodeBase>x)._graph is graph


cdef inline int64_t ref_of(node) except? -1:
    return (<NodeBase?>node)._ref
