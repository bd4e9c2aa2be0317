// A process that saves numbered checkpoints until it is killed: node save-process.ts DIR TAG
// MEGABYTES FIRST
import { saveCheckpoint } from '../../lib/checkpoint/index.js';
import { Tensor } from '../../lib/tensor/tensor.js';

/** Every tensor of checkpoint number `n` is filled with n, so that a mixture of two would show. */
async function main(dir: string, tag: string, megabytes: number, first: number): Promise<void> {
  const length = (megabytes * 2 ** 20) / 4 / 3;
  for (let n = first; ; ++n) {
    const tensors = ['a', 'b', 'c'].map((name) => {
      const tensor = Tensor.from(new Float32Array(length).fill(n)).keep();
      return { name, tensor };
    });
    await saveCheckpoint(dir, tag === 'each' ? `step${n}` : tag, {
      modelTensors: tensors.slice(0, 1),
      optimizerTensors: tensors.slice(1),
      state: { n },
      saveLatest: true,
    });
    for (const { tensor } of tensors) tensor.dispose();
    process.stdout.write(`${n}\n`);
  }
}

const [dir = '', tag = '', megabytes = '1', first = '0'] = process.argv.slice(2);
main(dir, tag, Number(megabytes), Number(first)).catch((error) => {
  process.stderr.write(`${error.code} ${error.message}\n`);
  process.exitCode = 1;
});
