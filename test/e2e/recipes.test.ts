// Follows the recipes of the documentation on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './recipes.cases.js';

testOnCpu('recipes', cases);
