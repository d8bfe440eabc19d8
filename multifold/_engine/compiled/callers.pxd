# What `callers.py` has, for compiled code: frames are asked without a look at their class.
cdef extern from *:
    """
    static inline PyObject *multifold_here(void) {
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        if (frame == NULL) frame = Py_None;
        Py_INCREF(frame);
        return frame;
    }
    static inline PyObject *multifold_code_of(PyObject *frame) {
        return (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    }
    static inline PyObject *multifold_caller_of(PyObject *frame) {
        PyObject *caller = (PyObject *)PyFrame_GetBack((PyFrameObject *)frame);
        if (caller == NULL) {
            caller = Py_None;
            Py_INCREF(caller);
        }
        return caller;
    }
    static inline int multifold_place_of(PyObject *frame) {
        return PyFrame_GetLasti((PyFrameObject *)frame);
    }
    """
    object here "multifold_here"()
    object code_of "multifold_code_of"(object frame)
    object caller_of "multifold_caller_of"(object frame)
    int place_of "multifold_place_of"(object frame)
