// Runs the value cases on the CPU.
import { liveTensors, Tensor } from '../../lib/tensor/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { quiet } from '../support/quiet.js';
import { cases } from './values.cases.js';

testOnCpu('ops', cases);

test('read() leaves no tensor behind', async () => {
  await quiet();
  const before = liveTensors();
  const x = Tensor.from([0.1, 7], { dtype: 'bf16' });
  await x.read();
  x.dispose();
  expect(liveTensors()).toBe(before);
});
