#!/usr/bin/env node
// Measures the packages: bytes of the tarballs, time to install them into an empty folder, and time
// to import them in a new process. Usage: measure-package.mjs [--once] FOLDER [RESULT.json]. FOLDER
// has the tarballs of scripts/pack; npm must find them, as in scripts/test-tarball. --once repeats
// nothing.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const isOnce = process.argv.includes('--once');
const STARTS = isOnce ? 1 : 15;
const INSTALLS = isOnce ? 1 : 3;

const run = (command, args, cwd) => execFileSync(command, args, { cwd, encoding: 'utf8' });

/** Bytes of all files below. */
function bytesBelow(folder) {
  return readdirSync(folder, { withFileTypes: true }).reduce((sum, entry) => {
    const path = join(folder, entry.name);
    return sum + (entry.isDirectory() ? bytesBelow(path) : statSync(path).size);
  }, 0);
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const rounded = (values) => ({
  median: Math.round(median(values)),
  least: Math.round(Math.min(...values)),
  most: Math.round(Math.max(...values)),
});

/** Milliseconds of an installation from npm's cache. */
function installed(folder) {
  writeFileSync(join(folder, 'package.json'), '{ "name": "consumer", "private": true }\n');
  rmSync(join(folder, 'node_modules'), { recursive: true, force: true });
  rmSync(join(folder, 'package-lock.json'), { force: true });
  const start = performance.now();
  run('npm', ['install', '--no-fund', '--no-audit', '--prefer-offline', '@ds/native'], folder);
  return performance.now() - start;
}

/**
 * Milliseconds of a new process that runs a statement: clock time and processor time of the
 * statement, and clock time of the process. A busy machine changes processor time less.
 */
function started(folder, statement) {
  const program = `
    const [start, before] = [performance.now(), process.cpuUsage()];
    ${statement};
    const { user, system } = process.cpuUsage(before);
    console.log(JSON.stringify([performance.now() - start, (user + system) / 1000]));`;
  const start = performance.now();
  const text = run(process.execPath, ['--input-type=module', '-e', program], folder);
  const [clock, processor] = JSON.parse(text);
  return { clock, processor, process: performance.now() - start };
}

/** A require alone loads little, so it reads a class that every program uses. */
const STATEMENTS = {
  nothing_ms: '',
  import_ms: "await import('@ds/native')",
  require_ms:
    "(await import('node:module')).createRequire(process.cwd() + '/x.js')('@ds/native').Tensor",
};

/** Runs the statements in turn, so that other load on the machine affects all of them. */
function starts(folder) {
  const all = Array.from({ length: STARTS }, () =>
    Object.values(STATEMENTS).map((statement) => started(folder, statement)),
  );
  const kinds = ['clock', 'processor', 'process'];
  const of = (i) => kinds.map((kind) => [kind, rounded(all.map((row) => row[i][kind]))]);
  return Object.fromEntries(
    Object.keys(STATEMENTS).map((name, i) => [name, Object.fromEntries(of(i))]),
  );
}

function measure(packages, folder) {
  const installs = Array.from({ length: INSTALLS }, () => installed(folder));
  const modules = join(folder, 'node_modules');
  return {
    tarball_bytes: bytesBelow(packages),
    package_bytes: bytesBelow(join(modules, '@ds')),
    installed_bytes: bytesBelow(modules),
    install_ms: rounded(installs),
    ...starts(folder),
  };
}

const [given, result] = process.argv.slice(2).filter((word) => word !== '--once');
const work = mkdtempSync(join(tmpdir(), 'ds-package-'));
try {
  const [{ model }] = cpus();
  const host = { cpu: model.trim(), cores: cpus().length, node: process.versions.node };
  const commit = run('git', ['rev-parse', '--short', 'HEAD'], root).trim();
  const date = new Date().toISOString().slice(0, 10);
  const load = loadavg()[0];
  const report = { command: 'scripts/measure-package.mjs', commit, date, host, load };
  const text = `${JSON.stringify({ ...report, result: measure(resolve(given), work) }, null, 2)}\n`;
  if (result) writeFileSync(result, text);
  else process.stdout.write(text);
} finally {
  rmSync(work, { recursive: true });
}
