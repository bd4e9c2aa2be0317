// Tests that a growing number of tensors gives one warning with the lines that made them, and that
// temporary ones do not.
import { inspect } from 'node:util';
import { initialize, nn, scope, Tensor } from '../../lib/index.js';
import { forgetGrowth, TensorGrowth } from '../../lib/tensor/growth.js';

let warn: jest.SpyInstance;
let kept: Tensor[] = [];

beforeEach(() => {
  forgetGrowth();
  warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
});
afterEach(() => {
  for (const tensor of kept) tensor.dispose();
  kept = [];
  warn.mockRestore();
});

const warnings = (): string[] => warn.mock.calls.map(([text]) => String(text));
const leak = (): number => kept.push(Tensor.from([1]).keep());

test('lasting growth gives one warning, with the line that makes the tensors', () => {
  const growth = new TensorGrowth();
  for (let step = 0; step < 450; ++step) {
    scope(() => void Tensor.from([1, 2]).add(1).mul(2));
    leak();
    growth.endStep();
  }
  expect(warnings()).toEqual([
    expect.stringMatching(/has grown for 200 steps, by \d+ to \d+\. .*scope\(\(\) => /),
  ]);
  expect(warnings()[0]).toMatch(/creation sites: growth\.test\.ts:\d+ \(100 %\)\./);
});

test('a start, a pause, slow growth and a release are no growth', () => {
  const growth = new TensorGrowth();
  for (let step = 0; step < 199; ++step) growth.endStep(step);
  growth.endStep(100);
  for (let step = 0; step < 199; ++step) growth.endStep(100 + step);
  growth.dispose();
  const slow = new TensorGrowth();
  for (let step = 0; step < 900; ++step) slow.endStep(Math.floor(step / 3));
  const flat = new TensorGrowth();
  for (let step = 0; step < 900; ++step) flat.endStep(Math.min(step, 60));
  expect(warnings()).toEqual([]);
});

test("an engine's steps are watched", async () => {
  class Model extends nn.Module {
    readonly linear = new nn.Linear(2, 1);
    override forward(x: Tensor): Tensor {
      return this.linear.call(x).sum();
    }
  }
  const config = {
    train_batch_size: 1,
    optimizer: { type: 'SGD', params: { lr: 0.1 } },
  } as const;
  const { engine } = await initialize({ model: new Model(), config, device: 'cpu' });
  const x = Tensor.from([[1, 2]]).keep();
  for (let step = 0; step < 210; ++step) {
    const loss = engine.forward<Tensor>(x);
    engine.backward(loss);
    engine.step();
    leak();
  }
  expect(inspect({ engine }, { depth: 0 })).toBe(
    '{ engine: Engine(step 210, SGD, ZeRO stage 0, cpu) }',
  );
  expect(inspect(engine)).toMatch(/^Engine\(step 210, .*\) of Model: 3 parameters\n {2}linear: /);
  engine.destroy();
  x.dispose();
  expect(warnings().filter((text) => text.includes('has grown for'))).toHaveLength(1);
});
