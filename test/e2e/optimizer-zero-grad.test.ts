// Runs the cases of engine.optimizer.zeroGrad() on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './optimizer-zero-grad.cases.js';

testOnCpu('the zeroGrad() of an optimizer', cases);
