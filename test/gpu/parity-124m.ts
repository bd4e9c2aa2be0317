// GPT-2 124M against transformers: run scripts/record-golden.py DIR --model 124M, then this with
// DIR.
import { join } from 'node:path';
import { type Device, device as findDevice } from '../../lib/runtime/device.js';
import { noGrad, scope, type Tensor } from '../../lib/tensor/index.js';
import { Golden, relativeError } from '../models/golden.js';

interface Report {
  logits: number;
  loss: number;
  worstGradient: number;
  worstName: string;
}

function compare(golden: Golden, device: Device): Report {
  const model = golden.model(device);
  const [tokens, targets] = [golden.tensor('tokens'), golden.tensor('targets')];
  const logits = noGrad(() =>
    scope(() => relativeError(model.call(tokens).toArray(), golden.tensor('logits').toArray())),
  );
  const loss = scope(() => {
    const out = model.call(tokens, targets);
    out.backward();
    return out.item();
  });
  let worstGradient = 0;
  let worstName = '';
  const parameters = new Map(model.namedParameters());
  for (const [name, expected] of golden.group('gradient.')) {
    const grad = parameters.get(name)?.grad as Tensor;
    const error = relativeError(grad.toArray(), expected.toArray());
    if (error > worstGradient) [worstGradient, worstName] = [error, name];
  }
  return { logits, loss, worstGradient, worstName };
}

async function main(): Promise<void> {
  const [folder = '.', name = 'cuda', size = '124M'] = process.argv.slice(2);
  const device = findDevice(name);
  const golden = await Golden.read(join(folder, `gpt2-${size}`), device);
  const report = compare(golden, device);
  const lossError = Math.abs(report.loss / golden.description.loss - 1);
  console.log(`GPT-2 ${size} on ${device.info.name} against transformers, f32`);
  console.log(`logits: largest relative error ${report.logits.toExponential(2)} (limit 1e-5)`);
  console.log(`loss ${report.loss}, recorded ${golden.description.loss}`);
  console.log(
    `gradients: ${report.worstGradient.toExponential(2)} in ${report.worstName} (limit 1e-4)`,
  );
  const passed = report.logits < 1e-5 && lossError < 1e-6 && report.worstGradient < 1e-4;
  console.log(passed ? 'passed' : 'FAILED');
  process.exitCode = passed ? 0 : 1;
}

void main();
