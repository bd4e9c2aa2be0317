// Runs the commands of a page in order, as a reader would type them, and compares the output that
// the page shows: node page.mjs PAGE [BLOCKS]. Default: all blocks.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [page, count = '1000'] = process.argv.slice(2);
const text = readFileSync(page, 'utf8');
/** Commands, outputs, and programs that begin with the name of their file. */
const isRead = ([, language, body]) =>
  ['', 'sh'].includes(language) || /^\/\/ \S+\.mjs$/m.test(body.split('\n')[0]);
const blocks = [...text.matchAll(/^```(\w*)\n(.*?)^```$/gms)]
  .filter(isRead)
  .slice(0, Number(count));

/** Numbers differ between runs and machines; the width of a progress bar follows its numbers. */
const masked = (line) =>
  line
    .trim()
    .replace(/=+/g, '=')
    .replace(/\d[\d,.:]*(e[+-]?\d+)?/g, '#');

/** A line of the page as a pattern: "..." stands for any text. */
const patternOf = (line) => {
  const parts = masked(line).split('...');
  return new RegExp(
    `^${parts.map((part) => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('.*')}$`,
  );
};

/** The masked lines of each stream of the last commands. A terminal shows both. */
let unread = [];
const keep = (...outputs) => {
  unread = outputs.map((output) => output.split('\n').map(masked));
};

/** Commands that end. The folder that they change to is that of the next block. */
function run(commands, folder) {
  const place = join(process.cwd(), 'place');
  const script = `set -e\n${commands}\npwd > '${place}'`;
  const options = { cwd: folder, encoding: 'utf8', timeout: 300_000 };
  const { status, stdout, stderr } = spawnSync('sh', ['-c', script], options);
  process.stdout.write(stdout);
  assert.equal(status, 0, `${commands}\n${stderr}`);
  keep(stdout, stderr);
  const next = readFileSync(place, 'utf8').trim();
  rmSync(place);
  return next;
}

/** A command that serves until a signal: its address answers, and the signal ends it. */
async function serve(command, folder, last) {
  const child = spawn('sh', ['-c', `exec ${command.trim()} --port 0`], {
    cwd: folder,
    detached: true,
  });
  const output = ['', ''];
  child.stdout.on('data', (data) => {
    output[0] += data;
  });
  child.stderr.on('data', (data) => {
    output[1] += data;
  });
  const ended = once(child, 'exit');
  const isReady = () =>
    output.some((one) => one.split('\n').some((line) => last.test(masked(line))));
  const deadline = Date.now() + 60_000;
  while (!isReady() && child.exitCode === null && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.ok(isReady(), `${command}\n${output.join('')}`);
  const [address] = /http:\S+[^\s:]/.exec(output.join(''));
  const response = await fetch(address);
  assert.ok(response.status < 500, `${address}: ${response.status}`);
  await response.text();
  process.kill(-child.pid, 'SIGINT'); // To the whole group, as Ctrl-C in a terminal.
  await ended;
  process.stdout.write(output[0]);
  keep(...output);
}

let folder = process.cwd();
for (const [i, [, language, body]] of blocks.entries()) {
  const lines = body.split('\n').filter((line) => line.trim() !== '' && line !== '...');
  if (language === 'js') {
    writeFileSync(join(folder, body.slice(3, body.indexOf('\n'))), body);
  } else if (language !== 'sh') {
    for (const line of lines) {
      const pattern = patternOf(line);
      const stream = unread.find((all) => all.some((one) => pattern.test(one)));
      assert.ok(stream, `the output has no line like: ${line}`);
      stream.splice(0, stream.findIndex((one) => pattern.test(one)) + 1);
    }
  } else if (/^npx ds (serve|watch) /.test(body)) {
    const shown = blocks[i + 1][2].trim().split('\n');
    await serve(body, folder, patternOf(shown.at(-1)));
  } else {
    folder = run(body.replace('npm install @ds/native', 'npm install --silent @ds/native'), folder);
  }
}
assert.ok(blocks.length > 1, `${page} has ${blocks.length} blocks`);
console.log(`${page}: the commands print what the page shows`);
