// Translate in the browser with a phmctl export to ONNX: greedy search with the cache of decoder.onnx.
import * as ort from "./lib/ort.wasm.min.mjs";
import { Tokenizer } from "./lib/tokenizers.min.mjs";

export { ort, Tokenizer };

const UNK = 1, BOS = 2, EOS = 3, SPECIAL = 4; // the first ids of every vocabulary: <pad>, <unk>, <s>, </s>
const ENTITY = /&(amp|lt|gt|apos|quot|#124|#91|#93);/g;
const CHARACTERS = { amp: "&", lt: "<", gt: ">", apos: "'", quot: '"', "#124": "|", "#91": "[", "#93": "]" };

// Lower-case each character alone, as Python's tokenizers do: "ΟΔΟΣ".toLowerCase() would end with ς in place of σ.
const lowercase = (line) => [...line].map((character) => character.toLowerCase()).join("");

ort.env.wasm.numThreads = 1; // more threads need a server that sends headers for cross-origin isolation
ort.env.wasm.wasmPaths = new URL("./lib/", import.meta.url).href;

/** Load an export from a folder of the same site; `progress(bytes, total)` is called after each file. */
export async function load(folder, progress = () => {}) {
  const manifest = JSON.parse(new TextDecoder().decode(await read(`${folder}/export.json`)));
  if (manifest.to !== "onnx" || manifest.task !== "translation")
    throw new Error(`${folder} holds no translator in ONNX: phmctl export RUN --to onnx`);
  const wanted = manifest.files.filter(({ name }) => !/^(README\.md|text\/.*)$/.test(name));
  const total = wanted.reduce((sum, file) => sum + file.bytes, 0);
  const files = new Map();
  let bytes = 0;
  for (const { name } of wanted) {
    files.set(name, await read(`${folder}/${name}`));
    progress((bytes += files.get(name).length), total);
  }
  return new Translator(files, bytes, await session(files, "encoder.onnx"), await session(files, "decoder.onnx"));
}

/** Return the bytes of a file. */
export async function read(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

function session(files, name) {
  const weights = [...files].filter(([path]) => !/\/|\.(onnx|json|yaml)$/.test(path)); // of graphs that share a file
  const externalData = weights.map(([path, data]) => ({ path, data }));
  return ort.InferenceSession.create(files.get(name), { externalData, graphOptimizationLevel: "all" });
}

class Translator {
  constructor(files, bytes, encoder, decoder) {
    const text = (name) => new TextDecoder().decode(files.get(name));
    const tokenizer = (name) => new Tokenizer(JSON.parse(text(name)), {});
    const joint = files.has("tokenizer/tokenizer.json");
    const source = joint ? "tokenizer/tokenizer.json" : "tokenizer/tokenizer.source.json";
    this.source = tokenizer(source);
    this.target = joint ? this.source : tokenizer("tokenizer/tokenizer.target.json");
    this.lowercases = JSON.stringify(JSON.parse(text(source)).normalizer).includes('"Lowercase"');
    this.cleaning = JSON.parse(text("data.json")).settings.cleaning;
    const setting = (key) => Number(text("recipe.yaml").match(new RegExp(`^ +${key}: *([0-9.e+-]+)`, "m"))[1]);
    this.limits = { tokens: setting("max_tokens"), ratio: setting("max_ratio"), extra: setting("max_extra") };
    Object.assign(this, { bytes, encoder, decoder });
  }

  clean(line) {
    if (this.cleaning.entities === "decode") line = line.replace(ENTITY, (_, name) => CHARACTERS[name]);
    if (this.cleaning.normalise) return line.normalize("NFC").split(/\s+/).filter(Boolean).join(" ");
    return line.replace(/^[ \t]+|[ \t]+$/g, "");
  }

  /** Translate a line as `phmctl decode --beam 1` does; a line that is too long is truncated. */
  async translate(line) {
    const text = this.lowercases ? lowercase(this.clean(line)) : this.clean(line);
    const ids = line.trim() ? this.source.encode(text, { add_special_tokens: false }).ids : [];
    if (!ids.length) return "";
    const source = [...ids.slice(0, this.limits.tokens).map((id) => id ?? UNK), EOS];
    const shape = [1, source.length];
    const { memory } = await this.encoder.run({ source: new ort.Tensor("int64", BigInt64Array.from(source, BigInt), shape) });
    const mask = new ort.Tensor("bool", new Uint8Array(source.length).fill(1), shape);
    const [layers, parts, , heads, , width] = memory.dims;
    let past = new ort.Tensor("float32", new Float32Array(0), [layers, parts, 1, heads, 0, width]);
    const longest = Math.floor(this.limits.ratio * (source.length - 1)) + this.limits.extra;
    const output = [];
    for (let token = BOS; output.length < longest; output.push(token)) {
      const tokens = new ort.Tensor("int64", BigInt64Array.of(BigInt(token)), [1, 1]);
      const { logits, new_past } = await this.decoder.run({ tokens, mask, memory, past });
      token = best(logits.data);
      if (token === EOS) break;
      past = new_past;
    }
    const known = output.filter((id) => id >= SPECIAL);
    const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
    return known.length ? this.target.decode(known, options).replace(/^ /, "").replace(/[\r\n]/g, " ") : "";
  }
}

/** Return the id of the largest logit; the special tokens before EOS are never produced. */
function best(logits) {
  let id = EOS;
  for (let other = EOS + 1; other < logits.length; other++) if (logits[other] > logits[id]) id = other;
  return id;
}
