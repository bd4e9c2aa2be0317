// Runs the cases of a mesh on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './mesh.cases.js';

testOnCpu('a mesh of ranks', cases);
