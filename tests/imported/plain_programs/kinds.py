"""Kinds of statements that a program may have besides: what real code does around its calls.

`KINDS` has the tables of each kind for each framework, in the form of `plain_programs.statements`. Names in
them stand for what a world holds (`plain_programs.world`), which is made anew for each run.
"""

from __future__ import annotations

from plain_programs import kinds_of_torch as of_torch

SCOPES = """
LOCAL.value = getattr(LOCAL, "value", 0) + 1; notes.append(float({s})); notes.append(LOCAL.value)
tools.depth += 1; notes.append(float({s})); notes.append(tools.depth); tools.depth -= 1
STACK.append(Handler({p})); xs.append({v} * top()); STACK.pop()

with Handler({p}):
    {block}
    xs.append({v} * top())

with Handler({p}), RLOCK:
    {block}
    notes.append(float({s}))
notes.append(top())

with Handler({p}):
    xs.extend([program(child, shared, False) for child in node.children[:1]])
    xs.append({v} * top())

with LOCK:
    notes.append(float({s}))

with RLOCK:
    HELD.append(node.word)
    notes.append(float({s}))
    {block}
    notes.append(len(HELD))
    HELD.pop()

LOCK.acquire()
try:
    notes.append(float({s}))
finally:
    LOCK.release()

old{n}, Settings.factor = Settings.factor, {p}
{block}
notes.append(float({s}))
xs.append({v} * Settings.factor)
Settings.factor = old{n}

old{n} = helper.factor
helper.factor = node.word
try:
    {block}
    xs.append(helper({v}))
finally:
    helper.factor = old{n}

LOCAL.value = node.word
{block}
notes.append(float({s}))
xs.append({v} * LOCAL.value)

with mock.patch.object(Settings, "factor", node.word * 0.5):
    {block}
    xs.append({v} * Settings.factor)

with mock.patch.object(tools, "scaled", lambda x: x * node.word):
    {block}
    xs.append(tools.scaled({v}))

with mock.patch.dict(TABLE, a=node.word):
    {block}
    notes.append(float({s}))
    notes.append(sorted(TABLE.items()))

token{n} = VAR.set(node.word)
{block}
notes.append(float({s}))
xs.append({v} * VAR.get())
VAR.reset(token{n})

def held{n}(x):
    with Handler({p}):
        yield x * top()
        {block}
        yield {v} * top()
xs.extend(held{n}({v}))

def held{n}(x):
    old, Settings.factor = Settings.factor, node.word
    try:
        yield x * Settings.factor
        yield float(x[{k}]) * Settings.factor
    finally:
        Settings.factor = old
parts{n} = held{n}({v})
xs.append(next(parts{n}))
{block}
notes.append(next(parts{n}))
parts{n}.close()

with contextlib.ExitStack() as open{n}:
    open{n}.enter_context(Handler({p}))
    open{n}.callback(setattr, tools, "depth", tools.depth)
    tools.depth = node.word
    {block}
    xs.append({v} * top() * tools.depth)

with contextlib.suppress(ZeroDivisionError), Handler({p}):
    notes.append(float({s}))
    notes.append(1 / (node.word % 2))

level{n} = LOGGER.level
LOGGER.setLevel(10 + node.word)
{block}
notes.append(LOGGER.level)
LOGGER.setLevel(level{n})
"""
"""Scopes of a program or of a library that are open across reads, and settings that are put back."""

SETTINGS = """
random.seed(node.word); notes.append(float({s})); notes.append(random.random())
np.random.seed(node.word); notes.append(float({s})); xs.append({v} * np.random.random())

with warnings.catch_warnings():
    warnings.simplefilter("error" if node.word % 2 else "ignore", Told)
    notes.append(float({s}))
    {block}
    try:
        warnings.warn("told", Told)
        notes.append("told")
    except Told:
        notes.append("raised")

with warnings.catch_warnings(record=True) as told{n}:
    warnings.simplefilter("always")
    notes.append(float({s}))
    warnings.warn(str(node.word), Told)
notes.append([str(x.message) for x in told{n} if x.category is Told])

with contextlib.redirect_stdout(io.StringIO()) as out{n}:
    print(node.word)
    {block}
    notes.append(float({s}))
    print(node.word + 1)
notes.append(out{n}.getvalue())

with mock.patch.dict(os.environ, PLAIN_WORD=str(node.word)):
    {block}
    notes.append(float({s}))
    notes.append(os.environ["PLAIN_WORD"])

old{n} = os.environ.get("PLAIN_WORD", "")
os.environ["PLAIN_WORD"] = str(node.word)
{block}
notes.append(os.environ["PLAIN_WORD"])
os.environ["PLAIN_WORD"] = old{n}

with inside(FOLDERS[{k}]):
    {block}
    notes.append(float({s}))
    notes.append(os.getcwd())

with decimal.localcontext() as context{n}:
    context{n}.prec = 3 + node.word
    {block}
    notes.append(float({s}))
    notes.append(str(decimal.Decimal(1) / 3))

with np.errstate(divide="raise" if node.word % 2 else "ignore"):
    notes.append(float({s}))
    try:
        np.float64(1) / np.float64(0)
        notes.append("none")
    except FloatingPointError:
        {block}

with np.printoptions(precision=2 + node.word % 5):
    {block}
    notes.append(float({s}))
    notes.append(str(np.array([1 / 3])))

random.seed(node.word)
{block}
notes.append(float({s}))
notes.append(random.random() if {p} % 2 else random.choice("abcdef"))

try:
    raise KeyError(node.word)
except KeyError:
    {block}
    notes.append(float({s}))
    notes.append(sys.exc_info()[1].args)
"""
"""Settings of the process that are other ones across a read."""

SHARED = """
tally.n += 1
notes.append(tally.n)
tally.n += 1; xs.append({v} * tally.n)
tally.n += 1; notes.append(float({s})); notes.append(tally.n)
tally.last = {v}
if tally.last is not None: xs.append(tally.last + {v})
tally.total = tally.total + {v}
tally.total += detached({v})
xs.append(tally.total * 0.1)
tally.best = maximum(tally.best, {v})
xs.append(tally.best)
tally.largest = max(tally.largest, float({s})); notes.append(tally.largest)
tally.average = tally.average * 0.9 + 0.1 * detached({v})
xs.append(tally.average + {v})
tally.state = tanh(tally.state + {v}); xs.append(tally.state)
Counted.n += 1; notes.append(Counted.n)
Counted.n += 1; notes.append(float({s})); xs.append({v} * Counted.n)
Settings.factor = Settings.factor + 0.25; xs.append({v} * Settings.factor)
LOG.append(node.word); notes.append(len(LOG))
LOG.append({s})
LOG.append(float({s}))
LOG.append({s} * 2); notes.append(float({s})); notes.append(len(LOG))
if LOG: xs.append({v} * LOG[-1])
xs.append({v} + sum(LOG[-3:]))
if len(LOG) > 2: LOG.pop(0)
if LOG: LOG[-1] = LOG[-1] * 0.5
STATS["loss"] = STATS.get("loss", 0.0) + {s}
STATS["loss"] += {s}
STATS["loss"] += float({s})
STATS["seen"] += 1; notes.append(float({s})); notes.append(STATS["seen"])
xs.append({v} * STATS["loss"])
STATS.setdefault(node.word % 5, {v})
xs.append(STATS.get(node.word % 5, {v}) * 2)
SEEN.add(node.word); notes.append(float({s})); notes.append(sorted(SEEN))
COUNTS[node.word % 3] += 1; notes.append(dict(COUNTS))
notes.append(next(NUMBERS)); xs.append({v} * next(NUMBERS))
notes.append(stepped()); notes.append(float({s})); notes.append(stepped())
notes.append(remembered(node.word)); xs.append({v} * remembered({s}))
QUEUE.append({v}); xs.append(sum(QUEUE))
PAGE.write(str(node.word)); notes.append(float({s})); PAGE.write(f"{{s}:.3f}")
VAR.set(VAR.get() + 1); xs.append({v} * VAR.get())
shared = shared * 0.5; xs.append(shared)
tally.history = (*tally.history[-2:], {v}); xs.append(sum(tally.history))

if node.word % 7 not in MEMO:
    MEMO[node.word % 7] = layer({v})
xs.append(MEMO[node.word % 7] + {v})

if float({s}) > tally.largest:
    tally.largest, tally.last = float({s}), {v}
    {block}

tally.n += 1
{block}
notes.append(float({s}))
xs.append({v} * tally.n)

tally.queue.append({v})
if len(tally.queue) > 2:
    xs.append(tally.queue.pop(0) * 2)

for i in range(2):
    tally.total = tally.total * 0.5 + {v}
    notes.append(float({s}))
xs.append(tally.total)

total{n} = tally.total
{block}
tally.total = total{n} + {v}
"""
"""Stores into what all examples share."""

SHARED_CHANGED = """
tally.total += detached({v}); notes.append(float({s})); xs.append(tally.total + 0)
tally.average *= 0.9; tally.average += 0.1 * detached({v}); xs.append(tally.average + {v})
MEMORY[tally.n % 8] = detached({v}); tally.n += 1
MEMORY[node.word % 8] += detached({v})
xs.append(MEMORY[{p} % 8] * {v})
MEMORY[node.word % 8] *= 0.5; notes.append(float({s})); MEMORY[:] += 0.01
MEMORY[node.word % 8, {k}] = detached({s})
xs.append(MEMORY.sum(0) + {v})
shared += detached({v}); xs.append(shared * {v})
shared[{i}] = 0.5; notes.append(float({s})); xs.append(shared + {v})
if LOG: LOG[-1] *= 0.5
if tally.last is not None: tally.last *= 0.5
HELD.append({v} * 1); HELD[0][{i}] = {c}; xs.append(HELD[0] + 0)
"""

BAD = """
notes.append(1 / (node.word % 6))
if node.word % 7 == 0: raise ValueError(node.word)
if not float({s}) < 1.2: raise ValueError("large")
assert float({s}) < 1.5, "large"
{"a": 1, "b": 2}["ab?"[node.word % 3]]

try:
    notes.append(1 / (node.word % 3))
except ZeroDivisionError:
    {block}

try:
    if not float({s}) < 0.7:
        raise ValueError(node.word)
    {block}
except ValueError as error:
    notes.append(str(error))

try:
    {block}
    [1, 2, 3][node.word % 5]
    xs.append({v})
except IndexError:
    notes.append("none")
    xs.append({v} * 0.5)

try:
    notes.append(int({s} * 3))
except (ValueError, OverflowError) as error:
    notes.append(str(error))

for attempt in range(3):
    try:
        if int({s} * 9) % 3 != attempt:
            raise ValueError(attempt)
        {block}
        break
    except ValueError:
        continue
else:
    raise Stop("none of three")
"""
"""Examples that fail by themselves or are bad, and are caught or not."""

BAD_OF_NUMPY = """
if not np.isfinite({v}).all(): raise ValueError("not finite")
xs.append(np.linalg.solve(np.diag(np.maximum({v}, 0)), {v}))

try:
    xs.append(np.linalg.cholesky({v}.reshape(2, 2) @ {v}.reshape(2, 2).T + {s} * np.eye(2)))
except np.linalg.LinAlgError as error:
    notes.append(type(error).__name__)
    {block}

try:
    xs.append(CONSTANT[({v} * 4).astype(int)])
except IndexError as error:
    notes.append(type(error).__name__)

with np.errstate(all="raise"):
    try:
        xs.append(np.sqrt({v}))
    except FloatingPointError:
        {block}
"""

SEEDS = """
xs.append({v} * random.random())
xs.append({v} * np.random.random())
xs.append({v} + np.random.normal())
notes.append(random.choice("abcdef"))
notes.append(float({s})); notes.append(random.gauss(0, 1))
notes.append([random.randrange(9), float({s}), random.randrange(9)])
notes.append(int(np.random.randint(9)))
xs.append(chancy({v}))
xs.append(roughened({v}))

if random.random() < 0.5:
    {block}
else:
    xs.append({v} * random.random())

for i in range(random.randrange(3)):
    {block}
    notes.append(random.random() + float({s}))

words{n} = [*"abcd"]
random.shuffle(words{n})
{block}
notes.append(words{n})

if float({s}) > random.random():
    {block}
"""
"""Random numbers, where each example has streams of its own."""

CELLS = """
xs.append(counting({v}))
xs.append(counting({v}) + counting({v}))
xs.append(counting({v})); notes.append(float({s})); notes.append(tally.n)
xs.append(keeping({v}))
xs.append(keeping({v})); xs.append(tally.kept * {v})
xs.append(listing({v})); notes.append(len(LOG))
xs.append(summing({v}))
xs.append(noting({v}, node))
xs.append(block_of({v}))
xs.append(block_of({v})); notes.append(float({s})); notes.append(block_of.n)
xs.append(reading({v}))
xs.append(branching({v}))

with Handler({p}):
    xs.append(scaled_by_top({v}))
    {block}
    xs.append(scaled_by_top({v}))

old{n}, Settings.factor = Settings.factor, node.word
xs.append(scaled_by_settings({v}))
{block}
xs.append(scaled_by_settings({v}))
Settings.factor = old{n}
"""
"""Cells that count, keep, write or read what others change."""

DERIVATIVES_OF_JAX = """
xs.append(forces({v}))
xs.append(forces({v}) * {v})
xs.append(forces_between({v}, {v}))
xs.append(curvature({v}))
xs.append(jax.grad(lambda x: jnp.tanh(x).sum())({v}))
xs.append(jax.grad(lambda x: layer(x).sum())({v}))
xs.append(jax.grad(lambda x: (layer(x) * {v}).sum())({v}))
xs.append(jax.grad(lambda x: layer(x).sum())(node.value))
xs.append(jax.jvp(layer, (node.value,), (node.value,))[{k}])
xs.append(jax.vjp(layer, node.value)[1](node.value * 2)[0])
xs.append(jax.jacrev(layer)(node.value)[{k}])
xs.append(jax.hessian(lambda x: (layer(x) * {v}).sum())(node.value)[{k}])
xs.append(jax.vmap(layer)(jnp.stack([node.value, node.value])).sum(0))
xs.append(jax.jit(lambda x: layer(x) * {v})(node.value))
xs.append(jax.jit(layer)({v}))
notes.append(float(forces({v})[{k}]))
"""

DERIVATIVES_OF_TENSORFLOW = """
xs.append(forces({v}))
xs.append(forces({v}) * {v})
xs.append(forces_between({v}, {v}))
notes.append(float(forces({v})[{k}]))

with tf.GradientTape() as tape:
    tape.watch(node.value)
    y = tf.reduce_sum(layer(node.value) * {v})
xs.append(tape.gradient(y, node.value))

x = {v}
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.reduce_sum(layer(x) ** 2)
xs.append(tape.gradient(y, x))
"""

KINDS: dict[str, dict[str, list[str]]] = {
    "torch": {
        "derivatives": [of_torch.DERIVATIVES],
        "weights": [of_torch.WEIGHTS],
        "scopes": [SCOPES],
        "settings": [SETTINGS, of_torch.SETTINGS],
        "shared": [SHARED, of_torch.SHARED, SHARED_CHANGED],
        "traces": [of_torch.TRACES],
        "seeds": [SEEDS, of_torch.SEEDS],
        "bad": [BAD, of_torch.BAD],
        "cells": [CELLS],
    },
    "numpy": {
        "scopes": [SCOPES],
        "settings": [SETTINGS],
        "shared": [SHARED, SHARED_CHANGED],
        "seeds": [SEEDS],
        "bad": [BAD, BAD_OF_NUMPY],
        "cells": [CELLS],
    },
    "jax": {
        "derivatives": [DERIVATIVES_OF_JAX],
        "scopes": [SCOPES],
        "settings": [SETTINGS],
        "shared": [SHARED],
        "seeds": [SEEDS],
        "bad": [BAD],
        "cells": [CELLS],
    },
    "tensorflow": {
        "derivatives": [DERIVATIVES_OF_TENSORFLOW],
        "scopes": [SCOPES],
        "settings": [SETTINGS],
        "shared": [SHARED],
        "seeds": [SEEDS],
        "bad": [BAD],
        "cells": [CELLS],
    },
}
"""For each framework its kinds, and their tables."""
