// Adapters in recorded steps: only GPUs record.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './recorded-adapters.cases.js';

testOnCpu('recorded adapters', cases);
