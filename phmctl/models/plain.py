"""A model exported by phmctl, in plain torch: ``load(FOLDER)`` wants nothing but this file, torch and the export."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD = 0


def positions(start: int, stop: int, width: int) -> Tensor:
    """Sinusoids of the positions from `start` to before `stop`: sines, then cosines, (stop - start, width)."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10_000.0) / max(width // 2 - 1, 1)))
    angles = torch.arange(start, stop)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Residual(nn.Module):
    """x + f(norm(x)) with pre-norm, norm(x + f(x)) with post-norm."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.norm, self.pre_norm = nn.LayerNorm(config["width"]), config["pre_norm"]

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Map (B, T, d) to (B, T, d)."""
        return x + sublayer(self.norm(x)) if self.pre_norm else self.norm(x + sublayer(x))


class Attention(nn.Module):
    """Multi-head attention; queries, keys and values are `inner` wide."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads, width, inner, bias = config["heads"], config["width"], config["inner"], config["bias"]
        self.query, self.key, self.value = (nn.Linear(width, inner, bias) for _ in range(3))
        self.output = nn.Linear(inner, width, bias)

    def split(self, x: Tensor) -> Tensor:
        """View (B, T, inner) as (B, heads, T, inner / heads)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Mix the heads' values and map them to (B, T, d); mask (B, 1, 1, S) is true where a key may be seen."""
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Let x (B, T, d) attend to memory (B, S, d)."""
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        return self.attend(self.split(query), self.split(key), self.split(value), mask, causal)


class FeedForward(nn.Module):
    """Two maps around a ReLU."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.expand = nn.Linear(config["width"], config["feed_forward"], config["bias"])
        self.contract = nn.Linear(config["feed_forward"], config["width"], config["bias"])

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., d)."""
        return self.contract(self.expand(x).relu())


class Layer(nn.Module):
    """Self-attention, in a decoder attention to the encoder's states, and feed-forward."""

    def __init__(self, config: dict[str, Any], cross: bool = False) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(config), FeedForward(config)
        self.attention_residual, self.feed_forward_residual = Residual(config), Residual(config)
        if cross:
            self.cross_attention, self.cross_residual = Attention(config), Residual(config)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """Map (B, T, d) to (B, T, d), in a decoder given the encoder's (B, S, d); the mask is of the source."""
        if memory is None:
            x = self.attention_residual(x, lambda h: self.attention(h, h, mask))
        else:
            x = self.attention_residual(x, lambda h: self.attention(h, h, causal=True))
            x = self.cross_residual(x, lambda h: self.cross_attention(h, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Transformer(nn.Module):
    """Encoder-decoder: source ids (B, S) and target ids (B, T), which begin with 2 (<s>), to logits (B, T, V)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = self.width = config["width"]
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

    def embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        """Map ids (B, T) to (B, T, d)."""
        x = embedding(ids) * math.sqrt(self.width)
        return x + positions(0, ids.shape[1], self.width).to(x)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Map source ids (B, S) to states (B, S, d) and their mask."""
        mask = (source != PAD)[:, None, None]  # (B, 1, 1, S)
        x = self.embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map ids (B, S) and (B, T) to logits (B, T, V)."""
        memory, mask = self.encode(source)
        x = self.embed(self.target_embedding, target)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return self.generator(self.decoder_norm(x))


class EncoderClassifier(nn.Module):
    """A Transformer encoder, one pooled state, a map to the classes: ids (B, S) to logits (B, classes)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.width, self.pooling = config["width"], config["pooling"]
        self.embedding = nn.Embedding(config["vocabulary"], self.width)
        self.encoder = nn.ModuleList(Layer(config) for _ in range(config["layers"]))
        self.encoder_norm = nn.LayerNorm(self.width) if config["final_norm"] else nn.Identity()
        self.output = nn.Linear(self.width, config["classes"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (B, S), 0 behind each text, to logits (B, classes)."""
        mask = tokens != PAD  # (B, S)
        x = self.embedding(tokens) * math.sqrt(self.width)
        x = x + positions(0, tokens.shape[1], self.width).to(x)
        # A text without tokens attends to its first position, and is pooled to zeros.
        seen = mask | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
        for layer in self.encoder:
            x = layer(x, seen[:, None, None])
        return self.output(self.pool(self.encoder_norm(x), mask.to(x.dtype)))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool (B, S, d) over the tokens to (B, d)."""
        weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
        if self.pooling == "last":  # the state of the last token alone
            weights = mask - F.pad(mask, (0, 1))[:, 1:]
        return (x * weights[:, :, None]).sum(1)


class PairClassifier(nn.Module):
    """One LSTM reads both texts, (B, S) and (B, S′), and an MLP compares them: logits (B, classes)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.full = config["combination"] == "full"
        width, hidden = config["width"], config["hidden"]
        self.embedding = nn.Embedding(config["vocabulary"], config["embedding_width"])
        self.lstm = nn.LSTM(config["embedding_width"], width, batch_first=True)
        widths = [(8 if self.full else 4) * width, hidden]
        self.mlp = nn.ModuleList(nn.Linear(size, hidden) for size in widths)
        self.output = nn.Linear(hidden, config["classes"])

    def encode(self, tokens: Tensor) -> Tensor:
        """Map a text's ids (B, S) to a vector (B, 2h)."""
        states, _ = self.lstm(self.embedding(tokens))  # (B, S, h)
        mask = (tokens != PAD)[:, :, None]
        some = mask.any(1)  # (B, 1): a text without tokens is pooled to zeros
        largest = states.masked_fill(~mask, -1e30).amax(1).masked_fill(~some, 0.0)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.cat([largest, mean], dim=1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Map two texts' ids to logits (B, classes)."""
        u, v = self.encode(first), self.encode(second)
        x = torch.cat([u, v, (u - v).abs(), u * v] if self.full else [u, v], dim=1)
        for layer in self.mlp:
            x = layer(x).relu()
        return self.output(x)


MODELS: dict[str, type[nn.Module]] = {
    "transformer": Transformer,
    "encoder": EncoderClassifier,
    "lstm-pair": PairClassifier,
}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read ``config.json`` and ``model.safetensors`` of an export; tables that serve twice once."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config, load_file(folder / "model.safetensors")


def load(folder: str | Path) -> nn.Module:
    """Load the model of an export."""
    config, tensors = read(Path(folder))
    model = MODELS[config["kind"]](config)
    model.load_state_dict(tensors | {name: tensors[source] for name, source in config["shared"].items()})
    return model.eval()
