// Saves one tag again and again, each time with another number in it, until its input ends: argv is
// a folder.
import type { Tensor } from '../../lib/tensor/index.js';
import { content, save } from './content.js';

async function main(dir: string): Promise<void> {
  let open = true;
  process.stdin.on('end', () => {
    open = false;
  });
  process.stdin.resume();
  for (let n = 1; open; ++n) {
    const values = content(n);
    await save(dir, 't', values);
    for (const { tensor } of [...values.model, ...values.optimizer]) (tensor as Tensor).dispose();
    if (n === 1) process.stdout.write('saved\n');
  }
}

void main(process.argv[2] as string);
