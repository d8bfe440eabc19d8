/* The inner loops of planning and wiring, over int64 columns.

   Each function does what a function of multifold._schedule.columns, levels, minibatch, reads or sections says in
   NumPy, which stays the reference: the same tests hold both. Columns come as contiguous buffers of int64.
   What has a size that only the kernel knows is returned as bytes, or as Python's integers where Python goes
   through them anyway; all else was allocated by the caller. Every index that is read from a column is
   checked before it is used: a broken trace raises an IndexError. */

#include "_columns.h"

/* ---- calls ---------------------------------------------------------------------------------------- */

/* starts(signature, widths, starts): see multifold._schedule.columns.Columns.starts. */
static PyObject *starts(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Column c[3];
    if (open_columns(args, nargs, c, 3, 2) < 0)
        return NULL;
    const int64_t *signature = c[0].at, *widths = c[1].at, count = c[0].length;
    int64_t *begin = c[2].at, end = 0;
    int fine = c[2].length == count + 1;
    for (int64_t i = 0; fine && i < count; i++) {
        begin[i] = end;
        fine = signature[i] >= 0 && signature[i] < c[1].length;
        end += fine ? widths[signature[i]] : 0;
    }
    if (fine)
        begin[count] = end;
    close_columns(c, 3);
    return fine ? Py_NewRef(Py_None) : out_of_range();
}

/* ---- reads ---------------------------------------------------------------------------------------- */

typedef struct {
    int64_t key, reader, call;
} Row;

/* Sort rows by one field and keep the order of equal ones; `spare` is as long as `rows`. */
static void sort_rows(Row *rows, Row *spare, int64_t count, size_t field)
{
#define FIELD(row) (*(const int64_t *)((const char *)&(row) + field))
    if (count <= 24) {
        for (int64_t i = 1; i < count; i++) {
            Row row = rows[i];
            int64_t j = i;
            for (; j > 0 && FIELD(rows[j - 1]) > FIELD(row); j--)
                rows[j] = rows[j - 1];
            rows[j] = row;
        }
        return;
    }
    uint64_t differing = 0;
    for (int64_t i = 1; i < count; i++)
        differing |= (uint64_t)(FIELD(rows[i]) ^ FIELD(rows[0]));
    Row *from = rows, *to = spare;
    for (int shift = 0; shift < 64 && differing >> shift; shift += 8) {
        if (!(differing >> shift & 255))
            continue;
        int64_t begin[257] = {0};
        for (int64_t i = 0; i < count; i++)
            begin[((uint64_t)FIELD(from[i]) >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++)
            begin[digit + 1] += begin[digit];
        for (int64_t i = 0; i < count; i++)
            to[begin[(uint64_t)FIELD(from[i]) >> shift & 255]++] = from[i];
        Row *swap = from;
        from = to;
        to = swap;
    }
    if (from != rows)
        memcpy(rows, from, count * sizeof(Row));
#undef FIELD
}

enum {
    BOUNDS, LAYOUT_STARTS, LAYOUT, BATCHED, REFS, REF_STARTS, MEMBERS, MEMBER_STARTS, RAGGED_STARTS, SIZES_OF,
    ASKED, LAUNCH, ROW, CALLS, SIZES, RUNS, COLUMNS
};

typedef struct {
    Column *c;
    int64_t first;      /* launches that ran before */
    int64_t launches;   /* all of them */
    int64_t parts;
    int64_t *reads;     /* all references that are read, those of the outputs behind them */
    int64_t position;   /* where the reads that are known begin */
    int64_t *reader;    /* call -> position of its first read */
    int64_t *parts_read;
    unsigned char *seen; /* (launch, part) -> whether it is read */
    int64_t *stamp;     /* launch -> who looked at it last */
    Row *rows, *spare;
    int64_t *sources;   /* room for the operands of any launch */
} Order;

/* Note who reads the reads from `order->position` on, the first `count` of them; the first read of a call is
   noted last. */
static int note_reads(Order *order, int64_t count)
{
    const int64_t *reads = order->reads, *launch = order->c[LAUNCH].at;
    for (int64_t i = order->position + count - 1; i >= order->position; i--) {
        if (reads[i] < 0)
            continue;
        int64_t call = reads[i] & CALL_MASK, part = reads[i] >> PART_BITS;
        if (call >= order->c[LAUNCH].length || part >= order->parts)
            return -1;
        if (launch[call] < 0 || launch[call] >= order->launches)
            return -1;
        order->reader[call] = i;
        int64_t own = launch[call] - order->first;
        if (own >= 0 && !order->seen[own * order->parts + part]) {
            order->seen[own * order->parts + part] = 1;
            order->parts_read[own]++;
        }
    }
    return 0;
}

/* Give each of `order->rows` the key of the launches that it reads from; see multifold._wiring.order.source_order.
   Return the number of those launches, 0 where the order of the readers is the better one, -1 for an
   index that is out of range. The columns of launches are put side by side into `order->sources`. */
static int64_t key_by_source(Order *order, int64_t index, int64_t count)
{
    Column *c = order->c;
    const int64_t *launch = c[LAUNCH].at, *layout = c[LAYOUT].at;
    int64_t begin = c[LAYOUT_STARTS].at[index], end = c[LAYOUT_STARTS].at[index + 1];
    int64_t limit = order->parts_read[index], mixed = 0, kinds = 0, distinct = 0;
    int64_t low = order->launches, high = -1;
    for (int64_t slot = begin; slot < end; slot++)
        if (layout[slot] < 0)
            return 0; /* a ragged operand */
    if (end - begin <= limit)
        return 0;
    for (int64_t slot = begin; slot < end; slot++) {
        int64_t *sources = order->sources + kinds * count;
        int is_mixed = 0, is_new = !kinds;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = c[REF_STARTS].at[order->rows[i].call] + layout[slot];
            if (at >= c[REFS].length)
                return -1;
            int64_t call = c[REFS].at[at] & CALL_MASK;
            if (call >= c[LAUNCH].length || launch[call] < 0 || launch[call] >= order->launches)
                return -1;
            sources[i] = launch[call];
            is_mixed |= sources[i] != sources[0];
            is_new |= kinds && sources[i] != sources[i - count];
        }
        mixed += is_mixed;
        kinds += is_mixed && is_new;
    }
    if (mixed <= limit)
        return 0;
    for (int64_t i = 0; i < kinds * count; i++) {
        int64_t source = order->sources[i];
        low = source < low ? source : low;
        high = source > high ? source : high;
        distinct += order->stamp[source] != index + 1;
        order->stamp[source] = index + 1;
    }
    int64_t span = high - low + 1, room = (int64_t)1 << 62;
    for (int64_t kind = 0; kind < kinds; kind++) {
        room /= span;
        if (!room)
            return 0;
        for (int64_t i = 0; i < count; i++)
            order->rows[i].key = order->rows[i].key * span + order->sources[kind * count + i] - low;
    }
    return distinct;
}

/* Put the rows of a launch into their order. */
static int order_launch(Order *order, int64_t index)
{
    int64_t begin = order->c[BOUNDS].at[index], count = order->c[BOUNDS].at[index + 1] - begin;
    int64_t *calls = order->c[CALLS].at + begin;
    Row *rows = order->rows;
    for (int64_t i = 0; i < count; i++)
        rows[i] = (Row){0, order->reader[calls[i]], calls[i]};
    int64_t sources = key_by_source(order, index, count);
    if (sources < 0)
        return -1;
    sort_rows(rows, order->spare, count, offsetof(Row, reader));
    if (sources) {
        sort_rows(rows, order->spare, count, offsetof(Row, key));
        int64_t runs = 1;
        for (int64_t i = 1; i < count; i++)
            runs += rows[i].key != rows[i - 1].key;
        if (runs > 4 * sources) /* too short to be worth it */
            sort_rows(rows, order->spare, count, offsetof(Row, reader));
        else
            for (int64_t slot = order->c[LAYOUT_STARTS].at[index]; slot < order->c[LAYOUT_STARTS].at[index + 1];
                 slot++)
                order->c[RUNS].at[slot] = 1;
    }
    for (int64_t i = 0; i < count; i++) {
        calls[i] = rows[i].call;
        order->c[ROW].at[calls[i]] = i;
    }
    return 0;
}

/* Write how many rows each operand of a launch has; return their sum, -1 for an index out of range. */
static int64_t count_reads(const Column *c, int64_t index)
{
    const int64_t *layout = c[LAYOUT].at, *calls = c[CALLS].at;
    int64_t low = c[BOUNDS].at[index], high = c[BOUNDS].at[index + 1], total = 0;
    for (int64_t slot = c[LAYOUT_STARTS].at[index]; slot < c[LAYOUT_STARTS].at[index + 1]; slot++) {
        int64_t size = high - low;
        if (layout[slot] < 0) {
            size = 0;
            for (int64_t i = low; i < high; i++) {
                int64_t at = c[RAGGED_STARTS].at[calls[i]] - 1 - layout[slot];
                if (at + 1 >= c[MEMBER_STARTS].length)
                    return -1;
                int64_t length = c[MEMBER_STARTS].at[at + 1] - c[MEMBER_STARTS].at[at];
                if (length < 0 || c[MEMBER_STARTS].at[at] < 0 || c[MEMBER_STARTS].at[at + 1] > c[MEMBERS].length)
                    return -1;
                size += length;
            }
        }
        c[SIZES].at[slot] = size;
        total += size;
    }
    return total;
}

/* Write what a launch reads before what is known; return how much it is, -1 for an index out of range. */
static int64_t write_reads(Order *order, int64_t index)
{
    Column *c = order->c;
    const int64_t *layout = c[LAYOUT].at, *calls = c[CALLS].at;
    int64_t low = c[BOUNDS].at[index], high = c[BOUNDS].at[index + 1], total = 0;
    for (int64_t slot = c[LAYOUT_STARTS].at[index]; slot < c[LAYOUT_STARTS].at[index + 1]; slot++)
        total += c[SIZES].at[slot];
    int64_t *out = order->reads + order->position - total;
    for (int64_t slot = c[LAYOUT_STARTS].at[index]; slot < c[LAYOUT_STARTS].at[index + 1]; slot++)
        for (int64_t i = low; i < high; i++) {
            if (layout[slot] < 0) {
                int64_t at = c[RAGGED_STARTS].at[calls[i]] - 1 - layout[slot];
                for (int64_t j = c[MEMBER_STARTS].at[at]; j < c[MEMBER_STARTS].at[at + 1]; j++)
                    *out++ = c[MEMBERS].at[j];
            } else {
                int64_t at = c[REF_STARTS].at[calls[i]] + layout[slot];
                if (at >= c[REFS].length)
                    return -1;
                *out++ = c[REFS].at[at];
            }
        }
    return total;
}

/* order(bounds, layout_starts, layout, batched, refs, ref_starts, members, member_starts, ragged_starts,
         sizes_of, asked, launch, row, calls, sizes, runs): see multifold._wiring.order.order_rows.
   `layout` says for each operand of each launch its position among the references of a call, or -1 - position
   among its ragged operands; `sizes_of` holds the launches that ran before and the parts, `asked` what the
   outputs read. `runs` comes filled with 0. Return all that is read, as bytes. */
static PyObject *order(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Column c[COLUMNS];
    if (open_columns(args, nargs, c, COLUMNS, LAUNCH) < 0)
        return NULL;
    int64_t launches = c[BOUNDS].length - 1, calls = c[LAUNCH].length, longest = 0, most = 0;
    Order it = {c, c[SIZES_OF].at[0], c[SIZES_OF].at[0] + launches, c[SIZES_OF].at[1]};
    int64_t total = c[ASKED].length;
    PyObject *result = NULL;
    int fine = 1;
    for (int64_t index = 0; index < launches; index++) {
        int64_t rows = c[BOUNDS].at[index + 1] - c[BOUNDS].at[index];
        int64_t reads = rows * (c[LAYOUT_STARTS].at[index + 1] - c[LAYOUT_STARTS].at[index]);
        longest = rows > longest ? rows : longest;
        most = reads > most ? reads : most;
    }
    it.reader = malloc((calls + 1) * sizeof(int64_t));
    it.parts_read = calloc(launches + 1, sizeof(int64_t));
    it.seen = calloc(launches * it.parts + 1, 1);
    it.stamp = calloc(it.launches + 1, sizeof(int64_t));
    it.rows = malloc((longest + 1) * sizeof(Row));
    it.spare = malloc((longest + 1) * sizeof(Row));
    it.sources = malloc((most + 1) * sizeof(int64_t));
    if (!it.reader || !it.parts_read || !it.seen || !it.stamp || !it.rows || !it.spare || !it.sources) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t index = 0; fine && index < launches; index++)
        for (int64_t i = c[BOUNDS].at[index]; fine && i < c[BOUNDS].at[index + 1]; i++) {
            int64_t call = c[CALLS].at[i];
            fine = call >= 0 && call < calls && call + 1 < c[REF_STARTS].length;
            if (fine)
                c[LAUNCH].at[call] = it.first + index;
        }
    for (int64_t index = 0; fine && index < launches; index++) {
        int64_t count = count_reads(c, index);
        fine = count >= 0;
        total += count;
    }
    result = fine ? PyByteArray_FromStringAndSize(NULL, total * (Py_ssize_t)sizeof(int64_t)) : NULL;
    if (fine && !result)
        goto done;
    if (fine) {
        it.reads = (int64_t *)PyByteArray_AsString(result);
        it.position = total - c[ASKED].length;
        memcpy(it.reads + it.position, c[ASKED].at, c[ASKED].length * sizeof(int64_t));
    }
    for (int64_t i = 0; i < calls; i++)
        it.reader[i] = total; /* read by nobody */
    fine = fine && note_reads(&it, c[ASKED].length) == 0;
    for (int64_t index = launches - 1; fine && index >= 0; index--) {
        if (c[BATCHED].at[index] && order_launch(&it, index) < 0)
            fine = 0;
        int64_t count = fine ? write_reads(&it, index) : -1;
        fine = count >= 0;
        if (fine) {
            it.position -= count;
            fine = note_reads(&it, count) == 0;
        }
    }
    if (!fine) {
        Py_CLEAR(result);
        out_of_range();
    }
done:
    free(it.reader);
    free(it.parts_read);
    free(it.seen);
    free(it.stamp);
    free(it.rows);
    free(it.spare);
    free(it.sources);
    close_columns(c, COLUMNS);
    return result;
}

/* ---- sections ------------------------------------------------------------------------------------- */

enum { GATHERED, SLICE, WHOLE };

/* Say how each section is read: of ranges that overlap the first one is the slice. `how` comes as whether its
   rows are one range; `taken` has a mark for each row of the longest block. */
static void choose(const int64_t *block, const int64_t *size, const int64_t *first, int64_t *how,
                   int64_t sections, const int64_t *heights, int64_t parts, int64_t loose, int64_t *taken,
                   int64_t longest)
{
    memset(taken, 0, longest * sizeof(int64_t));
    for (int64_t s = 0; s < sections; s++) {
        int64_t mark = block[s] + 1, end = first[s] + size[s], solid = how[s];
        how[s] = GATHERED;
        if (!solid || block[s] == loose)
            continue;
        if (size[s] == heights[block[s] / parts]) {
            how[s] = WHOLE;
            continue;
        }
        int64_t row = first[s];
        while (row < end && taken[row] != mark)
            row++;
        if (row < end)
            continue;
        how[s] = SLICE;
        for (row = first[s]; row < end; row++)
            taken[row] = mark;
    }
}

/* group(reads, sizes, runs, launch, row, heights, parts, rows, position, moved): see multifold._wiring.sections.group.
   Return the seven columns of the sections, one behind the other, as bytes. */
static PyObject *group(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Column c[10];
    if (open_columns(args, nargs, c, 10, 7) < 0)
        return NULL;
    const int64_t *reads = c[0].at, *sizes = c[1].at, *runs = c[2].at, *launch = c[3].at, *place = c[4].at;
    const int64_t *heights = c[5].at;
    int64_t count = c[0].length, operands = c[1].length, calls = c[3].length;
    int64_t launches = c[5].length, parts = c[6].at[0], loose = launches * parts, longest = 0;
    int64_t *rows = c[7].at, *position = c[8].at, *moved = c[9].at;
    int64_t sections = 0, low = 0, found = 0, offset = 0;
    PyObject *result = NULL;
    for (int64_t i = 0; i < launches; i++)
        longest = heights[i] > longest ? heights[i] : longest;
    int64_t *begins = calloc(loose + 2, sizeof(int64_t)), *taken = malloc((longest + 1) * sizeof(int64_t));
    int32_t *scratch = malloc((5 * count + 1) * sizeof(int32_t));
    int32_t *of = scratch, *at = of + count, *operand = at + count, *order = operand + count;
    int32_t *section_at = order + count;
    if (!begins || !taken || !scratch) {
        PyErr_NoMemory();
        goto done;
    }
    int fine = count < INT32_MAX && loose < INT32_MAX && c[7].length == count && c[8].length == count
               && c[4].length == calls && c[2].length == operands && c[9].length == operands;
    for (int64_t number = 0; fine && number < operands; number++) {
        fine = sizes[number] >= 0 && sizes[number] <= count - low;
        for (int64_t i = low; fine && i < low + sizes[number]; i++)
            operand[i] = (int32_t)number;
        low += sizes[number];
    }
    fine = fine && low == count;
    for (int64_t i = 0; fine && i < count; i++) {
        int64_t block = loose, row = -1 - reads[i]; /* the row of a loose value is its place among them */
        if (reads[i] >= 0) {
            int64_t call = reads[i] & CALL_MASK, part = reads[i] >> PART_BITS;
            fine = call < calls && part < parts && launch[call] >= 0 && launch[call] < launches;
            if (!fine)
                break;
            block = launch[call] * parts + part;
            row = place[call];
        }
        fine = row >= 0 && row < (block == loose ? INT32_MAX : heights[block / parts]);
        of[i] = (int32_t)block;
        at[i] = (int32_t)row;
        begins[block + 1]++;
    }
    if (!fine) {
        out_of_range();
        goto done;
    }
    for (int64_t i = 0; i < loose; i++)
        begins[i + 1] += begins[i];
    for (int64_t i = 0; i < count; i++)
        order[begins[of[i]]++] = (int32_t)i;
    for (int64_t i = 0; i < count; i++) {
        int32_t read = order[i], last = i ? order[i - 1] : -1;
        rows[i] = at[read];
        section_at[read] = !i || of[read] != of[last] || operand[read] != operand[last]
                           || (runs[operand[read]] && read != last + 1);
        sections += section_at[read];
    }
    result = PyBytes_FromStringAndSize(NULL, 7 * sections * (Py_ssize_t)sizeof(int64_t));
    if (!result)
        goto done;
    int64_t *block = (int64_t *)PyBytes_AsString(result), *owner = block + sections;
    int64_t *begin = owner + sections, *size = begin + sections, *first = size + sections;
    int64_t *how = first + sections, *by_operand = how + sections, s = -1;
    for (int64_t i = 0; i < count; i++) {
        int32_t read = order[i];
        if (section_at[read]) {
            s++;
            block[s] = of[read];
            owner[s] = operand[read];
            begin[s] = i;
            size[s] = 1;
            first[s] = at[read];
            how[s] = 1; /* so far its rows are one range */
            section_at[read] = (int32_t)s + 1;
        } else {
            size[s]++;
            how[s] &= rows[i] == rows[i - 1] + 1;
        }
    }
    /* Sections of an operand are concatenated by their first reads: rows that come in runs stay put. */
    memset(moved, 0, operands * sizeof(int64_t));
    for (int64_t i = 0; i < count; i++) {
        if (!section_at[i])
            continue;
        int64_t next = section_at[i] - 1;
        by_operand[found++] = next;
        for (int64_t j = begin[next]; j < begin[next] + size[next]; j++) {
            position[order[j]] = offset;
            moved[owner[next]] |= offset != order[j];
            offset++;
        }
    }
    choose(block, size, first, how, sections, heights, parts, loose, taken, longest);
done:
    free(begins);
    free(taken);
    free(scratch);
    close_columns(c, 10);
    return result;
}

/* ---- cuts ----------------------------------------------------------------------------------------- */

/* Return integers as a tuple, with None for those below 0. */
static PyObject *tuple_of(const int64_t *values, int64_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int64_t i = 0; tuple && i < count; i++) {
        PyObject *value = values[i] < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(values[i]);
        if (!value || PyTuple_SetItem(tuple, i, value) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

enum {
    S_BLOCK, S_OWNER, S_BEGIN, S_SIZE, S_FIRST, S_HOW, S_BY_OPERAND, S_ROWS, S_HEIGHTS, S_SHAPE, S_GATHERED,
    S_COLUMNS
};

/* Return how the sections `low` .. `high` of one block are read: (whole, sizes, slices, gathered sizes, gathered);
   `scratch` holds four times as many integers, and four more, `slices` and `spare` as many rows. */
static PyObject *cut_block(const Column *c, int64_t low, int64_t high, int64_t height, int64_t *scratch,
                           Row *slices, Row *spare)
{
    int64_t count = high - low, wholes = 0, pieces = 0, sliced = 0, gathers = 0, end = 0;
    int64_t *whole = scratch, *sizes, *numbers, *gathered_sizes, *gathered;
    for (int64_t s = low; s < high; s++)
        if (c[S_HOW].at[s] == WHOLE)
            whole[wholes++] = s;
        else if (c[S_HOW].at[s] == SLICE)
            slices[sliced++] = (Row){c[S_FIRST].at[s], 0, s};
    sizes = whole + wholes;
    numbers = sizes + 2 * sliced + 1;
    sort_rows(slices, spare, sliced, offsetof(Row, key));
    for (int64_t i = 0; i < sliced; i++) {
        if (slices[i].key > end) { /* rows that are read otherwise */
            sizes[pieces] = slices[i].key - end;
            numbers[pieces++] = -1;
        }
        sizes[pieces] = c[S_SIZE].at[slices[i].call];
        numbers[pieces++] = slices[i].call;
        end = slices[i].key + c[S_SIZE].at[slices[i].call];
    }
    if (sliced && end < height) {
        sizes[pieces] = height - end;
        numbers[pieces++] = -1;
    }
    gathered_sizes = numbers + 2 * sliced + 1;
    gathered = gathered_sizes + (count - wholes - sliced);
    for (int64_t s = low; s < high; s++)
        if (c[S_HOW].at[s] == GATHERED) {
            gathered_sizes[gathers] = c[S_SIZE].at[s];
            gathered[gathers++] = s;
        }
    return Py_BuildValue("(NNNNN)", tuple_of(whole, wholes), tuple_of(sizes, pieces), tuple_of(numbers, pieces),
                         tuple_of(gathered_sizes, gathers), tuple_of(gathered, gathers));
}

/* cut(block, owner, begin, size, first, how, by_operand, rows, heights, shape, gathered): see
   multifold._wiring.sections.cut_in_python. `shape` says how many parts and operands there are; `gathered`, as long as
   `rows`, is filled with the rows of the sections that are gathered. Return three lists. */
static PyObject *cut(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Column c[S_COLUMNS];
    if (open_columns(args, nargs, c, S_COLUMNS, S_GATHERED) < 0)
        return NULL;
    const int64_t *block = c[S_BLOCK].at, *owner = c[S_OWNER].at, *begin = c[S_BEGIN].at, *size = c[S_SIZE].at;
    int64_t count = c[S_BLOCK].length, parts = c[S_SHAPE].at[0], operands = c[S_SHAPE].at[1];
    int64_t loose = parts * c[S_HEIGHTS].length, found = 0;
    int64_t *scratch = malloc((4 * count + 4) * sizeof(int64_t));
    Row *slices = malloc((count + 1) * sizeof(Row)), *spare = malloc((count + 1) * sizeof(Row));
    PyObject *sections = PyList_New(operands > 0 ? operands : 0), *sources = PyList_New(count);
    PyObject *cuts = PyList_New(0), *result = NULL;
    if (!scratch || !slices || !spare)
        PyErr_NoMemory();
    if (!scratch || !slices || !spare || !sections || !sources || !cuts)
        goto done;
    int fine = c[S_GATHERED].length == c[S_ROWS].length;
    for (int number = S_BLOCK; number <= S_BY_OPERAND; number++)
        fine = fine && c[number].length == count;
    for (int64_t s = 0; fine && s < count; s++)
        fine = block[s] >= 0 && block[s] <= loose && owner[s] >= 0 && owner[s] < operands && begin[s] >= 0
               && size[s] >= 0 && begin[s] <= c[S_ROWS].length - size[s]
               && c[S_BY_OPERAND].at[s] >= 0 && c[S_BY_OPERAND].at[s] < count;
    if (!fine) {
        out_of_range();
        goto done;
    }
    const int64_t *next = c[S_BY_OPERAND].at, *last = next + count;
    for (int64_t operand = 0; operand < operands; operand++) {
        const int64_t *own = next;
        while (next < last && owner[*next] == operand)
            next++;
        PyObject *tuple = tuple_of(own, next - own);
        if (!tuple || PyList_SetItem(sections, operand, tuple) < 0)
            goto done;
    }
    if (next < last) {
        out_of_range();
        goto done;
    }
    for (int64_t low = 0, high = 0; low < count; low = high) {
        int is_loose = block[low] == loose;
        int64_t height = is_loose ? 0 : c[S_HEIGHTS].at[block[low] / parts], from = found;
        PyObject *source = is_loose ? Py_BuildValue("(ii)", -1, 0)
                                    : Py_BuildValue("(LL)", (long long)(block[low] / parts),
                                                    (long long)(block[low] % parts));
        for (; high < count && block[high] == block[low]; high++) {
            if (source && PyList_SetItem(sources, high, Py_NewRef(source)) < 0)
                Py_CLEAR(source);
            if (c[S_HOW].at[high] == GATHERED && !is_loose) {
                memcpy(c[S_GATHERED].at + found, c[S_ROWS].at + begin[high], size[high] * sizeof(int64_t));
                found += size[high];
            }
        }
        PyObject *read = source ? cut_block(c, low, high, height, scratch, slices, spare) : NULL;
        PyObject *entry = read ? Py_BuildValue("(OLLN)", source, (long long)from, (long long)found, read) : NULL;
        Py_XDECREF(source);
        int done = entry ? PyList_Append(cuts, entry) : -1;
        Py_XDECREF(entry);
        if (done < 0)
            goto done;
    }
    result = Py_BuildValue("(OOO)", sections, sources, cuts);
done:
    Py_XDECREF(sections);
    Py_XDECREF(sources);
    Py_XDECREF(cuts);
    free(scratch);
    free(slices);
    free(spare);
    close_columns(c, S_COLUMNS);
    return result;
}

/* ---- the module ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"levels", (PyCFunction)(void (*)(void))multifold_levels, METH_FASTCALL,
     "Fill in the longest path to each vertex."},
    {"typed_levels", (PyCFunction)(void (*)(void))multifold_typed_levels, METH_FASTCALL,
     "Fill in the typed level of each call."},
    {"bucket", (PyCFunction)(void (*)(void))multifold_bucket, METH_FASTCALL,
     "Make launches of types and levels."},
    {"ancestors", (PyCFunction)(void (*)(void))multifold_ancestors, METH_FASTCALL, "Find what calls need."},
    {"schedule", (PyCFunction)(void (*)(void))multifold_schedule, METH_FASTCALL, "Schedule some calls."},
    {"merge", (PyCFunction)(void (*)(void))multifold_merge, METH_FASTCALL, "Merge the integers of traces."},
    {"merge_levels", (PyCFunction)(void (*)(void))multifold_merge_levels, METH_FASTCALL,
     "Make launches of the levels of traces."},
    {"distinct", (PyCFunction)(void (*)(void))multifold_distinct, METH_FASTCALL, "Find distinct integers."},
    {"extend", (PyCFunction)(void (*)(void))multifold_extend, METH_FASTCALL, "Continue the columns of calls."},
    {"window", (PyCFunction)(void (*)(void))multifold_window, METH_FASTCALL, "Select the calls of a round."},
    {"starts", (PyCFunction)(void (*)(void))starts, METH_FASTCALL, "Say where the entries of each call begin."},
    {"order", (PyCFunction)(void (*)(void))order, METH_FASTCALL, "Order the rows of all launches."},
    {"group", (PyCFunction)(void (*)(void))group, METH_FASTCALL, "Group reads into sections."},
    {"cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, "Say how each block is read."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "multifold._kernels",
    .m_doc = "The inner loops of planning and wiring, over int64 columns.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModuleDef_Init(&module);
}
