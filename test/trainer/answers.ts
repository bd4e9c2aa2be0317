// Rows, tokenizer and a small model that tests of preference methods share.
import { join } from 'node:path';
import { nn, seed, Trainer, type TrainerOptions, text } from '../../lib/index.js';
import type { LogEvent, Metrics } from '../../lib/trainer/index.js';

export const tokenizer = text.Tokenizer.fromPretrained(
  join('test', 'golden', 'transformers', 'tokenizers', 'llama2'),
);

/** A small model with new weights. */
export function modelOf(start = 3, layers = 1): nn.models.Llama {
  seed(start);
  const sizes = { maxSeq: 64, layers, heads: 2, channels: 16, hidden: 32 };
  return new nn.models.Llama({
    ...sizes,
    vocabSize: tokenizer.vocabSize,
    padTokenId: tokenizer.padId,
  });
}

/** The body of that model with a head for one label. */
export function scorerOf(start = 3): nn.models.TaskModel {
  seed(start);
  const config = {
    model_type: 'llama',
    vocab_size: tokenizer.vocabSize,
    max_position_embeddings: 64,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    hidden_size: 16,
    intermediate_size: 32,
  };
  return nn.models.fromConfig(config, { task: 'sequence-classification', labels: ['reward'] });
}

const WORDS = ['engine', 'rank', 'model', 'file', 'checkpoint', 'loss'];
/** Answers with one of the first three words are chosen. */
export const pairRows = Array.from({ length: 24 }, (_, i) => {
  const [good, bad] = [WORDS[i % 3], WORDS[3 + (i % 4 === 0 ? 0 : i % 3)]] as [string, string];
  return { prompt: `The ${WORDS[(i * 5) % 6]} is`, chosen: ` ${good}`, rejected: ` ${bad} ${bad}` };
});

/** The same answers, one a row. */
export const labelledRows = pairRows.flatMap(({ prompt, chosen, rejected }, i) =>
  i % 2 === 0
    ? [{ prompt, completion: chosen, label: true }]
    : [{ prompt, completion: rejected, label: false }],
);

/** Trains; returns logs and the last evaluation. */
export async function trainAnswers(
  options: Partial<TrainerOptions> & Pick<TrainerOptions, 'model'>,
): Promise<{ logs: LogEvent[]; metrics: Partial<Metrics> }> {
  const trainer = new Trainer({
    tokenizer,
    lr: 5e-3,
    batchSize: 4,
    maxSteps: 8,
    device: 'cpu',
    seed: 1,
    progress: false,
    log: { every: 1 },
    stopSignals: [],
    ...options,
  } as TrainerOptions);
  const logs: LogEvent[] = [];
  let metrics: Partial<Metrics> = {};
  try {
    for await (const event of trainer.train()) {
      if (event.type === 'log') logs.push(event);
      if (event.type === 'evaluate') metrics = event.metrics;
    }
  } finally {
    await trainer.destroy();
  }
  return { logs, metrics };
}
