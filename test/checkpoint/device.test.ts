// Runs the cases of a device's checkpoints on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './device.cases.js';

testOnCpu('checkpoints of a device', cases);
