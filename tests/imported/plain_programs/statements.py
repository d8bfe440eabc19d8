"""What random programs consist of in any case: tables of statements, for all frameworks and for each.

The first part of a table has a statement in each line; each other part, behind an empty line, is one of
several lines. `plain_programs.programs` says what the names in braces stand for.
"""

from __future__ import annotations

EVERYWHERE = """
xs.append(layer({v}))
xs.append(layer(vector(node.value)))
xs.append({v} + {v})
xs.append({x} * {c})
xs.append(2.5 - {v})
xs.append(tanh({v}) / ({v} ** 2 + 1))
xs.append(-abs({v}))
xs.append({v} @ U)
xs.append(U @ {v})
xs.append({v} @ {v})
xs.append({v}.reshape(2, 2) @ {v}.reshape(2, 2))
xs.append({v}.reshape(2, 2).T)
xs.append({v}.reshape(2, 2)[:, {k}])
xs.append({v}[{i}])
xs.append({v}[{k}:])
xs.append({v}[None, ::2])
xs.append({v}[{v} > {t}].sum())
xs.append({v}[:0])
xs.append({v}[:0].sum())
xs.extend({v}.reshape(2, 2))
a, b, *rest = {v}; xs.append(a * b + rest[0])
xs.append({v}.sum())
xs.append({v}.mean())
xs.append({v}.prod())
xs.append(distinct({v}).max())
xs.append({v}.reshape(2, 2).sum(axis={k}, keepdims=True))
xs.append(stack([{v}, {v}]).sum({k}))
xs.append(cat([{v}[1:], {v}[:1]]))
xs.append(cat([{v}[:0], {v}]))
xs.append(where({v} > {t}, {v}, {v}))
xs.append(({v} > {t}) & ({v} < 1.5))
xs.append(distinct({v}).argmax())
xs.append(cell({v}, {v}))
xs.append(cell({v}, y={v}))
xs.extend(pair({v}))
xs.append(unit.turned({v}))
xs.append(of_rows({v}[None])[0])
xs.append(ones_like({v}) * {s})
xs.append(CONSTANT * {v})
xs.append(shared + {v})
xs.append(node.value * {v})
xs.append(copy.deepcopy({v}))
xs.append((lambda x: x * {s} + 1)({v}))
xs.append(sum(x.sum() for x in ({v}, {v})))
xs.append(functools.reduce(operator.mul, [{v}, {v}]))
xs.append(functools.partial(cell, {v})({v}))
xs.append(sum([x * i for i, x in enumerate({v})]))
xs.append(sum([a * b for a, b in zip({v}, {v}[1:])]))
xs.extend(multifold.batched(cell, join="list", backend=BACKEND)([{v}, {v}], [{v}, {v}]))
xs.append(multifold.batched(lambda x: layer(x) * {s}, backend=BACKEND)([{v}, {v}]).sum(0))
xs.append(dict(zip("ab", {v}))["b"])
xs.append({v}.reshape(4, 1) * {v}.reshape(1, 4))
xs.append({v}.reshape(2, 2)[..., -1])
xs.append({v}.reshape(2, 2)[{k}, 1 - {k}])
xs.append({v}[[0, 3, 1]])
xs.append({v} ** 2 % 1.7)
xs.append(({v} > {t}) | ~({v} > {t}))
xs.append({v} == 0.5)
xs.append(1 / ({v} ** 2 + 1))
xs.append(divided({v}, {s} ** 2 + 1))
if len(xs) > 2: xs.pop({p} % len(xs))
notes.append(float({s}))
notes.append(int({s} * 7.31))
notes.append({s}.item())
notes.append(f"{{s}:.4f} {float({s}):.3e}")
notes.append({v}.tolist())
notes.append(bool({s} > {t}) or not {s} < 0.4)
notes.append(sorted(map(float, {v}))[0])
notes.append(float(max(({v}, {v}), key=lambda x: float(x.sum())).sum()))
notes.append([str({x}.dtype), tuple({x}.shape), {x}.ndim, len({v}), isinstance({v}, array)])
notes.append("abcd"[distinct({v}).argmax()])
notes.append([range(9)[int(distinct({v}).argmax())], {v}.shape[0]])

x = zeros(4)
x += {v}
xs.append(x)

x = zeros(4)
y = x
x[{i}] = {s}
x[1:3] *= {s}
xs.append(y)

x = zeros(8).reshape(2, 4) + 0
x[{k}] = {v}
x[1 - {k}] += {v}
xs.append(x)

x = zeros(8).reshape(2, 4) + 1
row = x[{k}]
row *= {v}
xs.append(x)
xs.append(row + 0)

x = {v} * 1
y = x
x += {v}
x *= 0.5
xs.append(y)

x = {v} * 1
x[{i}] = {s}
x[1:3] = {c}
xs.append(x)

x = {v} * 1
part = x[1:]
part += {s}
xs.append(x)

x = {v} * 1
x.reshape(2, 2)
y = x[2:]
y[0] = {s}
xs.append(x + x[2])

x = {v} * 1
x[x > {t}] = 0.5
x[x < {t}] *= 0.5
xs.append(x)

xs.append({v} * node.own)
node.own *= 1.5
node.own[{i}] = 0.5
xs.append(cell(node.own, {v}))

state = zeros(4) + 1
for x in ({v}, {v}):
    xs.append(x * state)
    state[{i}] = 2.5
    state *= 0.7

x = {x}
if x.shape and is_float(x):
    x *= 1.5

with Within(xs) as within:
    xs.append({v})
    within.append({s})

x = {v} * 1
for i in range(4):
    if x[i] > {t}:
        x[i] = x[i] * 0.5
    else:
        continue
xs.append(x)

def recursive(x, depth):
    if depth == 0 or float(x.sum()) > {t}:
        return x
    return recursive(layer(x), depth - 1) + x
xs.append(recursive({v}, 3))

best, value = None, -9.0
for x in ({v}, {v}, {v}):
    if best is None or float(x @ CONSTANT) > value:
        best, value = x, float(x @ CONSTANT)
xs.append(best)
notes.append(value)

queue = [({v}, 0)]
while queue:
    x, depth = queue.pop(0)
    if depth < 2 and float(x.max()) > {t}:
        queue.extend([(x[:2] * 0.7, depth + 1), (x[-2:] - 0.1, depth + 1)])
    xs.append(x)

x, steps = {v}, 0
while norm(x) > {t} and steps < 6:
    x = layer(x) * 0.5
    steps += 1
xs.append(x)
notes.append(steps)

for row in {v}.reshape(2, 2):
    xs.append(row * 2)

for i in range(node.word % 3):
    {block}

for i in range(4):
    if {v}[i] > {t}:
        break
    {block}
else:
    notes.append("none")

if {s} > {t}:
    {block}
else:
    {block}

if node.word % 2:
    {block}
elif ({v} > {t}).any():
    {block}

try:
    xs.append({v}.reshape(3, 3))
except (RuntimeError, ValueError) as error:
    notes.append(type(error).__name__)

try:
    xs.append({v}[4])
except IndexError as error:
    notes.append(type(error).__name__)

try:
    xs.append({v}.reshape(2, 2) @ {v}[:3])
except Exception as error:
    notes.append(type(error).__name__)
    {block}

try:
    xs.append({v}.nothing)
except AttributeError:
    {block}

try:
    if {s} > {t}:
        raise Stop(node.word)
    {block}
except Stop as error:
    notes.append(error.args)
finally:
    xs.append({v} + 1)

def inner(x, scale=2):
    y = {v}
    def deeper():
        nonlocal y
        y = layer(x) * scale + y
    deeper()
    return y
xs.append(inner({v}))

def some(x):
    for i in range(3):
        yield x * i
        x = layer(x)
xs.extend(some({v}))

class Local:
    def __init__(self, x):
        self.x = x
    @property
    def twice(self):
        return self.x * 2
    def __add__(self, other):
        return Local(self.x + other.x)
xs.append((Local({v}) + Local({v})).twice)

table = {'a': {v}, 'b': [{v}, ({v}, 1)]}
table['b'][0] = table['b'][0] + table['a']
xs.extend([table['b'][0], *[x * 2 for x in table['b'][1]][:1]])

match node.word % 3:
    case 0:
        {block}
    case _:
        xs.append({v})

node.state = {x}

if node.state is not None:
    xs.append(vector(node.state) + 1)
node.state = {v}

node.kept.append({x})

node.table['a'] = {v}
node.table.setdefault('b', []).append({s})
xs.append(node.table['a'] * node.table['b'][0])

node.own += {v}
xs.append(node.own * 2)

node.own[{i}] = {s}
xs.append(layer(node.own))
"""
"""Statements for each framework: lines, and then such as take several lines."""

RARE = """
if {s} > {t} and node.word % 5 == 0: raise Stop(node.word)
if {s} > {t} and node.word % 4 == 0: xs.append({v}.reshape(3, 3))
if node.word == 7: {x}[9]

x = {x}
if x.shape and is_float(x):
    x[-1] = {s}

x = {v} * 1
y = x.reshape(2, 2)
x += {v}
xs.append(y * 2)

x = {v} * 1
y = x[1:]
x *= 0.5
xs.append(y.sum())

x = {v} * 1
a, b = x[:2], x[1:]
a += {s}
xs.append(b)

x = {v} * 1
y = x.reshape(2, 2).T
y += {s}
xs.append(x)

x = zeros(4)
y = x[:2]
x += {v}
xs.append(y)

try:
    x = {v} * 1
    y = x.reshape(2, 2)
    x *= {p} % 2 + 1
    xs.append(y if {p} % 4 else x)
except Exception:
    xs.append({v})
"""
"""Statements that end an example, or change what others may be views of."""

OF_TORCH = """
xs.extend({v}.chunk(2))
xs.extend({v}.view(2, 2).unbind({k}))
xs.append({v}.view(2, 2).t().contiguous())
xs.append({v}.view(2, 2).transpose(0, 1).flatten())
xs.append({v}.unsqueeze(0).expand(3, 4).sum(0))
xs.append(torch.sum({v}, dim=0, keepdim=True))
xs.append(torch.cat(tensors=[{v}, {v}], dim=-1)[2:6])
xs.append(torch.softmax({v}, dim=0))
xs.append(F.relu({v}))
xs.append(F.linear({v}, U, bias={v}))
xs.append(lin({v}))
xs.append(norms({v}))
xs.append(net({v}))
xs.append(gru({v}[None])[0])
xs.append(gru({v}[None], {v}[None])[0])
h, c = lstm({v}[None], ({v}[None], {v}[None])); xs.append(h[0] + c[0])
xs.append(table_of(torch.tensor(node.word % 5)))
xs.append(table_of(distinct({v}).argmax()))
xs.append(conv({v}[None])[0])
xs.append(conv2({v}.view(1, 1, 2, 2)).flatten())
xs.append(module({v}, {v}))
xs.append(Squared.apply({v}))
xs.append(dropped({v}))
rates.append((F.dropout({v} * 0 + 1, 0.5) == 0).double().mean())
xs.append({v}.detach())
xs.append({v}.float().double())
xs.append({v}.float() + {v}.float())
xs.append(({v} * 7.31).long())
xs.append(({v} * 7.31).long() % 3 + distinct({v}).argmax())
xs.append({v}.detach()[{v} > {t}].sum())
xs.append({v}.masked_fill({v} > {t}, 0.5))
xs.append({v}.gather(0, distinct({v}).argsort()))
xs.append({v}[distinct({v}).argsort()])
xs.append({v}.index_select(0, INDEX))
xs.append(torch.einsum('i,j->j', {v}, {v}))
xs.append(torch.outer({v}, {v})[{k}])
xs.append(torch.linalg.norm({v} + 3))
xs.append({v}.cumsum(0))
xs.append({v}.std())
xs.append({v}.new_zeros(2) + {v}[:2])
xs.extend(torch.split({v}, [1, 3]))
xs.extend({v}.split(3))
xs.append({v}.narrow(0, 1, 2))
xs.append({v}.view(2, 2).select(1, {k}))
xs.append({v}.view(2, 2).permute(1, 0).reshape(-1))
xs.append(torch.stack([{v}, {v}]).unbind(1)[{k}])
xs.append({v}.index_fill(0, INDEX, 0.5))
xs.append({v}.scatter(0, INDEX, {v}[:2]))
xs.append(F.cross_entropy({v}[None], torch.tensor([node.word % 4])))
xs.append(F.mse_loss({v}, {v}, reduction="sum"))
xs.append(F.cosine_similarity({v} + 2, {v} + 2, dim=0))
xs.append(F.pad({v}, (1, 2)))
xs.append(F.one_hot(distinct({v}).argmax(), 4))
xs.append(F.softplus({v}) + F.gelu({v}) + F.leaky_relu({v}, 0.1))
xs.append(F.layer_norm({v}, (4,)))
xs.append(distinct({v}).topk(2).values)
xs.append(distinct({v}).sort(descending=True)[0])
xs.append({v}.roll(1).flip(0))
xs.append({v}.lerp({v}, 0.3))
xs.append(torch.addmm({v}, {v}.view(1, 4), U))
xs.append(torch.bmm({v}.view(1, 2, 2), {v}.view(1, 2, 2)).squeeze(0))
xs.append({v}.view(2, 2).triu().diagonal())
xs.append(torch.where({v} > {t}, {v}, 0.0))
xs.append({v}.maximum({v}).clamp(min=-0.3))
xs.append({v}.logsumexp(0).exp().log())
xs.append(({v} > {t}).double().mean())
xs.append(({v} > {t}).any() & ({v} < {t}).all())
xs.append(torch.cdist({v}.view(2, 2), {v}.view(2, 2) + 3))
xs.append(torch.nn.utils.rnn.pad_sequence([{v}, {v}[:2]]))
xs.append(checkpoint(lambda x: layer(x) * 2, {v}, use_reentrant=False))
xs.append({v}.type(torch.float32).type_as({v}))
xs.append({v}.to(torch.float32).to({v}))
xs.append({v}.sum().expand(3))
xs.append({v}[:0].mean() * 0 + {v}[0] if {v}[:0].numel() else {v}[0])
xs.append(torch.zeros(0, dtype=torch.double).sum() + {s})
xs.append(({v} * 7.31).long().tolist()[0] * {v})
xs.append(torch.atleast_2d({v}).squeeze())
notes.append(torch.equal({v}, {v}) or torch.allclose({v}, {v}))
notes.append(str(tuple({v}.view(2, 2).stride())) + str({v}.is_contiguous()))
xs.append(torch.full((2,), float({s}), dtype=torch.double))
xs.append(torch.tensor([float({s})], dtype=torch.double) * {v})
xs.append(torch.tensor({v}.tolist(), dtype=torch.double))
xs.append(torch.as_tensor(np.float64(2)) * {v})
notes.append([{x}.requires_grad, {x}.dim(), {x}.numel(), torch.is_tensor({x})])
notes.append({v}.detach().numpy().tolist())
values, index = distinct({v}).max(0); xs.append(values); notes.append(int(index))
x = tanh({v}); x.exp_().add_({c}); xs.append(x)
x = {v} * 1; x.clamp_(-0.5, 0.5).sub_({v}); xs.append(x)
x = {v} * 1; x[1:].zero_(); xs.append(x)
x = {v} * 1; x.copy_({v}).fill_(2.0).mul_({v}); xs.append(x)
x = F.relu({v} * 1, inplace=True); xs.append(x)
x = torch.zeros(4, dtype=torch.double); x.index_add_(0, INDEX, {v}[:2]); xs.append(x)
x = torch.zeros(4, dtype=torch.double); x.scatter_add_(0, INDEX, {v}[:2]); xs.append(x)
x = torch.zeros(4, dtype=torch.float32); x += {v}; xs.append(x.double())
x = torch.zeros(4, dtype=torch.bool); x[1:] = {v}[1:] > {t}; xs.append(torch.where(x, {v}, {v}))
x = [torch.zeros(4, dtype=torch.double)] * 2; x[0] += {v}; xs.append(x[1])

with torch.no_grad():
    {block}

with torch.no_grad():
    x = {v} * 1
    x += {v}
    y = torch.zeros(4, dtype=torch.double)
    y[1:] = x[1:]
xs.append(y + x)

with torch.autocast("cpu", enabled=False):
    {block}

with torch.enable_grad():
    {block}
"""

OF_NUMPY = """
xs.append(np.concatenate([{v}, {v}])[2:6])
xs.append(np.outer({v}, {v})[{k}])
xs.append({v}.astype(np.float32).astype(float))
xs.append({v}.astype(np.float32) * np.float32(2))
xs.append(({v} * 7.31).astype(int))
xs.append(np.sort({v}))
xs.append({v}[distinct({v}).argsort()])
xs.append(np.clip({v}, -0.5, 0.5))
xs.append(np.linalg.norm({v} + 3))
xs.append(np.cumsum({v}))
xs.append({v}.std())
xs.append({v}.dot({v}))
xs.append(np.maximum({v}, 0))
xs.append({v}[{v} > {t}].sum())
xs.append(np.flip({v}))
xs.append(np.vstack([{v}, {v}]).ravel())
xs.append({v}.copy())
xs.append(copy.copy({v}))
xs.append(np.zeros(2) + {v}[:2])
xs.append(np.full(2, float({s})))
xs.append(np.array([float({s}), 1.0]))
xs.append(np.array({v}))
xs.append(np.float32(2) * {v})
xs.append(np.add.reduce({v}))
xs.extend(np.split({v}, 2))
xs.append(np.tile({v}, 2)[2:6])
xs.append(np.repeat({v}, 2))
xs.append(np.roll({v}, 1))
xs.append(np.pad({v}, 1))
xs.append(np.einsum("i,j->j", {v}, {v}))
xs.append(np.var({v}) + np.median({v}))
xs.append(np.take({v}, [0, 2]))
xs.append(np.diff({v}))
xs.append(np.trace({v}.reshape(2, 2)))
xs.append(np.inner({v}, {v}))
xs.append(np.expand_dims({v}, 0).squeeze())
xs.append(np.atleast_2d({v}))
xs.append(np.isfinite({v}) & ({v} > {t}))
xs.append(np.where({v} > {t}, {v}, 0.0))
xs.append(np.swapaxes({v}.reshape(2, 2), 0, 1))
xs.append(np.hypot({v}, {v}) + np.arctan2({v}, 2))
xs.append(np.multiply.outer({v}, {v})[{k}])
xs.append({v}.round(2))
xs.append({v} // 0.7)
xs.append({v}.astype(np.float32).sum(dtype=float))
xs.append(np.mean([{s}, {s}]))
xs.append(np.max(np.stack([{v}, {v}]), axis=0))
xs.append(np.array([{s}, {s}]))
xs.append(np.asarray({v}) * 2)
xs.append(np.linalg.solve({v}.reshape(2, 2) + 9 * np.eye(2), {v}[:2]))
xs.append(np.count_nonzero({v} > {t}) * {v})
notes.append(np.allclose({v}, {v}))
notes.append(float(np.float64({s})))
xs.append(np.nonzero({v} > {t})[0].sum())
notes.append(np.array2string({v} > {t}))
notes.append([{x}.size, np.shape({x}), np.ndim({x})])
notes.append({v}.astype(np.float32).dtype.name)
x = {v} * 1; np.add(x, {v}, out=x); xs.append(x)
x = {v} * 1; np.tanh(x, out=x); x -= {v}; xs.append(x)
x = np.zeros(4); np.cos({v}, out=x); xs.append(x)
x = {s}; x += {s}; xs.append(x)

with np.errstate(divide="ignore", invalid="ignore"):
    {block}

with np.errstate(over="ignore"):
    x = {v} * 1
    x /= {v} ** 2 + 1
xs.append(x)
"""

OF_JAX = """
xs.append({v}.reshape(2, 2).sum(axis={k}))
xs.append({v}.astype(int))
xs.append({v}.max())
xs.append({v}.argmax() * {v})
xs.append({v}.cumsum())
xs.append({v}.reshape(2, 2).mean(0))
xs.append({v}[{v}.argmax()])
xs.append(mixed({v}, {v}))
xs.append(mixed({v}, {v}) * {s})
xs.append(layer(layer({v})))
notes.append(float({v}.max()))
notes.append(int({v}.argmin()))

if bool(({v} > {t}).any()):
    {block}

x = {v}
while float(abs(x).sum()) > 1.5:
    x = layer(x) * 0.4
xs.append(x)
"""
"""Statements of JAX, whose functions are called in cells alone."""

CHANGES = r"\] *[-+*/]?= |\[\[|np\.|x\[x|float64|prod\(|copy\.|BACKEND|> \{t\}\]"
"""What is in statements of any framework that JAX cannot run: arrays that change, lists and masks as an
index."""

OF_TENSORFLOW = """
xs.append(layer({v}))
xs.append(layer(vector(node.value)))
xs.append({v} + {v})
xs.append({x} * 0.5)
xs.append(2.5 - {v})
xs.append(tanh({v}) / ({v} ** 2 + 1))
xs.append(-abs({v}))
xs.append({v}[{i}])
xs.append({v}[{k}:])
xs.append({v}[None, ::2])
xs.append(cell({v}, {v}))
xs.append(cell({v}, y={v}))
xs.extend(pair({v}))
xs.append(CONSTANT * {v})
xs.append(shared + {v})
xs.append(node.value * {v})
xs.append((lambda x: x * {s} + 1)({v}))
xs.append(functools.reduce(operator.mul, [{v}, {v}]))
xs.append(functools.partial(cell, {v})({v}))
xs.append(sum([x * i for i, x in enumerate({v})]))
xs.append(dict(zip("ab", {v}))["b"])
xs.append(dense({v}[None])[0])
xs.append(tf.reduce_sum({v}))
xs.append(tf.reduce_mean({v}))
xs.append(tf.concat([{v}, {v}], 0)[2:6])
xs.append(tf.stack([{v}, {v}])[{k}])
xs.append(tf.where({v} > {t}, {v}, {v}))
xs.append(tf.linalg.matvec(U, {v}))
xs.append(tf.reshape({v}, (2, 2)) @ tf.reshape({v}, (2, 2)))
xs.append(tf.nn.softmax({v}))
xs.append(tf.cast({v}, tf.int32))
xs.append(tf.gather({v}, [0, 2]))
xs.append(tf.maximum({v}, 0.1))
xs.extend(tf.split({v}, 2))
if len(xs) > 2: xs.pop({p} % len(xs))
notes.append(float({s}))
notes.append(int({s} * 7.31))
notes.append(bool({s} > {t}))
notes.append({v}.numpy().tolist())
notes.append([{x}.dtype.name, tuple({x}.shape), tf.is_tensor({x})])

if {s} > {t}:
    {block}
else:
    {block}

for i in range(node.word % 3):
    {block}

x, steps = {v}, 0
while tf.norm(x) > {t} and steps < 6:
    x = layer(x) * 0.5
    steps += 1
xs.append(x)
notes.append(steps)

best, value = None, -9.0
for x in ({v}, {v}, {v}):
    if best is None or float(tf.reduce_sum(x)) > value:
        best, value = x, float(tf.reduce_sum(x))
xs.append(best)
notes.append(value)

try:
    if {s} > {t}:
        raise Stop(node.word)
    {block}
except Stop as error:
    notes.append(error.args)

def some(x):
    for i in range(3):
        yield x * i
        x = layer(x)
xs.extend(some({v}))

node.state = {v}
node.kept.append({x})
"""
"""Statements of TensorFlow, whose tensors have few methods."""
