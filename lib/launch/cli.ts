#!/usr/bin/env node
// The `ds` command.
import { Command, InvalidArgumentError } from 'commander';

import { version } from '../version.js';
import type { ValidateOptions } from './validate.js';

function positiveInteger(text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value > 0) return value;
  throw new InvalidArgumentError('Expected a positive integer.');
}

const program = new Command('ds').description('Tools of @ds/native.').version(version);

program
  .command('env')
  .description('print what was found on this machine and what is missing')
  .option('--json', 'as JSON')
  .action(async ({ json }: { json?: boolean }) => {
    const { formatSystem, inspectSystem } = await import('./env.js');
    const report = await inspectSystem();
    console.log(json ? JSON.stringify(report, null, 2) : formatSystem(report));
    if (!report.native) process.exitCode = 1;
  });

program
  .command('validate')
  .description('check a ds_config.json and print what it resolves to')
  .argument('<file>')
  .option('--world-size <n>', 'ranks that train together', positiveInteger, 1)
  .option('--explain', 'print where each value came from')
  .option('--strict', 'take unknown keys as errors')
  .option('--json', 'as JSON')
  .action(async (file: string, options: ValidateOptions) => {
    const { validate } = await import('./validate.js');
    const { valid, output, messages } = validate(file, options);
    for (const message of messages) console.error(message);
    if (output) console.log(output);
    if (!valid) process.exitCode = 1;
  });

program.parseAsync();
