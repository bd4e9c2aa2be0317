// Prompts that would take the server's time or memory: each is refused, and others are answered.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { packageRoot } from '../../lib/runtime/package-root.js';
import { Tokenizer } from '../../lib/text/index.js';
import { ask, open, until, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const EXAMPLE = join(packageRoot(), 'examples', 'tokenizer');
const folder = mkdtempSync(join(tmpdir(), 'ds-prompts-'));
afterAll(() => rmSync(folder, { recursive: true }));

const CHAT = '/v1/chat/completions';
const good = { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 1 };

/** The example's tokenizer with many slow patterns, just within the bound of a search. */
function slowTokenizer(): Tokenizer {
  const slow = join(folder, 'slow');
  cpSync(EXAMPLE, slow, { recursive: true });
  const file = join(slow, 'tokenizer.json');
  const saved = JSON.parse(readFileSync(file, 'utf8'));
  const step = { type: 'Replace', pattern: { Regex: 'x*y|x' }, content: 'x' };
  saved.normalizer = { type: 'Sequence', normalizers: Array(500).fill(step) };
  writeFileSync(file, JSON.stringify(saved));
  return Tokenizer.fromPretrained(slow);
}

test('a slow tokenizer is stopped, and the event loop continues', () =>
  withServer(
    async (url) => {
      const slow = ask(`${url}/v1/completions`, { body: { prompt: 'x'.repeat(4000) } });
      expect((await ask(`${url}/health`)).status).toBe(200);
      const { status, json } = await slow;
      expect({ status, code: json.error.code }).toEqual({ status: 400, code: 'DS_LIMIT' });
      expect(json.error.message).toMatch(/expected at most 1 s and \d+ MiB/);
      const next = await ask(`${url}/v1/completions`, { body: { prompt: 'Hello', max_tokens: 1 } });
      expect(next.status).toBe(200);
    },
    { tokenizerThreads: 1, limits: { promptSeconds: 1 } },
    new FakeEngine(slowTokenizer()),
  ));

test('two long prompts do not delay the chat of another client', () =>
  withServer(
    async (url, _, server) => {
      const endless = { prompt: ' '.repeat(4e6) };
      const long = [1, 2].map(() => open(`${url}/tokenize`, { body: endless }));
      for (const clientRequest of long) clientRequest.on('error', () => {});
      await until(() => server.lives.size === 2);
      expect((await ask(url + CHAT, { body: good })).status).toBe(200);
      expect(server.lives.size).toBe(2);
      for (const clientRequest of long) clientRequest.destroy();
      await until(() => server.lives.size === 0);
    },
    { limits: { promptCharacters: 4e6, promptSeconds: 1000 } },
  ));

test('the reasoning of a message counts as its text does', () =>
  withServer(
    async (url) => {
      const answer = { role: 'assistant', content: 'x', reasoning_content: 'y'.repeat(150) };
      const messages = [{ role: 'user', content: 'Hi' }, answer, { role: 'user', content: 'z' }];
      const { status, json } = await ask(url + CHAT, { body: { ...good, messages } });
      expect({ status, param: json.error.param }).toEqual({ status: 400, param: 'messages' });
      expect(json.error.message).toMatch(/154/);
    },
    {
      chatTemplate: '{% for m in messages %}{{ m.content }}{% endfor %}',
      limits: { promptCharacters: 100 },
    },
  ));

test.each([
  ['a loop', '{% for i in range(1000000000) %}{% endfor %}'],
  [
    'a text that doubles',
    '{% set ns = namespace(t="a") %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}',
  ],
  [
    'nested loops',
    '{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}',
  ],
])('a chat template without an end is refused: %s', (_, chatTemplate) =>
  withServer(
    async (url) => {
      const { status, json } = await ask(url + CHAT, { body: good });
      expect({ status, code: json.error.code }).toEqual({
        status: 400,
        code: expect.stringMatching(/^DS_(DATA|LIMIT)$/),
      });
      expect((await ask(`${url}/health`)).status).toBe(200);
    },
    { chatTemplate, limits: { promptSeconds: 5 } },
  ),
);

test.each<[string, object, string]>([
  ['/tokenize', { prompt: 'a '.repeat(51) }, 'prompt'],
  ['/v1/completions', { prompt: 'a '.repeat(51) }, 'prompt'],
  ['/tokenize', { messages: [{ role: 'user', content: 'a '.repeat(51) }] }, 'messages'],
  ['/detokenize', { tokens: Array(101).fill(5) }, 'tokens'],
])('%s refuses what is longer than --max-prompt-chars: %j', (path, body, param) =>
  withServer(
    async (url) => {
      const { status, json } = await ask(url + path, { body });
      expect({ status, ...json.error }).toMatchObject({
        status: 400,
        param,
        code: 'context_length_exceeded',
        message: expect.stringMatching(/at most 100 characters, got 10[12]/),
      });
    },
    { limits: { promptCharacters: 100 } },
  ),
);

test('a conversation that is too long is refused by the fewest tokens that it may have', () =>
  withServer(
    async (url) => {
      const messages = [{ role: 'user', content: 'word '.repeat(5000) }];
      const { status, json } = await ask(url + CHAT, { body: { messages } });
      const [, fewest] = /at most 63 tokens, got at least (\d+)/.exec(json.error.message) ?? [];
      expect(status).toBe(400);
      expect(Number(fewest)).toBeGreaterThan(500);
    },
    {},
    new FakeEngine(tokenizer, 64),
  ));

test('a template that writes more than --max-prompt-chars is refused', () =>
  withServer(
    async (url) => {
      const { status, json } = await ask(url + CHAT, { body: good });
      expect({ status, ...json.error }).toMatchObject({
        status: 400,
        code: 'context_length_exceeded',
        message: expect.stringMatching(/^messages: expected at most 100 characters, got 495\./),
      });
    },
    {
      chatTemplate:
        '{% for m in messages %}{% for i in range(99) %}{{ m.content }}{% endfor %}{% endfor %}',
      limits: { promptCharacters: 100 },
    },
  ));

test.each([
  [64, 65_536],
  [8192, 131_072],
])('a context of %i tokens takes texts of %i characters', (context, limit) =>
  withServer(
    async (url) => {
      const body = { prompt: 'a'.repeat(limit + 1) };
      const { status, json } = await ask(`${url}/tokenize`, { body });
      expect([status, json.error.message]).toEqual([
        400,
        expect.stringContaining(`at most ${limit} characters, got ${limit + 1}`),
      ]);
    },
    {},
    new FakeEngine(tokenizer, context),
  ),
);
