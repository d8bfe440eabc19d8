/* Typed levels, and launches made of them: the inner loops of multifold._schedule.levels and policies. */

#include "_columns.h"

#define MOST_TYPES 1024 /* the kernels keep a table of all pairs of types; NumPy serves more */
#define COUNTERS 64     /* multifold._schedule.levels.COUNTERS */

/* levels(sources, readers, levels): see multifold._schedule.levels.chain_levels. */
KERNEL(levels)
{
    Column c[3];
    if (open_columns(args, nargs, c, 3, 2) < 0)
        return NULL;
    const int64_t *sources = c[0].at, *readers = c[1].at, count = c[2].length;
    int64_t *level = c[2].at;
    int fine = c[0].length == c[1].length;
    for (int64_t i = 0; i < count; i++)
        level[i] = 1;
    for (int64_t i = 0; fine && i < c[0].length; i++) {
        int64_t source = sources[i], reader = readers[i];
        fine = source >= 0 && source < count && reader >= 0 && reader < count;
        if (fine && level[source] >= level[reader])
            level[reader] = level[source] + 1;
    }
    close_columns(c, 3);
    return fine ? Py_NewRef(Py_None) : out_of_range();
}

/* ---- cycles of types ------------------------------------------------------------------------------ */

/* Number the strongly connected components of a table of edges between types (Tarjan 1972, without
   recursion). `room` has place for five columns of types. */
static void find_components(const unsigned char *edge, int64_t types, int64_t *component, int64_t *room)
{
    int64_t *index = room, *low = index + types, *next = low + types, *stack = next + types;
    int64_t *path = stack + types, counter = 0, found = 0, height = 0;
    memset(index, 0, types * sizeof(int64_t));
    memset(next, 0, types * sizeof(int64_t));
    for (int64_t i = 0; i < types; i++)
        component[i] = -1;
    for (int64_t root = 0; root < types; root++) {
        int64_t depth = 0;
        if (!index[root])
            path[depth++] = root;
        while (depth) {
            int64_t vertex = path[depth - 1], target = next[vertex];
            if (!index[vertex]) {
                index[vertex] = low[vertex] = ++counter;
                stack[height++] = vertex;
            }
            while (target < types && !edge[vertex * types + target])
                target++;
            if (target < types) {
                next[vertex] = target + 1;
                if (!index[target])
                    path[depth++] = target;
                else if (component[target] < 0 && low[target] < low[vertex])
                    low[vertex] = low[target];
                continue;
            }
            next[vertex] = types;
            depth--;
            if (depth && low[vertex] < low[path[depth - 1]])
                low[path[depth - 1]] = low[vertex];
            if (low[vertex] == index[vertex]) {
                while (component[vertex] < 0)
                    component[stack[--height]] = found;
                found++;
            }
        }
    }
}

typedef struct {
    const int64_t *types, *sources, *readers;
    int64_t calls, edges, kinds;
    int64_t *cycle, *levels; /* to be filled in */
} Problem;

/* Count, on each cycle of several types, type by type: the calls of it on the longest path to each call.
   `within` holds the edges inside of such cycles, one cycle after the other; `begin` where each begins. */
static void count_jointly(const Problem *p, const int64_t *component, const int64_t *within,
                          const int64_t *begin, int64_t *counts)
{
    for (int64_t kind = 0; kind < p->kinds; kind++) {
        if (p->cycle[kind] < 2 || p->cycle[kind] > COUNTERS)
            continue;
        int64_t low = begin[component[kind]], high = begin[component[kind] + 1];
        for (int64_t i = low; i < high; i++) {
            int64_t source = p->sources[within[i]], reader = p->readers[within[i]];
            counts[source] = p->types[source] == kind;
            counts[reader] = p->types[reader] == kind;
        }
        for (int64_t i = low; i < high; i++) {
            int64_t source = p->sources[within[i]], reader = p->readers[within[i]];
            int64_t count = counts[source] + (p->types[reader] == kind);
            if (count > counts[reader])
                counts[reader] = count;
        }
        for (int64_t i = low; i < high; i++) {
            int64_t reader = p->readers[within[i]];
            if (p->types[reader] == kind)
                p->levels[reader] = counts[reader];
        }
    }
}

static int fill_levels(const Problem *p)
{
    int64_t kinds = p->kinds, joint = 0, any = 0;
    unsigned char *edge = calloc(kinds * kinds + 1, 1);
    int64_t *component = malloc((7 * kinds + 2) * sizeof(int64_t)), *begin = component + kinds;
    int64_t *within = malloc((p->edges + p->calls + 1) * sizeof(int64_t));
    int fine = edge && component && within;
    if (!fine)
        goto done;
    for (int64_t i = 0; i < p->edges; i++)
        edge[p->types[p->sources[i]] * kinds + p->types[p->readers[i]]] = 1;
    find_components(edge, kinds, component, begin + kinds + 1);
    memset(begin, 0, (kinds + 1) * sizeof(int64_t));
    for (int64_t kind = 0; kind < kinds; kind++)
        begin[component[kind]]++;
    for (int64_t kind = 0; kind < kinds; kind++) {
        int64_t size = begin[component[kind]];
        p->cycle[kind] = size > 1 ? size : edge[kind * kinds + kind];
        any |= p->cycle[kind];
        joint |= size > 1 && size <= COUNTERS;
    }
    for (int64_t i = 0; i < p->calls; i++)
        p->levels[i] = 1;
    if (!any)
        goto done;
    memset(begin, 0, (kinds + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < p->edges; i++) {
        int64_t source = p->sources[i], reader = p->readers[i], kind = p->types[reader];
        if (component[p->types[source]] != component[kind])
            continue;
        if (p->cycle[kind] > 1 && p->cycle[kind] <= COUNTERS)
            begin[component[kind] + 1]++;
        else if (p->levels[source] >= p->levels[reader])
            p->levels[reader] = p->levels[source] + 1;
    }
    if (!joint)
        goto done;
    for (int64_t i = 0; i < kinds; i++)
        begin[i + 1] += begin[i];
    for (int64_t i = 0; i < p->edges; i++) {
        int64_t kind = p->types[p->readers[i]];
        if (component[p->types[p->sources[i]]] == component[kind] && p->cycle[kind] > 1
            && p->cycle[kind] <= COUNTERS)
            within[begin[component[kind]]++] = i;
    }
    memmove(begin + 1, begin, kinds * sizeof(int64_t));
    begin[0] = 0;
    count_jointly(p, component, within, begin, within + p->edges);
done:
    free(edge);
    free(component);
    free(within);
    return fine;
}

static int in_range(const int64_t *values, int64_t count, int64_t limit)
{
    int fine = 1;
    for (int64_t i = 0; i < count; i++)
        fine &= values[i] >= 0 && values[i] < limit;
    return fine;
}

/* typed_levels(types, sources, readers, cycle, levels): see multifold._schedule.levels.typed_levels. Return whether
   there were few enough types. */
KERNEL(typed_levels)
{
    Column c[5];
    if (open_columns(args, nargs, c, 5, 3) < 0)
        return NULL;
    Problem p = {c[0].at, c[1].at, c[2].at, c[0].length, c[1].length, c[3].length, c[3].at, c[4].at};
    PyObject *result = NULL;
    if (p.kinds > MOST_TYPES)
        result = Py_NewRef(Py_False);
    else if (c[2].length != p.edges || c[4].length != p.calls || !in_range(p.types, p.calls, p.kinds)
             || !in_range(p.sources, p.edges, p.calls) || !in_range(p.readers, p.edges, p.calls))
        out_of_range();
    else
        result = fill_levels(&p) ? Py_NewRef(Py_True) : PyErr_NoMemory();
    close_columns(c, 5);
    return result;
}

/* ---- launches ------------------------------------------------------------------------------------- */

/* Put the edges between buckets, `from` and `to`, into the order of `from`, then `to`; `begin` becomes where
   the edges from each bucket begin. Only `to` is kept. Each column of `room` is as long as the edges. */
static void sort_edges(int64_t *from, int64_t *to, int64_t edges, int64_t buckets, int64_t *begin,
                       int64_t *room)
{
    int64_t *other_from = room, *other_to = room + edges;
    for (int pass = 0; pass < 2; pass++) { /* a counting sort keeps the order of equal ones */
        const int64_t *key = pass ? from : to;
        memset(begin, 0, (buckets + 1) * sizeof(int64_t));
        for (int64_t i = 0; i < edges; i++)
            begin[key[i] + 1]++;
        for (int64_t i = 0; i < buckets; i++)
            begin[i + 1] += begin[i];
        for (int64_t i = 0; i < edges; i++) {
            int64_t at = begin[key[i]]++;
            other_from[at] = from[i];
            other_to[at] = to[i];
        }
        memcpy(from, other_from, edges * sizeof(int64_t));
        memcpy(to, other_to, edges * sizeof(int64_t));
    }
    memmove(begin + 1, begin, buckets * sizeof(int64_t));
    begin[0] = 0;
}

/* Rank buckets so that each comes behind those that it reads (Kahn 1962); return how many have a rank. */
static int64_t rank_buckets(const int64_t *begin, const int64_t *to, int64_t buckets, int64_t *waiting,
                            int64_t *ready, int64_t *rank)
{
    int64_t end = 0, done = 0;
    memset(waiting, 0, buckets * sizeof(int64_t));
    for (int64_t i = 0; i < begin[buckets]; i++)
        waiting[to[i]]++;
    for (int64_t i = 0; i < buckets; i++)
        if (!waiting[i])
            ready[end++] = i;
    for (; done < end; done++) {
        rank[ready[done]] = done;
        for (int64_t i = begin[ready[done]]; i < begin[ready[done] + 1]; i++)
            if (!--waiting[to[i]])
                ready[end++] = to[i];
    }
    return done;
}

/* Fill in the launch of each call and return their number; -1 if no order of the buckets respects the edges,
   -2 if there are too many pairs of a type and a level for a table, -3 without memory. */
static int64_t make_launches(const Problem *p, int64_t *launch)
{
    int64_t calls = p->calls, edges = p->edges, deepest = 0, buckets = 0;
    for (int64_t i = 0; i < calls; i++)
        deepest = p->levels[i] >= deepest ? p->levels[i] + 1 : deepest;
    if (deepest && p->kinds > (8 * calls + 65536) / deepest)
        return -2;
    int64_t *number = calloc(p->kinds * deepest + 1, sizeof(int64_t));
    int64_t *room = malloc((4 * edges + 5 * calls + 2) * sizeof(int64_t));
    if (!number || !room) {
        free(number);
        free(room);
        return -3;
    }
    for (int64_t i = 0; i < calls; i++)
        number[p->types[i] * deepest + p->levels[i]] = 1;
    for (int64_t i = 0; i < p->kinds * deepest; i++) {
        int64_t seen = number[i];
        number[i] = buckets;
        buckets += seen;
    }
    int64_t *from = room, *to = from + edges, *spare = to + edges, *begin = spare + 2 * edges;
    int64_t *waiting = begin + calls + 1, *ready = waiting + calls, *rank = ready + calls;
    for (int64_t i = 0; i < calls; i++)
        launch[i] = number[p->types[i] * deepest + p->levels[i]];
    for (int64_t i = 0; i < edges; i++) {
        from[i] = launch[p->sources[i]];
        to[i] = launch[p->readers[i]];
    }
    sort_edges(from, to, edges, buckets, begin, spare);
    if (rank_buckets(begin, to, buckets, waiting, ready, rank) < buckets)
        buckets = -1;
    for (int64_t i = 0; buckets >= 0 && i < calls; i++)
        launch[i] = rank[launch[i]];
    free(number);
    free(room);
    return buckets;
}

/* bucket(types, levels, sources, readers, launch): see multifold._schedule.policies.bucketed. Return the number of
   launches, -1 if no order of them respects the edges, or None if there are too many pairs for a table. */
KERNEL(bucket)
{
    Column c[5];
    if (open_columns(args, nargs, c, 5, 4) < 0)
        return NULL;
    Problem p = {c[0].at, c[2].at, c[3].at, c[0].length, c[2].length, 0, NULL, c[1].at};
    int fine = c[1].length == p.calls && c[4].length == p.calls && c[3].length == p.edges
               && in_range(p.sources, p.edges, p.calls) && in_range(p.readers, p.edges, p.calls);
    for (int64_t i = 0; fine && i < p.calls; i++) {
        fine = p.types[i] >= 0 && p.types[i] < INT32_MAX && p.levels[i] >= 0 && p.levels[i] <= p.calls;
        p.kinds = p.types[i] >= p.kinds ? p.types[i] + 1 : p.kinds;
    }
    int64_t count = fine ? make_launches(&p, c[4].at) : 0;
    close_columns(c, 5);
    if (!fine)
        return out_of_range();
    return count == -3 ? PyErr_NoMemory() : count == -2 ? Py_NewRef(Py_None) : PyLong_FromLongLong(count);
}

/* ---- a whole schedule ----------------------------------------------------------------------------- */

enum { TYPES, PENDING, REFS, REF_STARTS, MEMBERS, MEMBER_STARTS, RAGGED_STARTS, ORDER, COLUMNS };

/* Append the edge from the call behind a reference, if that call is pending; -1 if there is no such call. */
static int note_edge(int64_t ref, int64_t reader, const int64_t *number, int64_t calls, int64_t *sources,
                     int64_t *readers, int64_t *edges)
{
    int64_t call = ref & CALL_MASK;
    if (call >= calls || number[call] >= reader)
        return -1;
    if (number[call] >= 0) {
        sources[*edges] = number[call];
        readers[(*edges)++] = reader;
    }
    return 0;
}

/* Fill in the edges between pending calls, those of each reader in the order of its operands; return how many
   they are, -1 for an index that is out of range. */
static int64_t find_edges(const Column *c, int64_t *number, int64_t *sources, int64_t *readers)
{
    int64_t calls = c[TYPES].length, edges = 0;
    for (int64_t i = 0; i < calls; i++)
        number[i] = -1;
    for (int64_t i = 0; i < c[PENDING].length; i++)
        number[c[PENDING].at[i]] = i;
    for (int64_t i = 0; i < c[PENDING].length; i++) {
        int64_t call = c[PENDING].at[i];
        int64_t low = c[REF_STARTS].at[call], high = c[REF_STARTS].at[call + 1];
        if (low < 0 || high > c[REFS].length)
            return -1;
        for (int64_t j = low; j < high; j++)
            if (note_edge(c[REFS].at[j], i, number, calls, sources, readers, &edges) < 0)
                return -1;
        if (!c[MEMBERS].length)
            continue;
        low = c[RAGGED_STARTS].at[call];
        high = c[RAGGED_STARTS].at[call + 1];
        if (low < 0 || low > high || high >= c[MEMBER_STARTS].length)
            return -1;
        low = c[MEMBER_STARTS].at[low];
        high = c[MEMBER_STARTS].at[high];
        if (low < 0 || high > c[MEMBERS].length)
            return -1;
        for (int64_t j = low; j < high; j++)
            if (c[MEMBERS].at[j] >= 0
                && note_edge(c[MEMBERS].at[j], i, number, calls, sources, readers, &edges) < 0)
                return -1;
    }
    return edges;
}

/* Number the types of the pending calls without gaps, in ascending order; return how many they are, -1 for one
   that is out of range, -3 without memory. */
static int64_t number_types(const Column *c, int64_t *types)
{
    int64_t kinds = 0, found = 0;
    for (int64_t i = 0; i < c[PENDING].length; i++) {
        types[i] = c[TYPES].at[c[PENDING].at[i]];
        if (types[i] < 0 || types[i] > INT32_MAX)
            return -1;
        kinds = types[i] >= kinds ? types[i] + 1 : kinds;
    }
    int64_t *number = calloc(kinds + 1, sizeof(int64_t));
    if (!number)
        return -3;
    for (int64_t i = 0; i < c[PENDING].length; i++)
        number[types[i]] = 1;
    for (int64_t i = 0; i < kinds; i++) {
        int64_t present = number[i];
        number[i] = found;
        found += present;
    }
    for (int64_t i = 0; i < c[PENDING].length; i++)
        types[i] = number[types[i]];
    free(number);
    return found;
}

/* The sum of how many calls of each type lie on one path: multifold._schedule.levels.Problem.lower_bound. `longest` has
   room for a number for each type. */
static int64_t lower_bound(const Problem *p, int64_t *longest)
{
    int64_t sum = 0;
    memset(longest, 0, p->kinds * sizeof(int64_t));
    for (int64_t i = 0; i < p->calls; i++)
        if (p->levels[i] > longest[p->types[i]])
            longest[p->types[i]] = p->levels[i];
    for (int64_t i = 0; i < p->kinds; i++)
        sum += p->cycle[i] > COUNTERS ? 1 : longest[i];
    return sum;
}

/* schedule(types, pending, refs, ref_starts, members, member_starts, ragged_starts, order): the schedule of the
   pending calls that buckets of (type, typed level) make, as multifold._schedule.schedule.make_schedule finds it under
   the policy "auto". Fill in the calls ordered by launch; return where each launch begins, as bytes, and the
   lower bound; or None where that is no schedule, or where there are too many types. */
KERNEL(schedule)
{
    Column c[COLUMNS];
    if (open_columns(args, nargs, c, COLUMNS, ORDER) < 0)
        return NULL;
    int64_t calls = c[TYPES].length, pending = c[PENDING].length, most = c[REFS].length + c[MEMBERS].length;
    int64_t *room = malloc((calls + 4 * pending + 2 * most + 1) * sizeof(int64_t));
    int64_t *number = room, *types = number + calls, *levels = types + pending, *launch = levels + pending;
    int64_t *cycle = launch + pending, *sources = cycle + pending, *readers = sources + most;
    PyObject *result = NULL;
    if (!room) {
        PyErr_NoMemory();
        goto done;
    }
    int fine = c[ORDER].length == pending && c[REF_STARTS].length == calls + 1
               && (!c[MEMBERS].length || c[RAGGED_STARTS].length == calls + 1)
               && in_range(c[PENDING].at, pending, calls);
    int64_t edges = fine ? find_edges(c, number, sources, readers) : -1;
    int64_t kinds = edges < 0 ? -1 : number_types(c, types);
    if (kinds < 0) {
        kinds == -3 ? PyErr_NoMemory() : out_of_range();
        goto done;
    }
    Problem p = {types, sources, readers, pending, edges, kinds, cycle, levels};
    if (kinds > MOST_TYPES) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    if (!fill_levels(&p)) {
        PyErr_NoMemory();
        goto done;
    }
    int64_t launches = make_launches(&p, launch);
    if (launches == -3)
        PyErr_NoMemory();
    else if (launches < 0)
        result = Py_NewRef(Py_None);
    if (launches < 0)
        goto done;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (launches + 1) * (Py_ssize_t)sizeof(int64_t));
    if (!bytes)
        goto done;
    int64_t *bounds = (int64_t *)PyBytes_AsString(bytes);
    memset(bounds, 0, (launches + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < pending; i++)
        bounds[launch[i]]++;
    for (int64_t i = 0, end = 0; i <= launches; i++) {
        int64_t size = bounds[i];
        bounds[i] = end; /* where the next call of the launch goes */
        end += size;
    }
    for (int64_t i = 0; i < pending; i++)
        c[ORDER].at[bounds[launch[i]]++] = c[PENDING].at[i];
    memmove(bounds + 1, bounds, launches * sizeof(int64_t));
    bounds[0] = 0;
    result = Py_BuildValue("(NL)", bytes, (long long)lower_bound(&p, number));
done:
    free(room);
    close_columns(c, COLUMNS);
    return result;
}

/* ---- the levels of merged traces ------------------------------------------------------------------ */

/* merge_levels(signature, needed, levels, pairs, highest, calls, bounds): see
   multifold._traces.minibatch.bucketed_in_numpy. Return the number of launches, -1 where no order of the buckets
   respects the edges. */
KERNEL(merge_levels)
{
    Column c[7];
    if (open_columns(args, nargs, c, 7, 5) < 0)
        return NULL;
    const int64_t *signature = c[0].at, *needed = c[1].at, *levels = c[2].at, *highest = c[4].at;
    int64_t calls = c[1].length, edges = c[3].length / 4, kinds = c[4].length, buckets = 0, launches = 0;
    int64_t *bounds = c[6].at;
    int64_t *room = malloc((kinds + 4 * edges + 5 * calls + 2) * sizeof(int64_t));
    int64_t *first = room, *from = first + kinds, *to = from + edges, *spare = to + edges;
    int64_t *launch = spare + 2 * edges, *begin = launch + calls, *waiting = begin + calls + 1;
    int64_t *ready = waiting + calls, *rank = ready + calls;
    if (!room) {
        close_columns(c, 7);
        return PyErr_NoMemory();
    }
    int fine = c[2].length == calls && c[5].length == calls && c[6].length == calls + 1 && c[3].length % 4 == 0;
    for (int64_t i = 0; fine && i < kinds; i++) { /* each bucket holds a call: there are no more of them */
        first[i] = buckets;
        buckets += highest[i];
        fine = highest[i] >= 0 && highest[i] <= calls && buckets <= calls;
    }
    for (int64_t i = 0; fine && i < 2 * edges; i++) {
        int64_t kind = c[3].at[2 * i], level = c[3].at[2 * i + 1];
        fine = kind >= 0 && kind < kinds && level >= 0 && level < highest[kind];
        (i % 2 ? to : from)[i / 2] = fine ? first[kind] + level : 0;
    }
    for (int64_t i = 0; fine && i < calls; i++) {
        int64_t kind = needed[i] >= 0 && needed[i] < c[0].length ? signature[needed[i]] : -1;
        fine = kind >= 0 && kind < kinds && levels[i] > 0 && levels[i] <= highest[kind];
        launch[i] = fine ? first[kind] + levels[i] - 1 : 0;
    }
    if (fine)
        sort_edges(from, to, edges, buckets, begin, spare);
    if (fine && rank_buckets(begin, to, buckets, waiting, ready, rank) < buckets)
        launches = -1;
    if (fine && launches == 0) {
        memset(bounds, 0, (buckets + 1) * sizeof(int64_t));
        for (int64_t i = 0; i < calls; i++) {
            launch[i] = rank[launch[i]];
            launches = launch[i] + 1 > launches ? launch[i] + 1 : launches;
            bounds[launch[i] + 1]++;
        }
        for (int64_t i = 0; i < buckets; i++) {
            ready[i] = bounds[i]; /* where the next call of a launch goes */
            bounds[i + 1] += bounds[i];
        }
        for (int64_t i = 0; i < calls; i++)
            c[5].at[ready[launch[i]]++] = needed[i];
    }
    free(room);
    close_columns(c, 7);
    return fine ? PyLong_FromLongLong(launches) : out_of_range();
}

/* ---- ancestors ------------------------------------------------------------------------------------ */

/* Mark the call behind a reference; -1 if it is not before its reader. */
static int mark(int64_t ref, int64_t reader, unsigned char *needed)
{
    int64_t call = ref & CALL_MASK;
    if (call >= reader)
        return -1;
    needed[call] = 1;
    return 0;
}

/* ancestors(outputs, refs, ref_starts, members, member_starts, ragged_starts): see
   multifold._schedule.columns.Columns.ancestors. Return the calls as bytes. */
KERNEL(ancestors)
{
    Column c[6];
    if (open_columns(args, nargs, c, 6, 6) < 0)
        return NULL;
    const int64_t *refs = c[1].at, *ref_starts = c[2].at, *members = c[3].at, *member_starts = c[4].at;
    const int64_t *ragged_starts = c[5].at;
    int64_t calls = c[2].length - 1, count = 0;
    unsigned char *needed = calloc(calls > 0 ? calls : 1, 1);
    PyObject *result = NULL;
    int fine = calls >= 0 && in_range(c[0].at, c[0].length, calls)
               && (!c[3].length || c[5].length == calls + 1);
    if (!needed) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t i = 0; fine && i < c[0].length; i++)
        needed[c[0].at[i]] = 1;
    for (int64_t call = calls - 1; fine && call >= 0; call--) {
        if (!needed[call])
            continue;
        count++;
        fine = ref_starts[call] >= 0 && ref_starts[call + 1] <= c[1].length;
        for (int64_t i = ref_starts[call]; fine && i < ref_starts[call + 1]; i++)
            fine = mark(refs[i], call, needed) == 0;
        if (!fine || !c[3].length)
            continue;
        int64_t low = ragged_starts[call], high = ragged_starts[call + 1];
        fine = low >= 0 && low <= high && high < c[4].length && member_starts[low] >= 0
               && member_starts[high] <= c[3].length;
        for (int64_t i = fine ? member_starts[low] : 0; fine && i < member_starts[high]; i++)
            fine = members[i] < 0 || mark(members[i], call, needed) == 0;
    }
    if (!fine) {
        out_of_range();
        goto done;
    }
    result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    int64_t *found = result ? (int64_t *)PyBytes_AsString(result) : NULL;
    for (int64_t call = 0; found && call < calls; call++)
        if (needed[call])
            *found++ = call;
done:
    free(needed);
    close_columns(c, 6);
    return result;
}
