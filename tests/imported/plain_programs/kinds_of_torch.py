"""Kinds of statements that programs of PyTorch may have besides: see `plain_programs.kinds`."""

from __future__ import annotations

SETTINGS = """
torch.manual_seed(node.word); notes.append(float({s})); xs.append({v} * torch.rand(4))

with default_dtype(torch.float64 if node.word % 2 else torch.float32):
    {block}
    notes.append(float({s}))
    notes.append(str(torch.zeros(1).dtype))

old{n} = torch.are_deterministic_algorithms_enabled()
torch.use_deterministic_algorithms(bool(node.word % 2))
notes.append(float({s}))
notes.append(torch.are_deterministic_algorithms_enabled())
torch.use_deterministic_algorithms(old{n})

with torch.set_grad_enabled(node.word % 2 == 0):
    {block}
    notes.append(float({s}))
    xs.append(layer({v}))
    notes.append(torch.is_grad_enabled())

with torch.no_grad():
    notes.append(float({s}))
    with torch.enable_grad():
        {block}
        xs.append(layer({v}))

with torch.autocast("cpu", torch.bfloat16, enabled=node.word % 2 == 0):
    notes.append(float({s}))
    notes.append(str(F.linear({v}.float(), U.float()).dtype))

with torch.device("cpu"), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    {block}
    notes.append(float({s}))

mode{n} = net.training
net.train(node.word % 2 == 0)
{block}
notes.append(float({s}))
notes.append(net[1].training)
net.train(mode{n})

torch.manual_seed(node.word)
{block}
xs.append({v} * torch.rand(4))

@torch.no_grad()
def held{n}(x):
    yield layer(x)
    yield float(x.sum())
    yield x * 2
for part in held{n}({v}):
    xs.append(torch.as_tensor(part) * 1)
    {block}
"""

SHARED = """
tally.average.mul_(0.9).add_(0.1 * {v}.detach()); xs.append(tally.average * {v})
tally.best.copy_(torch.maximum(tally.best, {v}.detach())); xs.append(tally.best + {v})
torch.maximum(tally.best, {v}.detach(), out=tally.best); xs.append(tally.best * 2)
keeper.total += {v}.detach(); xs.append(keeper.total * {v})
keeper.total = keeper.total * 0.5 + {v}.detach()
keeper.steps += 1; notes.append(int(keeper.steps)); xs.append({v} * keeper.steps)
keeper.n += 1; notes.append(float({s})); notes.append(keeper.n)
xs.append(keeper({v}))
keeper.register_buffer("kept", {v}.detach() * 1)
MEMORY.index_add_(0, INDEX, torch.stack([{v}, {v}]).detach())
MEMORY[node.word % 8].lerp_({v}.detach(), 0.3); xs.append(MEMORY[{p} % 8] + {v})
MEMORY[distinct({v}).argmax()] = {v}.detach()
"""

BAD = """
xs.append(Normal({v}, 1.0).log_prob({v}))
xs.append(Normal({v}, {v}.exp()).log_prob({v}).sum())
xs.append(Categorical(logits={v}).entropy())
xs.append(table_of(torch.tensor(node.word % 6)))
xs.append(F.cross_entropy({v}[None], torch.tensor([node.word % 5])))
xs.append(F.binary_cross_entropy({v} * 0.2 + 0.5, CONSTANT.sigmoid()))
if not torch.isfinite({v}).all(): raise ValueError("not finite")
torch.testing.assert_close({v}.isfinite(), torch.ones(4, dtype=torch.bool))

try:
    xs.append(Normal({v}, 1.0).log_prob({v}))
except ValueError as error:
    notes.append(type(error).__name__)
    {block}

try:
    xs.append(Normal(CONSTANT, {v} + 0.7).log_prob({v}))
except ValueError:
    xs.append({v} * 0.5)

try:
    xs.append(Categorical(probs={v} + 0.5).entropy())
except ValueError:
    xs.append({v} * 0.5)

try:
    xs.append(MultivariateNormal({v}, torch.eye(4).double() * {s}).log_prob({v}))
except ValueError:
    notes.append("not a covariance")

try:
    xs.append(torch.linalg.cholesky({v}.view(2, 2) @ {v}.view(2, 2).T + {s} * torch.eye(2)))
except RuntimeError as error:
    notes.append(type(error).__name__)
    {block}

try:
    xs.append(torch.linalg.solve(torch.diag({v}.clamp(min=0)), {v}))
except RuntimeError as error:
    notes.append(type(error).__name__)

try:
    xs.append(F.binary_cross_entropy({v} + 0.5, CONSTANT.sigmoid()))
except RuntimeError as error:
    notes.append(type(error).__name__)

try:
    xs.append(table_of(({v} * 4).long()[{k}]))
except IndexError as error:
    notes.append(type(error).__name__)
"""

SEEDS = """
xs.append(F.dropout({v}, 0.5))
xs.append(F.dropout(layer({v}), 0.3) * F.dropout({v}, 0.5))
xs.append(dropping({v}))
xs.append(torch.multinomial({v}.softmax(0), 2))
xs.append(torch.bernoulli({v}.sigmoid()))
xs.append({v}.sigmoid().bernoulli())
xs.append(torch.normal({v}, 1.0))
xs.append(torch.normal({v}, {v}.exp()))
xs.append(F.gumbel_softmax({v}))
xs.append(F.gumbel_softmax({v}, hard=True))
xs.append(torch.poisson({v}.exp()))
xs.append(Categorical(logits={v}).sample())
xs.append(Categorical(logits={v}).sample((2,)))
xs.append(Normal({v}, 1.0).rsample())
xs.append(Normal({v}, {v}.exp()).sample())
xs.append(torch.randn_like({v}) * {v})
xs.append(torch.rand(4, dtype=torch.double) * {v})
xs.append(torch.randn(2, 2).double().reshape(-1) + {v})
xs.append({v}[torch.randperm(4)])
xs.append({v}[torch.randint(4, (2,))])
x = {v} * 1; x.normal_(); xs.append(x * {v})
x = {v} * 1; x.uniform_(-1, 1); xs.append(x + {v})
x = torch.zeros(4, dtype=torch.double); x.bernoulli_(0.5); xs.append(x * {v})
xs.append(noisy({v}))
xs.append(of_dropout({v}))
notes.append(int(torch.multinomial({v}.softmax(0), 1)))
notes.append(float(torch.rand(())) + float({s}))
xs.append(F.scaled_dot_product_attention(*[{v}.view(1, 2, 2)] * 3, dropout_p=0.5))
xs.append(F.alpha_dropout({v}, 0.5, training=True))
xs.append(F.rrelu({v}, training=True))

if torch.rand(()) < 0.5:
    {block}

if Categorical(logits={v}).sample() > 1:
    {block}

while torch.bernoulli({v}.sigmoid())[0] > 0 and len(xs) < 40:
    xs.append(layer({v}))
"""

DERIVATIVES = """
xs.append(func.grad(lambda x: layer(x).sum())({v}))
xs.append(func.grad(lambda x: (layer(x) * {v}).sum())({v}))
xs.append(func.grad(lambda x: (layer(x) ** 2 * node.value).sum())({v}))
xs.append(func.grad(lambda x: x.square().sum())({v}))
xs.append(func.grad(lambda x, y: layer(x) @ y, argnums={k})({v}, {v}))
xs.append(func.grad_and_value(lambda x: net(x).sum())({v})[{k}])
xs.append(func.grad(lambda x: module(x, {v}).sum())({v}))
xs.append(func.grad(lambda x: cell(x, {v}).sum())({v}))
xs.append(func.grad(lambda x: gru(x[None], {v}[None]).sum())({v}))
xs.append(func.vjp(layer, {v})[1]({v})[0])
xs.append(func.vjp(net, {v})[0])
xs.append(func.jvp(net, ({v},), ({v},))[{k}])
xs.append(func.jvp(lambda x: layer(x) * {v}, ({v},), ({v},))[1])
xs.append(func.jacrev(net)({v})[{k}])
xs.append(func.jacrev(lambda x: layer(x) * {s})({v})[{k}])
xs.append(func.jacfwd(lin)({v})[{k}])
xs.append(func.hessian(lambda x: layer(x).sum())({v})[{k}])
xs.append(func.hessian(lambda x: (layer(x) * {v}).sum())({v}).diagonal())
xs.append(func.jacfwd(func.grad(lambda x: layer(x) @ {v}))({v}).diagonal())
xs.append(func.vmap(layer)(stack([{v}, {v}])).sum(0))
xs.append(func.vmap(func.grad(lambda x: layer(x).sum()))(stack([{v}, {v}]))[{k}])
xs.append(func.grad(lambda w: F.linear({v}, w).square().sum())(U)[{k}])
xs.append(func.grad(lambda x: layer(x).sum())(node.value))
xs.append(func.grad(lambda x: layer(x).sum())(layer({v})))
xs.append(forces({v}))
xs.append(forces({v}) * {v})
xs.append(own_slope({v}))
xs.append(forces_between({v}, {v}))
xs.append(curvature({v}))
notes.append(float(func.grad(lambda x: layer(x).sum())({v})[0]))

x = {v}
for i in range(2): x = x - 0.1 * func.grad(lambda x: (layer(x) - {v}).square().sum())(x)
xs.append(x)

x = {v}
for i in range(2):
    slope = func.grad(lambda x: layer(x).sum() + {s})(x)
    if float(slope.norm()) < {t}:
        break
    x = x - 0.3 * slope
xs.append(x)

def inner(w):
    return torch.tanh({v} @ w).sum()
w = U
for i in range(2):
    w = w - 0.1 * func.grad(inner)(w)
xs.append({v} @ w)

with torch.enable_grad():
    x = node.value.detach().requires_grad_()
    xs.append(torch.autograd.grad(layer(x).sum(), x)[0])

with torch.no_grad():
    xs.append(func.grad(lambda x: layer(x).sum())({v}))
    {block}
"""
"""Derivatives with respect to an example's own values, through layers."""

WEIGHTS = """
xs.append(functional_call(lin, {"weight": lin.weight * 2, "bias": lin.bias}, ({v},)))
xs.append(functional_call(lin, {name: x * {s} for name, x in lin.named_parameters()}, ({v},)))
xs.append(functional_call(lin, TWICE, ({v},)))
xs.append(functional_call(lin, {"weight": {v}.view(4, 1) * {v}.view(1, 4), "bias": {v}}, ({v},)))
xs.append(functional_call(lin, {"weight": U * node.word}, ({v},)))
xs.append(functional_call(lin, {"bias": {v}}, ({v},)))
xs.append(functional_call(net, {"0.weight": net[0].weight * 0.5}, ({v},)))
xs.append(functional_call(net, {"2.bias": {v}}, ({v},)))
xs.append(functional_call(module, {"lin.bias": node.value}, ({v}, {v})))
xs.append(functional_call(gru, {name: x * 0.5 for name, x in gru.named_parameters()}, ({v}[None],))[0])
xs.append(weighted({v}))
xs.append(turning({v}))
xs.append(weighted({v}) + lin({v}))
xs.append(layer({v}) + functional_call(lin, TWICE, ({v},)))
w = hyper({v}); xs.append(functional_call(lin, {"weight": w[:16].view(4, 4), "bias": w[16:]}, ({v},)))
w = hyper({v}); xs.append(F.linear({v}, w[:16].view(4, 4), w[16:]))
w = func.grad(lambda w: F.linear({v}, w).sum())(U); xs.append(functional_call(lin, {"weight": w}, ({v},)))

with torch.no_grad():
    old{n} = lin.weight.data
    lin.weight.data = old{n} * (1 + node.word)
    xs.append(lin({v}))
    {block}
    lin.weight.data = old{n}

with torch.no_grad():
    lin.weight.data.mul_(2)
    xs.append(lin({v}))
    {block}
    lin.weight.data.mul_(0.5)

with torch.no_grad(), scaled_weights(net, 1.5):
    xs.append(net({v}))
    {block}

with torch.no_grad(), scaled_weights(gru, 0.5):
    xs.append(gru({v}[None])[0])

with scaled_weights(lin, 0.5):
    xs.append(lin({v}).detach())

old{n} = lin.weight
lin.weight = torch.nn.Parameter(old{n}.detach() * 2)
xs.append(lin({v}))
{block}
lin.weight = old{n}

with torch.no_grad():
    xs.append(lin({v}))
    lin.bias += 0.125
    xs.append(lin({v}))
    lin.bias -= 0.125

copied = copy.deepcopy(lin)
with torch.no_grad():
    copied.weight.mul_(0.5)
xs.append(copied({v}))

with torch.nn.utils.parametrize.cached():
    xs.append(turning({v}) + turning({v}))
    {block}
"""
"""Layers that are called with other weights than their own."""

TRACES = """
xs.append(tanh(unit.w[{k}] * node.value))
xs.append(unit.w @ node.value)
xs.append(layer(node.value) * unit.w[{k}].exp())
xs.append({v} * lin.bias[{i}].item())
xs.append({v} * float(lin.bias[{i}]))
xs.append(lin.weight.square().sum())
xs.append({v} + lin.bias)
xs.append(node.value * unit.w[0, {k}])
xs.append(F.linear(node.value, lin.weight, lin.bias))
xs.append(torch.cat([lin.bias, node.value])[2:6])
xs.append({v} @ unit.w.detach())
xs.append(tanh(lin.weight.data[{k}] * 2) + {v})
xs.append({v} * lin.state_dict()["bias"])
xs.append(table_of.weight[node.word % 5] + {v})
xs.append(sum([x.abs().sum() for x in net.parameters()]) + {v})
xs.append({v} * torch.nn.utils.parameters_to_vector(lin.parameters())[:4])
xs.append(torch.stack([unit.w[0], node.value]).sum(0))
xs.append({v} * torch.tensor(lin.bias.tolist(), dtype=torch.double))
xs.append({v} * torch.from_numpy(lin.bias.detach().numpy()))
xs.append({v} * copy.deepcopy(lin.bias))
xs.append({v} * (1.0 if lin.bias[0] > 0 else 0.5))
xs.append(lin.weight.norm() * node.value)
notes.append(float(lin.bias[{i}]))
xs.append(F.layer_norm(node.value, (4,), lin.bias, lin.bias))
xs.append(F.embedding(torch.tensor(node.word % 5), table_of.weight))
x = torch.zeros(4, dtype=torch.double); x += lin.bias; xs.append(x + {v})
x = {v} * 1; x[{i}] = lin.bias[0]; xs.append(x)
"""
"""Parameters that a program uses by itself, where it is recorded once and replayed with other ones."""
