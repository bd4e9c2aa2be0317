// Trains sums modulo 5 with grpo() on the CPU. Supervised training first teaches the format; a
// fifth of its answers are correct by chance.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { grpo, nn, rewards, rloo, seed, Trainer, text } from '../lib/index.js';
import { packageRoot } from '../lib/runtime/package-root.js';
import type { TrainingMethod } from '../lib/trainer/methods/method.js';
import type { Options } from './main.js';

/** Terms are 0 to 4, and so are answers: sums modulo 5. */
const TERMS = 5;
const GENERATIONS = 32;
/** Rows of the first training for each right and each wrong answer: 5 of 21 are right. */
const [RIGHT, WRONG] = [5, 4];
/** Seeds of models and samples. */
const SEEDS = '1,2,3';
/** Prompts of a generation. */
const PROMPTS = 10;

/** A learned curve. */
export interface Learned {
  /** Mean reward of the completions of each update. */
  rewards: number[];
  /** Entropy of the policy in nats, by update. */
  entropy: number[];
  seconds: number;
}

/** Two terms of the right side, so that a prompt has one of two forms. */
const sums = [1, 2].flatMap((b) =>
  Array.from({ length: TERMS }, (_, a) => ({
    prompt: `${a}+${b}=`,
    solution: `${(a + b) % TERMS}`,
  })),
);

const methods: Readonly<Record<string, () => TrainingMethod>> = {
  grpo: () => grpo({ ...shared, loss: 'dapo' }),
  'dr. grpo': () => grpo({ ...shared, loss: 'dr_grpo', scaleRewards: 'none' }),
  gspo: () => grpo({ ...shared, loss: 'grpo', level: 'sequence' }),
  rloo: () => rloo({ ...shared, beta: 0 }),
};
const shared = {
  rewards: rewards.accuracy,
  generations: GENERATIONS,
  sampling: { maxNewTokens: 3 },
};

/** Trains one model by both methods. `steps`: updates by rewards. */
export async function learn(
  name: string,
  { steps, start }: { steps: number; start: number },
): Promise<Learned> {
  const folder = join(packageRoot(), 'test', 'golden', 'transformers', 'tokenizers', 'llama2');
  const tokenizer = text.Tokenizer.fromPretrained(folder);
  seed(start);
  const model = new nn.models.Llama({
    vocabSize: tokenizer.vocabSize,
    maxSeq: 16,
    layers: 2,
    heads: 2,
    channels: 32,
    hidden: 64,
    padTokenId: tokenizer.padId,
  });
  const guesses = sums.flatMap(({ prompt, solution }) =>
    Array.from({ length: TERMS }, (_, i) => `${i}`).flatMap((completion) =>
      Array.from({ length: completion === solution ? RIGHT : WRONG }, () => ({
        prompt,
        completion,
      })),
    ),
  );
  const begin = performance.now();
  const common = {
    model,
    tokenizer,
    device: 'cpu',
    seed: start,
    progress: false,
    stopSignals: [],
    schedule: 'constant' as const,
    log: { every: 1 },
  };
  const first = new Trainer({
    ...common,
    lr: 1e-2,
    batchSize: guesses.length,
    maxSteps: 200,
    train: await openDataset(tokenizer, guesses),
  });
  await first.train();
  await first.destroy();
  const trainer = new Trainer({
    ...common,
    lr: 1e-3,
    batchSize: PROMPTS * GENERATIONS,
    maxSteps: steps,
    train: await text.PromptDataset.open({ tokenizer, rows: sums }),
    method: (methods[name] as () => TrainingMethod)(),
  });
  const learned: Learned = { rewards: [], entropy: [], seconds: 0 };
  for await (const event of trainer.train()) {
    if (event.type !== 'log') continue;
    learned.rewards.push(round(event.metrics.reward ?? Number.NaN));
    learned.entropy.push(round(event.metrics.entropy ?? Number.NaN));
  }
  await trainer.destroy();
  learned.seconds = round((performance.now() - begin) / 1000);
  return learned;
}

/** The rows as samples of text, by a file. */
async function openDataset(tokenizer: text.Tokenizer, rows: readonly object[]) {
  const dir = mkdtempSync(join(tmpdir(), 'ds-rewards-'));
  const files = join(dir, 'rows.jsonl');
  writeFileSync(files, rows.map((row) => JSON.stringify(row)).join('\n'));
  try {
    return await text.TextDataset.open({ tokenizer, files, length: 16, threads: 0 });
  } finally {
    rmSync(dir, { recursive: true });
  }
}

const round = (value: number): number => Number(value.toFixed(4));

/** Curves of each method with three seeds. */
export async function rewardsBench({ steps = '200', seeds = SEEDS, only }: Options) {
  const names = only ? only.split(',') : Object.keys(methods);
  const curves: Record<string, Record<string, Learned>> = {};
  for (const name of names) {
    const settings: Record<string, Learned> = {};
    for (const start of seeds.split(',').map(Number)) {
      const learned = await learn(name, { steps: Number(steps), start });
      settings[start] = learned;
      const [before, after] = [learned.rewards[0], learned.rewards.at(-1)];
      console.error(`${name}, seed ${start}: ${before} to ${after}, ${learned.seconds} s`);
    }
    curves[name] = settings;
  }
  return { task: 'sums modulo 5, 10 prompts', steps: Number(steps), curves };
}
