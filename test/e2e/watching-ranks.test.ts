// Runs the cases of watching over two ranks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './watching-ranks.cases.js';

testOnCpu('watching over two ranks', cases);
