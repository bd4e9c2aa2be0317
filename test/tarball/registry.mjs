// Serves tarballs as a registry on the loopback, so that npm selects packages by os, cpu and libc
// as it does after a release: node registry.mjs NPMRC FOLDER... Writes the line of the scope into
// NPMRC. Ends when its standard input ends.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { basename, join } from 'node:path';

const [npmrc, ...folders] = process.argv.slice(2);
const tarballs = new Map();
const paths = folders.flatMap((folder) => readdirSync(folder).map((name) => join(folder, name)));
for (const path of paths.filter((name) => name.endsWith('.tgz'))) {
  const text = execFileSync('tar', ['xzOf', path, 'package/package.json'], { encoding: 'utf8' });
  const manifest = JSON.parse(text);
  const bytes = readFileSync(path);
  const integrity = `sha512-${createHash('sha512').update(bytes).digest('base64')}`;
  tarballs.set(manifest.name, { manifest, bytes, integrity, file: basename(path) });
}

const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, 'http://x').pathname).slice(1);
  const [name, file] = path.split('/-/');
  const found = tarballs.get(name);
  if (!found) {
    response.writeHead(404).end('{}');
  } else if (file) {
    response.writeHead(200, { 'content-type': 'application/octet-stream' }).end(found.bytes);
  } else {
    const { manifest, integrity } = found;
    const tarball = `http://${request.headers.host}/${name}/-/${found.file}`;
    const versions = { [manifest.version]: { ...manifest, dist: { tarball, integrity } } };
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ name, 'dist-tags': { latest: manifest.version }, versions }));
  }
});
server.listen(0, '127.0.0.1', () => {
  writeFileSync(npmrc, `@ds:registry=http://127.0.0.1:${server.address().port}/\n`);
});
process.stdin.resume();
process.stdin.on('end', () => process.exit());
