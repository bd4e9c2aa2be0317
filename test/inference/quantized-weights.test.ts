// Engines whose weights are of few bits: what the configuration says, and that it is what
// nn.quantizeModel() makes.
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

async function tokensOf(given: nn.models.Llama, config: InferenceConfig): Promise<unknown> {
  const engine = await initInference(given, { device: 'cpu', ...config });
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
  const own = nn.quantizeModel(model(), options);
  const given = model();
  expect(await tokensOf(given, config)).toEqual(await tokensOf(own, {}));
  const packed = [...given.namedModules()].filter(([, one]) => one instanceof nn.QuantizedLinear);
  expect(packed).toHaveLength(14);
});

test('a section that is off changes nothing', async () => {
  const off = { quant: { weight: { enabled: false } } };
  expect(await tokensOf(model(), off)).toEqual(await tokensOf(model(), {}));
});
