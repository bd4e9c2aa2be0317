// The Dockerfile, the dev container and the workflow agree with scripts/setup and package.json.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const read = (file: string): string => readFileSync(join(root, file), 'utf8');

/** Continued lines as one. */
const joined = (text: string): string => text.replace(/\\\n\s*/g, ' ');

const setup = joined(read('scripts/setup'));
const dockerfile = joined(read('Dockerfile'));
const workflow = read('.github/workflows/ci.yml');

const found = (text: string, pattern: RegExp): string => {
  const [, group] = pattern.exec(text) ?? [];
  if (group === undefined) throw new Error(`expected ${pattern}`);
  return group;
};

test('the image has the system packages of scripts/setup', () => {
  const packages = found(setup, /DEBIAN_PACKAGES="([^"]+)"/).split(/\s+/);
  const installed = found(dockerfile, /--no-install-recommends\s+(ca-certificates[^&]+)&&/);
  const [, , , ...rest] = installed.trim().split(/\s+/); // The first three fetch Node and git.
  expect(rest).toEqual(packages);
  expect(found(dockerfile, /apt-get install (.*?) --no-install-recommends/)).toBe(
    found(setup, /apt-get install (.*?) --no-install-recommends/),
  );
});

test('the image installs npm packages as scripts/setup does, and builds for every GPU', () => {
  expect(found(dockerfile, /^RUN (npm ci .*)$/m)).toBe(found(setup, /^\s+(npm ci .*)$/m));
  expect(dockerfile).toContain('RUN npm run --silent build\n');
  expect(found(dockerfile, /^CMD \["node", "([^"]+)"\]/m)).toBe(
    found(read('scripts/quickstart'), /exec node (\S+)/),
  );
});

test('the image has a Node.js version that the package supports', () => {
  const { engines } = JSON.parse(read('package.json'));
  const least = Number(found(engines.node, /^>=(\d+)$/));
  expect(Number(found(dockerfile, /^ARG NODE=(\d+)$/m))).toBeGreaterThanOrEqual(least);
  for (const [, version] of workflow.matchAll(/node-version: (\d+)/g)) {
    expect(Number(version)).toBeGreaterThanOrEqual(least);
  }
});

test('the dev container is that image, updated by scripts/setup', () => {
  const text = read('.devcontainer/devcontainer.json').replace(/^\/\/.*$/gm, '');
  const { build, postCreateCommand } = JSON.parse(text);
  expect(existsSync(join(root, '.devcontainer', build.dockerfile))).toBe(true);
  expect(postCreateCommand).toBe("bash -c 'source scripts/setup && npm run --silent build'");
});

describe('the workflow', () => {
  const commands = Array.from(
    workflow.matchAll(/^\s+(?:- )?run: (.*)$/gm),
    ([, line = '']) => line,
  );

  test('builds prebuilt binaries, runs what needs no GPU, and the GPU suite on a GPU', () => {
    expect(commands).toEqual(
      expect.arrayContaining([
        './scripts/test',
        './scripts/pack packages --all-gpus',
        'source scripts/setup',
      ]),
    );
    expect(workflow).toMatch(/gpu:\n(.*\n)+? {4}runs-on: \[self-hosted, .*gpu\]/);
    expect(commands.join('\n')).toContain('bundle/run build/js/test/gpu.js');
  });

  test.each(commands)('%s names existing scripts and files', (command) => {
    const { scripts } = JSON.parse(read('package.json'));
    for (const [, script = ''] of command.matchAll(/npm run (?:--silent )?([\w:]+)/g)) {
      expect(scripts).toHaveProperty([script]);
    }
    for (const [path] of command.matchAll(/scripts\/[\w.-]+/g)) {
      expect(existsSync(join(root, path))).toBe(true);
    }
  });
});

test('generated files are marked as such', () => {
  const marked = read('.gitattributes');
  for (const file of ['ds_config.schema.json', 'docs/configuration.md', '*.generated.*']) {
    expect(marked).toContain(`${file} linguist-generated`);
  }
});
