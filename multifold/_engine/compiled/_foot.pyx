# cython: language_level=3
"""The foot of a stack: where a walk over the frames of an example's stack has to end.

An example that waits runs in a greenlet, whose stack begins in the middle of the thread's. Below its first
frame lies what the thread did when the greenlet was started, and once the example has waited, that is gone.
PyTorch walks over all C frames when it makes an error, to tell where it was raised. It would read on below the
greenlet's first frame, in memory that others have written to since, and end the process.

`at_foot` is that first frame. It says by the unwinding rules that the compiler writes for each function
(DWARF's call frame information, which glibc's ``backtrace`` and libgcc follow) that it was called from nowhere.
"""

cdef extern from *:
    """
    #if defined(__ELF__) && defined(__x86_64__)
    #define MULTIFOLD_CALLED_FROM_NOWHERE __asm__ volatile (".cfi_undefined rip")
    #elif defined(__ELF__) && defined(__aarch64__)
    #define MULTIFOLD_CALLED_FROM_NOWHERE __asm__ volatile (".cfi_undefined x30")
    #else
    #define MULTIFOLD_CALLED_FROM_NOWHERE
    #endif

    #if defined(__GNUC__)
    __attribute__((noinline))
    #endif
    static PyObject *multifold_at_foot(PyObject *code) {
        PyObject *volatile found;  /* written after the call, which so cannot take the place of this frame */
        MULTIFOLD_CALLED_FROM_NOWHERE;
        found = PyObject_CallNoArgs(code);
        return found;
    }
    """
    object multifold_at_foot(object code)


def at_foot(code):
    """Call `code()` as the first function of its stack, and return what it returns."""
    return multifold_at_foot(code)
