/* Columns of int64 as arguments of the kernels: opened with their bounds, closed when a kernel is done. */

#ifndef MULTIFOLD_COLUMNS_H
#define MULTIFOLD_COLUMNS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PART_BITS 40
#define CALL_MASK (((int64_t)1 << PART_BITS) - 1)

/* ---- arguments ------------------------------------------------------------------------------------ */

typedef struct {
    Py_buffer buffer;
    int64_t *at;
    int64_t length;
} Column;

static inline void close_columns(Column *columns, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&columns[i].buffer);
}

/* Open `count` arguments as columns; those from `written` on are written to. */
static inline int open_columns(PyObject *const *args, Py_ssize_t nargs, Column *columns, Py_ssize_t count,
                               Py_ssize_t written)
{
    if (nargs != count) {
        PyErr_Format(PyExc_TypeError, "Expected %zd arguments. Received %zd.", count, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (i >= written ? PyBUF_WRITABLE : 0);
        Column *column = &columns[i];
        if (PyObject_GetBuffer(args[i], &column->buffer, flags) < 0) {
            close_columns(columns, i);
            return -1;
        }
        const char *format = column->buffer.format;
        if (column->buffer.itemsize != 8 || !format || (*format != 'l' && *format != 'q')) {
            PyErr_Format(PyExc_TypeError, "Expected columns of int64. Argument %zd is of another dtype.", i);
            close_columns(columns, i + 1);
            return -1;
        }
        column->at = column->buffer.buf;
        column->length = column->buffer.len / 8;
    }
    return 0;
}

static inline PyObject *out_of_range(void)
{
    PyErr_SetString(PyExc_IndexError, "A column of calls refers to what is not there.");
    return NULL;
}

/* What the other files give to the module: functions as METH_FASTCALL wants them. */

#define KERNEL(name) PyObject *multifold_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs)

KERNEL(levels);
KERNEL(typed_levels);
KERNEL(bucket);
KERNEL(schedule);
KERNEL(ancestors);
KERNEL(merge);
KERNEL(merge_levels);
KERNEL(distinct);
KERNEL(window);
KERNEL(extend);

#endif
