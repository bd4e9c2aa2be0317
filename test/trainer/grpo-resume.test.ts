// A run of grpo() that is interrupted in a rollout resumes to equal results.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  grpo,
  type Reward,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
} from '../../lib/index.js';
import { even, logsOf, policyModel, prompts, tokenizer } from './grpo-tiny.js';
import { weightsOf } from './tiny.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-rollouts-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** Two updates for each of two micro-batches, so rollouts wait for updates at each checkpoint. */
async function run(options: Partial<TrainerOptions>, stopAt = -1, resume = false) {
  const abort = new AbortController();
  let calls = 0;
  const judge: Reward = (input) => {
    if (calls++ === stopAt) abort.abort();
    return even(input);
  };
  const method = grpo({
    rewards: { of: judge, name: 'even' },
    generations: 4,
    sampling: { maxNewTokens: 6 },
    stepsPerGeneration: 2,
    iterations: 2,
  });
  const model = policyModel();
  const trainer = new Trainer({
    model,
    tokenizer,
    train: await prompts(),
    lr: 1e-2,
    schedule: 'constant',
    seed: 1,
    batchSize: 4,
    maxSteps: 7,
    device: 'cpu',
    progress: false,
    log: { every: 1 },
    method,
    stopSignals: [],
    ...options,
  } as TrainerOptions);
  const events: TrainerEvent[] = [];
  for await (const event of trainer.train({ signal: abort.signal, resume })) events.push(event);
  await trainer.destroy();
  const logs = logsOf(events).map(({ step, loss, metrics }) => [step, loss, metrics]);
  return { logs, weights: weightsOf(model), events };
}

test('order, seeds and waiting rollouts continue after a stop in a rollout', async () => {
  const fullResult = await run({});
  const save = { dir, every: 100 };
  const first = await run({ save }, 1);
  expect(first.events.at(-1)).toMatchObject({ type: 'end', reason: 'stopped', step: 5 });
  const rest = await run({ save }, -1, true);
  expect([...first.logs, ...rest.logs]).toEqual(fullResult.logs);
  expect(rest.weights).toEqual(fullResult.weights);
  // The second generation served steps 5 to 8: nothing was sampled again.
  expect(rest.events.filter(({ type }) => type === 'rollout')).toEqual([]);
});
