// Tests the page of `ds serve --ui` in a headless browser: streams, stops, tools, formats, keys,
// errors.
//
//   node scripts/browse-chat.mjs [FOLDER]   FOLDER receives screenshots
//
// Needs dist/ (npm run build:ts) and Chromium or Chrome; CHROME names another program. No request
// leaves this machine. The answers come from a script in place of a model.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { browserProgram } from './browser-program.mjs';

const require = createRequire(import.meta.url);
const { serve } = require('../dist/serve/index.js');
const { Tokenizer } = require('../dist/text/index.js');
const { DsError } = require('../dist/errors.js');

const [shots] = process.argv.slice(2);
const PHONE = { width: 390, height: 844 };
const SCREEN = { width: 1280, height: 800 };
const HOSTILE = '<img src=x onerror="window.hacked=1"><b>bold</b> <script>window.hacked=2</script>';
const CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "<b>UTC</b>"}}\n</tool_call>';
const KEY = 'secret-key';
const TEMPLATE = `{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %} <tool_call>{"name": .., "arguments": ..}</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>{% endif %}{% endif %}`;

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const tokenizer = Tokenizer.fromPretrained(path.join(root, 'examples/tokenizer'));
const seen = [];
const done = (text) => {
  seen.push(text);
  console.log(`  ${text}`);
};

/** Answers with the text that a check has set, one token at a time. */
class ScriptedEngine {
  constructor(maxTokens = 4096) {
    this.tokenizer = tokenizer;
    this.maxTokens = maxTokens;
    this.module = { vocabSize: 1007, describe: () => ({}) };
    this.requests = [];
    this.text = 'Hello';
    this.pace = 1;
    this.error = null;
    this.active = 0;
  }

  get prompt() {
    return tokenizer.decode(this.requests.at(-1)?.prompt ?? []);
  }

  async *stream(request) {
    this.requests.push(request);
    this.active++;
    request.onStart?.();
    try {
      if (this.error) throw this.error;
      const decode = tokenizer.decodeStream();
      const tokens = [...tokenizer.encode(this.text, { addSpecialTokens: false })];
      for (const [i, token] of tokens.entries()) {
        await delay(this.pace);
        if (request.signal?.aborted) return;
        if (this.failAt === i) throw new Error('the scripted failure');
        const isLast = i === Math.min(tokens.length, request.maxNewTokens) - 1;
        const reason = i === tokens.length - 1 ? 'stop' : 'length';
        const text = decode.push(token) + (isLast ? decode.end() : '');
        yield { index: 0, text, tokens: [token], finishReason: isLast ? reason : null };
        if (isLast) return;
      }
    } finally {
      this.active--;
    }
  }

  stats() {
    const counts = ['running', 'waiting', 'blocksUsed', 'prefixQueries', 'prefixHits'];
    const totals = ['promptTokens', 'generatedTokens', 'preemptions', 'proposedTokens'];
    const all = [...counts, ...totals, 'acceptedTokens'].map((name) => [name, 0]);
    return { ...Object.fromEntries(all), blocks: 1 };
  }
}

const start = (engine, options = {}) =>
  serve(engine, {
    ui: true,
    port: 0,
    model: 'scripted',
    chatTemplate: TEMPLATE,
    report: () => {},
    ...options,
  });

/** Opens a page; fails at errors of scripts, at refused content, and at external requests. */
async function open(browser, server, options = {}) {
  const context = await browser.newContext({ viewport: SCREEN, ...options });
  const page = await context.newPage();
  const { url } = server; // A stopped server has no address.
  page.on('pageerror', (error) => assert.fail(`script: ${error.message}`));
  page.on('console', (message) => {
    assert.doesNotMatch(message.text(), /Content Security Policy|TrustedHTML/);
  });
  page.on('request', (request) => {
    const isOwn = request.url().startsWith(`${url}/`) || request.url().startsWith('data:');
    assert.ok(isOwn, `expected no external request, got ${request.url()}`);
  });
  await page.goto(server.url);
  return page;
}

const until = (page, body, value) => page.waitForFunction(body, value, { timeout: 15_000 });
const last = (page) => page.locator('.message').last();
const idle = (page) => page.locator('#stop:disabled').waitFor();

async function say(page, text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}

async function checkChat(page, engine) {
  await until(page, () => document.querySelector('#model').value === 'scripted');
  engine.text = `Plain words. ${HOSTILE}`;
  await say(page, `A question ${HOSTILE}`);
  await idle(page);
  await until(page, () => document.querySelectorAll('.message').length === 2);
  const text = await last(page).locator('.text').textContent();
  assert.equal(text, engine.text);
  assert.match(await page.locator('#rate').textContent(), /^\d+ tokens, [\d.]+ tokens\/s, first/);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('main b, main img, main script').count(), 0);
  done('answer: streamed, counted, and markup stays text');
  assert.ok(engine.prompt.includes('A question'), engine.prompt);
  await page.fill('#prompt', 'two');
  await page.press('#prompt', 'Shift+Enter');
  assert.equal(await page.inputValue('#prompt'), 'two\n');
  await page.fill('#prompt', '');
  done('keys: Enter sends, Shift and Enter starts a line');
}

async function checkStop(page, engine) {
  engine.text = 'a long answer '.repeat(200);
  engine.pace = 5;
  await say(page, 'Write much.');
  await until(page, () => document.querySelectorAll('.message').length === 4);
  await until(page, () => /tokens\/s/.test(document.querySelector('#rate').textContent));
  const box = await page.locator('#messages').evaluate((one) => one.getAttribute('aria-busy'));
  assert.equal(box, 'true');
  await page.click('#stop');
  await idle(page);
  assert.match(await last(page).locator('.about').textContent(), /stopped$/);
  while (engine.active > 0) await delay(5);
  engine.pace = 1;
  done('stop: ends the request in the engine and keeps the text so far');
  engine.text = 'Another one.';
  await last(page).getByRole('button', { name: 'Again' }).click();
  await until(page, () =>
    /Another one\.$/.test(document.querySelector('.message:last-child .text').textContent),
  );
  await idle(page);
  done('again: a new answer replaces the last one');
}

async function checkSettings(page, engine) {
  await page.click('#settings summary');
  await page.fill('#system', 'You are terse.');
  await page.fill('#temperature', '0.3');
  await page.fill('#max_tokens', '3');
  await page.fill('#seed', '7');
  engine.text = 'one two three four five six';
  await say(page, 'Count.');
  await until(page, () => document.querySelectorAll('.message').length === 6);
  await idle(page);
  const { temperature, maxNewTokens, seed } = engine.requests.at(-1);
  assert.deepEqual(
    { temperature, maxNewTokens, seed },
    { temperature: 0.3, maxNewTokens: 3, seed: 7 },
  );
  assert.ok(engine.prompt.includes('You are terse.'));
  assert.match(await last(page).locator('.about').textContent(), /cut at the most tokens/);
  await page.fill('#max_tokens', '');
  done('settings: system prompt and sampling reach the engine');
  const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
  await page.fill('#schema', '{"type": ');
  assert.match(await page.locator('#schema-error').textContent(), /expected JSON/);
  await page.fill('#schema', JSON.stringify(schema));
  engine.text = '{"city": "Rome"}';
  await say(page, 'A city.');
  await until(page, () => document.querySelectorAll('.message').length === 8);
  await idle(page);
  assert.deepEqual(engine.requests.at(-1).format['~answer'].format, { schema });
  await page.fill('#schema', '');
  done('format: the schema of the answer reaches the engine; bad JSON is named');
}

async function checkTools(page, engine) {
  await page.fill(
    '#tools',
    '[{"type": "function", "function": {"name": "now", "parameters": {}}}]',
  );
  engine.text = CALL;
  await say(page, 'What time is it?');
  await idle(page);
  const call = last(page).locator('.call');
  await call.locator('textarea').waitFor();
  assert.match(await call.locator('pre').textContent(), /<b>UTC<\/b>/);
  engine.text = 'It is noon.';
  await call.locator('textarea').fill('12:00');
  await last(page).getByRole('button', { name: 'Send results' }).click();
  await until(page, () =>
    /noon/.test(document.querySelector('.message:last-child .text').textContent),
  );
  await idle(page);
  assert.match(engine.prompt, /tool\n12:00/);
  await page.fill('#tools', '');
  done('tools: a call is shown, and its result continues the conversation');
  engine.text = '<think>hidden thoughts</think>Shown.';
  await say(page, 'Think.');
  await until(page, () => /Shown/.test(document.querySelector('.message:last-child').textContent));
  await idle(page);
  assert.equal(await last(page).locator('.reasoning .text').textContent(), 'hidden thoughts');
  done('reasoning: apart from the answer');
}

async function checkErrors(page, engine) {
  const failure = page.locator('#failure');
  engine.error = new DsError({
    code: 'DS_LIMIT',
    op: 'engine',
    expected: 'a shorter prompt',
    got: `${HOSTILE}`,
  });
  await say(page, 'Fail.');
  await until(page, () => document.querySelector('#failure').textContent !== '');
  assert.match(await failure.textContent(), /expected a shorter prompt, got <img/);
  await idle(page);
  engine.error = null;
  await last(page).getByRole('button', { name: 'Again' }).click();
  await until(page, () => document.querySelector('#failure').textContent === '');
  await idle(page);
  engine.text = 'some words before the failure of the engine';
  engine.failAt = 5;
  await say(page, 'Fail later.');
  await until(page, () => document.querySelector('#failure').textContent !== '');
  await idle(page);
  assert.match(await last(page).locator('.about').textContent(), /failed$/);
  engine.failAt = undefined;
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  done('errors: of a request, within a stream, and tried again');
}

async function checkConversations(page) {
  const before = await page.locator('.message').count();
  await page.click('#new');
  assert.equal(await page.locator('.message').count(), 0);
  assert.equal(await page.inputValue('#system'), 'You are terse.');
  await say(page, 'Second conversation');
  await idle(page);
  await until(page, () => document.querySelectorAll('.message').length === 2);
  await page.reload();
  await until(page, () => document.querySelectorAll('#talks li').length === 2);
  assert.equal(await page.locator('.message').count(), 2);
  await page.locator('#talks .title').nth(1).click();
  assert.equal(await page.locator('.message').count(), before);
  await page.locator('#talks button[aria-label^=Delete]').nth(1).click();
  assert.equal(await page.locator('#talks li').count(), 1);
  await page.evaluate(() => localStorage.setItem('ds-serve-talk:x', '{"id": 1}'));
  await page.reload();
  assert.equal(await page.locator('#talks li').count(), 1);
  done('conversations: kept, selected, deleted; foreign entries are skipped');
}

async function checkEdit(page) {
  await page.locator('.message.user').first().getByRole('button', { name: 'Edit' }).click();
  assert.equal(await page.inputValue('#prompt'), 'Second conversation');
  assert.equal(await page.locator('.message').count(), 0);
  await page.fill('#prompt', '');
  done('edit: a message returns to the field, and what followed is gone');
}

async function checkWidths(page) {
  for (const size of [{ width: 320, height: 640 }, PHONE, SCREEN]) {
    await page.setViewportSize(size);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= size.width, `expected ${size.width} pixels, got ${width}`);
  }
  done('width: 320, 390 and 1280 pixels without a horizontal bar');
}

async function shoot(page, name) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  for (const [size, colorScheme] of [
    [SCREEN, 'light'],
    [SCREEN, 'dark'],
    [PHONE, 'light'],
  ]) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: path.join(shots, `${name}-${size.width}-${colorScheme}.png`) });
  }
  await page.setViewportSize(SCREEN);
  await page.emulateMedia({ colorScheme: 'light' });
}

async function checkKey(browser) {
  const server = await start(new ScriptedEngine(), { apiKeys: [KEY] });
  try {
    const page = await open(browser, server);
    await page.locator('#key-dialog[open]').waitFor();
    await page.fill('#key', 'wrong');
    await page.press('#key', 'Enter');
    await until(page, () => /another one/.test(document.querySelector('#key-error').textContent));
    await page.fill('#key', KEY);
    await page.press('#key', 'Enter');
    await page.locator('#connection.connected').waitFor();
    await say(page, 'With a key.');
    await until(page, () => document.querySelectorAll('.message').length === 2);
    await idle(page);
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, location.href]));
    assert.ok(!kept.includes(KEY), 'the key is in sessionStorage only');
    await page.reload();
    await page.locator('#connection.connected').waitFor();
    done('key: asked for, kept in the tab only');
    await page.context().close();
  } finally {
    await server.kill();
  }
}

async function checkLoading(browser) {
  let loaded;
  const server = await start(
    new Promise((resolve) => {
      loaded = resolve;
    }),
  );
  const page = await open(browser, server);
  await until(page, () => /loading/.test(document.querySelector('#connection').textContent));
  loaded(new ScriptedEngine());
  await page.locator('#connection.connected').waitFor();
  await server.kill();
  await say(page, 'Anyone?');
  await until(page, () => /No server answers/.test(document.querySelector('#failure').textContent));
  done('states: loading, ready, no server');
  await page.context().close();
}

const engine = new ScriptedEngine();
const server = await start(engine);
const browser = await chromium.launch({
  executablePath: browserProgram(),
  args: ['--no-sandbox', '--disable-gpu'],
});
try {
  const page = await open(browser, server);
  await checkChat(page, engine);
  await checkStop(page, engine);
  await checkSettings(page, engine);
  await checkTools(page, engine);
  await shoot(page, 'chat');
  await checkErrors(page, engine);
  await checkConversations(page);
  await checkEdit(page);
  await checkWidths(page);
  await checkKey(browser);
  await checkLoading(browser);
  console.log(`browse-chat: ${seen.length} checks passed`);
} finally {
  await browser.close();
  await server.kill();
}
