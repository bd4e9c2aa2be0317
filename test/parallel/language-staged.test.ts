// Runs the cases of language models cut by the configuration on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { staged } from './language.cases.js';

testOnCpu('language models over pp, tp and dp', staged);
