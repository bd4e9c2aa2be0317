// Saves each tiny model of the tests to a folder, for scripts/check-in-transformers.py.
//
//     npm run build:ts && node scripts/save-models.mjs OUT [FAMILY,FAMILY]
//
// Writes OUT/<case>/model, and OUT/<case>/logits.safetensors with inputs and this library's
// outputs.
import { mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import writer from '../dist/checkpoint/safetensors-writer.js';
import library from '../dist/index.js';

const { writeSafetensors } = writer;
const { nn, noGrad, scope, Tensor } = library;
const [out, only] = process.argv.slice(2);
if (!out) throw new Error('node scripts/save-models.mjs OUT');
const root = join('test', 'golden', 'transformers');

const tensorOf = (rows) =>
  Tensor.from(Int32Array.from(rows.flat()), { shape: [rows.length, rows[0].length] });

const named = (tensors) =>
  Object.entries(tensors).map(([name, values]) => ({
    name,
    dtype: values.dtype,
    shape: values.shape,
    values,
  }));

async function write(name, model, tensors) {
  const dir = join(out, name);
  mkdirSync(dir, { recursive: true });
  await model.save(join(dir, 'model'));
  await writeSafetensors(join(dir, 'logits.safetensors'), named(tensors));
  console.log(name);
}

// Published folders have whole numbers where those of the tests have fractions.
const WHOLE = {
  cohere: { logit_scale: 1 },
  'deepseek-v2': { routed_scaling_factor: 1 },
  'deepseek-v3': { routed_scaling_factor: 1 },
  gemma2: { attn_logit_softcapping: 50, final_logit_softcapping: 30 },
  gemma3n: { final_logit_softcapping: 30, activation_sparsity_pattern: [0, 0.5, 0, 0] },
  gemma4: { final_logit_softcapping: 30 },
  'glm4-moe': { routed_scaling_factor: 1 },
  granite: { embedding_multiplier: 12, logits_scaling: 8, attention_multiplier: 1 },
};

async function decoder(name) {
  await saveDecoder(name, await nn.models.fromPretrained(join(root, 'models', name)));
  if (!WHOLE[name]) return;
  const config = JSON.parse(readFileSync(join(root, 'models', name, 'config.json'), 'utf8'));
  await saveDecoder(`${name}-whole`, nn.models.fromConfig({ ...config, ...WHOLE[name] }));
}

async function saveDecoder(name, model) {
  const ids = (row) =>
    Array.from({ length: 24 }, (_, i) => (i * 7919 + row * 31 + 13) % model.vocabSize);
  const tokens = tensorOf([ids(0), ids(1)]);
  const logits = noGrad(() => scope(() => model.eval().call(tokens).to('f32').contiguous()));
  await write(name, model, { tokens, logits });
}

async function head(family, task) {
  const dir = join(root, 'encoders', family, task);
  const model = await nn.models.fromPretrained(dir, { task });
  const { inputs } = JSON.parse(readFileSync(join(dir, 'golden.json'), 'utf8'));
  const tokens = tensorOf(inputs.input_ids);
  const mask = tensorOf(inputs.attention_mask);
  const types = inputs.token_type_ids ? tensorOf(inputs.token_type_ids) : null;
  const given = { mask, ...(types && { types }) };
  model.eval();
  const logits = noGrad(() =>
    scope(() =>
      (task === 'embedding' ? model.hidden(tokens, given) : model.call(tokens, given))
        .to('f32')
        .contiguous(),
    ),
  );
  await write(`${family}-${task}`, model, { tokens, mask, ...(types && { types }), logits });
}

const isChosen = (name) => !only || only.split(',').includes(name);
for (const name of readdirSync(join(root, 'models'))) {
  if (name !== 'ropes' && isChosen(name)) await decoder(name);
}
for (const family of readdirSync(join(root, 'encoders'))) {
  if (family === 'tokenizers' || !isChosen(family)) continue;
  for (const task of readdirSync(join(root, 'encoders', family))) await head(family, task);
}
