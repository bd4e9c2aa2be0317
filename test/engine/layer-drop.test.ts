// Tests progressive_layer_drop: which layers a step skips, and the output of a model that skips
// them.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { layerDropAt } from '../../lib/engine/step/layer-drop.js';
import {
  type DropsLayers,
  type DsConfig,
  type Engine,
  initialize,
  type LayerDrop,
  nn,
  noGrad,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { weightsOf } from '../trainer/tiny.js';

const [ROWS, TOKENS, VOCABULARY, LAYERS] = [2, 6, 31, 4];
const sizes = { vocabSize: VOCABULARY, maxSeq: TOKENS, layers: LAYERS, heads: 2, channels: 16 };

const families: [string, (checkpointing: boolean) => nn.models.CausalLM][] = [
  ['GPT-2', (activationCheckpointing) => new nn.models.GPT2({ ...sizes, activationCheckpointing })],
  [
    'Llama',
    (activationCheckpointing) =>
      new nn.models.Llama({ ...sizes, hidden: 24, activationCheckpointing }),
  ],
];

const config = (gamma: number, more: DsConfig = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: ROWS,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  progressive_layer_drop: { enabled: true, theta: 0.3, gamma },
  ...more,
});

const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(model: nn.Module, input = config(1)): Promise<Engine> {
  const { engine } = await initialize({ model, config: input, device: 'cpu' });
  open.push(engine);
  return engine;
}

function gpt2(dropout = 0.1): nn.models.GPT2 {
  seed(5);
  return new nn.models.GPT2({ ...sizes, dropout });
}

function batch(step: number): { tokens: Tensor; targets: Tensor } {
  const at = (shift: number): Tensor => {
    const values = Int32Array.from({ length: ROWS * TOKENS }, (_, i) => (3 * i * i + step) % 29);
    return Tensor.from(
      values.map((value) => (value + shift) % VOCABULARY),
      {
        shape: [ROWS, TOKENS],
      },
    );
  };
  return { tokens: at(0), targets: at(1) };
}

function train(engine: Engine, steps: number): number[] {
  return Array.from({ length: steps }, () => {
    const { tokens, targets } = batch(engine.globalSteps);
    const loss = engine.forward(tokens, targets);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
}

describe('the schedule', () => {
  test('falls as its formula does, from the second step on', () => {
    const at = (step: number) => layerDropAt(step, { theta: 0.5, gamma: 0.1 }).pldTheta;
    expect([0, 1].map(at)).toEqual([1, 1]);
    expect(at(2)).toBeCloseTo(0.9524187090179798, 14);
    expect(at(11)).toBeCloseTo(0.6839397205857212, 14);
    expect(at(10_000)).toBe(0.5);
  });

  test('lets layer l of L run with 1 - l / L (1 - theta), and makes up for it', () => {
    const drops = Array.from({ length: 4000 }, (_, i) =>
      layerDropAt(1000 + i, { theta: 0.2, gamma: 1 }).factors(LAYERS),
    );
    const expected = [0.8, 0.6, 0.4, 0.2];
    expected.forEach((p, layer) => {
      const kept = drops.filter((factors) => factors[layer] !== 0);
      for (const factors of kept) expect(factors[layer]).toBeCloseTo(1 / p, 12);
      expect(Math.abs(kept.length / drops.length - p)).toBeLessThan(0.03);
    });
    const both = drops.filter((factors) => factors[0] && factors[1]).length / drops.length;
    expect(Math.abs(both - 0.48)).toBeLessThan(0.03);
    expect(layerDropAt(7, { theta: 1, gamma: 1 }).factors(3)).toEqual([1, 1, 1]);
  });
});

describe.each(families)('%s', (_, build) => {
  const makeModel = (checkpointing = false) => {
    seed(11);
    return build(checkpointing);
  };

  test('without a layer, equals the model that never had it', () => {
    const model = makeModel();
    const { tokens } = batch(0);
    const logits = model.call(tokens, null, { layerFactors: [1, 0, 1, 0] });
    const blocks = (
      model instanceof nn.models.GPT2
        ? model.transformer.h
        : (model as nn.models.Llama).model.layers
    ) as unknown[];
    expect(blocks.length).toBe(LAYERS);
    blocks.splice(3, 1);
    blocks.splice(1, 1);
    expect(logits.toArray()).toEqual(model.call(tokens).toArray());
  });

  test('with the factor of the projections onto the residual stream', () => {
    const [model, other] = [makeModel(), makeModel()];
    const { tokens, targets } = batch(1);
    const state = Object.entries(other.stateDict()).map(([name, value]) => {
      const isLast = /\.2\..*(c_proj|o_proj|down_proj)/.test(name);
      return [name, noGrad(() => value.mul(isLast ? 2 : 1))];
    });
    other.loadStateDict(Object.fromEntries(state));
    const loss = model.call(tokens, targets, { layerFactors: [1, 1, 2, 1] });
    expect(loss.item()).toBeCloseTo(other.call(tokens, targets).item(), 6);
  });

  test('has the same gradients with activation checkpointing', () => {
    const losses = [false, true].map((checkpointing) => {
      const model = makeModel(checkpointing);
      const { tokens, targets } = batch(2);
      const loss = model.call(tokens, targets, { layerFactors: [0, 1.5, 1, 0] });
      loss.backward();
      return [
        loss.item(),
        ...model
          .parameters()
          .map((parameter) => (parameter.grad ? [...parameter.grad.toArray()] : null)),
      ];
    });
    expect(losses[0]).toEqual(losses[1]);
    expect(losses[0]).toContain(null);
  });

  test('refuses invalid factors', async () => {
    const model = makeModel();
    const { tokens } = batch(0);
    const holed = Object.assign(new Array(LAYERS), [1, 1]);
    for (const layerFactors of [[1, 1], [1, 1, 1, -1], [1, 1, 1, Number.NaN], 'all', 0, holed]) {
      const wrong = { layerFactors } as never;
      expect(await refusal(() => model.call(tokens, null, wrong))).toMatchObject({
        code: 'DS_ARGUMENT',
        op: expect.stringContaining('layerFactors'),
      });
    }
  });
});

test('an engine trains as with explicit factors, and evaluates with all layers', async () => {
  const engine = await engineOf(gpt2());
  const byHand = await engineOf(gpt2(), config(1, { progressive_layer_drop: { enabled: false } }));
  expect(byHand.pldTheta).toBeNull();
  let left = 0;
  for (let step = 0; step < 6; ++step) {
    const { pldTheta, factors } = layerDropAt(step, { theta: 0.3, gamma: 1 });
    expect(engine.pldTheta).toBe(pldTheta);
    left += factors(LAYERS).filter((factor) => factor === 0).length;
    seed(step);
    const [loss] = train(engine, 1);
    seed(step);
    const { tokens, targets } = batch(step);
    const other = byHand.forward(tokens, targets, { layerFactors: factors(LAYERS) });
    byHand.backward(other);
    byHand.step();
    expect(other.item()).toBe(loss);
  }
  expect(left).toBeGreaterThan(2);
  engine.synchronize();
  byHand.synchronize();
  expect(weightsOf(engine.module)).toEqual(weightsOf(byHand.module));
  engine.eval();
  byHand.eval();
  const { tokens } = batch(0);
  expect(noGrad(() => engine.forward(tokens)).toArray()).toEqual(
    noGrad(() => byHand.forward(tokens)).toArray(),
  );
});

test('invalid inputs and factors are refused', async () => {
  const engine = await engineOf(gpt2());
  const { tokens, targets } = batch(0);
  for (const reported of [5, true, null, tokens, new Map(), { layerFactors: [1, 1, 1, 1] }]) {
    expect(await refusal(() => engine.forward(tokens, targets, reported))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: expect.stringMatching(/^GPT2 inputs/),
    });
  }
  expect(engine.forward(tokens, targets, { layerFactors: null })).toBeInstanceOf(Tensor);
});

test.each([0, 1, 2, 3] as const)(
  'stage %i drops the same layers, also with offload',
  async (stage) => {
    const plain = await engineOf(gpt2());
    seed(1);
    const losses = train(plain, 5);
    const more = { zero_optimization: { stage, offload_optimizer: { device: 'cpu' } } } as const;
    const staged = await engineOf(gpt2(), config(1, stage === 0 ? {} : more));
    seed(1);
    expect(train(staged, 5)).toEqual(losses);
  },
);

test('a checkpoint continues with the same layers', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-layer-drop-'));
  try {
    const one = await engineOf(gpt2());
    seed(1);
    train(one, 3);
    await one.saveCheckpoint(dir);
    const losses = train(one, 3);
    const other = await engineOf(gpt2());
    await other.loadCheckpoint(dir);
    expect(train(other, 3)).toEqual(losses);
    expect(weightsOf(other.module)).toEqual(weightsOf(one.module));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

describe('a model of the caller', () => {
  class Own extends nn.Module {
    readonly table = new nn.Embedding(VOCABULARY, 8);
    readonly blocks = [new nn.Linear(8, 8), new nn.Linear(8, 8)];
    override forward(tokens: Tensor, factors: readonly number[] = [1, 1]): Tensor {
      const add = (x: Tensor, block: nn.Linear, i: number): Tensor => {
        const factor = factors[i] as number;
        return factor === 0 ? x : x.add(block.call(x).mul(factor));
      };
      return this.blocks.reduce(add, this.table.call(tokens)).mean();
    }
  }

  test('is refused in every step if the model does not read theta', async () => {
    const engine = await engineOf(new Own());
    const step = () => {
      engine.backward(engine.forward(batch(0).tokens));
      engine.step();
    };
    const error = await refusal(step);
    expect(error).toMatchObject({
      code: 'DS_CONFIG',
      op: 'engine.forward, progressive_layer_drop',
    });
    expect((error as Error).message).toMatch(
      /Own without dropLayers.* in step 1\..*engine\.pldTheta/s,
    );
    expect(engine.pldTheta).toBe(1);
    step();
    expect(await refusal(step)).toMatchObject({
      code: 'DS_CONFIG',
      got: expect.stringMatching(/no read in step 2$/),
    });
  });

  test('may leave out layers itself', async () => {
    const seen: LayerDrop[] = [];
    class Dropping extends Own implements DropsLayers {
      dropLayers([tokens]: readonly unknown[], drop: LayerDrop): unknown[] {
        seen.push(drop);
        return [tokens, drop.factors(2)];
      }
    }
    const engine = await engineOf(new Dropping());
    for (let step = 0; step < 3; ++step) {
      engine.backward(engine.forward(batch(step).tokens));
      engine.step();
    }
    expect(seen.map((drop) => drop.pldTheta.toFixed(3))).toEqual(['1.000', '1.000', '0.558']);
    expect(await refusal(() => seen[0]?.factors(0))).toMatchObject({ code: 'DS_ARGUMENT' });
    const wrong = await engineOf(Object.assign(new Own(), { dropLayers: () => null }));
    expect(await refusal(() => wrong.forward(batch(0).tokens))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'dropLayers()',
    });
  });

  test('in stages is refused', async () => {
    const model = new PipelineModule({
      layers: [new nn.Embedding(VOCABULARY, 8), new nn.Linear(8, VOCABULARY)],
      lossFn: (logits: Tensor) => logits.mean(),
    });
    expect(await refusal(() => engineOf(model))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'progressive_layer_drop',
    });
  });
});
