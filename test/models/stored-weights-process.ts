// Reads a folder of weights and copies it to another, and reports the host memory that each took.
import { nn } from '../../lib/index.js';

/** Bytes that the process had at most, beyond those of its start. */
export interface HostPeaks {
  loaded: number;
  saved: number;
  /** Bytes of the tensors. */
  total: number;
}

const peak = (): number => process.resourceUsage().maxRSS * 1024;

async function main([warm = '', from = '', to = '']: string[]): Promise<void> {
  await nn.saveWeights(await nn.models.fromPretrained(warm), `${to}-warm`);
  const start = peak();
  const model = await nn.models.fromPretrained(from);
  const loaded = peak() - start;
  await nn.saveWeights(model, to, { maxShardBytes: 10e6 });
  const saved = peak() - start;
  const total = model.numParameters() * 2;
  console.log(JSON.stringify({ loaded, saved, total } satisfies HostPeaks));
}

void main(process.argv.slice(2));
