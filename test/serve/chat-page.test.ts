// The page of `ds serve --ui` over HTTP: its files, its policy and its key.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { serve } from '../../lib/serve/index.js';
import { ask, withServer } from './client.js';

const FOLDER = join(packageRoot(), 'lib/serve/page');
const ui = { ui: true };

test('without the option, no page is served', () =>
  withServer(async (url) => {
    for (const path of ['/', '/ui/app.js']) expect((await ask(url + path)).status).toBe(404);
  }));

test('every file of the folder is served, and nothing else', () =>
  withServer(async (url) => {
    for (const name of readdirSync(FOLDER)) {
      const path = name === 'index.html' ? '/' : `/ui/${name}`;
      const { status, text, headers } = await ask(url + path);
      expect({ status, text }).toEqual({
        status: 200,
        text: readFileSync(join(FOLDER, name), 'utf8'),
      });
      expect(headers['content-type']).toMatch(/^text\/(html|css|javascript); charset=utf-8$/);
    }
    for (const path of ['/ui', '/ui/', '/ui/../app.js', '/ui/index.html', '/ui/%2e%2e/send.js']) {
      expect((await ask(url + path)).status).toBe(404);
    }
    const head = await ask(`${url}/`, { method: 'HEAD' });
    expect(head).toMatchObject({ status: 200, text: '' });
    expect((await ask(`${url}/?a=1`)).status).toBe(200);
    expect((await ask(`${url}/`, { body: {} })).status).toBe(405);
  }, ui));

test('the policy forbids inline scripts, other hosts, frames and markup from texts', () =>
  withServer(async (url) => {
    const { headers, text } = await ask(`${url}/`);
    const policy = String(headers['content-security-policy']);
    const directives = Object.fromEntries(policy.split('; ').map((text) => text.split(/ (.*)/)));
    expect(directives).toMatchObject({
      'default-src': "'none'",
      'script-src': "'self'",
      'style-src': "'self'",
      'connect-src': "'self'",
      'form-action': "'none'",
      'frame-ancestors': "'none'",
      'require-trusted-types-for': "'script'",
    });
    expect(headers).toMatchObject({
      'x-content-type-options': 'nosniff',
      'x-frame-options': 'DENY',
      'referrer-policy': 'no-referrer',
      'cache-control': 'no-store',
    });
    expect(text).not.toMatch(/ on\w+=|<style|style=|https?:\/\//);
  }, ui));

test('scripts name no other host and insert no markup', () => {
  for (const name of readdirSync(FOLDER)) {
    const text = readFileSync(join(FOLDER, name), 'utf8');
    expect(text).not.toMatch(/innerHTML|outerHTML|insertAdjacentHTML|document\.write|https?:\/\//);
  }
});

test('with a key, the page needs none but the API does', () =>
  withServer(
    async (url) => {
      expect((await ask(`${url}/`)).status).toBe(200);
      expect((await ask(`${url}/v1/models`)).status).toBe(401);
    },
    { ...ui, apiKeys: ['one'] },
  ));

test('a local server without a key serves the page only to local host names', () =>
  withServer(async (url) => {
    const foreign = await ask(`${url}/`, { headers: { host: 'attacker.example' } });
    expect(foreign.status).toBe(403);
  }, ui));

test('the page is served while the model loads', async () => {
  const server = await serve(new Promise<never>(() => {}), { ui: true, port: 0 });
  expect((await ask(`${server.url}/`)).status).toBe(200);
  await server.kill();
});

test('the option is a flag', async () => {
  const made = serve(new Promise<never>(() => {}), { port: 0, ui: 'yes' as never });
  await expect(made).rejects.toMatchObject({ code: 'DS_ARGUMENT', op: 'serve ui' });
});
