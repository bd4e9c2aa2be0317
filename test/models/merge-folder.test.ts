// mergeFolder(): the merged folder gives the logits of base and adapter, with the files around.
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, peft } from '../../lib/index.js';
import { mergeFolder } from '../../lib/models/merge-folder.js';
import { cpu } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { logits, stir, tinyGpt2, tinyLlama } from '../peft/models.js';
import { refusal } from '../support/refusal.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-merge-'));
const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
const GENERATION = { eos_token_id: 7, temperature: 0.5 };
afterAll(() => rmSync(dir, { recursive: true }));

type Made = nn.models.CausalLM;

/** A base folder with tokenizer, template and generation_config.json, and an adapter for it. */
async function folders(name: string, make: () => Made, options: object, dtype?: 'bf16') {
  const [base, adapter] = [join(dir, name), join(dir, `${name}-adapter`)];
  await make().save(base, dtype ? { dtype } : {});
  cpSync(TOKENIZER, base, { recursive: true });
  writeFileSync(join(base, 'chat_template.jinja'), 'template');
  writeFileSync(join(base, 'generation_config.json'), JSON.stringify(GENERATION));
  const model = peft.addLora(await nn.models.fromPretrained(base), {
    r: 2,
    loraAlpha: 16,
    baseModelNameOrPath: base,
    ...options,
  });
  stir(model);
  await peft.saveAdapter(model, adapter);
  return { base, adapter, model, out: join(dir, `${name}-merged`) };
}

test.each<[name: string, make: () => Made, options: object]>([
  ['llama', tinyLlama, {}],
  ['gpt2', tinyGpt2, { targetModules: ['c_attn', 'c_fc'] }],
  ['dora', tinyLlama, { useDora: true, targetModules: 'all-linear' }],
  ['biases', tinyGpt2, { bias: 'all' }],
])('the logits equal those of base and adapter: %s', async (name, make, options) => {
  const { base, adapter, model, out } = await folders(name, make, options);
  const files = await mergeFolder({ base, adapter }, out);
  const merged = await nn.models.fromPretrained(out);
  const expected = logits(model, cpu());
  logits(merged, cpu()).forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i] as number, 4);
  });
  expect(logits(await nn.models.fromPretrained(base), cpu())).not.toEqual(expected);
  expect(files.map((file) => file.slice(out.length + 1)).sort()).toEqual(readdirSync(out).sort());
  for (const file of ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja']) {
    expect(readFileSync(join(out, file))).toEqual(readFileSync(join(base, file)));
  }
  expect(JSON.parse(readFileSync(join(out, 'generation_config.json'), 'utf8'))).toEqual(GENERATION);
});

test('the dtype of the base stays; the sum is rounded once', async () => {
  const { base, adapter, model, out } = await folders('bf16', tinyLlama, {}, 'bf16');
  await mergeFolder({ base, adapter }, out);
  const merged = await nn.models.fromPretrained(out);
  expect(new Set(merged.parameters().map(({ dtype }) => dtype))).toEqual(new Set(['bf16']));
  peft.merge(model);
  const plain = peft.unload(model);
  const state = Object.entries(merged.stateDict());
  for (const [name, tensor] of state)
    expect(tensor.toArray()).toEqual(plain.stateDict()[name]?.toArray());
  const { torch_dtype } = JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  expect([state.length > 0, torch_dtype]).toEqual([true, 'bfloat16']);
});

test('the tokenizer of the adapter is used', async () => {
  const { base, adapter, out } = await folders('own', tinyLlama, {});
  cpSync(TOKENIZER, adapter, { recursive: true });
  await mergeFolder({ base, adapter }, out);
  expect(existsSync(join(out, 'tokenizer.json'))).toBe(true);
  expect(existsSync(join(out, 'chat_template.jinja'))).toBe(false);
});

test('refuses a folder with files, quantized layers and the adapter of another model', async () => {
  const { base, adapter, out } = await folders('refused', tinyLlama, {});
  mkdirSync(out);
  writeFileSync(join(out, 'mine'), '');
  const taken = await refusal(() => mergeFolder({ base, adapter }, out));
  expect(taken.message).toMatch(
    /expected a folder that does not exist yet.*a folder that contains mine/,
  );
  expect(readdirSync(out)).toEqual(['mine']);

  const packed = join(dir, 'nf4');
  await nn.saveWeights(peft.quantize(tinyLlama()), packed);
  const free = join(dir, 'free');
  const few = await refusal(() => mergeFolder({ base: packed, adapter }, free));
  expect(few.message).toMatch(/without quantized layers, got model\.layers\.0\..*original model/);
  const gpt2 = join(dir, 'other');
  await tinyGpt2().save(gpt2);
  expect((await refusal(() => mergeFolder({ base: gpt2, adapter }, free))).code).toMatch(/^DS_/);
  expect(existsSync(free)).toBe(false);
});

test('the adapter of another task is refused before the base is opened', async () => {
  const { base, adapter, out } = await folders('seq2seq', tinyLlama, { taskType: 'SEQ_2_SEQ_LM' });
  const error = await refusal(() => mergeFolder({ base, adapter }, out));
  expect(error.message).toMatch(/task_type of CAUSAL_LM, SEQ_CLS.*, got SEQ_2_SEQ_LM/);
});
