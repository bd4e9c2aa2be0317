// Prints the seed of its random numbers, and the first of them.
import { below, random } from './random.js';

const numbers = [random(), below(1000), random()];
console.log(`DS_TEST_SEED=${globalThis.seedOfTests}\n${numbers.join(' ')}`);
