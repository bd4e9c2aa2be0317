// Tests models with 4-bit layers: files under bitsandbytes' names, and saves with adapters.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { cpu, nn, peft } from '../../lib/index.js';
import { largest, logits, stir, tinyGpt2, tinyLlama } from './models.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-nf4-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const bits = (model: nn.models.CausalLM): number[] => logits(model, cpu());

test.each([true, false])(
  'written and read again, with scales in 8 bits: %s',
  async (doubleQuant) => {
    const model = peft.quantize(tinyLlama().to('bf16'), { doubleQuant });
    const folder = join(dir, 'small');
    await nn.saveWeights(model, folder);
    const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'));
    expect(config.quantization_config).toMatchObject({
      quant_method: 'bitsandbytes',
      load_in_4bit: true,
      bnb_4bit_quant_type: 'nf4',
      bnb_4bit_use_double_quant: doubleQuant,
      bnb_4bit_compute_dtype: 'bfloat16',
    });
    const files = await WeightFiles.open(folder);
    const first = 'model.layers.0.self_attn.q_proj.weight';
    const localTexts = [...files.tensors.keys()].filter((name) => name.startsWith(first)).sort();
    const nested = doubleQuant ? ['.nested_absmax', '.nested_quant_map'] : [];
    expect(localTexts).toEqual(
      ['', '.absmax', ...nested, '.quant_map', '.quant_state.bitsandbytes__nf4'].map(
        (end) => first + end,
      ),
    );
    expect(files.tensors.get(first)).toMatchObject({ dtype: 'u8', shape: [512, 1] });
    const state = await files.read(`${first}.quant_state.bitsandbytes__nf4`);
    const text = JSON.parse(Buffer.from(state.toRaw() as Uint8Array).toString());
    expect(text).toMatchObject({
      quant_type: 'nf4',
      blocksize: 64,
      dtype: 'bfloat16',
      shape: [32, 32],
    });
    await files.close();
    const again = await nn.models.fromPretrained(folder);
    expect(bits(again)).toEqual(bits(model));
    peft.addLora(again, { targetModules: 'all-linear' });
    expect(bits(again)).toEqual(bits(model));
  },
);

/** The unquantized layers in config.json. */
async function skippedModules(model: nn.models.CausalLM, skipModules?: string[]): Promise<unknown> {
  const folder = join(dir, 'skipped');
  await nn.saveWeights(peft.quantize(model, skipModules && { skipModules }), folder);
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'));
  const again = await nn.models.fromPretrained(folder);
  expect(bits(again)).toEqual(bits(model));
  rmSync(folder, { recursive: true });
  return config.quantization_config.llm_int8_skip_modules;
}

test('layers that stay whole are named where the head is not the only one', async () => {
  const outputs = [0, 1].map((layer) => `model.layers.${layer}.self_attn.o_proj`);
  expect(await skippedModules(tinyLlama())).toBeNull();
  expect(await skippedModules(tinyLlama(), ['lm_head', 'o_proj'])).toEqual([...outputs, 'lm_head']);
  expect(await skippedModules(tinyLlama(), ['o_proj'])).toEqual(outputs);
  expect(await skippedModules(tinyLlama(), [])).toEqual([]);
});

test('a tied head is not quantized', async () => {
  const tiedModel = (): nn.models.Llama => {
    const sizes = { vocabSize: 64, maxSeq: 16, layers: 1, heads: 2, kvHeads: 2, channels: 64 };
    return new nn.models.Llama({ ...sizes, hidden: 64, tied: true });
  };
  expect(await skippedModules(tiedModel())).toBeNull();
  const names = ['model.layers.0.mlp.up_proj', 'lm_head'];
  expect(await skippedModules(tiedModel(), ['lm_head', 'up_proj'])).toEqual(names);
});

test('routers and experts, which stay whole, are named as the files name them', async () => {
  const sizes = { vocabSize: 64, maxSeq: 16, layers: 1, heads: 2, kvHeads: 2, channels: 64 };
  const moe = { experts: 2, perToken: 1, hidden: 64, sharedHidden: 64 };
  const namesOf = (layer: string): string[] =>
    ['gate', 'experts'].map((part) => `model.layers.0.${layer}.${part}`);
  const { Mixtral, Qwen2Moe } = nn.models;
  const mixtral = new Mixtral({ ...sizes, hidden: 64, moe: { experts: 2, perToken: 1 } });
  expect(await skippedModules(mixtral)).toEqual([...namesOf('block_sparse_moe'), 'lm_head']);
  const qwen = new Qwen2Moe({ ...sizes, hidden: 64, moe });
  expect(await skippedModules(qwen)).toEqual([...namesOf('mlp'), 'lm_head']);
});

test.each([null, 4, 'nf4', []])('quantize() refuses invalid options: %j', (input) => {
  const error = { code: 'DS_ARGUMENT', op: 'quantize' };
  expect(() => peft.quantize(tinyLlama(), input as never)).toThrow(expect.objectContaining(error));
});

test('other 4-bit formats are refused', async () => {
  const folder = join(dir, 'other');
  await nn.saveWeights(tinyLlama(), folder);
  const path = join(folder, 'config.json');
  const config = JSON.parse(readFileSync(path, 'utf8'));
  writeFileSync(path, JSON.stringify({ ...config, quantization_config: { quant_method: 'hqq' } }));
  await expect(nn.models.fromPretrained(folder)).rejects.toThrow(
    /quantization_config: quant_method: expected "bitsandbytes", .*got "hqq"/,
  );
});

test.each([
  [tinyLlama, false],
  [tinyGpt2, false],
  [tinyGpt2, true],
])(
  '%p: merged adapters are saved as the weights that they are part of, with DoRA: %s',
  async (make, useDora) => {
    const options = { targetModules: 'all-linear', useDora };
    const model: nn.models.CausalLM = peft.addLora(make(), options);
    stir(model);
    await expect(nn.saveWeights(model, join(dir, 'apart'))).rejects.toThrow(
      /merged adapters, got an unmerged adapter of .*peft\.merge\(model\)/,
    );
    peft.merge(model);
    await nn.saveWeights(model, join(dir, 'merged'));
    const again = await nn.models.fromPretrained(join(dir, 'merged'));
    expect(largest(bits(again), bits(model))).toBe(0);
  },
);
