#!/usr/bin/env node
// Compares GGUF files of random models with llama.cpp: the ids of texts, and the probabilities of
// the next token. Usage: try-gguf.mjs --oracle FOLDER [--only NAME] [--type TYPE] [--record FILE].
// FOLDER has the npm package node-llama-cpp; FILE gets the checksums of the files that agree, with
// --only beside those that it has. Needs `npm run build:ts`.
import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const { values } = parseArgs({
  options: {
    oracle: { type: 'string' },
    record: { type: 'string' },
    only: { type: 'string' },
    type: { type: 'string' },
  },
});
if (values.oracle === undefined)
  throw new Error('--oracle FOLDER: with node_modules/node-llama-cpp');
const library = createRequire(import.meta.url)(join(root, 'dist', 'index.js'));
const { nn, Tensor, text } = library;
const package_ = join(values.oracle, 'node_modules', 'node-llama-cpp', 'dist', 'index.js');
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(package_).href);

const { FAMILIES, modelOf, typesOf } = createRequire(import.meta.url)('./try-gguf/models.cjs');
const golden = join(root, 'test', 'golden', 'transformers');
const TEXTS = [
  'The engine reads a checkpoint, and 12 ranks wait.\n\n  const x = 3.25;',
  "It's the loader's state:\tzero, one — naïve Ünïcode 你好 🙂 and 1234567 tokens.",
];

const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
const llama = await getLlama({ gpu: false, build: 'never', logLevel: LlamaLogLevel.error });
let faults = 0;
const say = (name, good, what) => {
  if (!good) faults += 1;
  console.log(`${good ? 'equal ' : 'DIFFER'} ${name}: ${what}`);
};

/** llama.cpp's probabilities of the last token's successors. */
async function oracle(path, ids) {
  const model = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
  const context = await model.createContext({ contextSize: 256, flashAttention: false });
  const sequence = context.getSequence();
  const given = [...ids].map((id, i) =>
    i < ids.length - 1 ? id : [id, { generateNext: { probabilities: true } }],
  );
  const out = await sequence.controlledEvaluate(given);
  const { probabilities } = out.at(-1).next;
  await context.dispose();
  await model.dispose();
  return probabilities;
}

function ours(model, ids) {
  const logits = model.eval().call(Tensor.from([[...ids]], { dtype: 'i32' }));
  const row = logits.toArray().slice(-model.config.vocabSize);
  const most = Math.max(...row);
  const exp = Array.from(row, (one) => Math.exp(one - most));
  const sum = exp.reduce((a, b) => a + b, 0);
  return exp.map((one) => one / sum);
}

const checked = {};
for (const name of Object.keys(FAMILIES)) {
  if (values.only !== undefined && name !== values.only) continue;
  const model = modelOf(library, name);
  const ids = Array.from({ length: 48 }, (_, i) => 3 + ((i * 379 + 17) % 990));
  for (const type of typesOf(name)) {
    if (values.type !== undefined && type !== values.type) continue;
    const path = join(folder, `${name}-${type}.gguf`);
    await nn.saveGguf(model, path, { type, tokenizer: join(golden, 'tokenizers', 'llama3') });
    const back = await nn.models.fromPretrained(path, { dtype: 'f32' });
    const expected = await oracle(path, ids).catch((error) => {
      say(`${name} ${type}`, false, error.message);
    });
    if (!expected) continue;
    const got = ours(back, ids);
    let worst = 0;
    for (const [id, p] of expected) worst = Math.max(worst, Math.abs(got[id] - p));
    const [top] = [...expected.entries()].sort((a, b) => b[1] - a[1]);
    // llama.cpp rounds activations to eight bits where weights are quantized.
    const most = type === 'F32' ? 5e-4 : type === 'F16' ? 2e-3 : 0.05;
    const what = `${expected.size} probabilities, the largest ${top[1].toFixed(3)}, off by ${worst.toExponential(1)}`;
    say(`${name} ${type}`, worst <= most, what);
    const sum = createHash('sha256').update(readFileSync(path)).digest('hex');
    if (worst <= most) checked[`${name} ${type}`] = sum;
    back.releaseTables?.();
    rmSync(path);
  }
}

for (const kind of readdirSync(join(golden, 'tokenizers')).filter(
  (one) => !one.endsWith('.json'),
)) {
  if (values.only !== undefined && !kind.includes(values.only)) continue;
  const dir = join(golden, 'tokenizers', kind);
  const model = modelOf(library, 'llama');
  const path = join(folder, `${kind}.gguf`);
  await nn.saveGguf(model, path, { tokenizer: dir });
  const [tokenizer, back] = [dir, path].map((one) => text.Tokenizer.fromPretrained(one));
  const loaded = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
  for (const one of TEXTS) {
    const options = { addSpecialTokens: false };
    const all = [tokenizer, back].map((t) => [...t.encode(one, options)].join(' '));
    const theirs = loaded.tokenize(one, false).join(' ');
    say(`${kind} tokenizer`, all[0] === all[1], 'the file and the folder');
    say(`${kind} tokenizer`, all[1] === theirs, `llama.cpp\n  ${all[1]}\n  ${theirs}`);
  }
  await loaded.dispose();
}
rmSync(folder, { recursive: true });
if (values.record !== undefined) {
  const before = values.only === undefined ? {} : JSON.parse(readFileSync(values.record, 'utf8'));
  const all = { ...before, ...checked };
  const familyOf = (key) => Object.keys(FAMILIES).indexOf(key.split(' ')[0]);
  const inOrder = Object.entries(all).sort(([a], [b]) => familyOf(a) - familyOf(b));
  writeFileSync(values.record, `${JSON.stringify(Object.fromEntries(inOrder), null, 2)}\n`);
}
console.log(faults === 0 ? 'all equal' : `${faults} differ`);
process.exitCode = faults === 0 ? 0 : 1;
