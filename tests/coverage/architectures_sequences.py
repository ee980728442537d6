"""Small sequence models in plain torch: state spaces, linear recurrences, gates, positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mamba(nn.Module):
    """A selective state space with its scan as a loop."""

    def __init__(self, width: int = 11, inner: int = 5, states: int = 2, rank: int = 2) -> None:
        super().__init__()
        self.states, self.rank = states, rank
        self.into = nn.Linear(width, 2 * inner, bias=False)
        self.convolution = nn.Conv1d(inner, inner, 3, groups=inner, padding=2)
        self.select = nn.Linear(inner, rank + 2 * states, bias=False)
        self.step = nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.randn(inner, states))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        u, gate = self.into(x).chunk(2, dim=-1)
        u = self.convolution(u.transpose(1, 2))[..., :time].transpose(1, 2)
        u = functional.silu(u)
        step, b, c = self.select(u).split([self.rank, self.states, self.states], dim=-1)
        step = functional.softplus(self.step(step))
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_decay))
        drive = step.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        state = torch.zeros_like(decay[:, 0])
        outputs = []
        for t in range(time):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(outputs, dim=1) + u * self.skip
        return self.out(y * functional.silu(gate))


class RecurrentGate(nn.Module):
    """The real-gated linear recurrent unit of Griffin."""

    def __init__(self, width: int = 11, inner: int = 5) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, inner), nn.Linear(inner, width)
        self.input_gate, self.gate = nn.Linear(inner, inner), nn.Linear(inner, inner)
        self.decay = nn.Parameter(torch.rand(inner))

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        rate = torch.exp(-8.0 * torch.sigmoid(self.gate(h)) * functional.softplus(self.decay))
        drive = torch.sqrt(1 - rate**2) * torch.sigmoid(self.input_gate(h)) * h
        state, states = torch.zeros_like(h[:, 0]), []
        for t in range(x.shape[1]):
            state = rate[:, t] * state + drive[:, t]
            states.append(state)
        return self.out(torch.stack(states, 1))


class Rwkv(nn.Module):
    """Time mixing and channel mixing of RWKV-4, the recurrence as a loop."""

    def __init__(self, width: int = 5, hidden: int = 7) -> None:
        super().__init__()
        self.enter = nn.Linear(11, width)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.ParameterList([torch.rand(width) for _ in range(5)])
        self.decay = nn.Parameter(torch.randn(width))
        self.first = nn.Parameter(torch.randn(width))
        self.maps = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(4)])
        self.norm2 = nn.LayerNorm(width)
        self.key = nn.Linear(width, hidden, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)
        self.leave = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.time(self.norm(x))
        x = x + self.channel(self.norm2(x))
        return self.leave(x)

    def time(self, x: Tensor) -> Tensor:
        last = functional.pad(x, (0, 0, 1, -1))
        k, v, r = (
            m(x * mix + last * (1 - mix))
            for m, mix in zip(self.maps, self.mix, strict=False)
            if m is not self.maps[3]
        )
        decay = -torch.exp(self.decay)
        above, below = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            now = torch.exp(self.first + k[:, t])
            outputs.append((above + now * v[:, t]) / (below + now))
            above = torch.exp(decay) * above + torch.exp(k[:, t]) * v[:, t]
            below = torch.exp(decay) * below + torch.exp(k[:, t])
        return self.maps[3](torch.sigmoid(r) * torch.stack(outputs, 1))

    def channel(self, x: Tensor) -> Tensor:
        last = functional.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.mix[3] + last * (1 - self.mix[3]))
        r = self.receptance(x * self.mix[4] + last * (1 - self.mix[4]))
        return torch.sigmoid(r) * self.value(torch.square(torch.relu(k)))


class Gmlp(nn.Module):
    """A spatial gating unit between two linear maps."""

    def __init__(self, width: int = 11, hidden: int = 5, time: int = 7) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(hidden)
        self.spatial = nn.Conv1d(time, time, 1)

    def forward(self, x: Tensor) -> Tensor:
        u, v = functional.gelu(self.into(x)).chunk(2, dim=-1)
        return self.out(u * self.spatial(self.norm(v)))


class Wave2vec(nn.Module):
    """A feature extractor with group norm, then a positional convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 3, stride=2, bias=False)
        self.norm = nn.GroupNorm(4, 4)
        self.second = nn.Conv1d(4, 5, 2, bias=False)
        self.features = nn.LayerNorm(5)
        self.project = nn.Linear(5, 6)
        self.position = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(6, 6, 4, padding=2, groups=2), dim=2
        )
        self.final = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.gelu(self.norm(self.first(x.transpose(1, 2)[:, :1])))
        h = functional.gelu(self.second(h)).transpose(1, 2)
        h = self.project(self.features(h))
        place = functional.gelu(self.position(h.transpose(1, 2))[..., :-1]).transpose(1, 2)
        return self.head(self.final(h + place))


class Delta(nn.Module):
    """A gated delta rule, step by step."""

    def __init__(self, width: int = 11, key: int = 5, value: int = 7) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, key), nn.Linear(width, key)
        self.v, self.out = nn.Linear(width, value), nn.Linear(value, width)
        self.beta, self.gate = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (functional.normalize(m(x), dim=-1) for m in (self.q, self.k))
        v, beta, gate = self.v(x), torch.sigmoid(self.beta(x)), torch.sigmoid(self.gate(x))
        state = x.new_zeros(x.shape[0], k.shape[-1], v.shape[-1])
        outputs = []
        for t in range(x.shape[1]):
            state = state * gate[:, t].unsqueeze(-1)
            error = v[:, t] - torch.einsum("bkv,bk->bv", state, k[:, t])
            state = state + torch.einsum("bk,bv->bkv", k[:, t], beta[:, t] * error)
            outputs.append(torch.einsum("bkv,bk->bv", state, q[:, t]))
        return self.out(torch.stack(outputs, 1))


class Slstm(nn.Module):
    """The scalar memory of xLSTM, with a normaliser state."""

    def __init__(self, width: int = 11, hidden: int = 5) -> None:
        super().__init__()
        self.hidden = hidden
        self.x, self.h = nn.Linear(width, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        c = n = h = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            i, f, z, o = (self.x(x[:, t]) + self.h(h)).chunk(4, dim=-1)
            i, f = torch.exp(i), torch.sigmoid(f)
            c = f * c + i * torch.tanh(z)
            n = f * n + i
            h = torch.sigmoid(o) * c / n
        return self.out(h)


class Attention(nn.Module):
    """Two heads with a bias of positions, or with rotated pairs."""

    def __init__(self, how: str, width: int = 11, heads: int = 2, size: int = 4) -> None:
        super().__init__()
        self.how, self.heads, self.size = how, heads, size
        self.q, self.k = (nn.Linear(width, heads * size) for _ in range(2))
        self.v, self.o = nn.Linear(width, heads * size), nn.Linear(heads * size, width)
        self.relative = nn.Embedding(9, heads) if how == "relative" else None
        learned = {"learned": torch.rand(heads, size // 2), "equal": torch.ones(size // 2)}
        if how == "learned":
            self.rates = nn.Parameter(learned[how])
        elif how in ("equal", "xpos", "rotary"):
            rates = torch.ones(size // 2) if how == "equal" else torch.tensor([1.0, 0.1])
            self.register_buffer("rates", rates, persistent=False)

    def turned(self, h: Tensor, sign: float) -> Tensor:
        if not hasattr(self, "rates"):
            return h
        place = torch.arange(h.shape[2], dtype=h.dtype)
        angles = place[:, None] * self.rates[..., None, :]
        cosine, sine = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        if self.how == "xpos":
            base = (torch.arange(0, self.size, 2) + 0.4 * self.size) / (1.4 * self.size)
            scale = torch.cat([base ** (sign * place[:, None] / 16)] * 2, -1)
            cosine, sine = cosine * scale, sine * scale
        left, right = h.chunk(2, dim=-1)
        return h * cosine + torch.cat([-right, left], -1) * sine

    def forward(self, x: Tensor) -> Tensor:
        split = (*x.shape[:2], self.heads, self.size)
        q, k, v = (m(x).view(split).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = self.turned(q, 1.0), self.turned(k, -1.0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        place = torch.arange(x.shape[1])
        if self.how == "alibi":
            slopes = torch.tensor([0.5, 0.25]).to(x)
            scores = scores - slopes[:, None, None] * (place[:, None] - place).abs()
        elif self.relative is not None:
            apart = (place[:, None] - place).clamp(-4, 4) + 4
            scores = scores + self.relative(apart).permute(2, 0, 1)
        h = torch.softmax(scores, -1) @ v
        return self.o(h.transpose(1, 2).flatten(2))


class Disentangled(nn.Module):
    """Content to content, content to position and position to content, as in DeBERTa."""

    def __init__(self, width: int = 11, size: int = 5) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))
        self.places = nn.Embedding(13, 2)
        self.place_q, self.place_k = nn.Linear(2, size), nn.Linear(2, size)
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        place = torch.arange(time)
        apart = (place[:, None] - place + 6).expand(x.shape[0], -1, -1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        place_q, place_k = self.place_q(self.places.weight), self.place_k(self.places.weight)
        scores = q @ k.transpose(1, 2)
        scores = scores + torch.gather(q @ place_k.T, 2, apart)
        scores = scores + torch.gather(k @ place_q.T, 2, apart).transpose(1, 2)
        return self.out(torch.softmax(scores, -1) @ v)


class TransformerXl(nn.Module):
    """Relative positions with two learned biases, moved by pad and view."""

    def __init__(self, width: int = 11, size: int = 5) -> None:
        super().__init__()
        self.q, self.k, self.v, self.r = (nn.Linear(width, size, bias=False) for _ in range(4))
        self.u, self.w = nn.Parameter(torch.randn(size)), nn.Parameter(torch.randn(size))
        self.out = nn.Linear(size, 2)
        self.register_buffer("places", torch.randn(7, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, r = self.q(x), self.k(x), self.v(x), self.r(self.places)
        content = (q + self.u) @ k.transpose(1, 2)
        place = (q + self.w) @ r.T
        batch, rows, columns = place.shape
        place = functional.pad(place, (1, 0)).view(batch, columns + 1, rows)[:, 1:]
        scores = content + place.reshape(batch, rows, columns)
        return self.out(torch.softmax(scores, -1) @ v)


class Linformer(nn.Module):
    """Keys and values are projected along time."""

    def __init__(self, width: int = 11, size: int = 5, time: int = 7, short: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))
        self.e, self.f = nn.Linear(time, short, bias=False), nn.Linear(time, short, bias=False)
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        k = self.e(self.k(x).transpose(1, 2))
        v = self.f(self.v(x).transpose(1, 2)).transpose(1, 2)
        return self.out(torch.softmax(self.q(x) @ k, -1) @ v)


class LinearAttention(nn.Module):
    """Performer's kernel form with elu + 1."""

    def __init__(self, width: int = 11, size: int = 5) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = functional.elu(self.q(x)) + 1, functional.elu(self.k(x)) + 1, self.v(x)
        total = torch.einsum("btk,btv->bkv", k, v)
        rest = torch.einsum("btk,bk->bt", q, k.sum(1))
        return self.out(torch.einsum("btk,bkv->btv", q, total) / rest[..., None])


class Diagonal(nn.Module):
    """A diagonal linear recurrence with complex states in real and imaginary parts (LRU)."""

    def __init__(self, width: int = 11, states: int = 5) -> None:
        super().__init__()
        self.rate, self.angle = nn.Parameter(torch.rand(states)), nn.Parameter(torch.rand(states))
        self.real, self.imaginary = nn.Linear(width, states), nn.Linear(width, states)
        self.out_real = nn.Linear(states, 2, bias=False)
        self.out_imaginary = nn.Linear(states, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        size = torch.exp(-torch.exp(self.rate))
        a, b = size * torch.cos(self.angle), size * torch.sin(self.angle)
        u, w = self.real(x), self.imaginary(x)
        r = i = torch.zeros_like(u[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            r, i = a * r - b * i + u[:, t], a * i + b * r + w[:, t]
            outputs.append(self.out_real(r) - self.out_imaginary(i))
        return torch.stack(outputs, 1)


class ComplexDiagonal(nn.Module):
    """The same with complex parameters."""

    def __init__(self, width: int = 11, states: int = 5) -> None:
        super().__init__()
        self.rate, self.angle = nn.Parameter(torch.rand(states)), nn.Parameter(torch.rand(states))
        self.b = nn.Parameter(torch.randn(states, width, dtype=torch.cdouble))
        self.c = nn.Parameter(torch.randn(2, states, dtype=torch.cdouble))

    def forward(self, x: Tensor) -> Tensor:
        rate = torch.exp(torch.complex(-torch.exp(self.rate), self.angle).to(self.b.dtype))
        u = x.to(self.b.dtype) @ self.b.T
        state, outputs = torch.zeros_like(u[:, 0]), []
        for t in range(x.shape[1]):
            state = rate * state + u[:, t]
            outputs.append((state @ self.c.T).real)
        return torch.stack(outputs, 1)


class Wavenet(nn.Module):
    """Gated dilated causal convolutions with skips."""

    def __init__(self, width: int = 11, channels: int = 5) -> None:
        super().__init__()
        self.enter = nn.Conv1d(width, channels, 1)
        self.filters = nn.ModuleList(nn.Conv1d(channels, 4, 2, dilation=d) for d in (1, 2))
        self.gates = nn.ModuleList(nn.Conv1d(channels, 4, 2, dilation=d) for d in (1, 2))
        self.stay = nn.ModuleList(nn.Conv1d(4, channels, 1) for _ in range(2))
        self.skip = nn.ModuleList(nn.Conv1d(4, 6, 1) for _ in range(2))
        self.head = nn.Conv1d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, total = self.enter(x.transpose(1, 2)), 0
        for k, (f, g) in enumerate(zip(self.filters, self.gates, strict=True)):
            padded = functional.pad(h, (2**k, 0))
            z = torch.tanh(f(padded)) * torch.sigmoid(g(padded))
            total = total + self.skip[k](z)
            h = h + self.stay[k](z)
        return self.head(torch.relu(total))


class Conformer(nn.Module):
    """The convolution module of a conformer."""

    def __init__(self, width: int = 11, channels: int = 5) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(width, channels), nn.LayerNorm(channels)
        self.point = nn.Conv1d(channels, 2 * channels, 1)
        self.depth = nn.Conv1d(channels, channels, 3, padding=1, groups=channels)
        self.batch = nn.BatchNorm1d(channels)
        self.last, self.head = nn.Conv1d(channels, channels, 1), nn.Linear(channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        z = functional.glu(self.point(self.norm(h).transpose(1, 2)), dim=1)
        z = self.last(functional.silu(self.batch(self.depth(z))))
        return self.head(h + 0.5 * z.transpose(1, 2))


class Pointer(nn.Module):
    """Additive attention over an encoder's states, which are what it points at."""

    def __init__(self, width: int = 11, hidden: int = 5) -> None:
        super().__init__()
        self.encoder = nn.GRU(width, hidden, batch_first=True)
        self.decoder = nn.GRUCell(width, hidden)
        self.left, self.right = nn.Linear(hidden, 4), nn.Linear(hidden, 4, bias=False)
        self.v = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        memory, last = self.encoder(x)
        h, outputs = last[0], []
        for t in range(2):
            h = self.decoder(x[:, t], h)
            scores = self.v(torch.tanh(self.left(memory) + self.right(h)[:, None]))
            outputs.append(torch.softmax(scores.squeeze(-1), -1))
        return torch.stack(outputs, 1)


class Memory(nn.Module):
    """An end-to-end memory network of two hops."""

    def __init__(self, width: int = 11, size: int = 5) -> None:
        super().__init__()
        self.a, self.c, self.b = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.hop, self.out = nn.Linear(size, size), nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        keys, values, query = self.a(x), self.c(x), self.b(x[:, 0])
        for _ in range(2):
            weights = torch.softmax(torch.bmm(keys, query.unsqueeze(2)).squeeze(2), 1)
            query = self.hop(query) + torch.bmm(weights.unsqueeze(1), values).squeeze(1)
        return self.out(query)


class Stack(nn.Module):
    """A differentiable stack with learned push and pop."""

    def __init__(self, width: int = 11, size: int = 5) -> None:
        super().__init__()
        self.size = size
        self.push, self.act = nn.Linear(width, size), nn.Linear(width + size, 2)
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        stack = x.new_zeros(x.shape[0], 4, self.size)
        for t in range(x.shape[1]):
            act = torch.softmax(self.act(torch.cat([x[:, t], stack[:, 0]], -1)), -1)
            up = torch.cat([torch.tanh(self.push(x[:, t]))[:, None], stack[:, :-1]], 1)
            down = torch.cat([stack[:, 1:], torch.zeros_like(stack[:, :1])], 1)
            stack = act[:, :1, None] * up + act[:, 1:, None] * down
        return self.out(stack[:, 0])


SEQUENCES = {
    "mamba": Mamba, "rg_lru": RecurrentGate, "rwkv": Rwkv, "gmlp": Gmlp, "wav2vec": Wave2vec,
    "delta": Delta, "slstm": Slstm, "disentangled": Disentangled, "transformer_xl": TransformerXl,
    "linformer": Linformer, "performer": LinearAttention, "diagonal": Diagonal,
    "complex_diagonal": ComplexDiagonal, "wavenet": Wavenet, "conformer": Conformer,
    "pointer": Pointer, "memory": Memory, "stack": Stack,
    **{
        f"attention_{how}": (lambda how=how: Attention(how))
        for how in ("plain", "alibi", "relative", "rotary", "equal", "learned", "xpos")
    },
}  # fmt: skip
