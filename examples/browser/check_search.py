"""Write the similarities that search.html should show, for check_search.mjs: ``check_search.py FOLDER EXPECTED``.

FOLDER is one of examples/minilm.py. If it does not exist, a small BERT of random weights is shrunk into it.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer, Tokenizer
from tokenizers.processors import BertProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import phmctl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import minilm  # noqa: E402

TEXTS = re.findall(r"<li>(.+)", (HERE / "search.html").read_text(encoding="utf-8"))
QUERIES = ["How do I get my money back?", "weather", "", "Žluťoučký kůň, naïve café: 日本語 😀!", " ".join(TEXTS)]


def shrink(folder: Path) -> None:
    """Shrink a small BERT, whose tokenizer is trained on the page's sentences."""
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(TEXTS, vocab_size=300)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer._tokenizer.post_processor = BertProcessing(*ends)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    with tempfile.TemporaryDirectory() as work:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(work)
        config = BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)
        BertModel(config, add_pooling_layer=False).save_pretrained(work)
        Path(work, "texts").write_text("\n".join(TEXTS), encoding="utf-8")
        arguments = ["--model", work, "--text", Path(work, "texts"), "--steps", "2", "--output", folder]
        subprocess.run([sys.executable, HERE.parent / "minilm.py", *arguments], check=True)


def main() -> None:
    """Write a list of queries with the similarity of each text."""
    folder, expected = map(Path, sys.argv[1:])
    if not folder.exists():
        shrink(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    dense = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False)
    model = phmctl.load_into(dense, folder).eval()
    with torch.no_grad():
        embeddings = minilm.embed(model, minilm.padded([tokenizer.encode(text).ids for text in (*QUERIES, *TEXTS)]))
    similarities = embeddings[: len(QUERIES)] @ embeddings[len(QUERIES) :].T
    pairs = zip(QUERIES, similarities.tolist(), strict=True)
    rows = [(query, dict(zip(TEXTS, row, strict=True))) for query, row in pairs]
    expected.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
