// One rank of a job that trains by several methods in sequence; it reports logs and weights.
import {
  cpo,
  dpo,
  gkd,
  initDistributed,
  kto,
  type nn,
  orpo,
  type TrainingMethod,
  text,
} from '../../lib/index.js';
import { labelledRows, modelOf, pairRows, tokenizer, trainAnswers } from './answers.js';

export interface MethodsJob {
  /** Rows of a micro-batch on each rank. */
  batchSize: number;
  accumulation: number;
}

export interface MethodReport {
  name: string;
  losses: number[];
  metrics: Record<string, number>[];
  evaluation: Record<string, number>;
}

type Kind = 'pairs' | 'answers' | 'texts';
type Run = [name: string, method: () => TrainingMethod, stage: number, data: Kind];

/** The student samples in some updates. */
const SAMPLED = { lmbda: 0.5, maxNewTokens: 4 };

const RUNS: readonly Run[] = [
  ['dpo', () => dpo({ loss: ['sigmoid', 'sft'], reference: modelOf(4) }), 0, 'pairs'],
  ['dpo, stage 3', () => dpo({ reference: modelOf(4) }), 3, 'pairs'],
  ['cpo', () => cpo(), 2, 'pairs'],
  ['orpo', () => orpo(), 0, 'pairs'],
  ['kto', () => kto({ loss: 'apo_zero_unpaired', reference: modelOf(4) }), 0, 'answers'],
  ['kto with z', () => kto({ reference: modelOf(4) }), 3, 'answers'],
  ['gkd, sampled', () => gkd({ teacher: modelOf(4), ...SAMPLED }), 3, 'texts'],
];

function openRows(kind: Kind): Promise<unknown> | object {
  const [rows, half] = [pairRows.slice(0, 16), labelledRows.slice(0, 16)];
  if (kind === 'pairs') return text.PairDataset.open({ tokenizer, rows, length: 32 });
  if (kind === 'answers') return text.UnpairedDataset.open({ tokenizer, rows: half, length: 32 });
  const get = (i: number): text.TextSample => {
    const { prompt = '', chosen = '' } = rows[i] ?? {};
    const before = tokenizer.encode(prompt);
    const ids = Int32Array.from([...before, ...tokenizer.encode(chosen).subarray(1)]);
    const labels = ids.map((id, place) => (place < before.length ? -100 : id));
    const positions = ids.map((_, place) => place);
    return { ids, labels, positions, documents: new Int32Array(ids.length) };
  };
  return { length: rows.length, get };
}

async function main(): Promise<void> {
  const { batchSize, accumulation } = JSON.parse(process.argv.at(-1) as string) as MethodsJob;
  const job = await initDistributed({ device: 'cpu' });
  const reports: MethodReport[] = [];
  for (const [name, method, stage, kind] of RUNS) {
    const data = await openRows(kind);
    const { logs, metrics } = await trainAnswers({
      model: modelOf(3) as nn.models.Llama,
      method: method(),
      train: data as never,
      eval: { data: data as never, every: 3 },
      maxSteps: 3,
      batchSize,
      accumulation,
      deepspeed: { zero_optimization: { stage } } as never,
      distributed: job,
    });
    reports.push({
      name,
      losses: logs.map(({ loss }) => loss),
      metrics: logs.map((log) => ({ ...log.metrics })),
      evaluation: metrics as Record<string, number>,
    });
  }
  await job.destroy();
  process.stdout.write(`${JSON.stringify(reports)}\n`);
}

void main();
