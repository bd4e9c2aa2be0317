// Runs the cases of layers with weights of 8 and 4 bits on the CPU.
import { nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './quantized-linear.cases.js';

testOnCpu('layers of 8 and 4 bits', cases);

const x = () => Tensor.from(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8), { shape: [1, 8] });

test('a bias that has no values yet gets them while a product is given its operands', () => {
  const outputs = [false, true].map((isRead) => {
    seed(3);
    const layer = new nn.Linear(8, 3);
    layer.weight.toArray();
    if (isRead) layer.bias?.toArray();
    const few = nn.QuantizedLinear.from(layer, { bits: 8 });
    return noGrad(() => scope(() => few.call(x()).toArray()));
  });
  expect(outputs[0]).toEqual(outputs[1]);
});
