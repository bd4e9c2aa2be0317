// Three updates of each method equal those of TRL 1.13's trainers: losses, gradient norms and
// metrics. scripts/record-trl.py has recorded them.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  cpo,
  dpo,
  kto,
  orpo,
  reward,
  Trainer,
  type TrainingMethod,
  text,
} from '../../lib/index.js';
import { answers, modelOf, pairs, scorerOf, tokenizer } from './trl-steps.js';

const golden = JSON.parse(readFileSync(join('test', 'golden', 'trl-steps.json'), 'utf8')) as Record<
  string,
  Record<string, number>[]
>;

const METHODS: Readonly<Record<string, () => TrainingMethod>> = {
  dpo: () => dpo({ beta: 0.3, reference: modelOf() }),
  'dpo ipo': () => dpo({ beta: 0.3, loss: 'ipo', reference: modelOf() }),
  'dpo ld_alpha': () => dpo({ beta: 0.3, ldAlpha: 0.5, reference: modelOf() }),
  'dpo weighting': () => dpo({ beta: 0.3, useWeighting: true, reference: modelOf() }),
  kto: () => kto({ beta: 0.3, reference: modelOf() }),
  'kto apo': () => kto({ beta: 0.3, loss: 'apo_zero_unpaired', reference: modelOf() }),
  orpo: () => orpo({ beta: 0.3 }),
  cpo: () => cpo({ beta: 0.3 }),
  'cpo simpo': () => cpo({ beta: 2, loss: 'simpo', cpoAlpha: 0 }),
  reward: () => reward({ centerRewardsCoefficient: 0.01 }),
};

test.each(Object.keys(METHODS))('%s', async (name) => {
  const rows = { tokenizer, length: 32 };
  const train = name.startsWith('kto')
    ? await text.UnpairedDataset.open({ ...rows, rows: answers })
    : await text.PairDataset.open({ ...rows, rows: pairs, whole: name === 'reward' });
  const trainer = new Trainer({
    model: name === 'reward' ? scorerOf() : modelOf(),
    tokenizer,
    train: train as never,
    method: (METHODS[name] as () => TrainingMethod)(),
    batchSize: 4,
    maxSteps: 3,
    lr: 2e-3,
    schedule: 'constant',
    log: { every: 1 },
    data: { sampling: 'sequential' },
    device: 'cpu',
    progress: false,
    stopSignals: [],
  });
  const found: Record<string, number>[] = [];
  for await (const event of trainer.train()) {
    if (event.type !== 'log') continue;
    found.push({ loss: event.loss, grad_norm: event.gradNorm, ...event.metrics });
  }
  await trainer.destroy();
  const expected = golden[name] as Record<string, number>[];
  expect(found.length).toBe(expected.length);
  for (const [i, numbers] of expected.entries()) {
    for (const [key, value] of Object.entries(numbers)) {
      // TRL without the weight of a next-token loss reports 0 for it.
      if (key === 'nll_loss' && value === 0) continue;
      const off = Math.abs((found[i]?.[key] as number) - value) / Math.max(1, Math.abs(value));
      expect([name, i, key, off < 2e-4 ? 'equal' : `${found[i]?.[key]}, not ${value}`]).toEqual([
        name,
        i,
        key,
        'equal',
      ]);
    }
  }
});
