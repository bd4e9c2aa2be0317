// Tests engines with quantized weights: the configuration, and equality with nn.quantizeModel().
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { opsOfStep } from '../../bench/step-ops.js';
import { initInference, nn, seed } from '../../lib/index.js';
import type { InferenceConfig } from '../../lib/inference/config/index.js';

const SIZES = {
  vocabSize: 61,
  maxSeq: 64,
  layers: 2,
  channels: 32,
  heads: 4,
  kvHeads: 2,
  hidden: 64,
};

function model(): nn.models.Llama {
  seed(5);
  return new nn.models.Llama({ ...SIZES, initializerRange: 0.4 });
}

async function tokensOf(model: nn.models.CausalLM, config: InferenceConfig): Promise<unknown> {
  const engine = await initInference(model, { device: 'cpu', ...config });
  const [text] = await engine.generate({ prompt: [1, 2, 3], maxNewTokens: 16, temperature: 0 });
  await engine.destroy();
  return text?.tokens;
}

test.each<[InferenceConfig, nn.QuantizeModelOptions]>([
  [{ dtype: 'int8' }, { bits: 8 }],
  [{ dtype: 'torch.int8' as 'int8' }, { bits: 8 }],
  [{ quant: { weight: { num_bits: 4 } } }, { bits: 4 }],
  [
    { quant: { weight: { quantized_initialization: { num_bits: 4, group_size: 32 } } } },
    { bits: 4, groupSize: 32 },
  ],
])('%j is quantizeModel(%j)', async (config, options) => {
  const localModel = nn.quantizeModel(model(), options);
  const input = model();
  expect(await tokensOf(input, config)).toEqual(await tokensOf(localModel, {}));
  const packed = [...input.namedModules()].filter(([, one]) => one instanceof nn.QuantizedLinear);
  expect(packed).toHaveLength(14);
});

test('an engine joins projections of one input, and computes what the model computes', async () => {
  const localModel = nn.quantizeModel(model(), { bits: 4, groupSize: 32 });
  const alone = localModel.generate([1, 2, 3], { maxNewTokens: 16, temperature: 0 });
  expect(await tokensOf(localModel, {})).toEqual(alone.slice(-16));
  const together = (...layers: nn.Module[]): void => {
    for (const part of ['weight_packed', 'weight_scale'] as const) {
      const places = layers.map((layer) => (layer as nn.QuantizedLinear)[part].buffer);
      expect(new Set(places).size).toBe(1);
    }
  };
  for (const { self_attn, mlp } of localModel.model.layers) {
    const attention = self_attn as nn.models.RotaryAttention;
    together(attention.q_proj, attention.k_proj, attention.v_proj);
    together((mlp as nn.SwiGLU).gate_proj, (mlp as nn.SwiGLU).up_proj);
  }
});

const families = [nn.models.Llama, nn.models.Phi3].flatMap((Family) =>
  ([null, 8, 4] as const).map((bits) => [Family.name, bits, Family] as const),
);

test.each(families)('a step of a %s of %j bits has seven ops a block', async (_, bits, Family) => {
  seed(5);
  const input = new Family({ ...SIZES, initializerRange: 0.4 });
  if (bits) nn.quantizeModel(input, { bits, head: 8, ...(bits === 4 && { groupSize: 32 }) });
  const { total, by_name } = await opsOfStep(input);
  // Ops of a block: norm, q k v, rotary attention, out, norm, gate and up, down.
  const [product, gate] = bits
    ? ['QuantizedLinear', 'QuantizedGatedLinear']
    : ['Matmul', 'GatedLinear'];
  expect(by_name).toEqual({
    FeedTokens: 1,
    Embedding: 1,
    RmsNorm: 5,
    [product]: 7,
    [gate]: 2,
    RotaryAttention: 2,
    SampleTokens: 1,
  });
  expect(total).toBe(2 * 7 + 5);
});

test('packed 4-bit projections are computed in place, saved and loaded', async () => {
  const make = () => {
    seed(5);
    return new nn.models.Phi3({ ...SIZES, partialRotaryFactor: 0.75, initializerRange: 0.4 });
  };
  const localPhi3 = nn.quantizeModel(make(), { bits: 4, groupSize: 32 });
  const alone = localPhi3.generate([1, 2, 3], { maxNewTokens: 16, temperature: 0 });
  const dir = mkdtempSync(join(tmpdir(), 'ds-packed-'));
  try {
    await localPhi3.save(dir);
    const read = await nn.models.fromPretrained(dir);
    expect(
      [...read.namedModules()]
        .filter(([, one]) => one instanceof nn.QuantizedLinear)
        .map(([name]) => name.replace('model.layers.', '')),
    ).toEqual(
      [0, 1].flatMap((layer) =>
        ['self_attn.qkv_proj', 'self_attn.o_proj', 'mlp.gate_up_proj', 'mlp.down_proj'].map(
          (name) => `${layer}.${name}`,
        ),
      ),
    );
    for (const one of [localPhi3, read]) expect(await tokensOf(one, {})).toEqual(alone.slice(-16));
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('a section that is off changes nothing', async () => {
  const off = { quant: { weight: { enabled: false } } };
  expect(await tokensOf(model(), off)).toEqual(await tokensOf(model(), {}));
});
