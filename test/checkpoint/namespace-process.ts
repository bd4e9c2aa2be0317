// A saver in its own PID namespace: node namespace-process.ts JSON, see NamespaceJob. Prints each
// tag after its save.
import { Tensor } from '../../lib/tensor/tensor.js';
import { contentOf, save } from './content.js';

export interface NamespaceJob {
  dir: string;
  /** Prefix of its own tags; every other save uses the tag "shared". */
  who: string;
  saves: number;
}

const SHAPE = [64, 1024];

async function main({ dir, who, saves }: NamespaceJob): Promise<void> {
  for (let n = 0; n < saves; ++n) {
    const values = new Float32Array(64 * 1024).fill(n + 1);
    const shard = (name: string) => ({
      name,
      shape: SHAPE,
      tensor: Tensor.from(values, { shape: SHAPE }),
    });
    const tag = n % 2 === 0 ? `${who}-${n}` : 'shared';
    await save(dir, tag, contentOf([shard('w')], [shard('w.fp32'), shard('w.exp_avg')], { n }));
    process.stdout.write(`${tag}\n`);
  }
}

main(JSON.parse(process.argv[2] ?? '{}') as NamespaceJob).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
