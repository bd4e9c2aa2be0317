// A tiny model and prompts with a checkable answer, for the tests of grpo() and rloo().
import { join } from 'node:path';
import {
  nn,
  type RewardInput,
  seed,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
  text,
} from '../../lib/index.js';

export const tokenizer = text.Tokenizer.fromPretrained(
  join('test', 'golden', 'transformers', 'tokenizers', 'llama2'),
);

export const policyModel = (
  start = 3,
  more: Partial<nn.models.LlamaConfig> = {},
): nn.models.Llama => {
  seed(start);
  return new nn.models.Llama({
    vocabSize: tokenizer.vocabSize,
    maxSeq: 64,
    layers: 2,
    heads: 2,
    channels: 32,
    hidden: 64,
    padTokenId: tokenizer.padId,
    ...more,
  });
};

const WORDS = ['engine', 'rank', 'model', 'file', 'checkpoint', 'loss'];
export const promptRows = Array.from({ length: 24 }, (_, i) => ({
  prompt: `The ${WORDS[i % 6]} ${WORDS[(i * 5 + 1) % 6]}`,
  wanted: WORDS[i % 6],
}));

export const prompts = (rows: readonly object[] = promptRows): Promise<text.PromptDataset> =>
  text.PromptDataset.open({ tokenizer, rows: rows as Record<string, unknown>[] });

/** The share of sampled tokens with an even number: about half at first. */
export const even = ({ completions }: RewardInput): number[] =>
  completions.map(({ tokens }) => tokens.filter((token) => token % 2 === 0).length / tokens.length);

/** Trains; resolves with the events. */
export async function events(options: Partial<TrainerOptions>): Promise<TrainerEvent[]> {
  const trainer = new Trainer({
    model: policyModel(),
    tokenizer,
    train: await prompts(),
    lr: 3e-3,
    batchSize: 8,
    maxSteps: 4,
    device: 'cpu',
    seed: 1,
    progress: false,
    stopSignals: [],
    log: { every: 1 },
    schedule: 'constant',
    ...options,
  } as TrainerOptions);
  const found: TrainerEvent[] = [];
  try {
    for await (const event of trainer.train()) found.push(event);
  } finally {
    await trainer.destroy();
  }
  return found;
}

export const logsOf = (all: readonly TrainerEvent[]) => all.filter((event) => event.type === 'log');
