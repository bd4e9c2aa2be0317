// Tests that invalid hyperparameters set between steps throw before any weight changes.
import { DsError, type Engine, initialize, mse, nn, ones, optim, zeros } from '../../lib/index.js';
import { tinyModel, trainTiny, weightBits } from '../e2e/tiny-training.js';

const MISTAKES: [Record<string, unknown>, string][] = [
  [{ lr: Number.NaN }, 'AdamW group 0 lr: expected a finite number of at least 0, got NaN.'],
  [{ lr: undefined }, 'AdamW group 0 lr: expected a finite number of at least 0, got undefined.'],
  [{ lr: '0.1' }, 'AdamW group 0 lr: expected a finite number of at least 0, got "0.1".'],
  [{ lr: -1 }, 'AdamW group 0 lr: expected a finite number of at least 0, got -1.'],
  [{ betas: 0.9 }, 'AdamW group 0 betas: expected a list of two numbers, got 0.9.'],
  [{ eps: Number.NaN }, 'AdamW group 0 eps: expected a finite number, got NaN.'],
  [{ weight_decay: 0.1 }, 'AdamW group 0: expected "weightDecay", got "weight_decay".'],
];

function messageOf(body: () => void): string {
  try {
    body();
  } catch (error) {
    if (error instanceof DsError) return error.message;
    throw error;
  }
  throw new Error('nothing was thrown');
}

test.each(MISTAKES)('an optimizer by itself, %p', (set, message) => {
  const model = new nn.Linear(2, 1).to('cpu');
  const optimizer = new optim.AdamW(model.parameters());
  mse(model.call(ones([2, 2])) as never, zeros([2, 1])).backward();
  const before = model.weight.toArray();
  Object.assign(optimizer.groups[0]!, set);
  expect(messageOf(() => optimizer.step())).toBe(message);
  expect(model.weight.toArray()).toEqual(before);
});

describe('an engine', () => {
  let engine: Engine;
  beforeEach(async () => {
    const model = tinyModel({});
    const optimizer = { type: 'AdamW', params: { lr: 0.01 } } as const;
    ({ engine } = await initialize({ model, config: { train_batch_size: 3, optimizer } }));
  });
  afterEach(() => engine.destroy());

  test.each(MISTAKES)('%p', (set, message) => {
    trainTiny(engine, 0, 1);
    const before = weightBits(engine);
    const [group] = engine.optimizer.groups as unknown as [Record<string, unknown>];
    const kept = { ...group };
    Object.assign(group, set);
    expect(messageOf(() => trainTiny(engine, 1, 2))).toBe(message);
    expect(weightBits(engine)).toEqual(before);
    delete group.weight_decay;
    Object.assign(group, kept); // The refused step has left no state behind.
    expect(trainTiny(engine, 1, 2).every(Number.isFinite)).toBe(true);
  });
});

test('the constructor refuses betas that are one number', () => {
  const betas = 0.9 as unknown as [number, number];
  const make = () => new optim.AdamW(new nn.Linear(2, 1).parameters(), { betas });
  expect(messageOf(make)).toBe('AdamW betas: expected a list of two numbers, got 0.9.');
});
