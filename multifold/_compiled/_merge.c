/* Traces become one minibatch: the inner loops of multifold._traces.minibatch. */

#include "_columns.h"

/* The columns of a trace in the order of multifold._traces.trace.COUNTED, and behind them its results. */
enum {
    T_SIGNATURE, T_REFS, T_INTS, T_LENGTHS, T_MEMBERS, T_NEEDED, T_LEVELS, T_PAIRS, T_HIGHEST,
    T_FLOATS, T_ARRAYS, T_LOOSE, T_RESULTS
};

#define IN_INTEGERS(number) ((number) < T_FLOATS || (number) >= T_RESULTS)

typedef struct {
    const int64_t *kinds, *places; /* what its numbers of signatures and parts become */
    int64_t kind_count, place_count;
    int64_t call, calls;           /* where its calls begin, and how many they are */
    int64_t loose;                 /* where its loose values begin */
} Shift;

/* Write references of a trace as those of the minibatch. */
static int shift_refs(const Shift *it, const int64_t *refs, int64_t count, int64_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        if (refs[i] < 0) {
            out[i] = refs[i] - it->loose;
            continue;
        }
        int64_t part = refs[i] >> PART_BITS, call = refs[i] & CALL_MASK;
        if (part >= it->place_count || call >= it->calls)
            return -1;
        out[i] = it->places[part] << PART_BITS | (call + it->call);
    }
    return 0;
}

/* Write a column of a trace; `out` is where the column of the minibatch goes on, for T_HIGHEST where it begins. */
static int merge_column(const Shift *it, int64_t number, const int64_t *in, int64_t count, int64_t *out)
{
    switch (number) {
    case T_INTS: case T_LENGTHS: case T_LEVELS:
        memcpy(out, in, count * sizeof(int64_t));
        return 0;
    case T_SIGNATURE:
        for (int64_t i = 0; i < count; i++) {
            if (in[i] < 0 || in[i] >= it->kind_count)
                return -1;
            out[i] = it->kinds[in[i]];
        }
        return 0;
    case T_NEEDED:
        for (int64_t i = 0; i < count; i++) {
            if (in[i] < 0 || in[i] >= it->calls)
                return -1;
            out[i] = in[i] + it->call;
        }
        return 0;
    case T_PAIRS: /* (signature, level) of source and reader */
        for (int64_t i = 0; i < count; i++) {
            if (i % 2 == 0 && (in[i] < 0 || in[i] >= it->kind_count))
                return -1;
            out[i] = i % 2 ? in[i] : it->kinds[in[i]];
        }
        return 0;
    case T_HIGHEST:
        if (count > it->kind_count)
            return -1;
        for (int64_t i = 0; i < count; i++)
            if (in[i] > out[it->kinds[i]])
                out[it->kinds[i]] = in[i];
        return 0;
    default:
        return shift_refs(it, in, count, out);
    }
}

/* merge(integers, kinds, kind_starts, places, place_starts, shape): see multifold._traces.minibatch.merged_in_numpy.
   `integers` are those of all traces, one behind the other; `shape` says how many merged signatures and how many
   results there are. Return as bytes: where the calls of each trace begin, the sizes, the columns. */
KERNEL(merge)
{
    Column c[6];
    if (open_columns(args, nargs, c, 6, 6) < 0)
        return NULL;
    const int64_t *in = c[0].at, *end = in + c[0].length, *kinds = c[1].at, *places = c[3].at;
    int64_t traces = c[2].length, signatures = c[5].at[0], width = T_RESULTS + c[5].at[1], stored = 0;
    int64_t *totals = calloc(width, sizeof(int64_t)), *next = calloc(width, sizeof(int64_t));
    PyObject *result = NULL;
    if (!totals || !next) {
        PyErr_NoMemory();
        goto done;
    }
    int fine = c[4].length == traces;
    for (int64_t i = 0; fine && i < c[1].length; i++)
        fine = kinds[i] >= 0 && kinds[i] < signatures;
    for (int64_t t = 0; fine && t < traces; t++) {
        fine = c[2].at[t] >= 0 && c[2].at[t] <= c[1].length && c[4].at[t] >= 0 && c[4].at[t] <= c[3].length
               && end - in >= width;
        const int64_t *sizes = in;
        in += fine ? width : 0;
        for (int64_t number = 0; fine && number < width; number++) {
            fine = sizes[number] >= 0;
            totals[number] += sizes[number];
            if (fine && IN_INTEGERS(number)) {
                fine = sizes[number] <= end - in;
                in += fine ? sizes[number] : 0;
            }
        }
    }
    if (!fine || in != end) {
        out_of_range();
        goto done;
    }
    totals[T_HIGHEST] = signatures;
    for (int64_t number = 0; number < width; number++) {
        next[number] = traces + 1 + width + stored;
        stored += IN_INTEGERS(number) ? totals[number] : 0;
    }
    result = PyByteArray_FromStringAndSize(NULL, (traces + 1 + width + stored) * (Py_ssize_t)sizeof(int64_t));
    if (!result)
        goto done;
    int64_t *out = (int64_t *)PyByteArray_AsString(result);
    memcpy(out + traces + 1, totals, width * sizeof(int64_t));
    memset(out + next[T_HIGHEST], 0, signatures * sizeof(int64_t));
    Shift it = {0};
    in = c[0].at;
    for (int64_t t = 0; fine && t < traces; t++) {
        const int64_t *sizes = in;
        in += width;
        it.kinds = kinds + c[2].at[t];
        it.places = places + c[4].at[t];
        it.kind_count = c[1].length - c[2].at[t];
        it.place_count = c[3].length - c[4].at[t];
        it.calls = sizes[T_SIGNATURE];
        out[t] = it.call;
        for (int64_t number = 0; fine && number < width; number++) {
            if (!IN_INTEGERS(number))
                continue;
            fine = merge_column(&it, number, in, sizes[number], out + next[number]) == 0;
            in += sizes[number];
            next[number] += number == T_HIGHEST ? 0 : sizes[number];
        }
        it.call += it.calls;
        it.loose += sizes[T_LOOSE];
    }
    out[traces] = it.call;
    if (!fine) {
        Py_CLEAR(result);
        out_of_range();
    }
done:
    free(totals);
    free(next);
    close_columns(c, 6);
    return result;
}
