"""The paper's equations in NumPy, with plain loops where that is clearer.

Written from the equations only, for comparison: it shares no code with the package.
"""

import numpy as np

FLOOR = 1e-3


def relative_geometry(boxes, signed=False):
    """Eq. 8 for one image, one pair at a time."""
    count = len(boxes)
    features = np.zeros((count, count, 6 if signed else 4))
    for i, (xi, yi, wi, hi) in enumerate(boxes):
        for j, (xj, yj, wj, hj) in enumerate(boxes):
            dx, dy = (xi - xj) / wi, (yi - yj) / hi
            features[i, j, :4] = (
                np.log(max(abs(dx), FLOOR)),
                np.log(max(abs(dy), FLOOR)),
                np.log(wi / wj),
                np.log(hi / hj),
            )
            if signed:
                features[i, j, 4:] = min(max(dx, -3), 3), min(max(dy, -3), 3)
    return features


def instance_norm(x, eps=1e-5):
    """Eq. 6-7 for one image, without the affine part."""
    return (x - x.mean(0)) / np.sqrt(x.var(0) + eps)


def layer_norm(x, weight, bias, eps=1e-5):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def relu(x):
    return np.maximum(x, 0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def linear(x, state, name):
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def waves(x, width, max_length):
    """Sines at even and cosines at odd components."""
    out = np.zeros((*x.shape, width))
    for k in range(width // 2):
        angle = x / max_length ** (2 * k / width)
        out[..., 2 * k], out[..., 2 * k + 1] = np.sin(angle), np.cos(angle)
    return out


def geometry_bias(terms, geometry, x, state, prefix, heads):
    """Eq. 9 and 11-13 for one image; returns the bias of the scores, (heads, N, N)."""
    count = len(x)
    bias = np.zeros((heads, count, count))
    if any(term != "relation" for term in terms):
        embedded = relu(linear(geometry, state, f"{prefix}embedding"))
        width = embedded.shape[-1]
    for term in terms:
        for h in range(heads):
            for i in range(count):
                for j in range(count):
                    if term == "content-independent":
                        w = state[f"{prefix}content_independent.weight"][h]
                        bias[h, i, j] += max(w @ embedded[i, j], 0)
                    elif term in ("query", "key"):
                        row = x[i] if term == "query" else x[j]
                        part = linear(row, state, f"{prefix}{term}")[h * width : (h + 1) * width]
                        bias[h, i, j] += part @ embedded[i, j]
                    else:
                        wave = waves(geometry[i, j] * 100, 16, 1000).ravel()
                        gate = max(linear(wave, state, f"{prefix}relation")[h], 1e-6)
                        bias[h, i, j] += np.log(gate)
    return bias


def attention(x, memory, state, prefix, heads, bias=0.0, causal=False, norms=(None, None)):
    """Eq. 10 for one image, one head at a time."""
    query, key = linear(x, state, f"{prefix}query"), linear(memory, state, f"{prefix}key")
    value = linear(memory, state, f"{prefix}value")
    query = norms[0](query) if norms[0] else query
    key = norms[1](key) if norms[1] else key
    width = query.shape[-1] // heads
    bias = np.broadcast_to(bias, (heads, len(x), len(memory)))
    out = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        scores = query[:, part] @ key[:, part].T / np.sqrt(width) + bias[h]
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        out.append(softmax(scores) @ value[:, part])
    return linear(np.concatenate(out, -1), state, f"{prefix}output")


def feedforward(x, state, prefix):
    return linear(relu(linear(x, state, f"{prefix}widen")), state, f"{prefix}narrow")


def residual(x, sublayer, state, prefix, place):
    def norm(y):
        return layer_norm(y, state[f"{prefix}norm.weight"], state[f"{prefix}norm.bias"])

    return x + sublayer(norm(x)) if place == "pre" else norm(x + sublayer(x))


def final_norm(x, state, name):
    if f"{name}.weight" not in state:
        return x
    return layer_norm(x, state[f"{name}.weight"], state[f"{name}.bias"])


def encode(features, boxes, state, *, layers, heads, terms=(), signed=False, norms, place):
    """The encoder for one image without padding; `norms(state, prefix)` gives the two norms."""
    x = relu(linear(features, state, "encoder.embed"))
    if "absolute" in terms:
        x = x + waves(boxes * 100, x.shape[-1] // 4, 1000).reshape(len(x), -1)
    terms = [term for term in terms if term != "absolute"]
    geometry = relative_geometry(boxes, signed)
    for layer in range(layers):
        prefix = f"encoder.layers.{layer}."

        def attend(y, at=f"{prefix}attention."):
            bias = geometry_bias(terms, geometry, y, state, f"{at}score_bias.", heads)
            return attention(y, y, state, at, heads, bias, norms=norms(state, at))

        x = residual(x, attend, state, f"{prefix}attention_residual.", place)
        x = residual(
            x,
            lambda y, at=f"{prefix}feedforward.": feedforward(y, state, at),
            state,
            f"{prefix}feedforward_residual.",
            place,
        )
    return final_norm(x, state, "encoder.norm")


def decode(words, memory, state, *, layers, heads, place):
    """The decoder for one caption."""
    dim = memory.shape[-1]
    x = state["decoder.embed.weight"][words] * np.sqrt(dim)
    x = x + waves(np.arange(len(words), dtype=float), dim, 10_000)
    for layer in range(layers):
        prefix = f"decoder.layers.{layer}."
        sublayers = {
            "self": lambda y, at=f"{prefix}self_attention.": attention(
                y, y, state, at, heads, causal=True
            ),
            "cross": lambda y, at=f"{prefix}cross_attention.": attention(
                y, memory, state, at, heads
            ),
            "feedforward": lambda y, at=f"{prefix}feedforward.": feedforward(y, state, at),
        }
        for name, sublayer in sublayers.items():
            x = residual(x, sublayer, state, f"{prefix}{name}_residual.", place)
    return linear(final_norm(x, state, "decoder.norm"), state, "decoder.output")
