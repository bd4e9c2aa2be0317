// Runs the commands of a page in order, as a reader would type them, and compares the output that
// the page shows: node page.mjs PAGE TARBALL [BLOCKS]. Default: all blocks. `npm install
// @ds/native` installs the tarball.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';

const [page, tarball, count = '1000'] = process.argv.slice(2);
const text = readFileSync(page, 'utf8');
const blocks = [...text.matchAll(/^```(sh)?\n(.*?)^```$/gms)].slice(0, Number(count));

/** Numbers differ between runs and machines; the width of a progress bar follows its numbers. */
const masked = (line) =>
  line
    .trim()
    .replace(/=+/g, '=')
    .replace(/\d[\d,.:]*(e[+-]?\d+)?/g, '#');

let folder = process.cwd();
let unread = [];
for (const [, language, body] of blocks) {
  if (language === 'sh') {
    const commands = body.replaceAll('npm install @ds/native', `npm install --silent ${tarball}`);
    const place = join(process.cwd(), 'place');
    const script = `set -e\n${commands}\npwd > '${place}'`;
    const options = { cwd: folder, encoding: 'utf8', timeout: 300_000 };
    const { status, stdout, stderr } = spawnSync('sh', ['-c', script], options);
    process.stdout.write(stdout);
    assert.equal(status, 0, `${commands}\n${stderr}`);
    folder = readFileSync(place, 'utf8').trim();
    rmSync(place);
    // A terminal shows both streams; the order between them is not compared.
    unread = [stdout, stderr].map((output) => output.split('\n').map(masked));
  } else {
    for (const line of body.split('\n').map(masked)) {
      if (line === '' || line === '...') continue;
      const stream = unread.find((lines) => lines.includes(line));
      assert.ok(stream, `the output has no line like: ${line}`);
      stream.splice(0, stream.indexOf(line) + 1);
    }
  }
}
assert.ok(blocks.length > 1, `${page} has ${blocks.length} blocks`);
console.log(`${page}: the commands print what the page shows`);
