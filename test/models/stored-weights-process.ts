// Reads a folder of weights, copies it to another, and reports the peak host memory of each.
import { readFileSync } from 'node:fs';
import { nn } from '../../lib/index.js';

/** Peak bytes of the process above its start. */
export interface HostPeaks {
  loaded: number;
  saved: number;
  /** Bytes of the tensors. */
  total: number;
  /** At the end it allocates as many bytes more, to prove that the peak shows all tensors. */
  seen: number;
}

/** Peak of this process since its start; its maxRSS would include the parent's before the fork. */
function peak(): number {
  const [, kib] = /^VmHWM:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? [];
  return Number(kib) * 1024;
}

async function main([warm = '', from = '', to = '']: string[]): Promise<void> {
  await nn.saveWeights(await nn.models.fromPretrained(warm), `${to}-warm`);
  const start = peak();
  const model = await nn.models.fromPretrained(from);
  const loaded = peak() - start;
  await nn.saveWeights(model, to, { maxShardBytes: 10e6 });
  const saved = peak() - start;
  const total = model.numParameters() * 2;
  const beside = Buffer.alloc(total, 1);
  const seen = beside.length > 0 ? peak() - start : 0;
  console.log(JSON.stringify({ loaded, saved, total, seen } satisfies HostPeaks));
}

void main(process.argv.slice(2));
