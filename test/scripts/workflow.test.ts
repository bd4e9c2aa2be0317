// The workflow: its jobs, and the steps of a release that need no network.
import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import { packageRoot } from '../../lib/runtime/package-root.js';

interface Step {
  uses?: string;
  run?: string;
  with?: Record<string, unknown>;
}
interface Job {
  needs?: string | string[];
  if?: string;
  container?: string;
  permissions?: Record<string, string>;
  steps: Step[];
}

const root = packageRoot();
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const text = readFileSync(join(root, '.github', 'workflows', 'ci.yml'), 'utf8');
const workflow = parse(text) as {
  on: { push: { branches: string[]; tags: string[] } };
  permissions: Record<string, string>;
  jobs: Record<string, Job>;
};
const job = (name: string) => workflow.jobs[name] as Job;
const stepsOf = ({ steps }: Job) => steps.flatMap(({ run }) => (run === undefined ? [] : [run]));

/** Jobs that upload an artifact with such a name. */
const jobsUploading = (name: RegExp) =>
  Object.keys(workflow.jobs).filter((key) =>
    job(key).steps.some(
      (step) =>
        step.uses?.startsWith('actions/upload-artifact@') && name.test(`${step.with?.name}`),
    ),
  );

const folder = mkdtempSync(join(tmpdir(), 'workflow-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('each job needs jobs that exist', () => {
  for (const { needs = [] } of Object.values(workflow.jobs)) {
    for (const name of [needs].flat()) expect(workflow.jobs).toHaveProperty([name]);
  }
});

test.each(Object.values(workflow.jobs).flatMap(stepsOf))('bash can read: %s', (step) => {
  const { status, stderr } = spawnSync('bash', ['-n', '-c', step], { encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
});

test('steps name scripts and npm scripts of this checkout', () => {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const lines = Object.values(workflow.jobs).flatMap(stepsOf).join('\n');
  const files = [...lines.matchAll(/(?:^|[\s/])((?:scripts|examples)\/[\w.-]+)/gm)].map(
    ([, a]) => `${a}`,
  );
  expect(files).toEqual(expect.arrayContaining(['scripts/test', 'examples/own-model.js']));
  for (const file of files) expect([file, existsSync(join(root, file))]).toEqual([file, true]);
  const names = [...lines.matchAll(/npm run (\S+)/g)].map(([, name]) => `${name}`);
  for (const name of names) expect(scripts).toHaveProperty([name]);
});

test('a job needs the jobs that upload its artifacts', () => {
  for (const { needs = [], steps } of Object.values(workflow.jobs)) {
    for (const step of steps) {
      if (!step.uses?.startsWith('actions/download-artifact@')) continue;
      const pattern = `${step.with?.name ?? step.with?.pattern}`.replace('*', '.*');
      const uploaders = jobsUploading(new RegExp(`^${pattern}$`));
      expect(uploaders.length).toBeGreaterThan(0);
      expect([needs].flat()).toEqual(expect.arrayContaining(uploaders));
    }
  }
});

test('only the release job may sign, and it runs after all tests on a tag', () => {
  const release = job('release');
  expect(workflow.on.push.tags).toEqual(['v*']);
  expect(release.if).toBe("startsWith(github.ref, 'refs/tags/v')");
  expect(release.needs).toEqual(expect.arrayContaining(['test', ...jobsUploading(/^packages/)]));
  expect(workflow.permissions).toEqual({ contents: 'read' });
  expect(release.permissions).toEqual({ contents: 'read', 'id-token': 'write' });
  for (const [name, { permissions }] of Object.entries(workflow.jobs))
    if (name !== 'release') expect(permissions).toBeUndefined();
  expect(text).not.toMatch(/NODE_AUTH_TOKEN|NPM_TOKEN|secrets\./);
});

test('packages are built in the container of their CUDA or C library', () => {
  expect(job('musl').container).toMatch(/^node:\d+-alpine$/);
  expect(job('prebuilds').container).toMatch(/^nvidia\/cuda:13\./);
  expect(job('prebuilds-cuda12').container).toMatch(/^nvidia\/cuda:12\.9\./);
});

const { PACKAGES } = JSON.parse(
  execFileSync(process.execPath, [
    '--input-type=module',
    '-e',
    `import { PACKAGES } from '${join(root, 'scripts/platform-packages.mjs')}';
     console.log(JSON.stringify({ PACKAGES }))`,
  ]).toString(),
) as { PACKAGES: Record<string, unknown> };
const names = ['', ...Object.keys(PACKAGES).map((name) => `-${name}`)];
const tarballs = names.map((name) => `ds-native${name}-${version}.tgz`);

/** Runs the steps of the release with `npm` replaced; returns its calls. */
function release(files: string[], tag: string) {
  const work = mkdtempSync(join(folder, 'release-'));
  const bin = join(work, 'bin');
  for (const result of [bin, join(work, 'packages')]) mkdirSync(result);
  for (const file of files) writeFileSync(join(work, 'packages', file), '');
  writeFileSync(join(bin, 'npm'), `#!/bin/sh\necho "$*" >>'${work}/calls'\n`);
  chmodSync(join(bin, 'npm'), 0o755);
  const script = stepsOf(job('release')).join('\n').replaceAll('scripts/', `${root}/scripts/`);
  const env = { PATH: `${bin}:${process.env.PATH}`, GITHUB_REF_NAME: tag };
  const options = { cwd: work, env, encoding: 'utf8' } as const;
  const { status, stderr } = spawnSync('bash', ['-e', '-c', script], options);
  const log = join(work, 'calls');
  const calls = existsSync(log) ? readFileSync(log, 'utf8').trim().split('\n') : [];
  return { status, stderr, calls };
}

test('a release publishes the platform packages first, with provenance', () => {
  const { status, calls } = release(tarballs, `v${version}`);
  expect(status).toBe(0);
  const published = calls.map((call) => {
    expect(call).toMatch(/^publish --provenance --access public /);
    return call.split('/').at(-1);
  });
  expect([...published].sort()).toEqual([...tarballs].sort());
  expect(published.at(-1)).toBe(`ds-native-${version}.tgz`);
});

test.each([
  ['a tag of another version', tarballs, 'v9.9.9', `expected the tag v${version}`],
  ['a missing package', tarballs.slice(1), `v${version}`, `expected ds-native-${version}.tgz`],
  ['no package', [], `v${version}`, 'got nothing'],
])('a release with %s publishes nothing', (_, files, tag, reason) => {
  const { status, stderr, calls } = release(files, tag);
  expect(status).not.toBe(0);
  expect(stderr).toContain(reason);
  expect(calls).toEqual([]);
});
