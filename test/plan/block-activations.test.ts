// Tests that the activations of a block follow its formula, for model families with rotary
// positions.
import { cpu, nn, scope, seed, Tensor } from '../../lib/index.js';
import { sizesOf } from '../../lib/plan/index.js';

/** For each additional block: bytes held after the forward, and the peak of the backward. */
function measure(model: nn.models.RotaryLM, tokens: Tensor): { held: number; peak: number } {
  const device = cpu();
  const step = () => {
    const before = device.memory.inUse;
    const out = scope(() => model.model.call(tokens).sum());
    const held = device.memory.inUse - before;
    device.resetPeaks();
    out.backward();
    out.dispose();
    return { held, peak: device.memory.peakInUse - before };
  };
  step();
  return step();
}

const shape = {
  vocabSize: 256,
  channels: 128,
  heads: 4,
  kvHeads: 2,
  headDim: 64,
  hidden: 320,
};

class SmallMixtral extends nn.models.Mixtral {
  constructor(options: Omit<nn.models.MixtralConfig, 'moe'>) {
    super({ ...options, moe: { experts: 6, perToken: 2, hidden: 192 } });
  }
}
/** Every second layer is a gated delta net. */
const deltaOf = (layers: number): nn.models.Qwen35Config['delta'] => ({
  keyHeads: 2,
  heads: 4,
  keyDim: 48,
  valueDim: 40,
  taps: 4,
  layers: Array.from({ length: layers }, (_, i) => i % 2 === 0),
});
class SmallQwen35 extends nn.models.Qwen35 {
  constructor(options: Omit<nn.models.Qwen35Config, 'delta'>) {
    super({ ...options, delta: deltaOf(options.layers) });
  }
}
class SmallQwen3Next extends nn.models.Qwen3Next {
  constructor(options: Omit<nn.models.Qwen3NextConfig, 'delta' | 'moe'>) {
    const moe = { experts: 6, perToken: 2, hidden: 192, sharedHidden: 96 };
    super({ ...options, moe, delta: deltaOf(options.layers) });
  }
}
/** Every second layer is a short convolution. */
class SmallLfm2 extends nn.models.Lfm2 {
  constructor(given: Omit<nn.models.Lfm2Config, 'conv'>) {
    super({ ...given, conv: { taps: 3, layers: deltaOf(given.layers).layers } });
  }
}
/** Every second layer is a state space layer. */
class SmallGraniteHybrid extends nn.models.GraniteHybrid {
  constructor(given: Omit<nn.models.GraniteHybridConfig, 'mamba'>) {
    const { layers } = deltaOf(given.layers);
    super({ ...given, mamba: { heads: 4, headDim: 64, groups: 2, stateDim: 48, layers } });
  }
}
/** Each block has a state space layer beside its attention, and factors in each branch. */
class SmallFalconH1 extends nn.models.FalconH1 {
  constructor(given: Omit<nn.models.FalconH1Config, 'mamba' | 'multipliers'>) {
    const layers = Array.from({ length: given.layers }, () => true);
    const mamba = { heads: 4, headDim: 64, groups: 2, stateDim: 48, norm: null, layers };
    const [stateParts, feed] = [
      [2, 0.5, 0.3, 0.7, 1.5],
      [0.9, 0.6],
    ];
    const outer = { attentionIn: 0.9, attentionOut: 0.8, stateIn: 1.1, stateOut: 0.7 };
    super({ ...given, mamba, multipliers: { ...outer, stateParts, feed } });
  }
}
/** Four versions of the stream; every layer has its own keys. */
class SmallGemma3n extends nn.models.Gemma3n {
  constructor(given: Omit<nn.models.Gemma3nConfig, 'altUp'>) {
    super({ ...given, layerInputDim: 32, altUp: { inputs: 3, laurelRank: 16 } });
  }
}
/** Every second block has experts, the others a state space layer. */
class SmallNemotronH extends nn.models.NemotronH {
  constructor(given: Omit<nn.models.NemotronHConfig, 'mamba' | 'moe' | 'feedLayers'>) {
    const { layers } = deltaOf(given.layers);
    const mamba = { heads: 4, headDim: 64, groups: 2, stateDim: 48, layers };
    const denseLayers = layers.flatMap((isState, layer) => (isState ? [layer] : []));
    const sizes = { experts: 6, perToken: 2, hidden: 192, sharedHidden: 96, latentDim: 80 };
    const feedLayers = layers.map((isState) => !isState);
    super({ ...given, mamba, moe: { ...sizes, denseLayers }, feedLayers });
  }
}
type Small = new (
  options: typeof shape & { maxSeq: number; layers: number; activationCheckpointing: boolean },
) => nn.models.RotaryLM;

const byDeclaration = [
  ...['Llama', 'Phi3', 'Qwen3', 'SmolLM3', 'Granite', 'Olmo2', 'StableLm', 'Glm4', 'Gemma'],
  ...['Gemma2', 'Gemma3', 'Cohere', 'Phi', 'Starcoder2', 'Exaone4'],
];
const rows = [true, false].flatMap((checkpointing): [string, Small, boolean][] => [
  ['Mixtral', SmallMixtral, checkpointing],
  ['Qwen35', SmallQwen35, checkpointing],
  ['Qwen3Next', SmallQwen3Next, checkpointing],
  ['Lfm2', SmallLfm2, checkpointing],
  ['GraniteHybrid', SmallGraniteHybrid, checkpointing],
  ['FalconH1', SmallFalconH1, checkpointing],
  ['Gemma3n', SmallGemma3n, checkpointing],
  ['NemotronH', SmallNemotronH, checkpointing],
  ...byDeclaration.map((name): [string, Small, boolean] => [
    ...([name, (nn.models as unknown as Record<string, Small>)[name] as Small] as const),
    checkpointing,
  ]),
]);

test.each(rows)(
  'what a block of %s keeps follows the formula (%p, checkpointing %p)',
  (_, Model, activationCheckpointing) => {
    seed(1);
    const [B, T] = [2, 64];
    const tokens = Tensor.from(
      Int32Array.from({ length: B * T }, (_x, i) => i % 256),
      { shape: [B, T] },
    ).keep();
    const of = (layers: number) => {
      const model = new Model({ ...shape, maxSeq: T, layers, activationCheckpointing }).to(
        cpu(),
        'bf16',
      );
      const found = measure(model, tokens);
      const { kept, statistics, backward, replayed, stream } = model.blockActivations();
      for (const parameter of model.parameters()) {
        parameter.grad?.dispose();
        parameter.dispose();
      }
      const block = B * T * (2 * kept + statistics);
      const perBlock = activationCheckpointing ? B * T * 2 * stream : block;
      const inBlock = activationCheckpointing ? block + B * T * 2 * replayed : B * T * 2 * backward;
      return { ...found, perBlock, inBlock };
    };
    const [few, many] = [of(2), of(6)];
    expect((many.held - few.held) / 4 / many.perBlock).toBeCloseTo(1, 1);
    // The embedding's output, and a statistic per token, belong to no block.
    const outside = many.peak - 6 * many.perBlock - many.inBlock;
    const stream = B * T * 2 * shape.channels;
    expect(Math.abs(outside)).toBeLessThan(0.03 * many.peak + 1.1 * stream);
    tokens.dispose();
  },
);

test('layers with a recurrence have no products of all queries and keys', () => {
  const model = new SmallQwen35({ ...shape, maxSeq: 64, layers: 6 });
  expect(sizesOf(model).attentionWidth).toBe((shape.heads * shape.headDim) / 2);
  const both = new SmallFalconH1({ ...shape, maxSeq: 64, layers: 6 });
  expect(sizesOf(both).attentionWidth).toBe(shape.heads * shape.headDim);
});
