// Tests that bodies which return a promise throw in scoped functions, because the scope ends with
// the return.
import {
  type Engine,
  initialize,
  nn,
  noGrad,
  ones,
  scope,
  type Tensor,
  zero,
} from '../../lib/index.js';

class Later extends nn.Module {
  readonly layer = new nn.Linear(2, 1);
  later = true;

  override forward(x: Tensor): unknown {
    const compute = () => (this.layer.call(x) as Tensor).mean();
    return this.later ? (async () => compute())() : compute();
  }
}

let engine: Engine;
let model: Later;
beforeEach(async () => {
  model = new Later();
  const config = {
    train_batch_size: 1,
    optimizer: { type: 'AdamW', params: {} },
  } as const;
  ({ engine } = await initialize({ model, config }));
});
afterEach(() => engine.destroy());

const later = async () => {
  await null;
  throw new Error('what becomes of the rest is no unhandled rejection');
};

test.each([
  ['scope', () => scope(later), 'freed while it still runs'],
  ['noGrad', () => noGrad(later), 'would be recorded'],
  ['engine.noSync', () => engine.noSync(later), 'counted and reduced'],
  [
    'GatheredParameters',
    () => zero.GatheredParameters(model, { modifierRank: 0 }, later),
    'would stay on one rank',
  ],
  ['engine.forward', () => engine.forward(ones([1, 2])), 'freed while it still runs'],
])('%s refuses a promise', async (op, call, consequence) => {
  expect(call).toThrow(
    expect.objectContaining({
      code: 'DS_ARGUMENT',
      op,
      expected: 'a synchronous body',
      got: expect.stringContaining(consequence),
    }),
  );
  await new Promise((resolve) => setTimeout(resolve));
  model.later = false; // The engine continues.
  const loss = engine.forward(ones([1, 2]));
  engine.backward(loss);
  engine.step();
  expect(engine.globalSteps).toBe(1);
});

test('whole weights are available until the body returns, which may continue without them', async () => {
  const values = await engine.withFullWeights(async () => {
    const read = model.layer.weight.toArray();
    await null;
    return read;
  });
  expect(values).toEqual(model.layer.weight.toArray());
});
