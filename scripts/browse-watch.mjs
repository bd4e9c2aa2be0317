// Tests the watch page in a headless browser: live updates, zoom, keys, themes, exports, restarts.
//
//   node scripts/browse-watch.mjs [FOLDER]   FOLDER receives screenshots
//
// Needs dist/ (npm run build:ts) and Chromium or Chrome; CHROME names another program. No request
// leaves this machine.
import assert from 'node:assert/strict';
import { createWriteStream, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { browserProgram } from './browser-program.mjs';

const require = createRequire(import.meta.url);
const { EventLog } = require('../dist/watch/event-log.js');
const { WatchServer } = require('../dist/watch/server.js');

const [shots] = process.argv.slice(2);
const PHONE = { width: 390, height: 844 };
const SCREEN = { width: 1280, height: 800 };
const HOSTILE = '<img src=x onerror="window.hacked=1"><b>bold</b> \u202e';
const MILLION = 1_000_000;

const dir = mkdtempSync(path.join(tmpdir(), 'ds-browse-'));
const seen = [];
const done = (text) => {
  seen.push(text);
  console.log(`  ${text}`);
};

/** Writes the events of a step of a run that looks like a real one. */
function writeStep(log, step, lr) {
  const noise = Math.sin(step * 12.9898) * 43758.5453;
  const random = noise - Math.floor(noise) - 0.5;
  const loss = 2 + 8 * Math.exp((-step * lr) / 0.02) + random * 0.3;
  const scale = 65_536 / 2 ** Math.floor(step / 150);
  const row = (track, values) => log.write({ e: 'row', track, step, values });
  row('train', {
    loss,
    lr: lr * Math.min(1, step / 40),
    grad_norm: 1 + 2 * Math.exp(-step / 50) + random,
    skipped: Math.floor(step / 150),
    loss_scale: scale,
    step_ms: 210 + 20 * random,
    samples_per_second: 300 + 20 * random,
  });
  row('phases', { forward: 60 + random, backward: 120 + 5 * random, reduce: 12, step: 18 });
  if (step % 10 !== 0) return;
  row('speed', { tokens_per_second: 310_000 + 9000 * random, mfu: 0.42, tokens: step * 65_536 });
  row('memory', {
    device_weights: 16e9,
    device_gradients: 16e9,
    device_optimizer: 8e9,
    device_other: 11e9 + 2e9 * random,
    device_peak: 58e9,
    host_pinned: 4e9,
    host_resident: 9e9 + step * 1e6,
    disk: 0,
  });
  const busy = [198, 201, 199, 240, 200, 197, 203, 199].map((one) => one + 3 * random);
  log.write({ e: 'ranks', step, busy });
  log.write({ e: 'log', line: `step ${step}: loss ${loss.toFixed(4)} ${HOSTILE}` });
  if (step % 50 !== 0) return;
  row('eval', { loss: loss + 0.2, accuracy: step / 1000 });
  log.write({ e: 'text', step, prompt: 'Once upon a time', text: `of ${step} steps ${HOSTILE}` });
}

function writeRun(name, lr, steps) {
  const log = new EventLog(path.join(dir, name));
  const config = { gradient_clipping: 1, optimizer: { type: 'AdamW', params: { lr } } };
  const about = { model: `Llama ${HOSTILE}`, device: 'cuda:0', ranks: 8 };
  log.write({ e: 'start', name, about, config, pid: process.pid, host: 'here' });
  log.write({ e: 'length', steps: 1000 });
  for (let step = 1; step <= steps; step++) writeStep(log, step, lr);
  log.write({ e: 'notice', level: 'warning', step: 150, message: `Update 150 skipped ${HOSTILE}` });
  return log;
}

/** Writes a run of a million rows. */
async function writeLongRun() {
  const folder = path.join(dir, 'long/watch');
  mkdirSync(folder, { recursive: true });
  const file = createWriteStream(path.join(folder, 'events.jsonl'));
  for (let step = 1; step <= MILLION; ) {
    let text = '';
    for (const end = step + 10_000; step < end; step++) {
      const loss = (3 + Math.sin(step / 1e5) + Math.sin(step * 7.1) / 4).toFixed(4);
      text += `{"e":"row","track":"train","step":${step},"values":{"loss":${loss}},"time":${1.7e12 + step}}\n`;
    }
    if (!file.write(text)) await new Promise((resolve) => file.once('drain', resolve));
  }
  await new Promise((resolve) => file.end(resolve));
}

const start = (names, port = 0) =>
  WatchServer.start({ dirs: names.map((name) => path.join(dir, name)), port });

/** Opens a page; fails at errors of scripts and at requests to another origin. */
async function open(browser, server, options = {}) {
  const context = await browser.newContext({ viewport: SCREEN, acceptDownloads: true, ...options });
  const page = await context.newPage();
  const { origin } = new URL(server.url);
  page.on('pageerror', (error) => assert.fail(`script: ${error.message}`));
  page.on('request', (request) => {
    const url = request.url();
    const isOwn =
      url.startsWith(`${origin}/`) || url.startsWith('blob:') || url.startsWith('data:');
    assert.ok(isOwn, `expected no external request, got ${url}`);
  });
  await page.goto(server.url);
  await page.locator('[data-chart=loss] canvas').waitFor();
  return page;
}

const legend = (page, id = 'loss') => page.locator(`[data-chart=${id}] .legend`).textContent();
const plot = (page, id = 'loss') => page.locator(`[data-chart=${id}] .u-over`);
const range = (page, id = 'loss') =>
  page.evaluate(async (id) => {
    const { state } = await import('/state.js');
    return id && state.range;
  }, id);
const until = (page, body, value) => page.waitForFunction(body, value, { timeout: 15_000 });

async function checkLive(page, log) {
  await until(page, () => document.querySelector('#tiles').textContent.includes('400 / 1,000'));
  assert.equal(new URL(page.url()).hash, '', 'the token leaves the address');
  for (let step = 401; step <= 420; step++) writeStep(log, step, 1e-3);
  await log.flush();
  await until(page, () => document.querySelector('#tiles').textContent.includes('420 / 1,000'));
  done('live: 20 new steps appear without a reload');
}

async function checkMouse(page) {
  const box = await plot(page).boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 60);
  assert.match(await legend(page), /step \d+/);
  assert.match(await legend(page, 'grad_norm'), /step \d+/, 'all charts share the cursor');
  done('hover: values of all charts at one step');
  await page.mouse.move(box.x + 60, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + 200, box.y + 60, { steps: 5 });
  await page.mouse.up();
  const zoomed = await range(page);
  assert.ok(zoomed && zoomed[1] - zoomed[0] < 300, `zoomed range, got ${zoomed}`);
  done('zoom: a dragged range for all charts');
  await plot(page).dblclick();
  assert.equal(await range(page), null);
  done('double click: everything again');
}

async function checkKeys(page) {
  await page.locator('[data-chart=loss] .plot').focus();
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('ArrowLeft');
  assert.match(await page.locator('#reading').textContent(), /^Loss: step \d+/);
  await page.keyboard.press('+');
  const [from, to] = await range(page);
  await page.keyboard.press('Shift+ArrowLeft');
  const [moved] = await range(page);
  assert.ok(moved < from && to > from);
  await page.keyboard.press('0');
  assert.equal(await range(page), null);
  for (const name of ['in', 'out', 'left', 'right', 'all']) await page.click(`[data-zoom=${name}]`);
  await page.keyboard.press('Tab');
  done('keyboard: arrows read points, plus zooms, shift moves, 0 resets; buttons too');
}

async function checkSettings(page) {
  await page.check('input[value=time]');
  await until(page, () => document.querySelector('[data-chart=loss] .plot').ariaLabel !== null);
  await plot(page).hover();
  assert.match(await legend(page), /time [\d.]+ (s|min)/);
  await page.check('input[value=step]');
  await page.fill('#smoothing', '0.9');
  await page.check('#log');
  assert.equal(await page.locator('#smoothing-value').textContent(), '0.9');
  await page.uncheck('#log');
  done('settings: time axis, smoothing, logarithmic loss');
}

async function checkPanels(page) {
  assert.match(await page.locator('#ranks li span').first().textContent(), /^rank 3$/);
  assert.match(await page.locator('#texts').textContent(), /of 400 steps <img src=x/);
  await page.fill('#text-step', '0');
  assert.match(await page.locator('#texts').textContent(), /of 50 steps/);
  assert.match(await page.locator('#notices').textContent(), /warning Update 150 skipped <img/);
  assert.match(await page.locator('#lines').textContent(), /step 400: loss/);
  await page.fill('#config-filter', 'optimizer.params');
  assert.equal(await page.locator('#config tbody tr').count(), 1);
  await page.fill('#config-filter', '');
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('main b', { hasText: 'bold' }).count(), 0);
  done('panels: slowest rank first, samples by step, notices, log, filter; markup stays text');
}

async function checkExports(page) {
  const saved = async (format) => {
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      page.click(`[data-chart=loss] button:text-is("${format}")`),
    ]);
    return readFileSync(await file.path());
  };
  const csv = (await saved('CSV')).toString();
  assert.match(csv, /^step,.*\r\n1,/);
  assert.ok(csv.split('\r\n').length > 400);
  const png = await saved('PNG');
  assert.equal(png.subarray(1, 4).toString(), 'PNG');
  assert.ok(png.length > 5000);
  done(`export: CSV of ${csv.length} bytes, PNG of ${png.length} bytes`);
}

async function checkThemes(page) {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const themed = (name) =>
    until(page, (one) => document.documentElement.dataset.theme === one, name);
  await page.emulateMedia({ colorScheme: 'dark' });
  await themed('dark');
  const dark = await background();
  await page.emulateMedia({ colorScheme: 'light' });
  await themed('light');
  assert.notEqual(dark, await background());
  await page.selectOption('#theme', 'dark');
  await themed('dark');
  assert.equal(await background(), dark);
  await page.selectOption('#theme', 'auto');
  done('theme: the system theme, and a switch');
}

async function checkWidths(page) {
  for (const size of [{ width: 320, height: 640 }, PHONE, SCREEN]) {
    await page.setViewportSize(size);
    await page.waitForTimeout(200);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= size.width, `expected ${size.width} pixels, got ${width}`);
  }
  done('width: 320, 390 and 1280 pixels without a horizontal bar');
}

async function checkOverlay(browser) {
  const server = await start(['one', 'two']);
  const page = await open(browser, server);
  await until(page, () => document.querySelectorAll('[data-chart=loss] .legend li').length > 3);
  const text = await legend(page);
  assert.ok(text.includes('one') && text.includes('two'), text);
  await page.check('#config-differ');
  assert.match(await page.locator('#config').textContent(), /optimizer.params.lr/);
  assert.equal(await page.getByText('gradient_clipping').count(), 0);
  done('overlay: two runs in each chart, and differences of their configurations');
  if (shots) await shoot(page, 'overlay');
  await page.context().close();
  await server.close();
}

async function checkRestart(page, server, log) {
  const { port } = new URL(server.url);
  await server.close();
  await page.locator('#connection.lost').waitFor();
  for (let step = 421; step <= 440; step++) writeStep(log, step, 1e-3);
  await log.flush();
  const again = await start(['one'], Number(port));
  await page.locator('#connection.connected').waitFor();
  await until(page, () => document.querySelector('#tiles').textContent.includes('440 / 1,000'));
  done('restart: the page shows the loss of the server, reconnects, and catches up');
  const stranger = await page.context().browser().newPage();
  await stranger.goto(new URL(again.url).origin);
  await stranger.getByText('this tab has no valid token').waitFor();
  await stranger.close();
  done('without the token the page shows no run');
  return again;
}

/** Milliseconds of redraws of a run of a million rows, from the zoom to exact points. */
async function measureLong(browser) {
  await writeLongRun();
  const server = await start(['long']);
  const began = performance.now();
  const page = await open(browser, server);
  await until(page, () => document.querySelector('#tiles').textContent.includes('1,000,000'));
  const read = performance.now() - began;
  await page.waitForTimeout(1500);
  const times = [];
  for (const name of ['in', 'in', 'in', 'left', 'out', 'all']) {
    await page.click(`[data-zoom=${name}]`);
    times.push(Number(await page.evaluate(() => document.body.dataset.drawMs)));
    await page.waitForTimeout(400);
    times.push(Number(await page.evaluate(() => document.body.dataset.drawMs)));
  }
  done(`a million rows: read in ${Math.round(read)} ms, redraws of ${times.join(', ')} ms`);
  await page.context().close();
  await server.close();
}

async function shoot(page, name) {
  mkdirSync(shots, { recursive: true });
  for (const [width, height] of [
    [390, 844],
    [1280, 800],
  ]) {
    for (const colorScheme of ['light', 'dark']) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(600);
      const file = path.join(shots, `${name}-${width}-${colorScheme}.png`);
      await page.screenshot({ path: file, fullPage: true });
    }
  }
  await page.setViewportSize(SCREEN);
  await page.emulateMedia({ colorScheme: 'light' });
}

const log = writeRun('one', 1e-3, 400);
writeRun('two', 5e-4, 400).close();
await log.flush();
let server = await start(['one']);
const browser = await chromium.launch({
  executablePath: browserProgram(),
  args: ['--no-sandbox', '--disable-gpu'],
});
try {
  const page = await open(browser, server);
  await checkLive(page, log);
  await checkMouse(page);
  await checkKeys(page);
  await checkSettings(page);
  await checkPanels(page);
  await checkExports(page);
  await checkThemes(page);
  await checkWidths(page);
  if (shots) await shoot(page, 'one');
  server = await checkRestart(page, server, log);
  await checkOverlay(browser);
  await measureLong(browser);
  console.log(`browse-watch: ${seen.length} checks passed`);
} finally {
  await browser.close();
  await server.close();
  log.close();
  rmSync(dir, { recursive: true });
}
