// Tests adapter folders in the format of PEFT, for content that only one of the two libraries
// supports.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, peft, Tensor } from '../../lib/index.js';
import { ioError } from '../../lib/peft/adapter-json.js';
import { folderOf } from '../models/family-rows.js';
import { stir, tinyGpt2, tinyLlama } from './models.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-adapter-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** The targets that saveAdapter() writes for a Llama with such adapters. */
async function writeAdapter(model: nn.Module, options: peft.LoraOptions): Promise<object> {
  await peft.saveAdapter(peft.addLora(model, options), dir);
  const config = JSON.parse(readFileSync(join(dir, 'adapter_config.json'), 'utf8'));
  const { target_modules, layers_to_transform, layers_pattern } = config;
  return { target_modules, layers_to_transform, layers_pattern };
}

const nowhere = { layers_to_transform: null, layers_pattern: null };
const fullTexts = ['model.layers.1.self_attn.q_proj', 'model.layers.1.self_attn.v_proj'];

test.each<[peft.LoraOptions, object]>([
  [
    { targetModules: 'ALL-linear' },
    {
      target_modules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
      ...nowhere,
    },
  ],
  [
    { targetModules: '.*[qv]_proj', layersToTransform: [1], layersPattern: 'layers' },
    { target_modules: fullTexts, ...nowhere },
  ],
  [{ targetModules: '.*[qv]_proj' }, { target_modules: '.*[qv]_proj', ...nowhere }],
  [
    { layersToTransform: 1 },
    { target_modules: ['q_proj', 'v_proj'], layers_to_transform: [1], layers_pattern: null },
  ],
])('PEFT can read the saved adapter of %j', async (options, expected) => {
  const model = tinyLlama();
  expect(await writeAdapter(model, options)).toEqual(expected);
  const other = await peft.loadAdapter(tinyLlama(), dir);
  expect([...peft.lorasOf(other).keys()]).toEqual([...peft.lorasOf(model).keys()]);
});

test('the error of a folder that cannot be created gives the reason', async () => {
  const model = peft.addLora(tinyLlama(), { r: 2 });
  await expect(peft.saveAdapter(model, '/proc/ds/adapter')).rejects.toMatchObject({
    code: 'DS_IO',
    op: 'saveAdapter /proc/ds/adapter',
    message: expect.stringContaining('mkdir'),
  });
  // As for other files, the error has a fix if the code of the system has one.
  const readOnly = Object.assign(new Error('EROFS: read-only'), { code: 'EROFS' });
  expect(ioError('saveAdapter', dir, readOnly)).toMatchObject({
    code: 'DS_IO',
    hint: expect.stringContaining('choose another folder'),
  });
  await expect(peft.loadAdapter(tinyLlama(), join(dir, 'none'))).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
    op: join(dir, 'none', 'adapter_config.json'),
  });
});

/** Changes the tensors of a folder in place. */
async function rewrite(change: (tensors: Map<string, Tensor>) => void): Promise<void> {
  const path = join(dir, 'adapter_model.safetensors');
  const bytes = readFileSync(path);
  const end = 8 + Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(bytes.subarray(8, end).toString());
  const tensors = new Map<string, Tensor>();
  for (const [name, entry] of Object.entries<{ shape: number[]; data_offsets: number[] }>(header)) {
    const [from, to] = entry.data_offsets.map((offset) => end + offset) as [number, number];
    const values = new Float32Array(new Uint8Array(bytes.subarray(from, to)).buffer);
    tensors.set(name, Tensor.from(values, { shape: entry.shape }));
  }
  change(tensors);
  const settings: Record<string, object> = {};
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [name, tensor] of tensors) {
    const { buffer } = tensor.toRaw();
    settings[name] = {
      dtype: 'F32',
      shape: tensor.shape,
      data_offsets: [at, at + buffer.byteLength],
    };
    at += buffer.byteLength;
    parts.push(new Uint8Array(buffer as ArrayBuffer));
  }
  const text = Buffer.from(JSON.stringify(settings));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([length, text, ...parts]));
}

test('a warning names layers that transformers calls otherwise', async () => {
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const warningsFor = async (targetModules: string[]): Promise<string[]> => {
    warn.mockClear();
    const model = await nn.models.fromPretrained(folderOf('bamba'));
    await peft.saveAdapter(peft.addLora(model, { targetModules }), dir);
    return warn.mock.calls.map(([text]) => String(text));
  };
  try {
    expect(await warningsFor(['q_proj', 'in_proj'])).toEqual([]);
    const name = 'model\\.layers\\.0\\.mlp\\.up_proj';
    const text = new RegExp(`^saveAdapter .*: PEFT does not find ${name}, .*peft\\.merge\\(\\)`);
    expect(await warningsFor(['up_proj'])).toEqual([expect.stringMatching(text)]);
  } finally {
    warn.mockRestore();
  }
});

test('biases that PEFT has put aside are ignored', async () => {
  const model = peft.addLora(tinyGpt2(), { bias: 'all', modulesToSave: ['mlp'] });
  stir(model);
  await peft.saveAdapter(model, dir);
  await rewrite((tensors) => {
    const name = 'base_model.model.transformer.h.0.mlp.original_module.c_fc.bias';
    tensors.set(name, Tensor.from(new Float32Array(96)));
  });
  const other = await peft.loadAdapter(tinyGpt2(9), dir);
  const bias = 'transformer.h.0.mlp.c_fc.bias';
  expect(other.stateDict()[bias]?.toArray()).toEqual(model.stateDict()[bias]?.toArray());
});

test('a table and a head that PEFT trained separately are not tied', async () => {
  const model = peft.addLora(tinyGpt2(), { modulesToSave: ['wte', 'lm_head'] });
  await peft.saveAdapter(model, dir);
  const [table, head] = ['transformer.wte.weight', 'lm_head.weight'].map(
    (name) => `base_model.model.${name}`,
  ) as [string, string];
  // PEFT needs both; older folders have only the table.
  await rewrite((tensors) => {
    expect(tensors.get(head)?.toArray()).toEqual(tensors.get(table)?.toArray());
    tensors.delete(head);
  });
  await peft.loadAdapter(tinyGpt2(), dir);
  await rewrite((tensors) => tensors.set(head, (tensors.get(table) as Tensor).add(1e-3)));
  const other = tinyGpt2(3);
  const before = other.transformer.wte.weight.toArray();
  await expect(peft.loadAdapter(other, dir)).rejects.toThrow(
    /lm_head\.weight: expected the values of .*wte\.weight, which is tied .* got different values/,
  );
  expect(other.transformer.wte.weight.toArray()).toEqual(before);
});

test.each(['lm_head', 'wte'])('ensure_weight_tying writes %s and its twin', async (name) => {
  const model = peft.addLora(tinyGpt2(), { modulesToSave: [name], ensureWeightTying: true });
  stir(model);
  await peft.saveAdapter(model, dir);
  const path = join(dir, 'adapter_config.json');
  const config = JSON.parse(readFileSync(path, 'utf8'));
  expect(config).toMatchObject({ modules_to_save: [name], ensure_weight_tying: true });
  const names: string[] = [];
  await rewrite((tensors) => void names.push(...tensors.keys()));
  for (const one of ['transformer.wte', 'lm_head']) {
    expect(names).toContain(`base_model.model.${one}.weight`);
  }
  const other = await peft.loadAdapter(tinyGpt2(9), dir);
  const [got, expected] = [other, model].map((model) => model.transformer.wte.weight.toArray());
  expect(got).toEqual(expected);
  writeFileSync(path, JSON.stringify({ ...config, ensure_weight_tying: false }));
  await expect(peft.loadAdapter(tinyGpt2(9), dir)).rejects.toThrow(/set ensureWeightTying/);
});

test('a table and its head may be longer than a string can be', async () => {
  const model = peft.addLora(tinyGpt2(), { modulesToSave: ['wte', 'lm_head'] });
  await peft.saveAdapter(model, dir);
  const longest = 4096;
  const input = Buffer.prototype.toString;
  const limited = jest.spyOn(Buffer.prototype, 'toString').mockImplementation(function (
    this: Buffer,
    ...args
  ) {
    if (args[0] === 'latin1' && this.length > longest) throw new Error('ERR_STRING_TOO_LONG');
    return input.apply(this, args);
  });
  try {
    expect(model.transformer.wte.weight.numel * 4).toBeGreaterThan(longest);
    await peft.loadAdapter(tinyGpt2(3), dir);
  } finally {
    limited.mockRestore();
  }
});

test('PEFT means no pattern by an empty one', async () => {
  const model = peft.addLora(tinyLlama(), { targetModules: ['q_proj'] });
  await peft.saveAdapter(model, dir);
  const path = join(dir, 'adapter_config.json');
  const config = JSON.parse(readFileSync(path, 'utf8'));
  for (const layers of [null, [0, 1]]) {
    const changed = { ...config, layers_to_transform: layers, layers_pattern: '' };
    writeFileSync(path, JSON.stringify(changed));
    expect(peft.lorasOf(await peft.loadAdapter(tinyLlama(), dir)).size).toBe(2);
  }
});

test('values are for adapters of the same factor, which are not merged', async () => {
  const options = { r: 4, loraAlpha: 16, targetModules: ['q_proj', 'v_proj'] };
  await peft.saveAdapter(peft.addLora(tinyLlama(), options), dir);
  const factor = peft.addLora(tinyLlama(), { ...options, alphaPattern: { v_proj: 8 } });
  await expect(peft.loadAdapter(factor, dir)).rejects.toThrow(
    /adapter_config\.json: expected the scaling factor 2 of model\.layers\.0\.self_attn\.v_proj, got 4/,
  );
  const same = peft.addLora(tinyLlama(), { ...options, loraAlpha: 8, useRslora: true });
  expect(await peft.loadAdapter(same, dir)).toBe(same);
  peft.merge(same);
  await expect(peft.loadAdapter(same, dir)).rejects.toThrow(/merged adapters.*unmerge\(\) first/);
});
