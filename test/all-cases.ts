// Every device-independent case, for the GPU runner.
import { cases as badInput } from './e2e/bad-input.cases.js';
import { cases as checkpointing } from './e2e/checkpointing.cases.js';
import { cases as lifetime } from './e2e/lifetime.cases.js';
import { cases as offload } from './e2e/offload.cases.js';
import { cases as resume } from './e2e/resume.cases.js';
import type { Case } from './support/case.js';

export const allCases: readonly Case[] = [
  ...badInput,
  ...lifetime,
  ...offload,
  ...checkpointing,
  ...resume,
];
