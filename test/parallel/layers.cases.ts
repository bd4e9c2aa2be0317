// Cut layers and models on 2, 3 and 4 ranks equal whole ones: outputs, gradients, first values,
// dropout, losses, texts, files.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { LayersJob } from './layers-process.js';
import type { ModelsJob } from './models-process.js';
import type { SequenceJob } from './sequence-process.js';

interface Report {
  failures: string[];
  count: number;
}

export async function requireReports(
  program: 'layers-process' | 'models-process' | 'sequence-process',
  ranks: number,
  job: LayersJob | ModelsJob | SequenceJob,
): Promise<void> {
  const results = await runRanks(`../parallel/${program}`, ranks, { job });
  for (const [rank, { failures, count }] of reportsOf<Report>(results).entries()) {
    if (failures.length) throw new Error(`rank ${rank}:\n${failures.slice(0, 6).join('\n')}`);
    if (count < 100) throw new Error(`rank ${rank} made ${count} checks only`);
  }
}

/** Folders of Hugging Face's with a GPT-2 in bf16 and a Llama. */
async function savedModels(dir: string): Promise<string[]> {
  const sizes = { vocabSize: 37, maxSeq: 12, layers: 1, heads: 4, channels: 16 };
  seed(3);
  const [gpt2, llama] = ['gpt2', 'llama'].map((name) => join(dir, name)) as [string, string];
  await new nn.models.GPT2(sizes).save(gpt2, { dtype: 'bf16' });
  await new nn.models.Llama({ ...sizes, kvHeads: 2, hidden: 10 }).save(llama);
  return [gpt2, llama];
}

async function models({ kind }: Device, ranks: number): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-parallel-'));
  try {
    await requireReports('models-process', ranks, { kind, folders: await savedModels(dir) });
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

export const cases: readonly Case[] = [2, 3, 4].flatMap((ranks) => [
  {
    name: `layers, collectives and losses on ${ranks} ranks`,
    run: ({ kind }: Device) => requireReports('layers-process', ranks, { kind }),
    gpus: ranks,
  },
  {
    name: `GPT-2, Llama, Phi-3 and Qwen3 on ${ranks} ranks`,
    run: (device: Device) => models(device, ranks),
    gpus: ranks,
  },
]);
