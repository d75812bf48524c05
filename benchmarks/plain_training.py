"""The plain training that `benchmarks/training.py` measures ours against, and its own check.

    python benchmarks/plain_training.py

NG-SAN and its two training steps as public captioners write them: attention spelled out, an
image's features repeated for each of its captions before the encoder, every prefix decoded again
with its gradient kept, and the reward counted in Python on strings. Nothing of ngsan is used, save
by the check, which compares weights, logits, losses, gradients and rewards with ngsan's on the CPU.

Shapes: `B` images, `N` regions, `C` captions an image, `R` captions in all, `T` words, `D` model
width, `H` heads, `K` head width, `G` geometry width, `V` vocabulary. Id 0 begins, ends and pads a
caption. All regions are real; boxes are `cxcywh`.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

GEOMETRY_DIM = 64
CLIP = 0.1
ORDERS = 4
SIGMA = 6.0

NgramWeights = list[dict[tuple[str, ...], float]]


class Attention(nn.Module):
    """Multi-head attention; with `norm` the NSA of the paper, with `geometry` its GSA."""

    def __init__(
        self, dim: int, heads: int, dropout: float, *, norm: bool = False, geometry: bool = False
    ) -> None:
        """Makes the projections."""
        super().__init__()
        self.heads, self.norm, self.geometry = heads, norm, geometry
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.value, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        if geometry:
            self.pair = nn.Linear(4, GEOMETRY_DIM)
            self.pair_q = nn.Linear(dim, heads * GEOMETRY_DIM)

    def forward(
        self, x: Tensor, source: Tensor, boxes: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        """From `x` (R, T, D) to `source` (R, S, D)."""
        query, key, value = self.query(x), self.key(source), self.value(source)
        if self.norm:
            mean = query.mean(dim=1, keepdim=True)
            variance = query.var(dim=1, unbiased=False, keepdim=True)
            query = (query - mean) / torch.sqrt(variance + 1e-5)
        query, key, value = self._split(query), self._split(key), self._split(value)
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])
        if self.geometry:
            embedded = torch.relu(self.pair(pair_features(boxes)))  # (R, N, N, G)
            asked = self.pair_q(x).view(*x.shape[:2], self.heads, GEOMETRY_DIM)
            bias = torch.matmul(asked, embedded.transpose(2, 3))  # (R, N, H, N)
            scores = scores + bias.transpose(1, 2)
        if causal:
            seen = torch.ones(scores.shape[-2:], device=x.device).tril()
            scores = scores.masked_fill(seen == 0, float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        read = torch.matmul(weights, value).transpose(1, 2).reshape(x.shape)
        return self.output(read)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)  # (R, H, T, K)


def pair_features(boxes: Tensor) -> Tensor:
    """Eq. 8 of the paper for every pair of boxes, (R, N, 4) to (R, N, N, 4)."""
    x, y, w, h = boxes.unsqueeze(2).unbind(-1)  # (R, N, 1)
    other_x, other_y, other_w, other_h = boxes.unsqueeze(1).unbind(-1)  # (R, 1, N)
    ratios = (
        ((x - other_x).abs() / w).clamp(min=1e-3),
        ((y - other_y).abs() / h).clamp(min=1e-3),
        w / other_w,
        h / other_h,
    )
    return torch.log(torch.stack(ratios, dim=-1))


class Layer(nn.Module):
    """A Transformer layer with layer norm after each residual; `cross` makes it a decoder's."""

    def __init__(
        self, dim: int, heads: int, hidden_dim: int, dropout: float, *, cross: bool, **parts: bool
    ) -> None:
        """Makes the sub-layers; `parts` are the options of the self-attention."""
        super().__init__()
        self.own = Attention(dim, heads, dropout, **parts)
        self.own_norm = nn.LayerNorm(dim)
        self.cross = Attention(dim, heads, dropout) if cross else None
        self.cross_norm = nn.LayerNorm(dim) if cross else None
        self.wide, self.narrow = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        self.wide_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, *, boxes: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        """(R, T, D) to (R, T, D): regions with their boxes, or words with their memory."""
        x = self.own_norm(x + self.dropout(self.own(x, x, boxes, causal=memory is not None)))
        if memory is not None:
            x = self.cross_norm(x + self.dropout(self.cross(x, memory)))
        inner = self.dropout(torch.relu(self.wide(x)))
        return self.wide_norm(x + self.dropout(self.narrow(inner)))


class PlainCaptioner(nn.Module):
    """SAN, N-SAN, G-SAN or NG-SAN, by `norm` and `geometry`."""

    def __init__(
        self,
        vocab_size: int = 9488,
        feature_dim: int = 2048,
        dim: int = 512,
        heads: int = 8,
        hidden_dim: int = 2048,
        layers: int = 4,
        dropout: float = 0.1,
        *,
        norm: bool,
        geometry: bool,
    ) -> None:
        """Makes the model with random weights."""
        super().__init__()
        self.region = nn.Linear(feature_dim, dim)
        self.word = nn.Embedding(vocab_size, dim)
        sizes = (dim, heads, hidden_dim, dropout)
        self.encoder = nn.ModuleList(
            Layer(*sizes, cross=False, norm=norm, geometry=geometry) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(Layer(*sizes, cross=True) for _ in range(layers))
        self.score = nn.Linear(dim, vocab_size)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def encode(self, features: Tensor, boxes: Tensor) -> Tensor:
        """(R, N, feature_dim) and (R, N, 4) to (R, N, D)."""
        x = self.dropout(torch.relu(self.region(features)))
        for layer in self.encoder:
            x = layer(x, boxes=boxes)
        return x

    def decode(self, words: Tensor, memory: Tensor) -> Tensor:
        """(R, T) word ids to (R, T, D), of which `score` makes logits."""
        dim = self.word.embedding_dim
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(1)
        number = torch.arange(dim, device=words.device)
        angles = places / 10_000 ** (number // 2 * 2 / dim)
        waves = torch.where(number % 2 == 0, angles.sin(), angles.cos())
        x = self.dropout(self.word(words) * math.sqrt(dim) + waves)
        for layer in self.decoder:
            x = layer(x, memory=memory)
        return x

    def forward(self, features: Tensor, boxes: Tensor, words: Tensor) -> Tensor:
        """Logits of the word after each word, (R, T, V)."""
        return self.score(self.decode(words, self.encode(features, boxes)))


def _update(model: PlainCaptioner, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), CLIP)
    optimizer.step()


def plain_cross_entropy_step(
    model: PlainCaptioner,
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    boxes: Tensor,
    words: Tensor,
    targets: Tensor,
    target_mask: Tensor,
) -> Tensor:
    """One step of cross-entropy; leaves the model in training mode.

    Args:
        model: The model.
        optimizer: Adam, of the model's parameters.
        features: (B, N, feature_dim).
        boxes: (B, N, 4).
        words: (B, C, T) ids, 0 first.
        targets: (B, C, T) the words that follow.
        target_mask: (B, C, T) boolean, True = a real target, the end included.

    Returns:
        The mean loss of a real target, detached.
    """
    model.train()
    captions = words.shape[1]
    features = features.repeat_interleave(captions, dim=0)
    boxes = boxes.repeat_interleave(captions, dim=0)
    logits = model(features, boxes, words.flatten(0, 1))
    log_probs = torch.log_softmax(logits, dim=-1)
    chosen = log_probs.gather(2, targets.flatten(0, 1).unsqueeze(2)).squeeze(2)
    mask = target_mask.flatten(0, 1).float()
    loss = -(chosen * mask).sum() / mask.sum()
    _update(model, optimizer, loss)
    return loss.detach()


def write_captions(
    model: PlainCaptioner, features: Tensor, boxes: Tensor, max_length: int, *, greedy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes a caption for each of R images, decoding the whole prefix for every word.

    Returns:
        words: (R, T) ids, 0 from the end on.
        log_probs: (R, T) of the words that were chosen, with their gradient where it is enabled.
        mask: (R, T) boolean, True = a word or the end.
    """
    memory = model.encode(features, boxes)
    words = torch.zeros(len(features), 1, dtype=torch.long, device=features.device)
    going_on = torch.ones(len(features), dtype=torch.bool, device=features.device)
    log_probs, mask = [], []
    for _ in range(max_length):
        scores = model.score(model.decode(words, memory)[:, -1])
        distribution = torch.log_softmax(scores, dim=-1)
        if greedy:
            word = distribution.argmax(dim=-1, keepdim=True)
        else:
            word = torch.multinomial(distribution.detach().exp(), 1)
        log_probs.append(distribution.gather(1, word).squeeze(1))
        mask.append(going_on)
        words = torch.cat((words, word * going_on.unsqueeze(1)), dim=1)
        going_on = going_on & (word.squeeze(1) != 0)
        if not going_on.any():
            break
    return words[:, 1:], torch.stack(log_probs, dim=1), torch.stack(mask, dim=1)


def plain_self_critical_step(
    model: PlainCaptioner,
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    boxes: Tensor,
    references: list[list[str]],
    words_of: list[str],
    document_frequencies: "DocumentFrequencies",
    samples: int = 5,
    max_length: int = 20,
) -> tuple[Tensor, float, float]:
    """One step of self-critical learning with a greedy baseline; leaves the model in training mode.

    Args:
        model: The model.
        optimizer: Adam, of the model's parameters.
        features: (B, N, feature_dim).
        boxes: (B, N, 4).
        references: For each of the images its references, words between blanks. For the end to
            count in the reward, as it does in the captions, `words_of[0]` is their last word.
        words_of: The word of every id; that of 0 stands for the end.
        document_frequencies: Of the training split, its references written alike.
        samples: Captions that are sampled for an image.
        max_length: Words of a caption at most, the end included.

    Returns:
        The loss, detached; the mean reward of the samples, and that of the greedy captions.
    """
    model.eval()
    with torch.no_grad():
        greedy, _, _ = write_captions(model, features, boxes, max_length, greedy=True)
    model.train()
    words, log_probs, mask = write_captions(
        model,
        features.repeat_interleave(samples, dim=0),
        boxes.repeat_interleave(samples, dim=0),
        max_length,
        greedy=False,
    )
    sampled, baseline = words.tolist(), greedy.tolist()
    rewards, baselines = [], []
    for image, texts in enumerate(references):
        rows = [*sampled[image * samples : (image + 1) * samples], baseline[image]]
        captions = [caption_text(row, words_of) for row in rows]
        scores = cider_d(captions, texts, document_frequencies)
        rewards += scores[:-1]
        baselines.append(scores[-1])
    reward = torch.tensor(rewards, device=features.device)
    advantage = reward - torch.tensor(baselines, device=features.device).repeat_interleave(samples)
    loss = -(log_probs * advantage.unsqueeze(1) * mask).sum() / mask.sum()
    _update(model, optimizer, loss)
    return loss.detach(), sum(rewards) / len(rewards), sum(baselines) / len(baselines)


def caption_text(row: list[int], words_of: list[str]) -> str:
    """A caption as a string; the word of id 0 is its last where it ends."""
    stop = row.index(0) + 1 if 0 in row else len(row)
    return " ".join(words_of[number] for number in row[:stop])


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many images n-grams occur."""

    counts: Counter[tuple[str, ...]]
    """Images that have the n-gram in a reference."""

    images: int
    """Images in all."""


def ngrams(words: list[str], order: int) -> list[tuple[str, ...]]:
    """The n-grams of a caption."""
    return [tuple(words[start : start + order]) for start in range(len(words) - order + 1)]


def count_documents(references: list[list[str]]) -> DocumentFrequencies:
    """Counts the n-grams of each image's references."""
    counts: Counter[tuple[str, ...]] = Counter()
    for texts in references:
        split = [text.split() for text in texts]
        counts.update({n for words in split for k in range(ORDERS) for n in ngrams(words, k + 1)})
    return DocumentFrequencies(counts, len(references))


def _weigh(words: list[str], documents: DocumentFrequencies) -> tuple[NgramWeights, list[float]]:
    """The tf-idf weights of every order's n-grams, and the lengths of these vectors."""
    weights: NgramWeights = []
    for order in range(1, ORDERS + 1):
        vector = {}
        for ngram, count in Counter(ngrams(words, order)).items():
            vector[ngram] = count * math.log(documents.images / max(1, documents.counts[ngram]))
        weights.append(vector)
    return weights, [math.sqrt(sum(w * w for w in vector.values())) for vector in weights]


def cider_d(
    captions: list[str], references: list[str], documents: DocumentFrequencies
) -> list[float]:
    """CIDEr-D, from 0 to 10, of captions of one image (Vedantam et al., CVPR 2015).

    Cosines of tf-idf vectors with a caption's weights clipped at the reference's, times a Gaussian
    of the difference in length; the mean over orders and references, times 10.
    """
    others = [(text.split(), *_weigh(text.split(), documents)) for text in references]
    scores = []
    for caption in captions:
        words = caption.split()
        weights, norms = _weigh(words, documents)
        total = 0.0
        for other_words, other_weights, other_norms in others:
            gap = len(words) - len(other_words)
            penalty = math.exp(-(gap**2) / (2 * SIGMA**2))
            for order in range(ORDERS):
                if norms[order] == 0 or other_norms[order] == 0:
                    continue
                product = 0.0
                for ngram, weight in weights[order].items():
                    other = other_weights[order].get(ngram, 0.0)
                    product += min(weight, other) * other
                total += penalty * product / (norms[order] * other_norms[order])
        scores.append(10 * total / (ORDERS * len(references)))
    return scores


NAMES = (
    ("region.", "encoder.embed."),
    ("word.", "decoder.embed."),
    ("score.", "decoder.output."),
    ("encoder.N.own_norm.", "encoder.layers.N.attention_residual.norm."),
    ("encoder.N.own.pair.", "encoder.layers.N.attention.score_bias.embedding."),
    ("encoder.N.own.pair_q.", "encoder.layers.N.attention.score_bias.query."),
    ("encoder.N.own.", "encoder.layers.N.attention."),
    ("decoder.N.own_norm.", "decoder.layers.N.self_residual.norm."),
    ("decoder.N.own.", "decoder.layers.N.self_attention."),
    ("decoder.N.cross_norm.", "decoder.layers.N.cross_residual.norm."),
    ("decoder.N.cross.", "decoder.layers.N.cross_attention."),
    ("coder.N.wide_norm.", "coder.layers.N.feedforward_residual.norm."),
    ("coder.N.wide.", "coder.layers.N.feedforward.widen."),
    ("coder.N.narrow.", "coder.layers.N.feedforward.narrow."),
)
"""For the check: names of parameters here and in ngsan, `N` for the layer."""


def ngsan_name(name: str) -> str:
    """What ngsan calls a parameter."""
    number = next((part for part in name.split(".") if part.isdigit()), "")
    name = name.replace(f".{number}.", ".N.") if number else name
    for here, there in NAMES:
        name = name.replace(here, there)
    return name.replace(".N.", f".{number}.")


def twins(**sizes: int | float | bool) -> tuple[PlainCaptioner, nn.Module]:
    """A plain model and ngsan's with the same weights, all of them random."""
    from ngsan import build_captioner

    plain = PlainCaptioner(**sizes)
    parts = {"norm": "instance" if sizes.pop("norm") else "none"}
    parts["geometry"] = "query" if sizes.pop("geometry") else "none"
    ours = build_captioner("ng-san", **parts, **sizes)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    # Strict: a parameter that only one of the two has is an error.
    ours.load_state_dict({ngsan_name(name): value for name, value in plain.state_dict().items()})
    return plain, ours


def gradients(plain: PlainCaptioner, ours: nn.Module, loss: Tensor) -> tuple[Tensor, Tensor]:
    """All gradients of the last step, and the clipped ones of ngsan's loss in the same order."""
    ours.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(ours.parameters(), CLIP)
    theirs = dict(ours.named_parameters())
    pairs = [
        (value.grad, theirs[ngsan_name(name)].grad) for name, value in plain.named_parameters()
    ]
    found, expected = (
        torch.cat([grad.flatten() for grad in side]) for side in zip(*pairs, strict=True)
    )
    return found, expected


def some_images(count: int, regions: int, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Random features, and boxes of which some are aligned."""
    boxes = torch.rand(count, regions, 4) * 0.8 + 0.1
    boxes[:, 0, :2] = boxes[:, 1, :2]
    return torch.randn(count, regions, feature_dim), boxes


@torch.no_grad()
def check_models() -> None:
    """Compares the four models in a small size, and NG-SAN in its own."""
    small = {"vocab_size": 50, "feature_dim": 24, "dim": 32, "heads": 4, "layers": 2}
    cases = [(small, norm, geometry) for norm in (False, True) for geometry in (False, True)]
    for sizes, norm, geometry in [*cases, ({}, True, True)]:
        plain, ours = (model.eval() for model in twins(norm=norm, geometry=geometry, **sizes))
        count = sum(parameter.numel() for parameter in plain.parameters())
        report("parameters", count, sum(parameter.numel() for parameter in ours.parameters()))
        features, boxes = some_images(3, 36, plain.region.in_features)
        words = torch.randint(plain.word.num_embeddings, (3, 12))
        expected = ours(features, boxes, None, words)
        report(f"logits, {norm=}, {geometry=}", plain(features, boxes, words), expected)


def check_steps() -> None:
    """Compares the two steps, dropout off, and the rewards."""
    from ngsan.metrics.reward import CiderDReward, References
    from ngsan.nn import word_cross_entropy

    sizes = {"vocab_size": 12, "feature_dim": 24, "dim": 32, "heads": 4, "hidden_dim": 48}
    plain, ours = twins(norm=True, geometry=True, layers=2, dropout=0.0, **sizes)
    idle = torch.optim.SGD(plain.parameters(), lr=0.0)  # the gradients stay, so do the weights
    features, boxes = some_images(4, 7, 24)
    captions = torch.randint(1, 12, (4, 5, 9))
    mask = torch.arange(9) < torch.randint(1, 10, (4, 5, 1))
    words = torch.cat((torch.zeros_like(captions[..., :1]), captions[..., :-1]), dim=-1)
    loss = plain_cross_entropy_step(plain, idle, features, boxes, words, captions, mask)
    expected = word_cross_entropy(ours(features, boxes, None, words), captions, mask)
    report("cross-entropy, loss", loss, expected)
    report("cross-entropy, clipped gradients", *gradients(plain, ours, expected))

    ids = [[torch.randint(1, 12, (1 + n % 9,)).tolist() for n in range(5)] for _ in range(40)]
    words_of = ["<end>", *(f"word{number}" for number in range(1, 12))]
    texts = [[caption_text([*row, 0], words_of) for row in rows] for rows in ids]
    documents = count_documents(texts)
    reward = CiderDReward(References.build(ids, vocab_size=12, end=True))
    rows = torch.randint(0, 12, (40, 6, 8))
    rows[:, 0, :] = 0  # an empty caption
    rows[:, 1] = torch.tensor(
        [[*one[n % 5], *[0] * 8][:8] for n, one in enumerate(ids)]
    )  # a reference
    scores = [
        cider_d([caption_text(row, words_of) for row in some], others, documents)
        for some, others in zip(rows.tolist(), texts, strict=True)
    ]
    report("CIDEr-D of 240 captions", torch.tensor(scores), reward(torch.arange(40), rows))

    torch.manual_seed(1)
    loss, sampled, baseline = plain_self_critical_step(
        plain, idle, features, boxes, texts[:4], words_of, documents, max_length=8
    )
    with torch.no_grad():
        torch.manual_seed(1)  # the same samples again
        repeated = features.repeat_interleave(5, dim=0), boxes.repeat_interleave(5, dim=0)
        words, _, _ = write_captions(plain, *repeated, 8, greedy=False)
        greedy, _, _ = write_captions(plain, features, boxes, 8, greedy=True)
    words, images = words.view(4, 5, -1), torch.arange(4)
    rewards, of_greedy = reward(images, words), reward(images, greedy)
    mask = (words == 0).cumsum(-1) - (words == 0).long() == 0
    before = torch.cat((torch.zeros_like(words[..., :1]), words[..., :-1]), dim=-1)
    log_probs = ours(features, boxes, None, before).log_softmax(-1)
    chosen = log_probs.gather(-1, words.unsqueeze(-1)).squeeze(-1) * mask
    expected = -(chosen * (rewards - of_greedy.unsqueeze(1)).unsqueeze(-1)).sum() / mask.sum()
    report("self-critical, mean reward of the samples", sampled, rewards.mean())
    report("self-critical, mean reward of the baseline", baseline, of_greedy.mean())
    report("self-critical, loss", loss, expected)
    report("self-critical, clipped gradients", *gradients(plain, ours, expected))


def report(what: str, found: Tensor | float, expected: Tensor | float) -> None:
    """Prints the largest difference, which must be at most 1e-4."""
    found, expected = torch.as_tensor(found).detach(), torch.as_tensor(expected).detach()
    difference = float((found - expected).abs().max())
    largest = float(expected.abs().max())
    print(f"{what}: largest difference {difference:.1e}, largest value {largest:.3g}", flush=True)
    if not (found.shape == expected.shape and difference <= 1e-4):
        raise SystemExit(f"{what}: the plain version and ngsan's do not agree")


if __name__ == "__main__":
    torch.manual_seed(0)
    check_models()
    check_steps()
