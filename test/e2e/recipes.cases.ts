// Tests that every configuration of docs/recipes.md gives no notice and trains, on one rank or two.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolveConfig } from '../../lib/config/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { type Followed, follow, type Recipe } from './recipe-training.js';

const page = readFileSync(join(packageRoot(), 'docs/recipes.md'), 'utf8');

/** The sections of the page: title, configuration, and whether the command starts several ranks. */
const sections = page
  .split(/^## /m)
  .slice(1)
  .map((text) => {
    const [title = ''] = text.split('\n');
    const [, json = ''] = /```json\n(.*?)```/s.exec(text) ?? [];
    return { recipe: { title, config: JSON.parse(json) } as Recipe, text };
  });

const isJob = ({ text }: { text: string }): boolean => text.includes('`ds --num_gpus');
const folder = (): string => mkdtempSync(join(tmpdir(), 'ds-recipes-'));

function requireLearned({ title, losses, updates }: Followed): void {
  assert.ok(losses.every(Number.isFinite), `${title}: ${losses}`);
  assert.ok(updates >= 6, `${title}: ${updates} updates`);
  const [first, last] = [losses[0] as number, losses.at(-1) as number];
  assert.ok(last < first, `${title}: the loss went from ${first} to ${last}`);
}

/** Redirects files that a recipe writes to a folder of the test. */
function within(path: string, { title, config }: Recipe): Recipe {
  const { csv_monitor: csv } = config;
  return {
    title,
    config: csv ? { ...config, csv_monitor: { ...csv, output_path: path } } : config,
  };
}

async function alone(recipe: Recipe, device: Device): Promise<void> {
  const path = folder();
  try {
    requireLearned(await follow(within(path, recipe), device));
  } finally {
    rmSync(path, { recursive: true });
  }
}

async function together({ kind }: Device): Promise<void> {
  const recipes = sections.filter(isJob).map(({ recipe }) => recipe);
  assert.ok(recipes.length >= 6);
  const job = { device: kind, recipes };
  const reports = reportsOf<Followed[]>(await runRanks('../e2e/recipe-process', 2, { job }));
  const [first, second] = reports as [Followed[], Followed[]];
  for (const followed of reports.flat()) requireLearned(followed);
  const hashes = (all: Followed[]) => all.map(({ title, hash }) => [title, hash]);
  assert.deepEqual(hashes(second), hashes(first));
}

function checkAccepted(): void {
  assert.ok(sections.length >= 12);
  for (const section of sections) {
    const worldSize = isJob(section) ? 8 : 1;
    const { notices } = resolveConfig(section.recipe.config, { worldSize, strict: true });
    assert.deepEqual(notices, [], section.recipe.title);
    assert.match(section.text, /`(node train\.js|ds --num_gpus 8 train\.js)`/);
  }
}

export const cases: Case[] = [
  { name: 'recipes: every one is accepted without a notice', run: checkAccepted },
  ...sections
    .filter((section) => !isJob(section))
    .map(
      ({ recipe }): Case => ({
        name: `recipe: ${recipe.title}`,
        run: (device) => alone(recipe, device),
      }),
    ),
  {
    name: 'recipes of several ranks, on two',
    run: together,
    gpus: 2,
  },
];
