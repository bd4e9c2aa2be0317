// Runs the cases of composed functions on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './composed.cases.js';
import { cases as products } from './products.cases.js';

testOnCpu('composed', [...cases, ...products]);
