// Runs the cases of language models cut by the configuration on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { alone } from './language.cases.js';

testOnCpu('language models over tp', alone);
