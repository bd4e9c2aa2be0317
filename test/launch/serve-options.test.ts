// docs/serving-options.md lists every option of `ds serve`.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { Command } from 'commander';

import { addServeCommands } from '../../lib/launch/serve-commands.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const page = readFileSync(join(packageRoot(), 'docs', 'serving-options.md'), 'utf8');
const [, table = ''] = /^## Options\n(.*?)^## Exit/ms.exec(page) ?? [];
const program = new Command();
addServeCommands(program, 'Models', async (run) => void (await run()));
const serve = program.commands.find((command) => command.name() === 'serve') as Command;

test('the page lists every option, and no other', () => {
  const documented = new Set(Array.from(table.matchAll(/`(--[\w-]+)/g), ([, name]) => name));
  const known = new Set(serve.options.map(({ long }) => long));
  expect([...known].sort()).toEqual([...documented].sort());
});
