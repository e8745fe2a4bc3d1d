"""Exported phmctl models in plain torch.

``load(FOLDER)`` returns the model of an export. It needs this file, torch and safetensors, but not phmctl. The layer
names match the tensor names in ``model.safetensors``.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

Config = dict[str, Any]  # the content of config.json
PAD, END = 0, 3
FACTORS = (".A", ".S", ".R", ".L", ".table.weight", ".map.weight")  # ends of names of factors of a weight


def positions(start: int, stop: int, width: int) -> Tensor:
    """Return sinusoidal encodings of positions `start` to `stop` - 1, (stop - start, width): sines, then cosines."""
    frequencies = torch.exp(torch.arange(width // 2).float() * (-math.log(10_000.0) / max(width // 2 - 1, 1)))
    angles = torch.arange(start, stop)[:, None] * frequencies  # (stop - start, width / 2)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def embed(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    """Return scaled embeddings with positions, (B, T, d), of ids (B, T)."""
    x = embedding(ids) * math.sqrt(embedding.embedding_dim)
    return x + positions(0, ids.shape[1], embedding.embedding_dim).to(x)


class Residual(nn.Module):
    """A residual connection with layer norm: x + f(norm(x)) with pre-norm, norm(x + f(x)) with post-norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config["width"])
        self.pre_norm = config["pre_norm"]

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sublayer to x (B, T, d)."""
        return x + sublayer(self.norm(x)) if self.pre_norm else self.norm(x + sublayer(x))


class Attention(nn.Module):
    """Multi-head attention. The queries, keys and values of all heads together are `inner` wide."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner, bias = config["width"], config["inner"], config["bias"]
        self.heads = config["heads"]
        self.query, self.key, self.value = (nn.Linear(width, inner, bias) for _ in range(3))
        self.output = nn.Linear(inner, width, bias)

    def split(self, x: Tensor) -> Tensor:
        """Split (B, T, inner) into heads, (B, heads, T, inner / heads)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        """Return the output (B, T, d) of split queries, keys and values. Mask (B, 1, 1, S) is true for real keys."""
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend from x (B, T, d) to memory (B, S, d)."""
        query, key, value = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        return self.attend(query, key, value, mask, causal)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config["width"], config["feed_forward"], config["bias"])
        self.contract = nn.Linear(config["feed_forward"], config["width"], config["bias"])

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., d)."""
        return self.contract(self.expand(x).relu())


class Layer(nn.Module):
    """A Transformer layer: self-attention, cross-attention (decoder only) and feed-forward."""

    def __init__(self, config: Config, cross: bool = False) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_residual = Residual(config)
        if cross:
            self.cross_attention = Attention(config)
            self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """Transform x (B, T, d). The mask is the source's. A decoder layer attends to memory (B, S, d)."""
        if memory is None:
            x = self.attention_residual(x, lambda h: self.attention(h, h, mask))
        else:
            x = self.attention_residual(x, lambda h: self.attention(h, h, causal=True))
            x = self.cross_residual(x, lambda h: self.cross_attention(h, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Transformer(nn.Module):
    """Encoder-decoder Transformer over token ids: sources end with 3 (</s>), targets begin with 2 (<s>)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        self.source_embedding = nn.Embedding(config["source_vocabulary"], width)
        self.target_embedding = nn.Embedding(config["target_vocabulary"], width)
        self.encoder = nn.ModuleList(Layer(config) for _ in range(config["encoder_layers"]))
        self.decoder = nn.ModuleList(Layer(config, cross=True) for _ in range(config["decoder_layers"]))
        self.encoder_norm = nn.LayerNorm(width) if config["final_norm"] else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if config["final_norm"] else nn.Identity()
        self.generator = nn.Linear(width, config["target_vocabulary"], config["generator_bias"])
        if config["share_embeddings"]:
            self.target_embedding = self.source_embedding
        if config["tied"]:
            self.generator.weight = self.target_embedding.weight

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's output (B, S, d) and the mask of real tokens, for source ids (B, S)."""
        mask = (source != PAD)[:, None, None]  # (B, 1, 1, S)
        x = embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S), each closed by 3 (</s>), and target ids (B, T)."""
        if not (source == END).any(1).all():
            raise ValueError(f"each source must end with id {END}, as in training")
        memory, mask = self.encode(source)
        x = embed(self.target_embedding, target)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return self.generator(self.decoder_norm(x))


class EncoderClassifier(nn.Module):
    """Text classifier: a Transformer encoder, pooling, and a linear map to the classes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.pooling = config["width"], config["pooling"]
        self.embedding = nn.Embedding(config["vocabulary"], width)
        self.encoder = nn.ModuleList(Layer(config) for _ in range(config["layers"]))
        self.encoder_norm = nn.LayerNorm(width) if config["final_norm"] else nn.Identity()
        self.output = nn.Linear(width, config["classes"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, classes) for ids (B, S), which are padded with 0 at the end."""
        mask = tokens != PAD  # (B, S)
        x = embed(self.embedding, tokens)
        # An empty text attends to the first padding position and is pooled to zeros.
        attended = mask | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
        for layer in self.encoder:
            x = layer(x, attended[:, None, None])
        real = mask.to(x.dtype)
        if self.pooling == "last":
            weights = real - F.pad(real, (0, 1))[:, 1:]  # 1 at the last token
        else:
            weights = real / real.sum(1, keepdim=True).clamp(min=1)
        return self.output((self.encoder_norm(x) * weights[:, :, None]).sum(1))


class PairClassifier(nn.Module):
    """Sentence-pair classifier: the same LSTM encodes both texts, and an MLP compares the two vectors."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config["width"], config["hidden"]
        self.full = config["combination"] == "full"
        self.embedding = nn.Embedding(config["vocabulary"], config["embedding_width"])
        self.lstm = nn.LSTM(config["embedding_width"], width, batch_first=True)
        self.mlp = nn.ModuleList([nn.Linear((8 if self.full else 4) * width, hidden), nn.Linear(hidden, hidden)])
        self.output = nn.Linear(hidden, config["classes"])

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the maximum and the mean of the LSTM's states over time, (B, 2h), for ids (B, S)."""
        states, _ = self.lstm(self.embedding(tokens))  # (B, S, h)
        mask = (tokens != PAD)[:, :, None]  # (B, S, 1)
        maximum = states.masked_fill(~mask, -1e30).amax(1).masked_fill(~mask.any(1), 0.0)  # zeros for an empty text
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.cat([maximum, mean], dim=1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return logits (B, classes) for two texts' ids, (B, S) and (B, S′)."""
        u, v = self.encode(first), self.encode(second)
        x = torch.cat([u, v, (u - v).abs(), u * v] if self.full else [u, v], dim=1)
        for layer in self.mlp:
            x = layer(x).relu()
        return self.output(x)


MODELS = {"transformer": Transformer, "encoder": EncoderClassifier, "lstm-pair": PairClassifier}


def numbers(tensors: dict[str, Tensor], name: str, columns: dict[str, int]) -> Tensor:
    """Return a stored tensor in float32: float16, or integers with a scale for each row, of 4 bits two in a byte."""
    tensor = tensors[name]
    if tensor.is_floating_point():
        return tensor.float()
    scale, width, packed = tensors[f"{name}.scale"], columns[name], 2 if tensor.dtype == torch.uint8 else 1
    if tensor.shape[-1] != -(-width // packed) or scale.shape != (*tensor.shape[:-1], 1) or not scale.isfinite().all():
        raise ValueError(f"the numbers or the scales of {name} are damaged")
    if packed == 2:
        tensor = torch.stack([tensor & 15, tensor >> 4], dim=-1).flatten(-2)[..., :width].float() - 8
    return tensor * scale


def matrix(tensors: dict[str, Tensor], name: str) -> Tensor:
    """Return H (k, d): the sum over i of kron(A[i], S[i]), or L R, or the product of a table and a map."""
    if f"{name}.S" in tensors:
        H = torch.einsum("iab,ist->asbt", tensors[f"{name}.A"], tensors[f"{name}.S"])  # (n, k / n, n, d / n)
        return H.flatten(2).flatten(0, 1)
    if f"{name}.R" in tensors:
        return tensors[f"{name}.L"] @ tensors[f"{name}.R"]
    if f"{name}.weight" in tensors:
        return tensors[f"{name}.weight"]
    return matrix(tensors, f"{name}.table") @ matrix(tensors, f"{name}.map").T


def dense(config: Config, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the dense tensors that an export stores or that are computed from it, a shared table once."""
    tensors = {name: numbers(stored, name, config.get("columns", {})) for name in stored if not name.endswith(".scale")}
    for name, parts in config.get("rows", {}).items():
        tensors[name] = torch.cat([matrix(tensors, part)[first:last] for part, first, last in parts])
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(FACTORS)}


def read(folder: Path) -> tuple[Config, dict[str, Tensor]]:
    """Return the config and the dense tensors of an export."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config, dense(config, load_file(folder / "model.safetensors"))


def load(folder: str | Path) -> nn.Module:
    """Return the model of an export, in evaluation mode."""
    config, tensors = read(Path(folder))
    model = MODELS[config["kind"]](config)
    model.load_state_dict(tensors | {name: tensors[source] for name, source in config["shared"].items()})
    return model.eval()
