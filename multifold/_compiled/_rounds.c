/* The calls of one round, cut out of all that was recorded: the inner loop of multifold._await.calls. */

#include "_columns.h"

#define WIDEST (1 << 16) /* the span of the values that are counted in a table */

typedef struct {
    int64_t *at;
    int64_t length, room;
} Vector;

static int push(Vector *vector, int64_t value)
{
    if (vector->length == vector->room) {
        int64_t room = vector->room ? 2 * vector->room : 256;
        int64_t *at = realloc(vector->at, room * sizeof(int64_t));
        if (!at) {
            PyErr_NoMemory();
            return -1;
        }
        vector->at = at;
        vector->room = room;
    }
    vector->at[vector->length++] = value;
    return 0;
}

static int ascending(const void *first, const void *second)
{
    int64_t a = *(const int64_t *)first, b = *(const int64_t *)second;
    return (a > b) - (a < b);
}

static void sort(Vector *vector)
{
    for (int64_t i = 1; i < vector->length; i++)
        if (vector->at[i - 1] > vector->at[i]) {
            qsort(vector->at, vector->length, sizeof(int64_t), ascending);
            return;
        }
}

/* Return some vectors as a tuple of bytes, and free them; an exception unless all went `fine` before. */
static PyObject *finish(Vector *vectors, Py_ssize_t count, int fine)
{
    PyObject *result = fine ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = vectors[i].length * (Py_ssize_t)sizeof(int64_t);
        PyObject *bytes = result ? PyBytes_FromStringAndSize((const char *)vectors[i].at, size) : NULL;
        if (result && (!bytes || PyTuple_SetItem(result, i, bytes) < 0))
            Py_CLEAR(result);
        free(vectors[i].at);
    }
    return result || PyErr_Occurred() ? result : out_of_range();
}

/* distinct(values): see multifold._await.calls.distinct. Values that lie close together are counted in a
   table; None for others. */
KERNEL(distinct)
{
    Column c[1];
    if (open_columns(args, nargs, c, 1, 1) < 0)
        return NULL;
    const int64_t *values = c->at;
    int64_t low = c->length ? values[0] : 0, high = low;
    for (int64_t i = 1; i < c->length; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    uint64_t span = (uint64_t)high - (uint64_t)low;
    if (span >= WIDEST) {
        close_columns(c, 1);
        return Py_NewRef(Py_None);
    }
    Vector vectors[3] = {{NULL, 0, 0}};
    Vector *found = vectors, *place = found + 1, *counts = place + 1;
    int64_t *table = calloc(span + 1, sizeof(int64_t));
    int fine = table != NULL;
    if (!fine)
        PyErr_NoMemory();
    for (int64_t i = 0; fine && i < c->length; i++)
        table[values[i] - low]++;
    for (int64_t i = 0; fine && i <= (int64_t)span; i++)
        if (table[i]) {
            fine = push(found, low + i) == 0 && push(counts, table[i]) == 0;
            table[i] = found->length - 1;
        }
    for (int64_t i = 0; fine && i < c->length; i++)
        fine = push(place, table[values[i] - low]) == 0;
    free(table);
    close_columns(c, 1);
    return finish(vectors, 3, fine);
}

/* ---- columns -------------------------------------------------------------------------------------- */

enum {
    AWAITED, STAMP, STARTS, REFS, INTS, LENGTHS, MEMBERS, MEMBER_STARTS, BLOCK, SEEN, NUMBER, COLUMNS
};

/* The columns of multifold._record.kinds.COLUMNS, in which STARTS says where the entries of each call begin. */
enum { AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED, WIDTH };

typedef struct {
    Column *c;
    int64_t calls, stamp;
} History;

/* Set `low` and `high` to where the entries of a call are in a column that is so long; -1 if they are not. */
static int entries(const History *history, int64_t call, int column, int64_t length, int64_t *low,
                   int64_t *high)
{
    *low = history->c[STARTS].at[call * WIDTH + column];
    *high = history->c[STARTS].at[(call + 1) * WIDTH + column];
    return *low >= 0 && *low <= *high && *high <= length ? 0 : -1;
}

/* What is done with each call that another one reads; -1 stops. */
typedef int Visit(const History *history, int64_t call, Vector *found);

/* Call `visit` for each call that a call reads, by an operand or inside of a ragged one. */
static int visit_sources(const History *history, int64_t call, Visit *visit, Vector *found)
{
    Column *c = history->c;
    int64_t low, high;
    if (entries(history, call, AT_REFS, c[REFS].length, &low, &high) < 0)
        return -1;
    for (int64_t i = low; i < high; i++)
        if (visit(history, c[REFS].at[i] & CALL_MASK, found) < 0)
            return -1;
    if (entries(history, call, AT_RAGGED, c[MEMBER_STARTS].length - 1, &low, &high) < 0)
        return -1;
    if (low == high)
        return 0;
    low = c[MEMBER_STARTS].at[low];
    high = c[MEMBER_STARTS].at[high];
    if (low < 0 || high > c[MEMBERS].length)
        return -1;
    for (int64_t i = low; i < high; i++)
        if (c[MEMBERS].at[i] >= 0 && visit(history, c[MEMBERS].at[i] & CALL_MASK, found) < 0)
            return -1;
    return 0;
}

static int visit_one(const History *history, int64_t call, Vector *found, int computed)
{
    if (call < 0 || call >= history->calls)
        return -1;
    if ((history->c[BLOCK].at[call] > 0) != computed || history->c[SEEN].at[call] == history->stamp)
        return 0;
    history->c[SEEN].at[call] = history->stamp;
    return push(found, call);
}

static int visit_pending(const History *history, int64_t call, Vector *found)
{
    return visit_one(history, call, found, 0);
}

static int visit_given(const History *history, int64_t call, Vector *found)
{
    return visit_one(history, call, found, 1);
}

/* Fill in the calls to be run, and those that were computed and are read, both in the order of recording. */
static int select_calls(const History *history, Vector *calls, Vector *given)
{
    const Column *awaited = &history->c[AWAITED];
    for (int64_t i = 0; i < awaited->length; i++)
        if (visit_pending(history, awaited->at[i], calls) < 0 || visit_given(history, awaited->at[i], given) < 0)
            return -1;
    for (int64_t i = 0; i < calls->length; i++)
        if (visit_sources(history, calls->at[i], visit_pending, calls) < 0)
            return -1;
    for (int64_t i = 0; i < calls->length; i++)
        if (visit_sources(history, calls->at[i], visit_given, given) < 0)
            return -1;
    sort(calls);
    sort(given);
    for (int64_t i = 0; i < given->length; i++)
        history->c[NUMBER].at[given->at[i]] = i;
    for (int64_t i = 0; i < calls->length; i++)
        history->c[NUMBER].at[calls->at[i]] = given->length + i;
    return 0;
}

static int64_t renumbered(const History *history, int64_t ref)
{
    return ref < 0 ? ref : (ref & ~CALL_MASK) | history->c[NUMBER].at[ref & CALL_MASK];
}

/* Fill in the operands of the calls that are run; references with the numbers that calls have here. */
static int copy_operands(const History *history, const Vector *calls, Vector *refs, Vector *ints,
                         Vector *lengths, Vector *members)
{
    Column *c = history->c;
    int64_t low, high;
    for (int64_t i = 0; i < calls->length; i++) {
        int64_t call = calls->at[i];
        if (entries(history, call, AT_REFS, c[REFS].length, &low, &high) < 0)
            return -1;
        for (int64_t j = low; j < high; j++)
            if (push(refs, renumbered(history, c[REFS].at[j])) < 0)
                return -1;
        if (entries(history, call, AT_INTS, c[INTS].length, &low, &high) < 0)
            return -1;
        for (int64_t j = low; j < high; j++)
            if (push(ints, c[INTS].at[j]) < 0)
                return -1;
        if (entries(history, call, AT_RAGGED, c[LENGTHS].length, &low, &high) < 0)
            return -1;
        for (int64_t j = low; j < high; j++)
            if (push(lengths, c[LENGTHS].at[j]) < 0)
                return -1;
        for (int64_t j = c[MEMBER_STARTS].at[low]; low < high && j < c[MEMBER_STARTS].at[high]; j++)
            if (push(members, renumbered(history, c[MEMBERS].at[j])) < 0)
                return -1;
    }
    return 0;
}

/* window(awaited, stamp, starts, refs, ints, lengths, members, member_starts, block, seen, number): see
   multifold._await.calls.CallTable.select. Return the calls that are run, the given ones, and the operands of
   the former, each as bytes; `seen` holds stamps of earlier rounds, `number` is filled in for all of these. */
KERNEL(window)
{
    Column c[COLUMNS];
    if (open_columns(args, nargs, c, COLUMNS, SEEN) < 0)
        return NULL;
    History history = {c, c[BLOCK].length, c[STAMP].length ? c[STAMP].at[0] : 0};
    Vector vectors[6] = {{NULL, 0, 0}};
    Vector *calls = vectors, *given = calls + 1, *refs = given + 1, *ints = refs + 1, *lengths = ints + 1;
    Vector *members = lengths + 1;
    int fine = c[STARTS].length == (history.calls + 1) * WIDTH && c[SEEN].length == history.calls
               && c[NUMBER].length == history.calls && c[MEMBER_STARTS].length
               && select_calls(&history, calls, given) == 0
               && copy_operands(&history, calls, refs, ints, lengths, members) == 0;
    close_columns(c, COLUMNS);
    return finish(vectors, 6, fine);
}

/* extend(kinds, widths, starts): fill in `starts`, behind its first row, for calls of these signatures. */
KERNEL(extend)
{
    Column c[3];
    if (open_columns(args, nargs, c, 3, 2) < 0)
        return NULL;
    int64_t *row = c[2].at, count = c[0].length, signatures = c[1].length / WIDTH;
    int fine = c[2].length == (count + 1) * WIDTH;
    for (int64_t i = 0; fine && i < count; i++, row += WIDTH) {
        fine = c[0].at[i] >= 0 && c[0].at[i] < signatures;
        for (int j = 0; fine && j < WIDTH; j++)
            row[WIDTH + j] = row[j] + c[1].at[c[0].at[i] * WIDTH + j];
    }
    close_columns(c, 3);
    return fine ? Py_NewRef(Py_None) : out_of_range();
}
