// Embed sentences in the browser with a folder of examples/minilm.py: model.onnx and tokenizer.json.
import { ort, read, Tokenizer } from "./translator.js";

const LONGEST = 128; // tokens, as in examples/minilm.py

/** Load a folder of the same site. */
export async function load(folder) {
  const [model, text] = await Promise.all(["model.onnx", "tokenizer.json"].map((name) => read(`${folder}/${name}`)));
  const tokenizer = new Tokenizer(JSON.parse(new TextDecoder().decode(text)), {});
  const session = await ort.InferenceSession.create(model, { graphOptimizationLevel: "all" });

  /** Return the embedding of a text, of length 1. */
  async function embed(text) {
    let { ids } = tokenizer.encode(text);
    if (ids.length > LONGEST) ids = [...ids.slice(0, LONGEST - 1), ids.at(-1)];
    const tensor = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, ids.length]);
    const inputs = { input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1)) };
    return (await session.run(inputs)).sentence_embedding.data;
  }
  return { embed, bytes: { model: model.length, tokenizer: text.length } };
}

/** Return the cosine of two embeddings. */
export const cosine = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
