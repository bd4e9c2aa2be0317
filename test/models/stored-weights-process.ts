// Reads a folder of weights and copies it to another, and reports the host memory that each took.
import { readFileSync } from 'node:fs';
import { nn } from '../../lib/index.js';

/** Bytes that the process had at most, beyond those of its start. */
export interface HostPeaks {
  loaded: number;
  saved: number;
  /** Bytes of the tensors. */
  total: number;
  /** With as many bytes beside it at last: what holds all of the tensors would show. */
  seen: number;
}

/** Of this process since its start: its maxRSS would begin with that of the one that forked it. */
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
